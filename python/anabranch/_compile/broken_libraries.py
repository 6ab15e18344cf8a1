# SPDX-License-Identifier: Apache-2.0
"""Libraries in Inductor's cache that cannot be loaded, because whoever wrote them was killed.

Inductor's compiler writes a library under its last name. A process that ends meanwhile leaves an
empty one, or a part, and whatever needs that kernel fails from then on, in every process that has
the cache: the loader refuses what is empty, and the system ends a process that loads a part.

Threads: any; two that find one broken library both compile it anew. Failure: that of the call.
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from anabranch import _compat

log = logging.getLogger("anabranch.compile")
_Answer = TypeVar("_Answer")
_HEAD = 64  # bytes of a 64-bit ELF file's header
# What the loader says of a file that is no whole library, behind its path.
_SAYS = re.compile(r"(/[^:\n]+\.so): (?:file too short|invalid ELF header|cannot read file data|"
                   r"ELF load command past end of file|only ET_DYN and ET_EXEC can be loaded|"
                   r"ELF file's phentsize not the expected size)")


def without_broken_libraries(compile_: Callable[[], _Answer]) -> _Answer:
    """What it answers. Libraries of Inductor's cache that it cannot load are removed, and it is
    called again, as often as it finds another one."""
    removed: set[Path] = set()
    while True:
        try:
            return compile_()
        except Exception as error:
            broken = _broken_library(error)
            if broken is None or broken in removed:
                raise
            removed.add(broken)
            try:
                broken.unlink(missing_ok=True)
            except OSError:
                raise error from None
            log.warning("anabranch: %s was cut short, by a process that was killed while it "
                        "compiled, and "
                        "is compiled again", broken)


def check_is_whole(path: str) -> None:
    """OSError, in the loader's words, for a library that ends before its own table of sections,
    which linkers write last."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    if len(head) == _HEAD and head.startswith(b"\x7fELF\x02\x01"):
        (begin,) = struct.unpack_from("<Q", head, 40)
        size, count = struct.unpack_from("<HH", head, 58)
        if os.path.getsize(path) < begin + size * count:
            raise OSError(f"{path}: file too short")


_compat.check_libraries(check_is_whole)


def _broken_library(error: BaseException | None) -> Path | None:
    """The one that an error, or what caused it, names, if it lies in Inductor's cache."""
    while error is not None:
        said = _SAYS.search(str(error))
        cache = Path(_compat.inductors_cache()).resolve()
        if said and Path(said[1]).resolve().is_relative_to(cache):
            return Path(said[1])
        error = error.__cause__ or error.__context__
    return None
