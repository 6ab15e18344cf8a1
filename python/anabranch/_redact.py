# SPDX-License-Identifier: Apache-2.0
"""Takes what is private out of text that people paste into bug reports: the home folder, the names
of user and machine, and folders outside of this package and the system's own."""

from __future__ import annotations

import functools
import getpass
import re
import socket
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# Folders of the system: nobody chose their names. All else of a path goes, but for its end.
_SYSTEM = ("/usr/", "/lib", "/dev/", "/proc/", "/sys/", "/etc/", "/bin/", "/opt/", "/nix/")
_PATH = re.compile(r"(?<![\w.~>/-])(~?/)(?:[^/\s'\":;,()]+/)+(?=[^/\s'\":;,()])")
_COMMON = {"root", "user", "localhost", "linux"}


def redact(text: str) -> str:
    """The text as it may be shown to anybody: the package's own folder is written ``anabranch``,
    the home folder ``~``, folders of other paths ``...``, names ``<user>`` and ``<host>``."""
    for private, public in _folders():
        text = text.replace(private, public)
    text = _PATH.sub(_shortened, text)
    for name, public in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", public, text)
    return text


def _shortened(path: re.Match[str]) -> str:
    return path[0] if path[0].startswith(_SYSTEM) else f"{path[1]}.../"


@functools.cache
def _folders() -> list[tuple[str, str]]:
    """Longer ones first: one may lie in another. A home that is no folder of its own is none."""
    found = {str(_PACKAGE): "anabranch"}
    try:
        home = Path.home()
        found |= {str(folder): "~" for folder in (home, home.resolve()) if len(folder.parts) > 1}
    except (OSError, RuntimeError):
        pass
    return sorted(found.items(), key=lambda row: -len(row[0]))


@functools.cache
def _names() -> list[tuple[str, str]]:
    names = [*((name, "<user>") for name in _user()), *((name, "<host>") for name in _host())]
    return [row for row in names if len(row[0]) > 1 and row[0] not in _COMMON]


def _user() -> Iterator[str]:
    try:
        yield getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may have no name for its user
        return


def _host() -> Iterator[str]:
    name = socket.gethostname()
    yield name
    yield name.split(".")[0]
