# SPDX-License-Identifier: Apache-2.0
"""``generate()`` of transformers whose steps are compiled by its own settings, or whose forward is
recorded, on the GPU: the words are those of eager. Static caches under a recorded forward are in
test_recorded_models.py."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import transformers
from clients import tokens
from recordings import DEVICE, told
from trainers import llama

import anabranch

HOW = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}


def generate(model, seed, **how):
    return model.generate(tokens(seed, 2, 5).to(DEVICE), **HOW, **how)


def test_steps_that_generate_compiles_say_what_eager_says():
    model = llama().to(DEVICE).eval()
    wanted = [generate(model, seed, cache_implementation="static", disable_compile=True)
              for seed in range(3)]
    config = transformers.CompileConfig(backend=anabranch.backend, mode=None)
    for seed in range(3):
        found = generate(model, seed, cache_implementation="static", compile_config=config)
        assert torch.equal(found, wanted[seed])


def test_a_recorded_forward_over_a_cache_that_grows_says_what_eager_says():
    """Each step has another size: what is recorded of them is left open."""
    model = llama().to(DEVICE).eval()
    wanted = [generate(model, seed) for seed in range(3)]
    model.forward = anabranch.record(model.forward)
    for seed in range(3):
        assert torch.equal(generate(model, seed), wanted[seed]), told(model.forward)
    assert model.forward.reports
