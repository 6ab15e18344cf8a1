#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the rules of the house: who may include or import whom. See docs/layout.md.

    check_rooms.py [root of the tree]

Prints one line a broken rule, with file, line and room, and answers 1 if there is any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import python_rooms

# Data flows from left to right: a room includes itself and what its set names, nothing else.
ROOMS: dict[str, set[str]] = {
    "base": set(),
    "program": {"base"},
    "plan": {"base", "program"},
    "offload": {"base"},
    "numbers": {"base"},
    "device": {"base", "program"},
    "record": {"base", "program", "plan", "device"},
    "launch": {"base", "program", "plan", "device", "record"},
    "trace": {"base", "program", "plan", "device", "record", "launch"},
}
DEVICES = ("host", "cuda", "sim")
# These two speak of the driver and not of programs: they include base and what is named here.
DRIVERS: dict[str, tuple[str, ...]] = {"cuda": ("anabranch/device.h",), "sim": ("device/cuda/",)}
# The simulated driver is in no library that ships: only these, and itself, include it.
SIMULATED = "device/sim/"
TESTS = ("_test", "_testing", "_bench", "_fuzz")

# The rooms within record. Each chain is in the order in which data flows: a room includes itself
# and those before it in its chain, and the two devices know nothing of each other.
HOST_CHAIN = ("record/host",)
CUDA_CHAIN = ("record/cuda/image", "record/cuda/sites", "record/cuda/rewrite", "record/cuda/order",
              "record/cuda/arena", "record/cuda/exec", "record/cuda", "record/cuda/plan")
# Of record's own files all rooms within it may include these, which include none of them, and what
# is for tests. Its other files are the front of them all.
RECORD_SHARED = ("region_table", "table_places", "transfer_loops")

# The room that each public header is the front of.
PUBLIC: dict[str, str] = {
    "export.h": "base",
    "trace_event.h": "base",
    "status.h": "base",
    "version.h": "base",
    "cuda_handles.h": "base",
    "codes.inc": "base",
    "program.h": "program",
    "plan.h": "plan",
    "device.h": "device",
    "experimental/offload.h": "offload",
    "experimental/number_program.h": "numbers",
    "experimental/tape.h": "device",
    "experimental/thread_control.h": "device",
    "record.h": "record",
    "capture.h": "record",
    "captured_recording.h": "record",
    "timed_recording.h": "record",
    "launch.h": "launch",
    "trace.h": "trace",
    "anabranch.h": "trace",
}

# Who stands outside the rooms and sees the front door only.
OUTSIDE = ("bridge", "tool", "examples")
SUFFIXES = {".h", ".inc", ".cpp", ".cu"}

CUDA = re.compile(r"(cuda|nvrtc|nvtx|cublas|cudnn|nccl)\w*([./]|$)")
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/|(Python|pybind11|nanobind)\b")
TOOL_ONLY = re.compile(r"(nlohmann|CLI)/")
TORCH_TARGET = re.compile(r"find_package\(\s*(torch|python3?)\b|\b(torch|Python3?)::",
                          re.IGNORECASE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def find_breaches(root: Path) -> list[str]:
    """One line a broken rule, in the order of the files."""
    return [*_check_folders(root), *_check_public(root), *_check_rooms(root),
            *_check_outside(root), *python_rooms.find_breaches(root)]


def _check_folders(root: Path) -> Iterator[str]:
    for entry in sorted((root / "src").iterdir()):
        if entry.name not in ROOMS or not entry.is_dir():
            yield f"src/{entry.name}: is no room; rooms are {', '.join(ROOMS)}"
    device = root / "src/device"
    for entry in sorted(device.iterdir()) if device.is_dir() else ():
        if entry.is_dir() and entry.name not in DEVICES:
            yield f"src/device/{entry.name}: is no device; devices are {', '.join(DEVICES)}"
    for header in sorted((root / "include/anabranch").rglob("*")):
        name = header.relative_to(root / "include/anabranch").as_posix()
        if header.is_file() and name not in PUBLIC:
            yield f"include/anabranch/{name}: is the front of no room"
    inner = ("record", *HOST_CHAIN, *CUDA_CHAIN)
    for entry in sorted((root / "src/record").rglob("*")):
        name = entry.relative_to(root / "src").as_posix()
        if entry.is_dir() and name not in inner:
            yield f"src/{name}: is no room within record; these are {', '.join(inner[1:])}"


def _check_public(root: Path) -> Iterator[str]:
    for path in _sources(root / "include"):
        room = PUBLIC.get(path.relative_to(root / "include/anabranch").as_posix())
        for where, quote, target in _includes(root, path):
            if quote == '"' and not target.startswith("anabranch/"):
                yield f"{where}: a public header includes {target}, which is not public"
            elif room and quote == '"':
                yield from _check_upstream(where, room, target)
            elif "/" in target or target.endswith(".h"):
                yield f"{where}: a public header includes <{target}>, which is not standard C++"


def _check_rooms(root: Path) -> Iterator[str]:
    for path in _sources(root / "src"):
        parts = path.relative_to(root / "src").parts
        if parts[0] not in ROOMS:
            continue
        for where, quote, target in _includes(root, path):
            yield from _check_foreign(where, path, parts, target)
            if quote == '"' and not path.stem.endswith("_generated"):
                yield from _check_own(where, parts, target)
    for path in sorted((root / "src").rglob("CMakeLists.txt")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if TORCH_TARGET.search(line):
                yield f"{path.relative_to(root)}:{number}: torch and Python appear nowhere in src"


def _check_own(where: str, parts: tuple[str, ...], target: str) -> Iterator[str]:
    """A quoted include: of the house, and only of what is allowed to this room."""
    first, _, rest = target.partition("/")
    if parts[0] == "device":
        yield from _check_device(where, parts[1], target)
    elif first == "anabranch":
        yield from _check_upstream(where, parts[0], target)
    elif first not in ROOMS or not rest:
        yield f'{where}: "{target}" is written without its room: "room/file.h"'
    elif first != parts[0] and first not in ROOMS[parts[0]]:
        yield f"{where}: room {parts[0]} includes {target} of room {first}, which is not upstream"
    elif first == parts[0] == "record":
        yield from _check_within_record(where, parts, target)


def _check_within_record(where: str, parts: tuple[str, ...], target: str) -> Iterator[str]:
    """An include of record's by a file of record's: each by the folder it lies in."""
    own, other = "/".join(parts[:-1]), target.rpartition("/")[0]
    if own == "record":
        is_allowed = other == own or Path(parts[-1]).stem not in RECORD_SHARED
    elif other == "record":
        stem = Path(target).stem
        is_allowed = stem in RECORD_SHARED or stem.endswith(TESTS)
    else:
        chain = next((each for each in (HOST_CHAIN, CUDA_CHAIN) if own in each), (own,))
        is_allowed = other in chain[:chain.index(own) + 1]
    if not is_allowed:
        yield f"{where}: room {own} includes {target} of room {other}, which is not upstream"


def _check_device(where: str, device: str, target: str) -> Iterator[str]:
    """A device knows base, program, itself and every public header, so that it can serve them; a
    driver knows less."""
    first, _, rest = target.partition("/")
    if target.startswith(f"device/{device}/"):
        return
    if device in DRIVERS:
        yield from _check_driver(where, device, target)
        return
    if first == "anabranch" or first in ROOMS["device"]:
        return
    owner = f"of room {first}" if first in ROOMS and rest else "of no room"
    yield (f"{where}: device {device} includes {target} {owner}; "
           "it may include base, program and public headers")


def _check_driver(where: str, device: str, target: str) -> Iterator[str]:
    of_base = target.startswith("base/") or PUBLIC.get(target.removeprefix("anabranch/")) == "base"
    if not of_base and not target.startswith(DRIVERS[device]):
        allowed = " and ".join(("base", *DRIVERS[device]))
        yield f"{where}: device {device} includes {target}; it may include {allowed} only"


def _check_upstream(where: str, room: str, target: str) -> Iterator[str]:
    """A public header, included by a room or by another public header."""
    header = target.removeprefix("anabranch/")
    owner = PUBLIC.get(header)
    if owner is None:
        yield f"{where}: {target} is the front of no room"
    elif owner != room and owner not in ROOMS[room]:
        yield f"{where}: room {room} includes {target} of room {owner}, which is not upstream"


def _check_foreign(where: str, path: Path, parts: tuple[str, ...], target: str) -> Iterator[str]:
    if TORCH.match(target):
        yield f"{where}: room {parts[0]} includes {target}; torch and Python appear nowhere in src"
    if CUDA.match(target) and parts[:2] != ("device", "cuda"):
        yield f"{where}: room {parts[0]} includes {target}; only device/cuda knows CUDA"
    if (target.startswith(SIMULATED) and parts[0] != "device"
            and not path.stem.endswith(TESTS)):
        yield f"{where}: room {parts[0]} includes {target}; only tests and benchmarks know it"
    if TOOL_ONLY.match(target) and not path.stem.endswith("_test"):
        yield f"{where}: room {parts[0]} includes {target}; that library belongs to the tool"


def _check_outside(root: Path) -> Iterator[str]:
    for folder in OUTSIDE:
        for path in _sources(root / folder):
            for where, quote, target in _includes(root, path):
                if quote == "<" and not target.startswith("anabranch/"):
                    continue
                public = target.removeprefix("anabranch/")
                own = (path.parent / target).is_file() or (root / folder / target).is_file()
                if target.startswith("anabranch/") and public in PUBLIC:
                    continue
                if not own or ".." in target:
                    yield f"{where}: {folder} includes {target}, which is not public"


def _sources(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.suffix in SUFFIXES:
            yield path


def _includes(root: Path, path: Path) -> Iterator[tuple[str, str, str]]:
    """("src/plan/order.cpp:3", '"' or "<", what is included)."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := INCLUDE.match(line):
            yield f"{path.relative_to(root)}:{number}", found[1], found[2]


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    if not (root / "src").is_dir():
        print(f"check_rooms: {root} has no folder src", file=sys.stderr)
        return 2
    breaches = find_breaches(root)
    print("\n".join(breaches) if breaches else "rooms: every include and import is allowed")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
