# SPDX-License-Identifier: Apache-2.0
"""What importing costs and needs."""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest

PACKAGE = Path(importlib.util.find_spec("anabranch").submodule_search_locations[-1])

# A search path without the folders that hold torch, as where it was never installed.
HIDE_TORCH = """
import os, sys
sys.path = [folder for folder in sys.path if not os.path.isdir(os.path.join(folder, "torch"))]
"""


@pytest.mark.oldest
def test_importing_the_package_does_not_import_torch(run_python):
    told = run_python("import sys, anabranch, anabranch.doctor\n"
                      "anabranch.config.resolve()\nprint('torch' in sys.modules)")
    assert told.stdout.strip() == "False", told


def test_the_package_works_without_torch_as_far_as_it_can(run_python):
    told = run_python(HIDE_TORCH + "import anabranch, anabranch.doctor\n"
                      "print(anabranch.doctor.report())")
    assert told.returncode == 0 and "E0604" in told.stdout, told


@pytest.mark.parametrize("name", ["backend", "stream", "overlap", "explain", "bisect"])
def test_what_needs_torch_says_that_it_is_missing(run_python, name):
    told = run_python(HIDE_TORCH + "import anabranch\ntry:\n"
                      f"    anabranch.{name}\n"
                      "except anabranch.AnabranchError as error:\n    print(error)")
    assert "torch is not installed" in told.stdout and "[E0604]" in told.stdout, told


def test_only_one_file_reads_the_environment():
    readers = {path.name for path in PACKAGE.rglob("*.py")
               if re.search(r"\benviron\b|\bgetenv\b", path.read_text())}
    # And those that look what a step reads of it.
    assert readers == {"config.py", "inputs.py", "reads.py"}


def test_only_one_room_names_private_parts_of_torch():
    private = re.compile(r"\btorch(\.\w+)*\._[a-zA-Z]")
    users = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if any(
        private.search(line) for line in path.read_text().splitlines()
        if not line.lstrip().startswith(("#", '"')) and "``" not in line)}
    assert users <= {"_compat"}


def test_unknown_names_of_the_package_are_attribute_errors(run_python):
    told = run_python("import anabranch\nprint(hasattr(anabranch, 'nonsense'))")
    assert told.stdout.strip() == "False", told


@pytest.mark.own
def test_torch_lists_the_backend_by_its_name():
    import torch

    try:
        importlib.metadata.version("anabranch")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed, so it has no entry point")
    assert "anabranch" in torch.compiler.list_backends()
