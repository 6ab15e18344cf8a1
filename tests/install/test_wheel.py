#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the sources that are handed out and, from these, the wheel. Installs it into an environment
without torch, and uses it from all sides: as a package, as a command, as a C++ library, and, with
torch added, as a backend by name.

    test_wheel.py        run by a Python that has torch and scikit-build-core
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

from device_code import expected_architectures, read_architectures
from test_consumer import build_consumer, check, check_runpaths, run

ROOT = Path(__file__).resolve().parents[2]
CONTENT = ("anabranch/py.typed", "anabranch/_explain/page.html",
           "anabranch/lib/libanabranch_bridge.so",
           "anabranch/lib/anabranch_call.abi3.so", "anabranch/bin/anabranch",
           "anabranch/include/anabranch/anabranch.h", "anabranch/include/anabranch/codes.inc",
           "anabranch/lib/cmake/anabranch/anabranchConfig.cmake")
NO_TORCH = """
import sys, anabranch
assert "torch" not in sys.modules
try:
    anabranch.backend
except anabranch.AnabranchError as error:
    assert error.code == 604, error
else:
    raise AssertionError("there is a backend without torch")
"""
BY_NAME = """
import torch, anabranch
def branches(x):
    with anabranch.stream("side"):
        y = torch.relu(x) * 2
    return y + torch.sin(x)
x = torch.randn(64, 64)
compiled = torch.compile(branches, backend="anabranch", options={"strict": True})
assert torch.allclose(compiled(x), branches(x))
assert "site-packages" in anabranch.__file__, anabranch.__file__
from anabranch._record import quick
assert quick.is_compiled
"""


def build_wheel(folder: Path) -> Path:
    """As pip does where there is no wheel for a system."""
    run(sys.executable, "-c", f"import os; os.chdir({str(ROOT)!r})\n"
        f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})")
    [sources] = folder.glob("*.tar.gz")
    # What it holds and whether it works is asked here, not how fast: a third of the time is
    # optimizing. `make wheel` builds what is handed out.
    quickly = "--config-settings=cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"
    run(sys.executable, "-m", "pip", "wheel", sources, "--no-deps", "--no-build-isolation", quickly,
        "-w", folder)
    wheels = list(folder.glob("*.whl"))
    check(len(wheels) == 1, f"wheels built: {wheels}")
    return wheels[0]


def check_wheel(wheel: Path) -> None:
    check("-cp311-abi3-linux_" in wheel.name, f"{wheel.name} is not one wheel for every Python")
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in CONTENT if name not in names]
    check(not missing, f"{wheel.name} lacks {missing}")
    stray = [name for name in names if "gtest" in name or "/fmt/" in name or name.endswith(".pyc")]
    check(not stray, f"{wheel.name} holds {stray}")
    check_requirements(wheel)


def check_requirements(wheel: Path) -> None:
    """Installing it never brings a torch, nor anything else, or replaces one."""
    with zipfile.ZipFile(wheel) as file:
        [name] = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(file.read(name).decode())
    for line in metadata.get_all("Requires-Dist", []):
        check("extra ==" in line, f"{wheel.name} would install {line}")


def check_device_code(library: Path) -> None:
    found, expected = read_architectures(library), expected_architectures()
    check(found == expected, f"{library} has device code for {found}, not for {expected}")


def make_environment(folder: Path, wheel: Path) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    return python


def add_torch(python: Path) -> None:
    """Lends the environment the packages of the one that runs this test."""
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(packages, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")


def main() -> None:
    os.environ.pop("PYTHONPATH", None)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        scratch = Path(folder)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch / "inductor")
        os.chdir(scratch)
        wheel = build_wheel(scratch)
        check_wheel(wheel)
        python = make_environment(scratch / "environment", wheel)
        check_runpaths(scratch / "environment/lib")
        check_device_code(next((scratch / "environment/lib").rglob("libanabranch_bridge.so")))
        run(python, "-c", NO_TORCH)
        command = python.with_name("anabranch")
        check("anabranch 0.1.0" in run(command, "--version"), "the command has another version")
        run(command, "doctor")
        cmake_folder = run(command, "--cmakedir").strip()
        build_consumer(scratch / "consumer", os.environ.get("CXX", "g++"),
                       f"-Danabranch_DIR={cmake_folder}")
        add_torch(python)
        (scratch / "by_name.py").write_text(BY_NAME)
        run(python, scratch / "by_name.py")
    print("wheel: package, command, C++ library and backend work")


if __name__ == "__main__":
    try:
        main()
    except subprocess.SubprocessError as error:
        sys.exit(str(error))
