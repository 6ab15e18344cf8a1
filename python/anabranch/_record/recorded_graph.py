# SPDX-License-Identifier: Apache-2.0
"""A graph that Inductor has compiled, recorded one signature at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat, config
from anabranch._record.faults import BEGUN, may_run_plainly, run_users
from anabranch._record.launch.recording import StepRecording
from anabranch._record.launch.saved_blocks import handed_over, opened
from anabranch._record.recorder import Recorder
from anabranch._record.refusals import Cause
from anabranch._record.report import RecordingReport
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.signature import describe
from anabranch._record.state.state import NO_STATE
from anabranch._record.trial.plain_steps import PLAIN_STEPS

_ON_DATA = Cause.DEPENDS_ON_DATA.because("its sizes depend on data")


class RecordedGraph:
    """A compiled graph, called as Inductor's callables are: one list of inputs, which is emptied.

    Tensors come in the sizes that the graph was compiled for, so its numbers alone are the
    signature.

    Args:
        kind: of a graph; whether it may pass blocks is decided here.
        dynamic: sizes and strides of the tensors differ between calls, and are in the signature.
        label: stands before the inputs in reports.
        may_take_numbers: if not, calls with numbers run plainly. Numbers that depend on data would
            need a recording each.
    """

    def __init__(self, call: Callable[[list[Any]], Any], chosen: config.Options, name: str,
                 kind: CallableKind, *, dynamic: bool, label: str = "",
                 may_take_numbers: bool = True) -> None:
        may_pass = kind.saved_from is not None and not dynamic
        self._recorder = Recorder(lambda leaves: run_users(call, list(opened(leaves))), chosen,
                                  name, dataclasses.replace(kind, may_pass_blocks=may_pass),
                                  call_last=lambda leaves: run_users(call, handed_over(leaves)))
        self._given = kind.pair if kind.is_backward and not dynamic else None
        self._call = call
        self._is_broken = False  # by a mistake of ours
        self._dynamic = dynamic
        self._label = label
        self._may_take_numbers = may_take_numbers
        self._numbers: list[int] | None = None  # inputs that are no tensors

    @_compat.untraced
    def __call__(self, inputs: list[Any], beside: tuple[Any, ...] = ()) -> Any:
        """``beside``: what else recordings are for, in a signature."""
        leaves = self._given.of_backward(inputs) if self._given else inputs
        if torch.cuda.is_current_stream_capturing():
            return self._call(opened(leaves))  # becomes part of somebody's graph
        if self._is_broken or PLAIN_STEPS.is_trying():  # and is to become part of one
            return self._call(handed_over(leaves))
        if self._numbers is None:
            self._numbers = [i for i, leaf in enumerate(inputs) if not isinstance(leaf, Tensor)]
        key: tuple[Any, ...] = tuple([inputs[i] for i in self._numbers])
        if key and not self._may_take_numbers:
            return self._run_plainly(inputs)
        key += beside
        if self._dynamic:
            key += tuple([(leaf.shape, leaf.stride()) for leaf in inputs
                          if isinstance(leaf, Tensor)])
        if leaves is not inputs:
            inputs.clear()
        begun, count = BEGUN.runs, len(leaves)
        try:
            answer = self._recorder.run(key, leaves, NO_STATE,
                                        lambda: self._label + describe(opened(leaves)))
        except Exception as error:
            if not may_run_plainly(error, begun) or len(leaves) != count:
                raise
            self._is_broken = True
            self._recorder.break_off(error)
            return self._call(handed_over(leaves))
        inputs.clear()
        return answer

    def _run_plainly(self, inputs: list[Any]) -> Any:
        self._recorder.note_plain(self._label + "any sizes", _ON_DATA)
        return self._call(inputs)

    @property
    def is_refused(self) -> bool:
        """Whether a recording of it was refused, and not only for the number of signatures."""
        return self._recorder.is_refused

    @property
    def reports(self) -> list[RecordingReport]:
        return self._recorder.specializations.reports()

    @property
    def recordings(self) -> list[StepRecording]:
        """That there are now."""
        return self._recorder.specializations.recordings()
