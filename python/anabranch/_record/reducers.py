# SPDX-License-Identifier: Apache-2.0
"""Captures of a step that has models of torch's DistributedDataParallel.

A model's reducer keeps the nodes that accumulate gradients, and with them the stream on which the
model was made. Captures follow a gradient to that stream, but for the default one. Threads: the
recorder's, one at a time. Failure: NotRecordable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from anabranch import _compat
from anabranch._record.refusals import Cause, NotRecordable

_IN_BUCKETS = ("its DistributedDataParallel keeps gradients in its buckets, and launches leave "
               "theirs elsewhere")
_ON_A_STREAM = ("Make the model on a stream of its own: with torch.cuda.stream("
                "torch.cuda.Stream()): model = DistributedDataParallel(model).")


@contextlib.contextmanager
def untimed(models: Sequence[Any], exchanges: Sequence[bool]) -> Iterator[None]:
    """Around captures. The models' reducers take no times meanwhile. ``exchanges`` is what torch's
    models were to do when the call began, see _compat; a launch would not change it."""
    _check(models, exchanges)
    try:
        yield
        _check_exchanges(models, exchanges)
    except Exception as error:
        for model in models:
            _compat.end_reduction(model)
        if models and isinstance(error, NotRecordable) \
                and error.reason.code == Cause.LEGACY_STREAM:
            error.reason = error.reason._replace(remedy=_ON_A_STREAM)
        raise
    finally:
        for model in models:
            _compat.count_iteration(model)


def _check(models: Sequence[Any], exchanges: Sequence[bool]) -> None:
    if any(model.gradient_as_bucket_view for model in models):
        raise NotRecordable(_IN_BUCKETS, Cause.UNTRACKED_TENSOR,
                            "Make the model with gradient_as_bucket_view=False.")
    if any(map(_compat.has_hook_with_state, models)):
        raise NotRecordable(
            "a communication hook of its DistributedDataParallel keeps a state, in which it may "
            "count", Cause.PYTHON_CHANGES, "Register a hook without one: None or a process group.")
    if not all(map(_compat.count_past_timed, models)):
        raise NotRecordable(
            "DistributedDataParallel is told to take the times of every iteration, for which it "
            "waits for the GPU", Cause.WAITS_FOR_GPU, "Leave its sample rate as it is, 100.")
    _check_exchanges(models, exchanges)


def _check_exchanges(models: Sequence[Any], exchanges: Sequence[bool]) -> None:
    if _compat.exchanges(models) != exchanges:
        raise NotRecordable(
            "behind no_sync() DistributedDataParallel leaves out an exchange of buffers, which it "
            "notes in Python", Cause.PYTHON_CHANGES, "Put all batches of an accumulation into one "
            "step, or make the model with broadcast_buffers=False.")
