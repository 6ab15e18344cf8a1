# SPDX-License-Identifier: Apache-2.0
"""Which calls of a callable are captured and launched as calls, and kept for the next one
(``python_once``).

Threads: the recorder's, one at a time. Failure: none; a call that is not kept is a plain one, and
its signature is recorded in the other way.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from anabranch import _compat, config
from anabranch._record.capture.capture import close_abandoned
from anabranch._record.capture.preallocate import noted_sizes
from anabranch._record.capture.step import Step
from anabranch._record.memory.gpu import is_plentiful
from anabranch._record.observe.observing import check_draws, check_inputs, collection_read_at
from anabranch._record.refusals import NotRecordable, Reason
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.tensors import size_of
from anabranch._record.trial.kept_call import KeptCall, run_kept

log = logging.getLogger("anabranch.record")


class KeptCalls:
    """Of the callable of this name."""

    def __init__(self, name: str, chosen: config.Options, kind: CallableKind) -> None:
        self._name, self._chosen = name, chosen
        self._are_wanted = chosen.python_once and chosen.verify and kind.takes_gradients

    def around_first(self, device: int | None) -> AbstractContextManager[Callable[[], list[int]]]:
        """Around a signature's first call: a function that tells what a capture is to find free."""
        if not self._are_wanted or device is None:
            return contextlib.nullcontext(list)
        return noted_sizes(device)

    def check_first(self, spec: Specialization) -> None:
        """Behind it: what takes something in is not captured, where it might break and have to run
        again."""
        if self._are_wanted:
            try:
                check_inputs()
            except NotRecordable:
                spec.may_keep_call = False

    def may_keep(self, spec: Specialization, step: Step) -> bool:
        """Whether the capture of this call is to be launched as the call."""
        return self._are_wanted and spec.kept is None and spec.may_keep_call \
            and step.numbers is None and not step.on_host and not step.pinned \
            and is_plentiful(step.device, size_of(step.tensors)) \
            and not _compat.distributed_models(spec.state.modules)

    def run(self, spec: Specialization, step: Step) -> tuple[Any, KeptCall] | None:
        """The call's answer, and what is kept of it. None where its capture breaks: nothing has run
        then, and the call may be recorded in the other way."""
        step.ahead = spec.ahead
        try:
            return run_kept(step, spec.state, self._chosen.allow, collection_read_at, _check_taken)
        except Exception as error:  # the step's own, too: its plain run will raise it
            spec.drop_kept()
            log.info("%s: a call is not kept: %s", self._name, error)
        close_abandoned()
        return None

    def keep(self, spec: Specialization, kept: KeptCall) -> Reason | None:
        """For the next call of this signature; or why that is never launched."""
        spec.kept = kept
        if kept.refusal is not None or not kept.is_of_use:
            spec.drop_kept()
        return kept.refusal.reason if kept.refusal is not None and not self._chosen.strict else None

    def judge(self, spec: Specialization, why: Exception) -> bool:
        """Whether what was not recorded was tried with a kept call: it is recorded otherwise."""
        if spec.kept is None:
            return False
        spec.drop_kept()
        log.info("%s: not recorded with a call that was kept: %s", self._name, why)
        return True


def _check_taken() -> None:
    """Raises NotRecordable where the run of this call has taken in what launches would not."""
    check_draws()
    check_inputs()
