# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with our line against the same without it, on the CPU. Nothing is recorded
here, but all that stands in the places of the Trainer's own is called."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="transformers is not installed: make test-clients")
pytest.importorskip("accelerate", reason="accelerate is not installed: make test-clients")

import trainers
import transformers
from trainers import left_by, train_both

import anabranch
from anabranch._record.state.walk import Walk
from anabranch.integrations.transformers import record, reports

make_trainer = functools.partial(trainers.make_trainer, use_cpu=True)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch finds no GPU:anabranch.RecordWarning")


class Calls:
    """In the place of ``anabranch.record``: notes what is recorded, and each call of it."""

    def __init__(self, monkeypatch):
        self.made, self.given, self.guards, self.walked = [], {}, {}, {}
        monkeypatch.setattr(anabranch, "record", self.record)

    def record(self, function, *, state=(), guard=None, options=None):
        name = function.__name__
        self.made.append(name)
        self.given.setdefault(name, [])
        self.guards.setdefault(name, [])

        def recorded(*args, **kwargs):
            self.given[name].append((args, kwargs))
            self.walked[name] = Walk((function, *state))
            if guard is not None:
                self.guards[name].append(guard())
                hash(self.guards[name][-1])
            return function(*args, **kwargs)

        recorded.reports = []
        return recorded

    def counts(self):
        return {name: len(calls) for name, calls in self.given.items() if calls}


def leaves(given):
    if isinstance(given, (tuple, list)):
        return [leaf for one in given for leaf in leaves(one)]
    if isinstance(given, dict):
        return [leaf for one in given.values() for leaf in leaves(one)]
    return [given]


SETTINGS = {
    "the defaults": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "accumulation that does not come out even": {"gradient_accumulation_steps": 4},
    "a cosine and a warm-up": {"lr_scheduler_type": "cosine", "warmup_steps": 3},
    "clipping that clips": {"max_grad_norm": 0.1},
    "no clipping": {"max_grad_norm": 0.0},
    "smoothed labels": {"label_smoothing_factor": 0.1},
    "autocast": {"bf16": True},
    "checkpointed blocks": {"gradient_checkpointing": True},
    "another optimizer": {"optim": "sgd", "weight_decay": 0.1},
    "one that is not fused": {"optim": "adamw_torch"},
    "evaluation between": {"eval_strategy": "steps", "eval_steps": 3},
    "a plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
    "a compiled model inside": {"torch_compile": True, "torch_compile_backend": "eager"},
    "noise on embeddings": {"neftune_noise_alpha": 5.0},
    "logs now and then": {"logging_steps": 3, "logging_nan_inf_filter": False},
    "full determinism, the best model": {
        "eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_training_leaves_what_it_leaves_without_our_line(tmp_path, settings):
    trainer = train_both(lambda name: make_trainer(tmp_path / name, **settings), record)
    assert set(reports(trainer)) == {"forward and backward", "clipping", "optimizer"}


def test_dropout_draws_the_same_numbers(tmp_path):
    def make(name):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=1, n_embd=16, n_head=2, vocab_size=100, n_positions=32))
        return make_trainer(tmp_path / name, model=model)

    train_both(make, record)


def test_a_training_is_resumed_from_a_checkpoint(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 5, "lr_scheduler_type": "cosine",
                "eval_strategy": "steps", "eval_steps": 4, "gradient_accumulation_steps": 2,
                "num_train_epochs": 4}
    whole = train_both(lambda name: make_trainer(tmp_path / name, **settings), record)
    resumed = train_both(
        lambda name: make_trainer(tmp_path / name, **settings), record,
        lambda trainer: trainer.train(
            resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-5"))
    for name, tensor in left_by(whole)["tensors"].items():
        assert torch.equal(tensor, left_by(resumed)["tensors"][name]), name


def test_a_trainer_may_train_twice_and_may_be_given_twice(tmp_path):
    def train(trainer):
        trainer.train()
        if reports(trainer):
            record(trainer)
        trainer.evaluate()
        trainer.train()

    train_both(lambda name: make_trainer(tmp_path / name, lr_scheduler_type="cosine"), record, train)


class Watcher(transformers.TrainerCallback):
    """Notes what each event finds."""

    def __init__(self):
        self.seen = []

    def on_event(self, *args, **kwargs):
        raise AssertionError("no event of the Trainer's")


def _note(event):
    def note(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
        first = next(model.parameters())
        rate = optimizer.param_groups[0]["lr"] if optimizer is not None else None
        self.seen.append((event, state.global_step, rate, float(first.detach().sum()),
                          None if first.grad is None else float(first.grad.sum())))

    return note


for _event in ("on_train_begin", "on_step_begin", "on_substep_end", "on_pre_optimizer_step",
               "on_optimizer_step", "on_step_end", "on_log", "on_evaluate", "on_epoch_end"):
    setattr(Watcher, _event, _note(_event))


@pytest.mark.parametrize("is_scaled", (False, True), ids=("plain", "scaled"))
def test_callbacks_come_in_their_order_and_see_what_they_saw(tmp_path, is_scaled):
    watchers = []

    def make(name):
        watchers.append(Watcher())
        trainer = make_trainer(tmp_path / name, gradient_accumulation_steps=2,
                               eval_strategy="epoch", keywords={"callbacks": [watchers[-1]]})
        return scaled(trainer) if is_scaled else trainer

    train_both(make, record)
    assert watchers[0].seen == watchers[1].seen
    assert {event for event, *_ in watchers[0].seen} >= {"on_substep_end", "on_pre_optimizer_step"}


def scaled(trainer, **settings):
    """As fp16=True makes it on a GPU: accelerate refuses it on the CPU."""
    accelerator = trainer.accelerator
    accelerator.scaler = torch.amp.GradScaler("cpu", **settings)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    return trainer


@pytest.mark.parametrize("optim", ("adamw_torch_fused", "adamw_torch"))
@pytest.mark.parametrize("max_grad_norm", (1.0, 0.0))
def test_a_grad_scaler_leaves_what_it_leaves_without_our_line(tmp_path, optim, max_grad_norm):
    """The first scale is too large, so that steps are left out, and it grows again."""
    scalers = []

    def make(name):
        trainer = scaled(make_trainer(tmp_path / name, optim=optim, max_grad_norm=max_grad_norm,
                                      num_train_epochs=3, gradient_accumulation_steps=2),
                         init_scale=2.0**127, growth_interval=2, backoff_factor=2.0**-20)
        scalers.append(trainer.accelerator.scaler)
        return trainer

    trainer = train_both(make, record)
    assert scalers[0].state_dict() == scalers[1].state_dict()
    assert scalers[0].get_scale() < 2.0**127
    assert "clipping and optimizer" in reports(trainer)


def test_what_is_recorded_is_given_tensors_and_numbers_and_is_called_as_often_as_its_own(
        tmp_path, monkeypatch):
    calls, watcher = Calls(monkeypatch), Watcher()
    trainer = record(make_trainer(tmp_path, gradient_accumulation_steps=4,
                                  keywords={"callbacks": [watcher]}))
    trainer.train()
    events = [event for event, *_ in watcher.seen]
    updates, others = events.count("on_step_end"), events.count("on_substep_end")
    assert updates == trainer.state.global_step >= 2 and others >= 4
    assert calls.made == ["forward_and_backward", "clip", "update"]
    assert calls.counts() == {"forward_and_backward": updates + others, "clip": updates,
                              "update": updates}
    for given in calls.given.values():
        assert {type(leaf) for leaf in leaves(given)} <= {torch.Tensor, float, int}
    # Of six batches in an epoch four are accumulated, and then the two that are left. Older
    # versions have no such attribute, and scale all alike.
    accumulated = [guard[2] for guard in calls.guards["forward_and_backward"]][:6]
    assert accumulated in ([4, 4, 4, 4, 2, 2], [None] * 6)


def test_neither_the_trainer_nor_its_data_are_found_from_what_is_recorded(tmp_path, monkeypatch):
    class Own(transformers.Trainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    calls = Calls(monkeypatch)
    trainer = scaled(record(make_trainer(tmp_path, kind=Own, label_smoothing_factor=0.1)))
    trainer.train()
    assert set(calls.walked) == {"forward_and_backward", "clip_and_update"}
    hidden = {id(thing) for thing in (trainer, trainer.train_dataset, trainer.accelerator,
                                      trainer.state, trainer.args)}
    for name, walk in calls.walked.items():
        assert hidden.isdisjoint(id(thing) for _, thing in walk.entered.values()), name
    parameters = set(map(id, trainer.model.parameters()))
    found = {name: {id(found.tensor) for found in walk.tensors} & parameters
             for name, walk in calls.walked.items()}
    assert all(there == parameters for there in found.values())
    assert not calls.walked["forward_and_backward"].optimizers
    assert len(calls.walked["clip_and_update"].optimizers) == 1


def test_under_a_scaler_clipping_and_the_optimizer_are_one_part_once_the_loop_is_known(
        tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    scaled(record(make_trainer(tmp_path))).train()
    assert calls.counts() == {"forward_and_backward": 12, "clip_and_update": 11}
    calls = Calls(monkeypatch)
    scaled(record(make_trainer(tmp_path, keywords={"callbacks": [Watcher()]}))).train()
    assert calls.counts() == {"forward_and_backward": 12}  # somebody looks in between


def test_a_model_that_is_replaced_is_recorded_anew(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    trainer = record(make_trainer(tmp_path, num_train_epochs=1))
    trainer.train()
    trainer.model = trainer.model_wrapped = type(trainer.model)(trainer.model.config)
    trainer.optimizer = None
    trainer.train()
    assert calls.made == ["forward_and_backward", "clip", "update"] * 2
    assert calls.counts() == {"forward_and_backward": 12, "clip": 12, "update": 12}


def test_a_batch_stays_of_its_class(tmp_path):
    seen = []

    class Own(transformers.Trainer):
        def compute_loss(self, model, inputs, **keywords):
            seen.append(type(inputs))
            return super().compute_loss(model, inputs, **keywords)

    def collate(items):
        return transformers.BatchEncoding(transformers.default_data_collator(items))

    train_both(lambda name: make_trainer(tmp_path / name, kind=Own,
                                         keywords={"data_collator": collate}), record)
    assert set(seen) == {transformers.BatchEncoding}


def test_inputs_are_prepared_once(tmp_path):
    prepared = []

    class Own(transformers.Trainer):
        def _prepare_inputs(self, inputs):
            prepared.append(1)
            inputs = super()._prepare_inputs(inputs)
            return {**inputs, "input_ids": (inputs["input_ids"] + 1) % 100}

    trainer = train_both(lambda name: make_trainer(tmp_path / name, kind=Own), record)
    assert len(prepared) == 2 * 12
    assert "_prepare_inputs" not in vars(trainer)


def test_a_loss_function_of_the_users_is_found(tmp_path, monkeypatch):
    weights = torch.linspace(0.5, 1.5, 100)

    def loss(outputs, labels, num_items_in_batch=None):
        return nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(),
                                           weight=weights)

    train_both(lambda name: make_trainer(tmp_path / name, keywords={"compute_loss_func": loss}),
               record)
    calls = Calls(monkeypatch)
    record(make_trainer(tmp_path, keywords={"compute_loss_func": loss})).train()
    assert any(found.tensor is weights for found in calls.walked["forward_and_backward"].tensors)


class Annealed(transformers.Trainer):
    """Whose loss depends on its own numbers, modules and tensors."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.sharpness, self.teacher = 0.5, nn.Embedding(100, 100).requires_grad_(False)
        self.teacher.to(self.args.device)
        self.settings = {"margins": [1.0]}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return self.blend(outputs, inputs)

    def blend(self, outputs, inputs):
        taught = self.teacher(inputs["input_ids"])
        error = (outputs.logits - self.sharpness * taught).square().mean()
        return outputs.loss + self.settings["margins"][0] * error


class Sharpen(transformers.TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 4:
            self.trainer.sharpness = 0.25
        if state.global_step == 8:
            self.trainer.settings["margins"][0] = 2.0


def annealed(folder):
    sharpen = Sharpen()
    sharpen.trainer = make_trainer(folder, kind=Annealed, keywords={"callbacks": [sharpen]})
    return sharpen.trainer


def test_a_loss_of_the_users_class_depends_on_what_it_reads(tmp_path, monkeypatch):
    train_both(lambda name: annealed(tmp_path / name), record)
    calls = Calls(monkeypatch)
    trainer = record(annealed(tmp_path))
    trainer.train()
    guards = calls.guards["forward_and_backward"]
    assert [guards.index(guard) for guard in guards] == [0] * 4 + [4] * 4 + [8] * 4
    found = calls.walked["forward_and_backward"].tensors
    assert any(one.tensor is trainer.teacher.weight for one in found)


class Counting(transformers.Trainer):
    counted = 0

    def compute_loss(self, *args, **kwargs):
        self.counted += 1
        return super().compute_loss(*args, **kwargs)


class Logging(transformers.Trainer):
    def compute_loss(self, *args, **kwargs):
        self.log({"mine": 1.0})
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize("kind", (Counting, Logging))
def test_a_class_that_changes_itself_in_its_loss_is_left_as_it_is(tmp_path, monkeypatch, kind):
    calls = Calls(monkeypatch)
    with pytest.warns(anabranch.RecordWarning, match="changes values of the trainer"):
        train_both(lambda name: make_trainer(tmp_path / name, kind=kind), record)
    assert calls.counts()["forward_and_backward"] == 1


class OwnStep(transformers.Trainer):
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


def in_parallel(trainer, monkeypatch):
    monkeypatch.setattr(trainer.accelerator.state, "distributed_type", "MULTI_GPU")


@pytest.mark.parametrize(("settings", "reason"), (
    ({"kind": OwnStep}, "(?s)OwnStep has a training_step of its own.*Override compute_loss"),
    ({"torch_empty_cache_steps": 2}, "torch_empty_cache_steps empties"),
    ({"prepare": in_parallel}, "accelerate's type MULTI_GPU"),
    ({"optim": "galore_adamw_layerwise"}, "steps inside of the backward"),
    ({"torch_compile": True, "torch_compile_mode": "reduce-overhead"}, "CUDA graphs of its own"),
), ids=("training_step", "cache", "parallel", "layerwise", "graphs"))
def test_a_trainer_that_is_not_known_is_left_as_it_is_with_the_reason(
        tmp_path, monkeypatch, settings, reason):
    prepare = settings.pop("prepare", lambda trainer, monkeypatch: None)
    trainer = make_trainer(tmp_path, **settings)
    prepare(trainer, monkeypatch)
    with pytest.warns(anabranch.RecordWarning, match=reason) as told:
        assert record(trainer) is trainer
    assert [one.filename for one in told] == [__file__]
    assert "training_step" not in vars(trainer) and reports(trainer) == {}
    with pytest.raises(anabranch.errors.RecordError, match=reason):
        record(trainer, strict=True)


def test_an_optimizer_that_accelerate_does_not_wrap_is_left_alone(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    trainer = make_trainer(tmp_path, num_train_epochs=1)
    monkeypatch.setattr("anabranch.integrations.transformers._raw", lambda optimizer: None)
    record(trainer).train()
    assert calls.counts() == {"forward_and_backward": 6, "clip": 6}


def test_wrong_uses_are_refused(tmp_path):
    with pytest.raises(anabranch.errors.WrongArgument, match=r"a transformers\.Trainer"):
        record(nn.Linear(1, 1))
    with pytest.raises(anabranch.errors.WrongArgument, match=r"a transformers\.Trainer"):
        reports(None)
    with pytest.raises(anabranch.errors.ConfigError, match="strcit"):
        record(make_trainer(tmp_path), strcit=True)

