# SPDX-License-Identifier: Apache-2.0
"""Models of transformers and timm, of random weights, as their users call them, against eager.
Skipped where these packages are not installed."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from compare import assert_same
from recordings import (
    DEVICE,
    assert_launched,
    assert_plain,
    normal,
    tensors_by_name,
    told,
    train_both,
)

import anabranch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
WORDS = 100
SMALL = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4}


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


def words(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, WORDS, shape or (2, 16), generator=generator).to(DEVICE)


def llama(transformers):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, max_position_embeddings=64)).to(DEVICE).eval()


def gpt2(transformers):
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, n_positions=64)).to(DEVICE).eval()


def bert(transformers):
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**SMALL, max_position_embeddings=64)).to(DEVICE).eval()


def t5(transformers):
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=WORDS, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=0)).to(DEVICE).eval()


def assert_infers_as_eager(function, inputs, calls=6):
    step, pairs = anabranch.record(function), []
    with torch.no_grad():
        for seed in range(calls):
            pairs.append([tensors_by_name(answer=call(*inputs(seed))) for call in (step, function)])
    for found, wanted in pairs:
        assert_same(found, wanted)
    return step


def gemma2(transformers):
    """Brings numbers from the CPU in each call."""
    torch.manual_seed(0)
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **SMALL, num_key_value_heads=2, head_dim=16, sliding_window=8)).to(DEVICE).eval()


@pytest.mark.parametrize("make", [llama, gpt2, bert, gemma2])
def test_language_models(transformers, make):
    """Masks are left out where none is needed, which they do not do where they know of a
    capture."""
    model = make(transformers)
    assert_launched(assert_infers_as_eager(lambda x: model(x).logits, lambda i: (words(i),)))


def test_padding_masks(transformers):
    model = bert(transformers)
    step = assert_infers_as_eager(lambda x, mask: model(x, attention_mask=mask).logits,
                                  lambda i: (words(i), (words(i + 50) > 20).long()))
    assert_launched(step)


def test_an_encoder_and_a_decoder(transformers):
    model = t5(transformers)
    assert_launched(assert_infers_as_eager(
        lambda x, y: model(input_ids=x, decoder_input_ids=y).logits,
        lambda i: (words(i), words(i + 9, 2, 6))))


@pytest.mark.parametrize("make", [llama, gpt2, gemma2])
def test_a_cache_that_a_model_answers_is_a_new_one_in_each_launch(transformers, make):
    model = make(transformers)
    step = anabranch.record(lambda x: model(x))
    with torch.no_grad():
        found = [step(words(i)) for i in range(6)]
        for i, mine in enumerate(found):
            theirs, word = model(words(i)), words(i + 50, 2, 1)
            assert type(mine) is type(theirs) and torch.equal(mine.logits, theirs.logits)
            # It is one to go on with.
            mine = model(word, past_key_values=mine.past_key_values)
            theirs = model(word, past_key_values=theirs.past_key_values)
            assert torch.equal(mine.logits, theirs.logits)
    assert_launched(step, 4)
    assert len({id(answer.past_key_values) for answer in found}) == 6


def test_a_static_cache_that_is_answered_is_that_of_the_call(transformers):
    model = llama(transformers)
    caches = [transformers.StaticCache(config=model.config, max_cache_len=32) for _ in range(3)]
    step = anabranch.record(lambda x, cache: model(x, past_key_values=cache))
    with torch.no_grad():
        for i in range(9):
            answer = step(words(i, 2, 2), caches[i % 3])
            assert answer.past_key_values is caches[i % 3], told(step)
    assert_launched(step, 5)


@pytest.mark.parametrize("is_argument", [False, True], ids=["found", "argument"])
def test_decoding_with_a_static_cache(transformers, is_argument):
    model = llama(transformers)

    def make():
        return transformers.StaticCache(config=model.config, max_cache_len=32)

    def forward(word, cache):
        return model(word, past_key_values=cache, use_cache=True).logits

    def decode(step, cache):
        answers = [forward(words(3, 2, 8), cache)]
        for _ in range(12):
            word = answers[-1][:, -1:].argmax(-1)
            answers.append(step(word, cache) if is_argument else step(word))
        return answers

    mine, theirs = make(), make()
    recorded = anabranch.record(forward if is_argument else lambda word: forward(word, mine))
    plain = forward if is_argument else lambda word: forward(word, theirs)
    with torch.no_grad():
        assert_same(tensors_by_name(answer=decode(recorded, mine)),
                    tensors_by_name(answer=decode(plain, theirs)))
    assert_launched(recorded)


@pytest.mark.parametrize("how", ["record", "compile"])
def test_generating_with_a_static_cache(transformers, how):
    model = llama(transformers)
    model.generation_config.pad_token_id = 0
    generate = partial(model.generate, words(3, 2, 8), max_new_tokens=10, do_sample=False,
                       cache_implementation="static", disable_compile=True)
    wanted, forward = generate(), model.forward
    model.forward = anabranch.record(forward) if how == "record" else \
        torch.compile(forward, backend=anabranch.backend)
    assert torch.equal(generate(), wanted)
    if how == "record":
        assert sum(report.launched for report in model.forward.reports) >= 5, told(model.forward)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)


@pytest.mark.parametrize("make_model", [llama, gpt2, t5])
@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["", "checkpointed"])
def test_training_language_models(transformers, make_model, is_checkpointed):
    """With dropout where they have some, and clipped gradients."""
    def make():
        model = make_model(transformers).train()
        if is_checkpointed:
            model.gradient_checkpointing_enable()
        optimizer = adamw(model)

        def step(x):
            optimizer.zero_grad()
            loss = model(input_ids=x, labels=x).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    step = train_both(make, inputs=lambda i: (words(i),))
    if make_model is not llama or not is_checkpointed:
        assert_launched(step, 5)
    else:  # without a cache it looks whether sequences are packed, in Python
        assert_plain(step, "Code outside torch asks whether it is captured")


def test_training_with_adapters(transformers):
    peft = pytest.importorskip("peft")

    def make():
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
        model = peft.get_peft_model(llama(transformers).train(), config)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3,
                                      fused=True, capturable=True)

        def step(x):
            optimizer.zero_grad()
            loss = model(input_ids=x, labels=x).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    assert_launched(train_both(make, inputs=lambda i: (words(i),)), 5)


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "vit_tiny_patch16_224"])
def test_models_of_images(name):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10).to(DEVICE).eval()
    assert_launched(assert_infers_as_eager(lambda x: model(x), lambda i: (normal(i, 2, 3, 224, 224),)))


def test_training_a_model_of_images(monkeypatch):
    """Convolutions whose sums have an order. Its batch norms have many sizes."""
    timm = pytest.importorskip("timm")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)

    def make():
        model = timm.create_model("resnet18", num_classes=10).to(DEVICE).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step(x, y):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    assert_launched(train_both(make, inputs=lambda i: (normal(i, 4, 3, 64, 64), words(i, 4) % 10)), 5)


class Windows(torch.nn.Module):
    """Those of an image, each with a rim that others have, too. Compiled, their gradients are added
    by indices."""

    def __init__(self):
        super().__init__()
        self.values = torch.nn.Conv2d(8, 16, 1, bias=False)

    def forward(self, x):
        values = torch.nn.functional.pad(self.values(x), [2] * 4)
        windows = values.unfold(2, 12, 8).unfold(3, 12, 8)
        return windows.reshape(len(x), 16, -1, 144).softmax(-1).square().mean()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_training_on_windows_that_overlap(is_compiled):
    def make():
        model = Windows().to(DEVICE)
        called = torch.compile(model, backend=anabranch.backend) if is_compiled else model
        optimizer = adamw(model)

        def step(x):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = called(x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    assert_launched(train_both(make, inputs=lambda i: (normal(i, 4, 8, 16, 16),)))
