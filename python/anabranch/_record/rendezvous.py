# SPDX-License-Identifier: Apache-2.0
"""What the processes of a step with collectives find out together before they record it.

Recording runs a step several times. A process that does so alone waits for the others for ever, or
its collectives meet others of theirs. So they meet first, without collectives: in the stores of the
groups that the step uses. By then each has run the call plainly and waited for its GPU, so that the
others have queued their share of it: who does not come within half a minute has not come to record.

Threads: one step at a time. Failure: Apart where some do not come; NotRecordable where another
process could not record.
"""

from __future__ import annotations

import collections
import datetime
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from anabranch import _compat
from anabranch._core.library import NativeError
from anabranch._record.capture.untracked import UntrackedTensors
from anabranch._record.refusals import Apart, NotRecordable

_PATIENCE = datetime.timedelta(seconds=30)
_YES, _NO = "yes", "no"
_Made = TypeVar("_Made")
_lock = threading.Lock()
_meetings: collections.Counter[tuple[str, str]] = collections.Counter()  # by group and name


class Rendezvous:
    """Of the processes of these groups: all that took part in collectives of one plain run."""

    def __init__(self, device: torch.device, groups: Sequence[Any]) -> None:
        self._device = device
        groups = _largest(groups)
        # What one has found has to reach those before it, too: so each comes twice, unless it is of
        # all processes. One order in all of them, so that none waits for another that waits for it.
        is_of_all = any(dist.get_world_size(group) == dist.get_world_size() for group in groups)
        self._turns = groups if is_of_all else [*groups, *reversed(groups)]

    @classmethod
    def since(cls, before: Mapping[Any, int], device: torch.device) -> Rendezvous:
        """Of those that had collectives since so many were counted."""
        now = _compat.collectives_so_far()
        return cls(device, [group for group, count in now.items() if count != before.get(group, 0)])

    def meet(self, name: str) -> None:
        """Apart unless all of them are about to record something of this name, in the same call.
        Once some have not come nobody waits for them again."""
        if not self._turns:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        meetings = [_Meeting(group, name) for group in self._turns]
        have_come = True
        for meeting in meetings:
            have_come = meeting.join() if have_come else meeting.leave()
        if not have_come:
            raise Apart("other processes of its collectives do not record it in the same call: "
                        "they see other shapes or numbers, or see them at other times")

    def on(self, found: bool) -> bool:
        """Whether any of them found it."""
        if not self._turns:
            return found
        flag = torch.tensor(float(found), device=self._device)
        for group in self._turns:
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
        return bool(flag.item())

    def make(self, make: Callable[[], _Made]) -> _Made:
        """``make()`` where all of them succeed; Elsewhere where it is that for all."""
        try:
            made = make()
        except (NotRecordable, NativeError) as error:
            self.on(True)
            is_untracked = isinstance(error, UntrackedTensors)
            if self.on(not is_untracked) and is_untracked:
                raise NotRecordable(str(error)) from error
            raise
        if self.on(False):
            self.on(True)
            raise NotRecordable("another process could not record it")
        return made


class _Meeting:
    """Of one group: whoever comes last says that it takes place, and whoever has waited too long
    that it does not, whichever is first."""

    def __init__(self, group: Any, name: str) -> None:
        with _lock:
            _meetings[group.group_name, name] += 1
            number = _meetings[group.group_name, name]
        self._store, self._size = _compat.store_of(group), dist.get_world_size(group)
        self._are_apart = f"anabranch/{name}/apart"
        self._come = f"anabranch/{name}/{number}/come"
        self._decided = f"anabranch/{name}/{number}/decided"

    def join(self) -> bool:
        if self._store.check([self._are_apart]):
            return self.leave()
        if self._store.add(self._come, 1) == self._size:
            self._decide(_YES)
        try:
            self._store.wait([self._decided], _PATIENCE)
        except RuntimeError:  # nobody has
            self._decide(_NO)
        return self._store.get(self._decided).decode() == _YES or self.leave()

    def leave(self) -> bool:
        """Tells those that wait, and those that come later."""
        self._decide(_NO)
        self._store.set(self._are_apart, _NO)
        return False

    def _decide(self, what: str) -> None:
        self._store.compare_set(self._decided, "", what)


def _largest(groups: Sequence[Any]) -> list[Any]:
    """In the order in which they were made, which is that of all processes. Those whose processes
    are all in another one have nothing to add."""
    ranks = [frozenset(dist.get_process_group_ranks(group)) for group in groups]
    return [group for i, group in enumerate(groups)
            if not any(ranks[i] < other or (ranks[i] == other and j < i)
                       for j, other in enumerate(ranks))]
