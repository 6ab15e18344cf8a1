# SPDX-License-Identifier: Apache-2.0
"""Models and pipelines of diffusers, of random weights, on the CPU: what they make is what eager
makes. Nothing is recorded here."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("diffusers", reason="diffusers is not installed: make test-clients")

from clients import drawn, flux, flux_inputs, flux_pipeline, pictured, unet, unet_pipeline
from compare import Tolerance, assert_same

import anabranch

CLOSE = Tolerance(1e-4, 1e-5)
pytestmark = [pytest.mark.usefixtures("keep_compiled"),
              pytest.mark.filterwarnings("ignore:.*torch finds no GPU:anabranch.RecordWarning")]


def samples(model):
    with torch.no_grad():
        return {f"call {i}": model(**flux_inputs(i)).sample for i in range(3)}


def repeated(model):
    """Its blocks are compiled, as diffusers finds them: those of a class share their code."""
    model.compile_repeated_blocks(backend=anabranch.backend, fullgraph=True)
    return model


def offloaded(model):
    """To the CPU, from which its blocks do not come here: the hooks are the same."""
    cpu = torch.device("cpu")
    model.enable_group_offload(onload_device=cpu, offload_device=cpu, offload_type="block_level",
                               num_blocks_per_group=1)
    return model


def test_blocks_that_are_repeated_are_compiled_once_for_all():
    wanted = samples(flux())
    torch._dynamo.utils.counters.clear()
    assert_same(samples(repeated(flux())), wanted, CLOSE)
    # A graph for each kind of block, and one more since the first of the second kind is given a view.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3


def test_a_pipeline_of_compiled_blocks_draws_what_eager_draws():
    wanted = {"latents": drawn(flux_pipeline(flux()), 1)}
    assert_same({"latents": drawn(flux_pipeline(repeated(flux())), 1)}, wanted, CLOSE)


def test_a_recorded_step_of_a_pipeline_draws_what_eager_draws():
    model = unet()
    wanted = {"picture": pictured(unet_pipeline(unet()), 2)}
    model.forward = anabranch.record(model.forward)
    assert_same({"picture": pictured(unet_pipeline(model), 2)}, wanted)


def test_blocks_that_are_offloaded_in_groups_are_compiled():
    model = offloaded(flux())
    model.compile_repeated_blocks(backend=anabranch.backend)  # in parts: hooks stand between
    assert_same(samples(model), samples(flux()), CLOSE)


def test_a_recorded_model_whose_blocks_are_offloaded():
    assert_same(samples(anabranch.record(offloaded(flux()))), samples(flux()))
