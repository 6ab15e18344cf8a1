#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at the wheels of `make wheel`: what they need of a system, of Python's packages and of GPUs.
Installs the one for this machine where there is no compiler, and uses it; with torch lent, too.

    test_manylinux.py <wheel>...       run by a Python that has torch
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from runpaths import find_programs
from test_consumer import check, check_runpaths, run
from test_wheel import (
    BY_NAME,
    NO_TORCH,
    ROOT,
    add_torch,
    check_device_code,
    check_requirements,
    make_environment,
)

OLDEST_GLIBC = (2, 28)
# Of glibc; the loader has a name for each machine.
OF_THE_SYSTEM = re.compile(r"lib(c|m|dl|pthread|rt)\.so\.\d|ld-linux[\w-]*\.so\.\d")


def check_system(folder: Path, machine: str) -> None:
    """What a program or a library of the wheel asks of the system that runs it."""
    programs = list(find_programs(folder))
    check(len(programs) == 3, f"{folder} holds the programs {programs}")
    for path in programs:
        told = run("readelf", "-hdVW", path)
        wanted = {"x86_64": "X86-64", "aarch64": "AArch64"}[machine]
        check(f"{wanted}\n" in told, f"{path} is not for {machine}")
        newest = max((tuple(map(int, found.split("."))) for found in
                      re.findall(r"Name: GLIBC_([\d.]+)", told)), default=(0,))
        check(newest <= OLDEST_GLIBC, f"{path} needs glibc {newest}")
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", told)
        stray = [name for name in needed if not OF_THE_SYSTEM.fullmatch(name)]
        check(not stray, f"{path} needs {stray}")
        check(str(ROOT).encode() not in path.read_bytes(), f"{path} names {ROOT}")
    check_runpaths(folder)


def check_content(folder: Path, wheel: Path) -> None:
    """The C++ library is not in it."""
    check_requirements(wheel)
    check(not list(folder.rglob("*.h")) and not list(folder.rglob("*.a")),
          f"{wheel.name} holds parts of the C++ library")
    check_device_code(folder / "anabranch/lib/libanabranch_bridge.so")


def check_use(scratch: Path, wheel: Path) -> None:
    python = make_environment(scratch / "environment", wheel)
    told = run_bare(python, "-m", "anabranch", "doctor", "--test")
    for line in ("native library  ", "none found", "test of compiler   not run",
                 "device host  on"):
        check(line in told, f"the doctor does not say {line!r}:\n{told}")
    run_bare(python, "-c", NO_TORCH)
    refused = run(python.with_name("anabranch"), "--cmakedir", must_fail=True)
    check("--no-binary anabranch" in refused, f"--cmakedir says {refused}")
    add_torch(python)
    (scratch / "by_name.py").write_text(BY_NAME)
    run(python, scratch / "by_name.py")


def run_bare(python: Path, *words: str) -> str:
    """Where no other program is found, and no compiler."""
    done = subprocess.run([python, *words], text=True, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={"PATH": str(python.parent)})
    check(done.returncode == 0, f"{words} answered {done.returncode}:\n{done.stdout}")
    return done.stdout


def test_wheel(scratch: Path, wheel: Path) -> None:
    tag = re.search(r"-cp311-abi3-manylinux_2_(\d+)_(x86_64|aarch64)\.whl$", wheel.name)
    check(tag is not None and (2, int(tag[1])) <= OLDEST_GLIBC,
          f"{wheel.name} is not for every Python and glibc {OLDEST_GLIBC}")
    machine = tag[2]
    unpacked = scratch / "unpacked"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(unpacked)
    check_system(unpacked, machine)
    check_content(unpacked, wheel)
    if machine == platform.machine():
        check_use(scratch, wheel)
    print(f"{wheel.name}: {'works' if machine == platform.machine() else 'is as it should be'}")


def main() -> None:
    os.environ.pop("PYTHONPATH", None)
    for wheel in sys.argv[1:]:
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "inductor"))
            test_wheel(Path(folder), Path(wheel).resolve())


if __name__ == "__main__":
    main()
