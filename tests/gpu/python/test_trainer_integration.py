# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with our line against the same without it: logs, weights and optimizers'
states are equal bit for bit, and its steps are really launched. Models have random weights."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import transformers
from trainers import left_by, llama, make_trainer, train_both

import anabranch
from anabranch.integrations.transformers import record, reports

STEP, CLIP, UPDATE = "forward and backward", "clipping", "optimizer"
BOTH = "clipping and optimizer"
# Without a cache, models that are not compiled look at positions in Python. Older versions of the
# Trainer leave the cache on.
CACHE = {"use_cache": True} if "use_cache" in {
    field.name for field in dataclasses.fields(transformers.TrainingArguments)} else {}


@pytest.fixture(autouse=True)
def deterministic():
    """torch's deterministic kernels, where it has some."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.utils.deterministic.fill_uninitialized_memory = before
    torch.use_deterministic_algorithms(False)


def told(trainer):
    return "\n".join(f"{part}: {report}" for part, found in reports(trainer).items()
                     for report in found)


def assert_launched(trainer, *parts, least=5):
    """Each of these parts was launched as often as that, and none of it runs plainly."""
    for part in parts:
        found = reports(trainer)[part]
        assert not [one.reason for one in found if one.reason is not None], told(trainer)
        assert sum(one.launched for one in found) >= least, told(trainer)


def recordings(trainer, part):
    return sum(report.nodes > 0 for report in reports(trainer)[part])


def both(folder, train=lambda trainer: trainer.train(), change=lambda trainer: trainer, **settings):
    """24 steps of four texts, of which every sixth has only two."""
    return train_both(lambda name: change(make_trainer(
        folder / name, **{"num_train_epochs": 4, **CACHE, **settings})), record, train)


def test_a_trainer_under_a_cosine_is_recorded_once(tmp_path):
    trainer = both(tmp_path, lr_scheduler_type="cosine", warmup_steps=4, max_grad_norm=0.5)
    assert_launched(trainer, STEP, CLIP, UPDATE)
    assert recordings(trainer, UPDATE) == 1, told(trainer)
    assert recordings(trainer, CLIP) == 1, told(trainer)


def test_a_smaller_last_batch_has_a_recording_of_its_own(tmp_path):
    trainer = both(tmp_path, num_train_epochs=6)
    assert_launched(trainer, STEP, CLIP, UPDATE)
    assert recordings(trainer, STEP) == 2, told(trainer)


def test_gradients_are_accumulated(tmp_path):
    trainer = both(tmp_path, num_train_epochs=8, gradient_accumulation_steps=2)
    assert_launched(trainer, STEP, CLIP, UPDATE)


def test_an_accumulation_that_does_not_come_out_even(tmp_path):
    assert_launched(both(tmp_path, num_train_epochs=8, gradient_accumulation_steps=4), STEP)


def test_autocast(tmp_path):
    assert_launched(both(tmp_path, bf16=True), STEP, CLIP, UPDATE)


def with_scaler(trainer):
    """Its first scale is too large, so that steps are left out, and it grows soon."""
    trainer.accelerator.scaler = torch.amp.GradScaler(
        "cuda", init_scale=2.0**40, growth_interval=4, backoff_factor=2.0**-12)
    return trainer


@pytest.mark.parametrize("accumulated", (1, 2))
def test_a_grad_scaler(tmp_path, accumulated):
    scales = []

    def train(trainer):
        trainer.train()
        scales.append(trainer.accelerator.scaler.get_scale())

    trainer = both(tmp_path, train, with_scaler, fp16=True, num_train_epochs=4 * accumulated,
                   gradient_accumulation_steps=accumulated)
    assert scales[0] == scales[1] < 2.0**40
    assert_launched(trainer, STEP, BOTH)


def test_evaluation_and_saving_between_and_a_resumed_training(tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps",
                "save_steps": 10, "lr_scheduler_type": "cosine"}
    whole = both(tmp_path, **settings)
    assert_launched(whole, STEP, CLIP, UPDATE)
    resumed = both(tmp_path, lambda trainer: trainer.train(
        resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-10"), **settings)
    assert_launched(resumed, STEP, CLIP, UPDATE, least=3)
    for name, tensor in left_by(whole)["tensors"].items():
        assert torch.equal(tensor, left_by(resumed)["tensors"][name]), name


@pytest.mark.slow
def test_a_model_that_the_trainer_compiles(tmp_path):
    # For a recording Inductor gives intermediates memory of their own, and what it fuses with that
    # may be rounded otherwise. Of one batch size: for a second one Dynamo compiles code for any
    # size, which plain calls of the first one then run, too, and recordings do not.
    with torch._inductor.config.patch(allow_buffer_reuse=False):
        trainer = both(tmp_path, torch_compile=True, lr_scheduler_type="cosine",
                       num_train_epochs=6, dataloader_drop_last=True)
    assert_launched(trainer, STEP, CLIP, UPDATE)
    assert recordings(trainer, UPDATE) == 1, told(trainer)


def test_without_clipping_and_with_smoothed_labels(tmp_path):
    assert_launched(both(tmp_path, max_grad_norm=0.0, label_smoothing_factor=0.1), STEP, UPDATE)


def test_dropout(tmp_path):
    def model():
        torch.manual_seed(0)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=32))

    trainer = train_both(lambda name: make_trainer(
        tmp_path / name, model=model(), num_train_epochs=4, **CACHE), record)
    assert_launched(trainer, STEP, CLIP, UPDATE)


def test_an_optimizer_that_counts_on_the_cpu_runs_plainly_beside_recorded_parts(tmp_path):
    with pytest.warns(anabranch.errors.RecordWarning, match="(?s)not followed: .*fused=True"):
        trainer = both(tmp_path, optim="adamw_torch")
    assert_launched(trainer, STEP, CLIP)
    assert not sum(one.launched for one in reports(trainer)[UPDATE]), told(trainer)


def test_checkpointed_blocks_are_right_whether_they_are_recorded_or_not(tmp_path):
    assert_launched(both(tmp_path, gradient_checkpointing=True), CLIP, UPDATE)


class Watcher(transformers.TrainerCallback):
    """Notes what stands in a weight and its gradient around the optimizer's step."""

    def __init__(self):
        self.seen = []

    def note(self, args, state, control, model=None, **kwargs):
        first = next(model.parameters())
        self.seen.append((first.detach().clone(), None if first.grad is None
                          else first.grad.clone()))

    on_substep_end = on_pre_optimizer_step = on_optimizer_step = on_step_end = note


@pytest.mark.parametrize("settings", ({}, {"fp16": True}), ids=("", "fp16"))
def test_callbacks_see_weights_and_gradients_as_they_are_then(tmp_path, settings):
    watchers = []

    def make(name):
        watchers.append(Watcher())
        return make_trainer(tmp_path / name, num_train_epochs=8, gradient_accumulation_steps=2,
                            keywords={"callbacks": [watchers[-1]]}, **CACHE, **settings)

    assert_launched(train_both(make, record), STEP)
    for mine, theirs in zip(watchers[1].seen, watchers[0].seen, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)


class Taught(transformers.Trainer):
    """Whose loss depends on a number, a module and a tensor of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.manual_seed(1)
        self.sharpness, self.teacher = 0.5, nn.Embedding(100, 100).to(self.args.device)
        self.teacher.requires_grad_(False)
        self.shift = torch.ones(100, device=self.args.device)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        taught = self.teacher(inputs["input_ids"]) + self.shift
        return outputs.loss + (outputs.logits - self.sharpness * taught).square().mean()


class Sharpen(transformers.TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 4:  # all is recorded anew
            self.trainer.shift = self.trainer.shift * 2
        if state.global_step == 14:
            self.trainer.sharpness = 0.25


def test_a_loss_of_the_users_class_is_recorded_and_follows_what_it_reads(tmp_path):
    def make(name):
        sharpen = Sharpen()
        sharpen.trainer = make_trainer(tmp_path / name, kind=Taught, num_train_epochs=4,
                                       keywords={"callbacks": [sharpen]}, **CACHE)
        return sharpen.trainer

    assert_launched(train_both(make, record), CLIP, UPDATE)


def test_a_trainer_trains_twice_with_its_recordings(tmp_path):
    def train(trainer):
        trainer.train()
        trainer.train()

    trainer = both(tmp_path, train)
    assert_launched(trainer, STEP, CLIP, UPDATE, least=20)


def test_a_trainer_that_is_left_as_it_is_trains(tmp_path):
    class Own(transformers.Trainer):
        def training_step(self, *args, **kwargs):
            return super().training_step(*args, **kwargs)

    with pytest.warns(anabranch.RecordWarning, match="training_step of its own"):
        train_both(lambda name: make_trainer(tmp_path / name, kind=Own, model=llama(), **CACHE),
                   record)
