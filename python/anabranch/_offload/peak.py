# SPDX-License-Identifier: Apache-2.0
"""What a forward and its backward are expected to take at each step, before they are compiled.

Products, convolutions and attention write what they answer. Everything else is fused: of what such
steps make, that is written which somebody reads who is not fused with them, over what has been read
there for the last time where that is as large. Libraries' workspaces are measured (``durations``).

Threads: any. Failure: none.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Container, Iterable, Iterator, Sequence

from torch import Tensor
from torch.fx import Graph, Node

from anabranch._core.offload import Choice, Decision
from anabranch._offload.durations import is_apart, levels, makers_of, workspace_bytes
from anabranch._offload.saved import Pair, Saved, bytes_of, step_of, users_of

_NEAR_PEAK = 0.9


def expected_bytes(pair: Pair, decisions: Sequence[Decision] | None = None) -> list[int]:
    """By step, beside what is there before: what is saved, what else is alive, and workspaces.
    Without decisions, where all that is saved is kept."""
    saved = {each.tensor for each in pair.saved}
    beside = [*_Lives(pair.forward.graph, pair.forward_steps, saved).bytes(),
              *_Lives(pair.backward.graph, pair.backward_steps, ()).bytes()]
    there = _saved_bytes(pair, decisions or [None] * len(pair.saved))
    return list(map(sum, zip(beside, there, map(workspace_bytes, pair.steps), strict=True)))


def near_peak(pair: Pair, decisions: Sequence[Decision]) -> list[Node]:
    """The steps of the backward at which nearly as much is expected as ever, in their order."""
    expected = expected_bytes(pair, decisions)
    much = _NEAR_PEAK * max(expected, default=0)
    return [step for step, size in
            zip(pair.backward_steps, expected[len(pair.forward_steps):], strict=True)
            if size >= much]


def base_bytes(pair: Pair) -> list[int]:
    """By step, what is alive beside what is saved and what was there before: as torch runs it,
    before anything is fused. Results live to the end."""
    saved = {each.tensor for each in pair.saved}
    return [*_unfused_bytes(pair.forward.graph, pair.forward_steps, saved),
            *_unfused_bytes(pair.backward.graph, pair.backward_steps, ())]


def _unfused_bytes(graph: Graph, steps: Sequence[Node], elsewhere: Container[Node]) -> list[int]:
    number = {step: i for i, step in enumerate(steps)}
    lives = []
    for value in _values(graph):
        first = number.get(step_of(value))
        if first is None or value in elsewhere:
            continue
        users = list(users_of(value))
        last = len(steps) - 1 if any(user.op == "output" for user in users) else \
            max([first, *(number[user] for user in users if user in number)])
        lives.append((first, last, bytes_of(value.meta["val"])))
    return _summed(len(steps), lives)


def _values(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if isinstance(node.meta.get("val"), Tensor))


def _saved_bytes(pair: Pair, decisions: Sequence[Decision | None]) -> list[int]:
    return _summed(len(pair.steps), (
        (first, last, saved.bytes) for saved, made in zip(pair.saved, decisions, strict=True)
        for first, last in _times_there(saved, made)))


def _times_there(saved: Saved, made: Decision | None) -> list[tuple[int, int]]:
    if made is None or made.choice == Choice.KEEP:
        return [(saved.made_after, saved.last_backward_use)]
    if made.choice == Choice.RECOMPUTE:
        return [(saved.made_after, saved.last_forward_use),
                (saved.first_backward_use, saved.last_backward_use)]
    assert made.freed_before is not None and made.in_before is not None
    return [(saved.made_after, made.freed_before - 1), (made.in_before, saved.last_backward_use)]


def _summed(steps: int, lives: Iterable[tuple[int, int, int]]) -> list[int]:
    """Of the first and the last step of each, and its bytes."""
    change = [0] * (steps + 1)
    for first, last, size in lives:
        change[first] += size
        change[last + 1] -= size
    return list(itertools.accumulate(change[:-1]))


class _Lives:
    """Of what the steps of a graph make, but for what is counted elsewhere."""

    def __init__(self, graph: Graph, steps: Sequence[Node], elsewhere: Container[Node]) -> None:
        self._steps = steps
        self._apart = set(filter(is_apart, steps))
        self._level = levels(steps, self._apart)
        self._values: dict[Node, list[Node]] = {step: [] for step in steps}
        for value in _values(graph):
            if step_of(value) in self._values:
                self._values[step_of(value)].append(value)
        self._elsewhere = elsewhere
        self._at = self._places()
        self._read_at: dict[Node, int] = {}  # when a step's kernel reads

    def _places(self) -> dict[Node, int]:
        """When each step runs: in the graph's order, but for what is only returned. That is fused
        with who reads the same, however late it stands in the graph."""
        only_returned: set[Node] = set()
        for step in reversed(self._steps):
            users = {user for value in self._values[step] for user in users_of(value)
                     if user in self._values}
            if step not in self._apart and users <= only_returned:
                only_returned.add(step)
        at: dict[Node, int] = {}
        for i, step in enumerate(self._steps):
            at[step] = i
            if step in only_returned:
                at[step] = max((at[maker] + (maker in self._apart)
                                for maker in makers_of(step).values() if maker in at), default=i)
        return at

    def bytes(self) -> list[int]:
        for step in reversed(self._steps):
            self._read_at[step] = self._at[step] if self._is_written(step) else max(
                (self._read_at[user] for user in self._users(step)), default=self._at[step])
        lives = [_Life(self._at[step], self._last_read(value), bytes_of(value.meta["val"]),
                       step not in self._apart)
                 for step in self._steps for value in self._values[step]
                 if value not in self._elsewhere and self._is_value_written(step, value)]
        _write_over(lives)
        return _summed(len(self._steps), ((life.first, life.last, life.bytes) for life in lives))

    def _users(self, step: Node) -> Iterable[Node]:
        return (user for value in self._values[step] for user in users_of(value)
                if user in self._values)

    def _is_written(self, step: Node) -> bool:
        return any(self._is_value_written(step, value) for value in self._values[step])

    def _is_value_written(self, step: Node, value: Node) -> bool:
        return step in self._apart or value in self._elsewhere or any(
            user.op == "output" or user in self._apart
            or self._level.get(user, self._level[step]) != self._level[step]
            for user in users_of(value))

    def _last_read(self, value: Node) -> int:
        """Results live to the end."""
        users = list(users_of(value))
        if any(user.op == "output" for user in users):
            return len(self._steps) - 1
        return max((self._read_at[user] for user in users if user in self._values),
                   default=self._at[step_of(value)])


@dataclasses.dataclass
class _Life:
    """Of a value: the first and the last step that it is there, and whether it is made by a fused
    kernel."""

    first: int
    last: int
    bytes: int
    is_fused: bool


def _write_over(lives: Sequence[_Life]) -> None:
    """A fused kernel writes over a value that it is the last to read."""
    ends: dict[tuple[int, int], list[_Life]] = {}
    for life in lives:
        ends.setdefault((life.last, life.bytes), []).append(life)
    for life in lives:
        given = next((other for other in ends.get((life.first, life.bytes), ())
                      if other.first < life.first), None) if life.is_fused else None
        if given is not None:
            ends[life.first, life.bytes].remove(given)
            given.last -= 1
