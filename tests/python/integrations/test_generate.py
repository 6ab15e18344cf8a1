# SPDX-License-Identifier: Apache-2.0
"""``generate()`` of transformers, with caches that grow and caches of one size, on the CPU: the words
are those of eager. Nothing is recorded here."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: make test-clients")

import transformers
from clients import tokens
from trainers import llama

import anabranch

HOW = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
CACHES = ("dynamic", "static")
pytestmark = pytest.mark.usefixtures("keep_compiled")


@pytest.fixture(scope="module")
def model():
    return llama().eval()


def generate(model, seed, cache, **more):
    return model.generate(tokens(seed, 2, 5), cache_implementation=cache, **HOW, **more)


def decoding(**settings):
    """The settings by which ``generate`` itself compiles the steps behind the first. It does so on
    the CPU where it is told that all devices are meant."""
    config = transformers.CompileConfig(**settings)
    config._compile_all_devices = True
    return config


def test_steps_that_generate_compiles_say_what_eager_says(model):
    for seed in range(2):
        wanted = generate(model, seed, "static")
        config = decoding(backend="anabranch", mode=None)
        assert torch.equal(generate(model, seed, "static", compile_config=config), wanted)
    assert "_compiled_call" in vars(model)


def test_the_mode_of_generates_own_settings_is_refused_with_what_to_write(model):
    with pytest.raises(Exception, match=r"(?s)reduce-overhead.*E0704.*mode=None"):
        generate(model, 0, "static", compile_config=decoding(backend="anabranch"))


@pytest.mark.parametrize("cache", CACHES)
def test_a_forward_that_is_compiled_says_what_eager_says(model, cache, monkeypatch):
    wanted = generate(model, 3, cache)
    compiled = torch.compile(model.forward, backend=anabranch.backend)
    monkeypatch.setattr(model, "forward", compiled)
    assert torch.equal(generate(model, 3, cache), wanted)


@pytest.mark.filterwarnings("ignore:.*torch finds no GPU:anabranch.RecordWarning")
@pytest.mark.parametrize("cache", CACHES)
def test_a_forward_that_is_recorded_says_what_eager_says(model, cache, monkeypatch):
    wanted = generate(model, 4, cache)
    monkeypatch.setattr(model, "forward", anabranch.record(model.forward))
    assert torch.equal(generate(model, 4, cache), wanted)
