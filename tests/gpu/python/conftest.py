# SPDX-License-Identifier: Apache-2.0
"""Recordings on the GPU of the machine: `make test-gpu`. Without one, all are skipped, with why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

# For compare and fixtures, which these tests share with those that need no GPU.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from fixtures import deadline, fresh_torch, run_python  # noqa: E402, F401


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than some ten seconds")


def why_no_gpu() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "" if torch.cuda.is_available() else "torch finds no GPU"


def pytest_collection_modifyitems(items):
    if reason := why_no_gpu():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def healthy_device(fresh_torch):  # noqa: F811
    """Work that fails on the GPU fails the test that queued it, and ends the run: the context is
    lost, and whatever came after would fail as well."""
    yield
    if why_no_gpu():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        pytest.exit(f"the GPU's context is lost: {error}", returncode=1)
