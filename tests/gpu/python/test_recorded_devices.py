# SPDX-License-Identifier: Apache-2.0
"""More than one GPU, and torch's other ways to hand out memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fixtures import DEADLINE_S
from recordings import CALLS, assert_launched, mlp, normal, told

import anabranch

EXPANDABLE = "expandable_segments:True"
CONFIGURATION = "PYTORCH_CUDA_ALLOC_CONF"

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")


def affine(x):
    return torch.relu(x * 2 + 1) @ x


@two_gpus
def test_a_recording_on_another_device_leaves_the_current_one_as_it_is():
    step = anabranch.record(affine)
    assert torch.cuda.current_device() == 0
    for seed in range(CALLS):
        x = normal(seed, 64, 64, device="cuda:1")
        found = step(x)
        assert found.device == x.device and torch.equal(found, affine(x))
        assert torch.cuda.current_device() == 0
    assert_launched(step)


@two_gpus
def test_each_device_has_a_recording_of_its_own():
    step = anabranch.record(affine)
    pairs = []
    for seed in range(CALLS):
        for device in ("cuda:0", "cuda:1"):
            x = normal(seed, 64, 64, device=device)
            pairs.append((step(x), affine(x)))
    assert all(torch.equal(found, wanted) for found, wanted in pairs)
    assert len(step.reports) == 2 and all(report.nodes for report in step.reports), told(step)
    assert_launched(step, 2 * (CALLS - 2))


@two_gpus
def test_random_numbers_are_those_of_the_recordings_device():
    step = anabranch.record(lambda x: torch.nn.functional.dropout(x, 0.5))
    found = []
    for call in (step, lambda x: torch.nn.functional.dropout(x, 0.5)):
        torch.cuda.manual_seed_all(3)
        found.append([call(normal(seed, 500, device="cuda:1")) for seed in range(CALLS)])
        found[-1].append(torch.cuda.get_rng_state("cuda:0"))
        found[-1].append(torch.cuda.get_rng_state("cuda:1"))
    assert all(map(torch.equal, *found))
    assert_launched(step)


@two_gpus
def test_arguments_on_two_devices_run_plainly_with_the_reason():
    step = anabranch.record(lambda x, y: x + y.to(x.device))
    for seed in range(4):
        x, y = normal(seed, 8), normal(seed, 8, device="cuda:1")
        assert torch.equal(step(x, y), x + y.to(x.device))
    assert "cuda:1" in (step.reports[0].reason or ""), told(step)


@two_gpus
def test_a_model_on_another_device_trains_there():
    torch.manual_seed(0)
    model = mlp().to("cuda:1")
    reference = mlp().to("cuda:1")
    reference.load_state_dict(model.state_dict())

    def training_of(model):
        def step(x):
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            return loss.detach()

        return step

    step, plain = anabranch.record(training_of(model)), training_of(reference)
    for seed in range(8):
        x = normal(seed, 8, 16, device="cuda:1")
        assert torch.equal(step(x), plain(x))
    assert all(map(torch.equal, model.parameters(), reference.parameters()))
    assert_launched(step, 4)


@pytest.mark.skipif(EXPANDABLE in os.environ.get(CONFIGURATION, ""), reason="this is that run")
def test_all_of_it_holds_with_expandable_segments():
    """torch then maps memory itself, as captures do."""
    folder = Path(__file__).parent
    files = [str(folder / f"test_recorded_{name}.py")
             for name in ("tensors", "training", "random", "memory")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow",
         *files],
        env={**os.environ, CONFIGURATION: EXPANDABLE,
             "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=folder.parents[2], capture_output=True, text=True, timeout=DEADLINE_S - 20)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
