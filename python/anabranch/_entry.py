# SPDX-License-Identifier: Apache-2.0
"""One signature of a recorded callable: its report, its recording, and where the tensors of the state
that this names are looked up before a launch.

Threads: a recorder's lock around all but launches. Failure: none; what does not fit is said.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ._bindings import Slot, slots_in
from ._native_capture import CaptureCounts
from ._recorded import Recorded
from ._state import State, inner_places, may_be_parameter
from ._walk import Path


class Memory(NamedTuple):
    """Of a recording, in bytes. Its arena is taken from torch's allocator for each launch and given
    back when that is queued; the rest is held between launches. ``driver`` is by how much the
    device's free memory fell while its executables were made."""

    arena: int
    held_on_device: int
    held_pinned: int
    driver: int

    def __str__(self) -> str:
        return (f"holds {self.held_on_device} bytes on the device, {self.held_pinned} pinned, and "
                f"{self.driver} of the driver's")


@dataclasses.dataclass
class RecordingReport:
    """One signature of a recorded callable: what became of it. Times in seconds, memory in bytes."""

    inputs: str
    calls: int = 0
    reason: str | None = None  # why it runs plainly
    counts: CaptureCounts = dataclasses.field(default_factory=CaptureCounts)
    slots: int = 0
    capture_seconds: float = 0.0
    make_seconds: float = 0.0
    verify_seconds: float = 0.0
    verified: str = "no"  # "bitwise", "within bounds"
    overlap_gain: float = 0.0  # times as fast with kernels side by side; 0 if that was not timed
    why_in_order: str = ""  # why it was not, where it was wanted
    plain_calls: int = 0  # that a launch would not have served

    @property
    def nodes(self) -> int:
        return self.counts.nodes

    @property
    def sites(self) -> int:
        return self.counts.sites

    @property
    def unsure(self) -> int:
        """Words that differ between captures; found to be read by nothing."""
        return self.counts.unsure

    @property
    def arena_bytes(self) -> int:
        return self.counts.arena_bytes

    @property
    def arena_lower_bound_bytes(self) -> int:
        return self.counts.arena_lower_bound_bytes

    @property
    def memory(self) -> Memory:
        return Memory(self.counts.arena_bytes, self.counts.held_device_bytes,
                      self.counts.held_host_bytes, self.counts.held_driver_bytes)

    @property
    def lanes(self) -> int:
        """On which kernels may run side by side; 1: they run in their captured order."""
        return self.counts.lanes

    @property
    def known(self) -> int:
        """Nodes of which is known what they read and write."""
        return self.counts.known

    @property
    def launched_unchanged(self) -> int:
        return self.counts.launched_unchanged

    @property
    def launched_from_host(self) -> int:
        return self.counts.launched_from_host

    @property
    def launched_from_device(self) -> int:
        return self.counts.launched_from_device

    @property
    def launched(self) -> int:
        """Calls that a launch served, by whatever way it gave the kernels their addresses."""
        return self.launched_unchanged + self.launched_from_host + self.launched_from_device

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.inputs}: {self.calls} calls, unrecorded: {self.reason}"
        if not self.nodes:
            return f"{self.inputs}: {self.calls} calls, not recorded yet"
        launches = (f"{self.launched_unchanged} unchanged, {self.launched_from_host} set from the "
                    f"host, {self.launched_from_device} from the device, {self.plain_calls} plain")
        return (f"{self.inputs}: {self.calls} calls: {launches}\n"
                f"  {self.nodes} nodes, {self.sites} addresses of {self.slots} slots; arena "
                f"{self.arena_bytes} bytes (lower bound {self.arena_lower_bound_bytes})\n"
                f"  {self.memory}\n"
                f"{self._lanes_text()}"
                f"  captured in {self.capture_seconds:.2f} s, made in {self.make_seconds:.2f} s, "
                f"verified in {self.verify_seconds:.2f} s ({self.verified})")

    def _lanes_text(self) -> str:
        if not self.overlap_gain:
            return f"  in captured order: {self.why_in_order}\n" if self.why_in_order else ""
        return (f"  on {self.lanes} lanes, {self.known} nodes known; side by side "
                f"{self.overlap_gain:.2f} times as fast\n")


class _View(NamedTuple):
    """Of a state, for a recording: where its tensors are and where it leaves some. ``lookups`` is None
    where it does not serve the state; ``home`` is the state whose places these are, None for that
    one itself."""

    lookups: list[tuple[Any, Any]] | None
    slots: list[Slot] | None
    home: State | None


class Entry:
    """One signature: its recording, or how far it has got."""

    def __init__(self, inputs: str, state: State) -> None:
        self.report = RecordingReport(inputs)
        self.recorded: Recorded | None = None
        self.plain = 0  # calls so far
        self.constants: list[Any] = []  # leaves that are no tensors
        self.is_empty = False  # it queued nothing, which is no reason to raise
        self.state = state
        self.arguments: list[int] = []  # leaves that are tensors
        self.leaf_owners: list[int] = []  # leaves that may get a gradient
        self.known: list[Tensor] = []  # the state's tensors when last looked at
        self.used: list[int] = []  # those of them that the recording names
        self.looked_up: list[int] = []  # these, as often as they stand somewhere
        self.expected: list[Tensor] = []  # what stood there
        self.lookups: list[tuple[Any, Any]] = []  # where: holder and key
        self.paths: list[Path] = []  # and how one gets there
        self.followed = state  # where these places were found, or ones that serve as well
        self._views: weakref.WeakKeyDictionary[State, _View] = weakref.WeakKeyDictionary()
        self.slots: list[Slot] | None = None  # where it leaves what it answers besides
        self.lacks_gradient: list[bool] = []  # by owner, when recorded
        self.parameters: list[Tensor] = []  # of the state, that may get a gradient
        self.fixed: tuple[int, ...] = ()  # addresses of what cannot be re-pointed
        self.insides: list[tuple[Any, str]] = []  # whose attributes have these addresses
        self.wrappers: list[tuple[Any, Any, Tensor]] = []  # holder, key, and what was there

    def know(self, tensors: list[Tensor]) -> None:
        self.known = tensors
        self.parameters = self.state.parameters()

    def set_recorded(self, recorded: Recorded) -> None:
        first = len(self.arguments)
        self.used = [i - first for i in recorded.uses if first <= i < first + len(self.known)]
        stands = [(i, place) for i in self.used
                  for place in (self.state.places[i], *self.state.more_places[i])]
        self.looked_up = [i for i, _ in stands]
        self.paths = [place.path for _, place in stands]
        self.lookups = [(place.holder, place.key) for _, place in stands]
        self.expected = [self.known[i] for i in self.looked_up]
        self.followed = self.state
        self.recorded = recorded

    def follow(self, state: State) -> bool:
        """Looks tensors up in another state from now on. False where other objects lead to them,
        unless a step cannot tell these from those of before."""
        if self.followed is state:
            return True
        view = self._views.get(state)
        if view is None:
            view = self._views[state] = self._view_of(state)
        if view.lookups is None:
            return False
        self.lookups, self.slots, self.followed = view.lookups, view.slots, state
        home = view.home or state
        if self.state is not home:
            self.state, self.parameters = home, home.parameters()
        return True

    def _view_of(self, state: State) -> _View:
        if state.leads_as(self.state):
            return _View(self.lookups, self.slots, self.state)
        places = state.by_path()
        slots = slots_in(state, self.slots or [])
        if self.fixed or state.form != self.state.form or slots is None \
                or state.parameter_paths != self.state.parameter_paths \
                or not places.keys() >= set(self.paths):
            return _View(None, None, None)
        lookups = [(places[path].holder, places[path].key) for path in self.paths]
        return _View(lookups, self.slots and slots, None)

    def fix(self, inner: Sequence[Tensor]) -> None:
        """These tensors inside of others may not move."""
        self.fixed = tuple([tensor.data_ptr() for tensor in inner])
        self.wrappers = [(place.holder, place.key, tensor) for place in self.state.wrapped
                         if (tensor := place.get()) is not None]
        self.insides = [part for _, _, tensor in self.wrappers for part in inner_places(tensor)]

    def is_fixed(self) -> bool:
        """Whether they are where they were."""
        try:
            is_same = all([holder[key] is tensor for holder, key, tensor in self.wrappers])
        except (KeyError, IndexError, AttributeError):
            return False
        inner = [getattr(owner, name) for owner, name in self.insides] if is_same \
            else self.state.inner_tensors()
        return self.fixed == tuple([tensor.data_ptr() for tensor in inner])

    def look_up(self) -> bool:
        """Takes what stands now where the recording's tensors stood; False where it does not fit.
        What the recording does not name may be anything."""
        if self.slots and not all([slot.finds_as_before() for slot in self.slots]):
            return False
        try:
            found = [holder[key] for holder, key in self.lookups]
        except (KeyError, IndexError, AttributeError):
            return False
        if all(map(operator.is_, found, self.expected)):
            return True
        if not all(map(_alike, found, self.expected)):
            return False
        tensors = list(self.known)
        for i, tensor in zip(self.looked_up, found, strict=True):
            tensors[i] = tensor
        if any(tensors[i] is not tensor for i, tensor in zip(self.looked_up, found, strict=True)):
            return False  # what was one tensor are two
        others = [pair for pair in zip(found, self.expected, strict=True) if pair[0] is not pair[1]]
        self.known, self.expected = tensors, found
        if any(map(may_be_parameter, itertools.chain.from_iterable(others))):
            self.parameters = self.state.parameters()
        return True

    def leave(self, answer: Any) -> Any:
        """Puts what a launch answered where the step would have left it; the rest is the answer."""
        if self.slots is None:
            return answer
        answer, left = answer
        for slot, value in zip(self.slots, left, strict=True):
            slot.put(value)
        return answer

    def owners(self, leaves: Sequence[Any]) -> list[Tensor]:
        """Tensors that may get a gradient."""
        if not self.leaf_owners:
            return self.parameters
        return [*(leaves[i] for i in self.leaf_owners), *self.parameters]

    def current_report(self) -> RecordingReport:
        if self.recorded is not None:
            self.report.counts = self.recorded.counts
        return self.report


def _alike(tensor: Any, known: Tensor) -> bool:
    return (isinstance(tensor, Tensor) and tensor.shape == known.shape
            and tensor.stride() == known.stride() and tensor.dtype == known.dtype
            and tensor.device == known.device)
