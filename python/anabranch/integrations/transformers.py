# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer, whose steps are recorded.

    trainer = anabranch.integrations.transformers.record(Trainer(...))
    trainer.train()

The Trainer's loop stays as it is. Three of the things that it calls are recorded, each by itself:
forward and backward of a batch (``training_step``), the clipping of the gradients
(``accelerator.clip_grad_norm_``) and the optimizer's step. So callbacks, logs, schedulers,
accumulation, evaluation and saving come in their order and see what they always see.

Threads: those of the trainer. Failure: wrong arguments are refused at once. A trainer whose steps
cannot be recorded is left as it is, with a warning that says why; under strict it is an error.
"""

from __future__ import annotations

import contextlib
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import anabranch
from anabranch import config
from anabranch._arguments import wrong
from anabranch._record.refusals import Cause, Reason, strict_error
from anabranch._record.report import RecordingReport
from anabranch._record.warn import tell
from anabranch.integrations.own_code import OwnCode, is_of_package

__all__ = ["record", "reports"]

_T = TypeVar("_T")
_ACT, _CLIENT = "integrations.transformers", "transformers"
# Where a user's own code may come into the computation of a loss. What it overrides besides is
# called outside of what is recorded.
_ENTRIES = ("compute_loss", "compute_loss_context_manager", "autocast_smart_context_manager")
# Attributes of a trainer that training_step reads, and that may change while it trains.
_SETTINGS = ("current_gradient_accumulation_steps", "model_accepts_loss_kwargs",
             "loss_is_scaled_for_ga")


def record(trainer: _T, **options: Any) -> _T:
    """Has the steps of a Trainer recorded, and answers the trainer.

    ``trainer`` is a ``transformers.Trainer``, or an object of a class derived from it, before
    ``train()``. ``options`` are those of ``anabranch.record``. Of a trainer that was given before
    the new options count, and its recordings begin anew. Raises WrongArgument [E0611] where
    ``trainer`` is none, and ConfigError for options.

    A trainer that shares its work among processes or GPUs, or whose ``training_step`` is not
    transformers' own, is left as it is. A RecordWarning says so; under strict RecordError [E0337]
    is raised. Threads: that of the trainer.
    """
    _check_is_trainer(trainer, "record")
    chosen = config.resolve(options)
    _forget(trainer)
    if reason := _why_not(trainer):
        _refuse(reason, chosen)
    else:
        trainer.training_step = Training(trainer, options).step  # type: ignore[attr-defined]
    return trainer


def reports(trainer: Any) -> dict[str, list[RecordingReport]]:
    """What became of each recorded part of the trainer's steps, by the part's name; none before the
    first step, or where the trainer was left as it is. Raises WrongArgument [E0611] where
    ``trainer`` is no Trainer. Threads: any."""
    _check_is_trainer(trainer, "reports")
    training = _training_of(trainer)
    step = training.current if training is not None else None
    return {name: part.reports for name, part in step.parts().items()} if step else {}


class Training:
    """What stands in the place of a trainer's ``training_step``. At the first step, when there are
    an optimizer and a scheduler, it takes the places of ``clip_grad_norm_`` and of the optimizer's
    ``step``, too."""

    def __init__(self, trainer: Any, options: Mapping[str, Any]) -> None:
        self.trainer, self.options = trainer, dict(options)
        self.plain_step: Callable[..., Any] = trainer.training_step
        self.own = OwnCode(trainer, _CLIENT, _ENTRIES)
        self.current: TrainerStep | None = None
        self.is_left = False
        self._hooked: list[tuple[Any, Callable[..., Any]]] = []  # objects, and their own methods

    def step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """In the place of the trainer's."""
        if self.is_left:
            return self.plain_step(model, inputs, *args, **kwargs)
        used = Used(self.trainer, model, self.own)
        if self.current is None or not self.current.used.are(used):
            clip = self._hook(used.accelerator, "clip_grad_norm_", TrainerStep.clip_now)
            update = self._hook(used.optimizer, "step", TrainerStep.update_now) \
                if used.raw_optimizer is not None else None
            self.current = TrainerStep(self, used, clip, update)
        return self.current.step_now(inputs, args, kwargs)

    def _hook(self, thing: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Puts the function in the place of a method, once, and answers the method. A scheduler
        that is made later may wrap what stands there."""
        for hooked, plain in self._hooked:
            if hooked is thing:
                return plain
        plain = getattr(thing, name)

        def hook(this: Any, *args: Any, **kwargs: Any) -> Any:
            step = self.current
            if step is None or (this is not step.used.accelerator
                                and this is not step.used.optimizer):
                return plain(*args, **kwargs)
            return function(step, *args, **kwargs)

        # A scheduler that has wrapped the optimizer's step looks for its mark.
        vars(hook).update(vars(getattr(plain, "__func__", plain)))
        setattr(thing, name, types.MethodType(hook, thing))
        self._hooked.append((thing, plain))
        return plain

    def leave(self, reason: Reason) -> None:
        """From the next step on, forward and backward run plainly."""
        self.is_left = True
        _refuse(reason, config.resolve(self.options))


class Used:
    """What the steps of a trainer use. Where any of it is replaced, they are recorded anew."""

    def __init__(self, trainer: Any, model: Any, own: OwnCode) -> None:
        self.model, self.accelerator, self.optimizer = model, trainer.accelerator, trainer.optimizer
        self.scaler = getattr(self.accelerator, "scaler", None)
        self.raw_optimizer = _raw(self.optimizer)
        self.others = (getattr(trainer, "label_smoother", None),
                       getattr(trainer, "compute_loss_func", None), *own.objects())

    def are(self, others: Used) -> bool:
        return _are_same(self._all(), others._all())

    def _all(self) -> tuple[Any, ...]:
        return (self.model, self.accelerator, self.optimizer, self.scaler, self.raw_optimizer,
                *self.others)


class TrainerStep:
    """The recorded parts of a trainer's step. The recorder does not look into objects of this
    class: what a part uses is named by ``state=``, and the trainer, which leads to data sets and
    logs, is not found from it."""

    __slots__ = ("_clip", "_clip_and_update", "_has_clipped", "_is_unscaled", "_is_updated",
                 "_kind", "_parameters", "_plain_clip", "_plain_update", "_step",
                 "_steps_after_clipping", "_trainer", "_training", "_update", "used")

    def __init__(self, training: Training, used: Used, clip: Callable[..., Any],
                 update: Callable[..., Any] | None) -> None:
        self.used, self._training, self._trainer = used, training, training.trainer
        self._plain_clip, self._plain_update = clip, update
        self._kind: type = dict  # of the batch
        self._parameters = list(used.model.parameters())
        self._has_clipped = self._steps_after_clipping = False
        self._is_updated = self._is_unscaled = False  # between clipping and the optimizer's step
        self._step = self._recorded(self.forward_and_backward, used.model, used.scaler,
                                    *used.others, *training.own.functions, guard=self._settings)
        self._clip = self._recorded(self.clip, self._parameters)
        self._update = self._clip_and_update = None
        if update is not None:
            self._update = self._recorded(self.update, used.raw_optimizer, used.scaler)
            if used.scaler is not None:
                self._clip_and_update = self._recorded(self.clip_and_update, self._parameters,
                                                       used.raw_optimizer, used.scaler)

    def _recorded(self, function: Callable[..., Any], *state: Any,
                  guard: Callable[[], Any] | None = None) -> Any:
        return anabranch.record(function, state=[one for one in state if one is not None],
                                guard=guard, options=self._training.options)

    def parts(self) -> dict[str, Any]:
        """The recorded callables by their names."""
        return {name: part for name, part in (
            ("forward and backward", self._step), ("clipping", self._clip),
            ("optimizer", self._update), ("clipping and optimizer", self._clip_and_update))
            if part is not None}

    # What is recorded, which is the Trainer's and accelerate's own code.

    def forward_and_backward(self, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        with _in_place(self._trainer, "_prepare_inputs", _as_they_are):
            return self._training.plain_step(self.used.model, self._kind(inputs), *args, **kwargs)

    def clip(self, max_norm: Any, norm_type: Any) -> Any:
        return self._plain_clip(self._parameters, max_norm, norm_type)

    def update(self) -> None:
        assert self._plain_update is not None
        self._plain_update()

    def clip_and_update(self, max_norm: Any, norm_type: Any) -> Any:
        """Between the two a GradScaler keeps values of Python's, which no launch would leave there.
        Behind both it is as it was before."""
        norm = self.clip(max_norm, norm_type)
        self.update()
        return norm

    # What the Trainer's loop calls.

    def step_now(self, inputs: Any, args: Any, kwargs: Any) -> Any:
        model, training = self.used.model, self._training
        self._has_clipped = False
        if not model.training:  # no launch would switch it
            model.train()
        if callable(switch := getattr(self.used.optimizer, "train", None)):
            switch()
        prepared = self._trainer._prepare_inputs(inputs)
        if not isinstance(prepared, Mapping):
            with _in_place(self._trainer, "_prepare_inputs", _as_they_are):
                return training.plain_step(model, prepared, *args, **kwargs)
        self._kind = type(prepared)
        before = self._may_be_changed()
        loss = self._step(dict(prepared), *args, **kwargs)
        if self._may_be_changed() != before:
            training.leave(Cause.TRAINER_LEFT.because(
                "its class changes values of the trainer while it computes a loss, which a launch "
                "would not do", "Change them in a callback."))
        return loss

    def _settings(self) -> tuple[Any, ...]:
        """The guard of forward and backward: Python values that they read of the trainer."""
        return (self._kind, self.used.accelerator.gradient_accumulation_steps,
                *(getattr(self._trainer, name, None) for name in _SETTINGS),
                *self._training.own.values())

    def _may_be_changed(self) -> tuple[Any, ...]:
        """By code of the user's class; nothing where there is none."""
        own = self._training.own
        return (len(self._trainer.state.log_history), *own.values()) if own else ()

    def clip_now(self, parameters: Iterable[Any], max_norm: Any, norm_type: Any = 2) -> Any:
        """In the place of the accelerator's ``clip_grad_norm_``."""
        given, self._has_clipped = list(parameters), True
        is_mine = _are_same(given, self._parameters)
        if is_mine and self.used.scaler is None:
            return self._clip(max_norm, norm_type)
        if is_mine and self._clip_and_update is not None and self._steps_after_clipping \
                and not _is_looked_at_between(self._trainer):
            norm = self._clip_and_update(max_norm, norm_type)
            self._is_updated = True
            return norm
        self._is_unscaled = self.used.scaler is not None
        return self._plain_clip(given, max_norm, norm_type)

    def update_now(self, *args: Any, **kwargs: Any) -> Any:
        """In the place of the ``step`` of accelerate's optimizer."""
        assert self._plain_update is not None and self._update is not None
        is_updated, is_unscaled = self._is_updated, self._is_unscaled
        self._steps_after_clipping |= self._has_clipped
        self._is_updated = self._is_unscaled = self._has_clipped = False
        if is_updated:
            return None
        if is_unscaled or args or kwargs or not self.used.optimizer.gradient_state.sync_gradients:
            return self._plain_update(*args, **kwargs)
        return self._update()


def _as_they_are(inputs: Any) -> Any:
    return inputs


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


@contextlib.contextmanager
def _in_place(thing: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of the object itself has this value meanwhile."""
    before = vars(thing).get(name, thing)
    setattr(thing, name, value)
    try:
        yield
    finally:
        if before is thing:
            delattr(thing, name)
        else:
            setattr(thing, name, before)


def _raw(optimizer: Any) -> Any:
    """The optimizer in accelerate's wrapper; None where it has none, and is not known."""
    from accelerate.optimizer import AcceleratedOptimizer

    if not isinstance(optimizer, AcceleratedOptimizer):
        return None
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _is_looked_at_between(trainer: Any) -> bool:
    """Whether a callback is called between clipping and the optimizer's step."""
    from transformers import TrainerCallback

    name = "on_pre_optimizer_step"
    empty = getattr(TrainerCallback, name, None)
    methods = [getattr(one, name, None) for one in trainer.callback_handler.callbacks]
    return any(one is not None and getattr(one, "__func__", None) is not empty for one in methods)


def _check_is_trainer(trainer: Any, act: str) -> None:
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise wrong(f"{_ACT}.{act}", "trainer", trainer, "a transformers.Trainer",
                    "Give the object: record(Trainer(model, args, ...)).")


def _training_of(trainer: Any) -> Training | None:
    standing = getattr(vars(trainer).get("training_step"), "__self__", None)
    return standing if isinstance(standing, Training) else None


def _forget(trainer: Any) -> None:
    """Puts back what stood in the places of an earlier ``record``."""
    training = _training_of(trainer)
    if training is not None:
        training.current = None
        del trainer.training_step


def _why_not(trainer: Any) -> Reason | None:
    """Why the steps of this trainer are not recorded, and what to do; None where they are."""
    because = Cause.TRAINER_LEFT.because
    from transformers import Trainer

    args, accelerator = trainer.args, getattr(trainer, "accelerator", None)
    step = getattr(trainer.training_step, "__func__", trainer.training_step)
    is_theirs = step is vars(Trainer).get("training_step")
    if accelerator is None:
        return because("this version of transformers has a loop without accelerate",
                       "Take a newer one.")
    parallel = getattr(args.parallel_mode, "value", args.parallel_mode)
    kind = getattr(accelerator.distributed_type, "value", accelerator.distributed_type)
    if parallel != "not_parallel" or kind != "NO":
        return because(f"it trains in parallel ({parallel}, accelerate's type {kind})",
                       "Show it one GPU (CUDA_VISIBLE_DEVICES), or write the loop by hand, with "
                       "anabranch.record around its step.")
    if not is_theirs or not is_of_package(step, _CLIENT):
        return because(f"{type(trainer).__qualname__} has a training_step of its own",
                       "Override compute_loss, or give compute_loss_func=.")
    optim = str(getattr(args.optim, "value", args.optim))
    if optim in ("lomo", "adalomo") or optim.endswith("layerwise"):
        return because(f"its optimizer, {optim}, steps inside of the backward",
                       "Choose another optim=.")
    if getattr(args, "torch_empty_cache_steps", None) is not None:
        return because("torch_empty_cache_steps empties torch's cache inside of a step",
                       "Leave it out.")
    if (mode := args.torch_compile_mode) in ("reduce-overhead", "max-autotune"):
        return because(f"torch_compile_mode={mode!r} makes CUDA graphs of its own",
                       "Leave it out, or take max-autotune-no-cudagraphs.")
    if getattr(trainer, "use_apex", False):
        return because("it uses apex", "Train with bf16=True.")
    return None


def _refuse(why: Reason, chosen: config.Options) -> None:
    is_allowed = why.code in chosen.allow
    if chosen.strict and not is_allowed:
        raise strict_error(f"{_ACT}.record: the trainer's steps cannot be recorded", why,
                           "it trains as it is")
    tell("the Trainer's steps run unrecorded", why, is_allowed=is_allowed)
