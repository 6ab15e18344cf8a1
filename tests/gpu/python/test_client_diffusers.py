# SPDX-License-Identifier: Apache-2.0
"""Pipelines of diffusers, of random weights, whose denoising step is recorded, on the GPU: they draw
bit for bit what eager draws."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("diffusers", reason="diffusers is not installed")

from clients import drawn, flux, flux_inputs, flux_pipeline, pictured, unet, unet_pipeline
from compare import assert_same
from recordings import DEVICE, assert_launched, told

import anabranch

PICTURES = 3  # of four steps each


def test_a_recorded_step_of_a_pipeline_with_a_unet():
    model = unet().to(DEVICE)
    wanted = {f"picture {i}": pictured(unet_pipeline(model), i) for i in range(PICTURES)}
    model.forward = anabranch.record(model.forward)
    found = {f"picture {i}": pictured(unet_pipeline(model), i) for i in range(PICTURES)}
    assert_same(found, wanted)
    assert_launched(model.forward, 8)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["", "compiled blocks"])
def test_a_recorded_step_of_a_pipeline_with_a_transformer(is_compiled):
    model = flux().to(DEVICE)
    if is_compiled:
        model.compile_repeated_blocks(backend=anabranch.backend, fullgraph=True)
    wanted = {f"latents {i}": drawn(flux_pipeline(model), i, DEVICE) for i in range(PICTURES)}
    model.forward = anabranch.record(model.forward)
    found = {f"latents {i}": drawn(flux_pipeline(model), i, DEVICE) for i in range(PICTURES)}
    assert_same(found, wanted)
    assert_launched(model.forward, 8)


def samples(call):
    with torch.no_grad():
        return {f"call {i}": call(**{name: tensor.to(DEVICE) for name, tensor in
                                     flux_inputs(i).items()}).sample for i in range(6)}


@pytest.mark.parametrize("kind", ["block_level", "leaf_level"])
def test_blocks_that_are_offloaded_in_groups_are_right_whether_they_are_recorded_or_not(kind):
    """Their weights come to the GPU and go, and Python decides when."""
    model = flux().to(DEVICE)
    wanted = samples(model)
    model.to("cpu")
    model.enable_group_offload(onload_device=torch.device(DEVICE), offload_type=kind,
                               offload_device=torch.device("cpu"),
                               **({"num_blocks_per_group": 1} if kind == "block_level" else {}))
    step = anabranch.record(model)
    assert_same(samples(step), wanted)
    assert step.reports, told(step)
