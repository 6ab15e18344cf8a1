#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs a consumer: from an installation that was moved, or from the source tree. Looks
at where what was built and installed has its libraries looked for.

    test_consumer.py package <build folder> <source tree> <compiler>
    test_consumer.py source <build folder> <source tree> <compiler>
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from runpaths import find_stray_runpaths

CONSUMER = Path(__file__).with_name("consumer")
# Bytes of these libraries stay inside: another copy in the same process must not meet ours.
PRIVATE_SYMBOLS = re.compile(r"\b(fmt|flatbuffers|nlohmann|CLI)::")
LAUNCHED = "x: 4 bytes\ny: 4 bytes\nz: 4 bytes\ny=4 z=6 traced=yes"


def run(*command: object, must_fail: bool = False) -> str:
    """Answers what the command prints; stops the test if it does not end as it must."""
    done = subprocess.run([str(word) for word in command], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if (done.returncode != 0) != must_fail:
        sys.exit(f"{' '.join(map(str, command))}\nanswered {done.returncode}:\n{done.stdout}")
    return done.stdout


def check(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(message)


def build_consumer(folder: Path, compiler: str, *arguments: str) -> None:
    run("cmake", "-S", CONSUMER, "-B", folder, f"-DCMAKE_CXX_COMPILER={compiler}", *arguments)
    run("cmake", "--build", folder, "--parallel", os.cpu_count())
    output = run(folder / "consumer").strip()
    check(output == LAUNCHED, f"the consumer printed {output!r} instead of {LAUNCHED!r}")


def check_prefix(prefix: Path, build: Path, source: Path) -> None:
    """All public headers and nothing else, and no path of this machine in the package files."""
    public, installed = (
        {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        for folder in (source / "include/anabranch", prefix / "include/anabranch"))
    check(public == installed, f"headers installed are {installed}, public are {public}")
    for path in prefix.rglob("*.cmake"):
        for stray in (str(build), str(source)):
            check(stray not in path.read_text(), f"{path} names {stray}")


def check_version(scratch: Path, prefix: Path) -> None:
    """A minor version may break its users before 1.0, so another one is refused."""
    project = scratch / "version"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(version LANGUAGES CXX)\n"
        "find_package(anabranch ${WANTED} CONFIG REQUIRED)\n")
    for wanted, refused in (("0.1", False), ("0.1.0", False), ("0.0", True), ("0.2", True)):
        run("cmake", "-S", project, "-B", project / wanted, f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DWANTED={wanted}", must_fail=refused)


def check_shared(folder: Path) -> None:
    """Versioned name, and no symbol of a private library."""
    libraries = [path for path in folder.rglob("libanabranch.so*")]
    check(any(path.name == "libanabranch.so.0.1" for path in libraries),
          f"no libanabranch.so.0.1 among {libraries}")
    symbols = run("nm", "-D", "-C", "--defined-only", libraries[0])
    stray = [line for line in symbols.splitlines() if PRIVATE_SYMBOLS.search(line)]
    check(not stray, "the library exports what is private:\n" + "\n".join(stray[:10]))


def check_runpaths(folder: Path, *trusted: Path) -> None:
    stray = find_stray_runpaths(folder, *trusted)
    check(not stray, "libraries are looked for where anybody may put one:\n" + "\n".join(stray))


def check_command(prefix: Path) -> None:
    """The command of an installation that was moved finds its library."""
    output = run(prefix / "bin/anabranch", "--version")
    check(output.startswith("anabranch "), f"the installed command printed {output!r}")


def test_package(scratch: Path, build: Path, source: Path, compiler: str) -> None:
    run("cmake", "--install", build, "--prefix", scratch / "first", "--component", "library")
    prefix = scratch / "moved"
    (scratch / "first").rename(prefix)
    check_prefix(prefix, build, source)
    for component in ("bridge", "tool"):
        run("cmake", "--install", build, "--prefix", prefix, "--component", component)
    check_command(prefix)
    check_runpaths(build / "tool", build)
    check_runpaths(build / "bridge", build)
    check_runpaths(prefix)
    check_version(scratch, prefix)
    build_consumer(scratch / "consumer", compiler, f"-DCMAKE_PREFIX_PATH={prefix}",
                   "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF")


def test_source(scratch: Path, source: Path, compiler: str) -> None:
    folder = scratch / "consumer"
    # That everything builds is what is asked, not how fast it is: half of the time is optimizing.
    # The wheel's test looks for the device code of each GPU, and builds without what files share.
    quickly = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
               "-DANABRANCH_CUDA_ARCHITECTURES=90", "-DANABRANCH_QUICK_BUILD=ON")
    build_consumer(folder, compiler, *quickly, f"-DANABRANCH_SOURCE={source}",
                   "-DBUILD_SHARED_LIBS=ON",
                   "-DANABRANCH_BUILD_TOOL=ON", "-DANABRANCH_INSTALL=ON",
                   "-DCMAKE_INSTALL_LIBDIR=lib/of/a/long/name")
    check_shared(folder)
    check_runpaths(folder, folder)
    run("cmake", "--install", folder, "--prefix", scratch / "first")
    prefix = (scratch / "first").rename(scratch / "moved")
    check_command(prefix)
    check_runpaths(prefix)


def main() -> None:
    kind, build, source, compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=build) as folder:
        scratch = Path(folder)
        if kind == "package":
            test_package(scratch, Path(build).resolve(), Path(source).resolve(), compiler)
        else:
            test_source(scratch, Path(source).resolve(), compiler)


if __name__ == "__main__":
    main()
