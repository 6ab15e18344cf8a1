# SPDX-License-Identifier: Apache-2.0
"""What the processes of a step with collectives agree on before they record it.

Recording runs a step several times. A process that does so alone waits for the others for ever, or
its collectives pair up with unrelated ones. So the processes meet first, without collectives: in
the stores of the groups that the step uses. By then each process has run the call plainly and
waited for its GPU, so the others have queued their share of that call. A process that does not come
within half a minute is not going to record.

Threads: one step at a time. Failure: Apart where some processes do not come; NotRecordable where
another process could not record.
"""

from __future__ import annotations

import collections
import datetime
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from anabranch import _compat
from anabranch._core.library import NativeError
from anabranch._record.capture.untracked import UntrackedTensors
from anabranch._record.refusals import Apart, Cause, NotRecordable, reason_for

_PATIENCE = datetime.timedelta(seconds=30)
_YES, _NO = "yes", "no"
_Made = TypeVar("_Made")
_lock = threading.Lock()
_meetings: collections.Counter[tuple[str, str]] = collections.Counter()  # by group and name


class Rendezvous:
    """Of all processes of these groups, which took part in the collectives of one plain run."""

    def __init__(self, device: torch.device, groups: Sequence[Any]) -> None:
        self._device = device
        groups = _largest(groups)
        # What a group finds has to reach the groups before it, too. So each is asked twice, there
        # and back, unless one group holds all processes: it is then the only one. The order is the
        # same in all processes, so no two wait for each other.
        is_of_all = any(dist.get_world_size(group) == dist.get_world_size() for group in groups)
        self._turns = groups if is_of_all else [*groups, *reversed(groups)]

    @classmethod
    def since(cls, before: Mapping[Any, int], device: torch.device) -> Rendezvous:
        """Of the groups that have had more collectives than were counted ``before``."""
        now = _compat.collectives_so_far()
        return cls(device, [group for group, count in now.items() if count != before.get(group, 0)])

    @property
    def has_others(self) -> bool:
        return bool(self._turns)

    def meet(self, name: str) -> None:
        """Raises Apart unless all processes are about to record something of this name in the same
        call. Once some have not come, later calls do not wait."""
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
        """Whether any process found it."""
        if not self._turns:
            return found
        flag = torch.tensor(float(found), device=self._device)
        for group in self._turns:
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
        return bool(flag.item())

    def make(self, make: Callable[[], _Made]) -> _Made:
        """``make()``, if it succeeds in all processes. Raises UntrackedTensors if it raises that in
        all, and else NotRecordable or the process's own error."""
        try:
            made = make()
        except (NotRecordable, NativeError) as error:
            self.on(True)
            is_untracked = isinstance(error, UntrackedTensors)
            if self.on(not is_untracked) and is_untracked:
                raise NotRecordable(reason_for(error)) from error
            raise
        if self.on(False):
            self.on(True)
            raise NotRecordable("another process could not record it", Cause.PROCESSES_APART)
        return made

    def refuse(self, why: NotRecordable) -> NoReturn:
        """Raises it, and has the other processes raise, too."""
        def fail() -> NoReturn:
            raise why

        self.make(fail)
        raise why


class _Meeting:
    """One meeting of one group. The last process to come decides that it takes place; a process
    that has waited too long decides that it does not. The first decision counts."""

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
        except RuntimeError:  # no process has decided in time
            self._decide(_NO)
        return self._store.get(self._decided).decode() == _YES or self.leave()

    def leave(self) -> bool:
        """Decides against, for processes that wait now and for those that come later."""
        self._decide(_NO)
        self._store.set(self._are_apart, _NO)
        return False

    def _decide(self, what: str) -> None:
        self._store.compare_set(self._decided, "", what)


def _largest(groups: Sequence[Any]) -> list[Any]:
    """The groups without those whose processes are all in another one. They stay in the order in
    which they were made, which is the same in all processes."""
    ranks = [frozenset(dist.get_process_group_ranks(group)) for group in groups]
    return [group for i, group in enumerate(groups)
            if not any(ranks[i] < other or (ranks[i] == other and j < i)
                       for j, other in enumerate(ranks))]
