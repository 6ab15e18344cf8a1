# SPDX-License-Identifier: Apache-2.0
"""Launches of compiled graphs by their plans: checks as data, by where inputs lie in blocks.

Threads: any. Failure: MISSED where the recording does not fit, and the call goes the full way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from anabranch import _compat
from anabranch._record.checks import MISSED, Kind, call, item
from anabranch._record.faults import BEGUN
from anabranch._record.launch.saved_blocks import InBlocks, InputPlaces
from anabranch._record.signatures.call_plans import plan_of_graph
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import Specialization


class GraphPlans:
    """Of a recorder for this kind of callable."""

    def __init__(self, kind: CallableKind) -> None:
        self._saved, self._pair = kind.saved, kind.pair

    @_compat.untraced
    def call(self, spec: Specialization, leaves: list[Any]) -> Any:
        """A launch; MISSED where that cannot be."""
        places = leaves.places if isinstance(leaves, InBlocks) else None
        if places not in spec.plans:
            self.plan(spec, places)
        plans = spec.plans.get(places, [])
        BEGUN.runs += 1
        answer = call(plans, leaves, None, None)
        if answer is MISSED:
            BEGUN.runs -= 1
            spec.plans = {}  # until it is launched
        return answer

    def plan(self, spec: Specialization, places: InputPlaces | None) -> None:
        """For later calls."""
        recording, saved, pair = spec.recording, self._saved, self._pair
        offsets = b"" if recording is None or places is None \
            else recording.offsets(places, spec.arguments)
        if recording is None or offsets is None:
            return

        def finish(given: Sequence[Tensor], owners: Any, bases: list[Tensor], are_counted: bool,
                   are_set: bool) -> Any:
            layout = recording.layout if saved is not None else None
            in_blocks = layout is not None and saved is not None and saved.may_pass(layout)
            answer = recording.finish(given, owners, bases, are_counted, are_set, in_blocks)
            if saved is not None and layout is not None and not in_blocks:
                saved.watch(layout, answer)
            return answer

        def refused(code: int, *of_call: Any) -> Any:
            if code and recording.random is not None:
                recording.random.take_back()
            return MISSED

        more = [] if pair is None else [item(vars(pair), "backward_is_short", Kind.IS, False)]
        plan = plan_of_graph(spec, more, finish, refused, offsets)
        if plan is not None:
            spec.plans = {**spec.plans, places: [plan]}
