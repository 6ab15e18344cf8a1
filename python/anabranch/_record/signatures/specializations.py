# SPDX-License-Identifier: Apache-2.0
"""All specializations of one callable, by signature, and which signatures have one where there are
more than may have.

To record costs as much as hundreds of launches save. So a signature that comes when all places are
taken does not get the place of the one that was used least lately: with more signatures in turn
than places each call would record. It runs plainly, and gets the place of one that is not called
while it comes back some times itself. Numbers that never come back, a learning rate under a
schedule, get none.

Threads: under ``lock``, but for looking one up. Failure: none.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from anabranch._record.effects.side_effects import EffectPaths
from anabranch._record.launch.recording import StepRecording
from anabranch._record.report import RecordingReport
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.paths import Path
from anabranch._record.state.state import NO_STATE, State

_RETURNS = 3  # calls of a newcomer, while a recorded signature has none
_MOST_NEWCOMERS = 64  # of whom it is known how often they have come
_MOST_TOLD = 4  # of what signatures differ in
Differences = Callable[[Any, Sequence[Any]], list[str]]


class Specializations(dict[Any, Specialization]):
    """At most ``most``, which hold ``most_bytes`` together between launches. ``differences(key,
    keys)`` names in what a signature differs from the nearest of others. ``are_timed``: so are the
    launches of their recordings."""

    def __init__(self, most: int, most_bytes: int, differences: Differences,
                 are_timed: bool = False) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.beyond: Specialization | None = None  # shared by all signatures without a place
        self.plain: dict[Any, Specialization] = {}  # of calls that have no signature, by reason
        self._most = most
        self._are_timed = are_timed
        self._admission = Admission(most_bytes)
        self._differences = differences
        self._changed: tuple[Any, set[Path]] | None = None  # by the last call, if it was plain
        self._retired: collections.deque[RecordingReport] = collections.deque(maxlen=most)

    @property
    def is_full(self) -> bool:
        """Whether a signature that is not known yet may have to run plainly."""
        return len(self) >= self._most and (
            len(self) >= 2 * self._most or self._count_recorded() >= self._most)

    def _count_recorded(self) -> int:
        """Without those whose calls take something from an iterator, and then have another one."""
        return sum(spec.draw is None for spec in list(self.values()))

    def admit(self, key: Any, describe: Callable[[], str],
              state: State) -> tuple[Specialization, list[str]]:
        """The specialization of a new signature, and in what that differs from the nearest other.
        It is ``beyond`` where the signature gets no place."""
        free = self._admission.place_for(key, self) if self.is_full else None
        if self.is_full and free is None and self.beyond is not None:
            return self.beyond, []
        differs = self._differences(key, list(self))[:_MOST_TOLD]
        if self.is_full and free is None:
            self.beyond = Specialization(f"{describe()} and what else there is", NO_STATE)
            return self.beyond, differs
        if free is not None:
            self.retire(free)
        spec = self[key] = Specialization(describe(), state, self._are_timed)
        spec.note(differs=", ".join(differs))
        return spec, differs

    def retire_beyond_bytes(self, key: Any) -> None:
        """Retires what has to go now that ``key`` has been recorded."""
        with self.lock:
            for large in self._admission.too_large(key, self):
                self.retire(large)

    def retire(self, key: Any) -> None:
        """Drops a recording and keeps its report."""
        with self.lock:
            spec = self.pop(key, None)
            if spec is not None:
                self._let_go(spec)

    def _let_go(self, spec: Specialization) -> None:
        spec.is_retired = True
        self._retired.append(dataclasses.replace(spec.current_report(), dropped=True))

    def retire_all(self) -> None:
        with self.lock:
            for key in list(self):
                self.retire(key)

    def rename(self, key: Any, to: Any) -> None:
        """From now on a specialization has another key."""
        with self.lock:
            if key in self and to not in self:
                self[to] = self.pop(key)

    def note_changed(self, key: Any, paths: set[Path] | None) -> None:
        """A call of a signature that is not recorded yet has changed what it is guarded by at these
        paths. None: one that is."""
        self._changed = (key, paths) if paths else None

    def now_named(self, key: Any) -> Any:
        """To be called with the signature of a call, which is answered. It is that of the call
        before, if it differs in nothing but what that one has changed."""
        if self._changed is not None and key not in self:
            before, paths = self._changed
            if before in self and key[:-1] == before[:-1] \
                    and key[-1].without(paths) == before[-1].without(paths):
                self.rename(before, key)
                self._changed = key, paths  # once more is asked where more is looked for
        return key

    def rename_all(self, renamed: Callable[[Any], Any]) -> None:
        """From now on all have other keys, in the same order. Of two that have the same one now,
        that with a recording stays, and the other is retired."""
        with self.lock:
            some = [(renamed(key), spec) for key, spec in self.items()]
            self.clear()
            for key, spec in some:
                there = self.setdefault(key, spec)
                if there is not spec:
                    is_kept = there.recording is not None or spec.recording is None
                    self[key] = there if is_kept else spec
                    self._let_go(spec if is_kept else there)
            if self._changed is not None:
                self._changed = renamed(self._changed[0]), self._changed[1]

    def effects_of(self, key: Any) -> EffectPaths:
        """Of the launches of a signature."""
        spec = self.get(key)
        return EffectPaths(spec.mutations if spec is not None else ())

    def known(self) -> list[Specialization]:
        """One specialization a signature, the one of all signatures without a place, and those of
        calls that have none."""
        with self.lock:
            return [*self.values(), *([self.beyond] if self.beyond else []), *self.plain.values()]

    def recordings(self) -> list[StepRecording]:
        """That there are now."""
        return [spec.recording for spec in self.known() if spec.recording is not None]

    def reports(self) -> list[RecordingReport]:
        """The reports of recordings that were replaced, and then of the present ones."""
        with self.lock:
            return [*self._retired, *(spec.current_report() for spec in self.known())]


class _Newcomer(NamedTuple):
    came: int
    calls_then: dict[Any, int]  # of the recorded ones, when it came first


class Admission:
    """``most_bytes``: what recordings may hold together between launches."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._newcomers: collections.OrderedDict[Any, _Newcomer] = collections.OrderedDict()
        self._calls_then: dict[Any, int] = {}  # when something was recorded last

    def place_for(self, key: Any, known: Mapping[Any, Specialization]) -> Any:
        """The signature whose place this one gets; None where it runs plainly once more."""
        seen = self._newcomers.pop(key, None) or _Newcomer(0, _calls_of(known))
        seen = seen._replace(came=seen.came + 1)
        if seen.came >= _RETURNS:
            unused = [other for other, spec in known.items()
                      if seen.calls_then.get(other) == spec.uses]
            if unused:
                return min(unused, key=lambda other: known[other].uses)
            seen = _Newcomer(1, _calls_of(known))  # all are used: it is looked at anew
        self._newcomers[key] = seen
        if len(self._newcomers) > _MOST_NEWCOMERS:
            self._newcomers.popitem(last=False)
        return None

    def too_large(self, new: Any, known: Mapping[Any, Specialization]) -> list[Any]:
        """Those that have to go now that ``new`` has been recorded, those first that were called
        least since something was recorded last."""
        before, self._calls_then = self._calls_then, _calls_of(known)
        held = {other: spec.current_report().memory.held for other, spec in known.items()
                if spec.recording is not None}
        excess, going = sum(held.values()) - self._most_bytes, []
        others = [other for other in held if other != new]
        for other in sorted(others, key=lambda other: known[other].uses - before.get(other, 0)):
            if excess <= 0:
                break
            excess -= held[other]
            going.append(other)
        return going


def _calls_of(known: Mapping[Any, Specialization]) -> dict[Any, int]:
    return {key: spec.uses for key, spec in known.items()}
