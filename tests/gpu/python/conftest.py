# SPDX-License-Identifier: Apache-2.0
"""Recordings on the GPU of the machine: `make test-gpu`. Without one, all are skipped, with why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

FOLDER = Path(__file__).resolve().parent
# For compare and fixtures, which these tests share with those that need no GPU.
sys.path.insert(0, str(FOLDER.parents[1] / "python/support"))

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
            if FOLDER in item.path.parents:  # pytest shows all of the run's
                item.add_marker(pytest.mark.skip(reason=reason))


def in_order(tuner, launcher, *arguments, **named):
    """In the place of the milliseconds that a configuration takes."""
    return float(tuner.launchers.index(launcher))


@pytest.fixture(autouse=True)
def same_kernels(monkeypatch):
    """What is compiled to be recorded gives no memory on from one intermediate to another; what it
    is compared with is compiled alike, or other kernels would round otherwise. Nor is the fastest
    configuration of a kernel taken, but the first: on a GPU that is shared two compilations of one
    model find others, and their reductions add up in other orders."""
    monkeypatch.setattr(CachingAutotuner, "bench", in_order)
    with torch._inductor.config.patch(allow_buffer_reuse=False):
        yield


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
