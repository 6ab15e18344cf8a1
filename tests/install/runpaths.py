# SPDX-License-Identifier: Apache-2.0
"""Where the loader looks for the libraries of the programs and libraries in a folder."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

PATHS = re.compile(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]")


def find_stray_runpaths(folder: Path, *trusted: Path) -> list[str]:
    """One line an entry that is neither relative to its own file nor a path inside `trusted`. The
    loader reads an empty entry as the current folder."""
    return [f"{path}: {entry!r}" for path in find_programs(folder) for entry in read_entries(path)
            if not entry.startswith("$ORIGIN") and not is_inside(entry, trusted)]


def find_programs(folder: Path) -> Iterator[Path]:
    """Programs and shared libraries; object files have no entries yet."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix not in (".o", ".a"):
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def read_entries(path: Path) -> list[str]:
    done = subprocess.run(["readelf", "-d", path], text=True, check=True, capture_output=True)
    return [entry for paths in PATHS.findall(done.stdout) for entry in paths.split(":")]


def is_inside(entry: str, folders: tuple[Path, ...]) -> bool:
    return entry.startswith("/") and any(Path(entry).is_relative_to(folder) for folder in folders)
