# SPDX-License-Identifier: Apache-2.0
"""``anabranch.offload_optimizer(optimizer)``: its state lies in pinned memory of the host.

The optimizer gets another class, which is made of its own and of ``OffloadedState``, and so keeps
its hooks, schedulers and scalers. Its steps are those of its own class, each of some parameters
(``optimizer_chunks``).

Threads: as an optimizer's. Failure: none of ours. State that cannot move stays on the GPU, and it
is told once [E0339].
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anabranch import _compat, config
from anabranch._arguments import wrong
from anabranch._offload import host_memory
from anabranch._offload.copies import lanes_of
from anabranch._offload.optimizer_chunks import (
    chunks_of,
    device_of,
    moves,
    moving_of,
    step_in_chunks,
)
from anabranch._record.memory.host import host_free_bytes
from anabranch._record.refusals import Cause
from anabranch._record.state.walk import name_of_wrapped
from anabranch._record.warn import tell

_IN_FLIGHT_BYTES = 256 << 20
_HOST_SHARE = 0.1  # of what the host has free at first, that stays free
_O = TypeVar("_O", bound=torch.optim.Optimizer)


def offload_optimizer(optimizer: _O, *, in_flight_bytes: int = _IN_FLIGHT_BYTES,
                      each_alone: bool = False) -> _O:
    """Keeps an optimizer's state in pinned memory of the host; answers the optimizer itself.

    A step brings the state in, updates, and takes it out again, some parameters at a time, so that
    copies both ways run beside each other and beside updates; under ``anabranch.record`` also
    beside the backward, where it is compiled. At most ``in_flight_bytes`` of state are on the GPU
    then, or that of three parameters, if that is more. Results are those of the same optimizer
    with its state on the GPU, bit for bit. Tensors below 64 KiB stay where they are, and so does
    all state of parameters on the CPU.

    ``each_alone``: of an optimizer that is not torch's, whether its step updates each parameter
    from its own gradient and state alone. Where that is not said, and of LBFGS and
    ``differentiable=True``, the state stays on the GPU, with a warning [E0339]. So does what the
    host has no pinned memory for.

    State is current in the host's memory behind the step's work on the GPU: ``state_dict()`` waits
    for that, whoever reads ``optimizer.state`` otherwise calls ``torch.cuda.synchronize()`` first.
    ``optimizer.pinned_state_bytes`` says how much is there. Raises WrongArgument [E0611].
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise wrong("offload_optimizer", "the optimizer", optimizer, "an optimizer of torch's kind",
                    "Give the optimizer itself: offload_optimizer(torch.optim.AdamW(...)).")
    if type(in_flight_bytes) is not int or in_flight_bytes <= 0:
        raise wrong("offload_optimizer", "in_flight_bytes", in_flight_bytes,
                    "a number of bytes above 0", "Leave it out for 256 MiB.")
    one: Any = _innermost(optimizer)
    if isinstance(one, OffloadedState):
        one._in_flight_bytes = in_flight_bytes
    elif why := _why_whole(one, each_alone):
        _tell(*why)
    else:
        kind: Any = type(one)
        one.__class__ = _offloaded(kind)
        _compat.let_schedulers_see_steps(one)
        one._begin(in_flight_bytes)
    return optimizer


def _innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """That which does the steps, of one that wraps it as accelerate's does."""
    name = name_of_wrapped(optimizer)
    return optimizer if name is None else _innermost(vars(optimizer)[name])


def _why_whole(optimizer: torch.optim.Optimizer, each_alone: bool) -> tuple[str, str] | None:
    """Why its step cannot be cut, and what to do about that; None if it can."""
    name, module = type(optimizer).__name__, inspect.unwrap(type(optimizer).step).__module__
    if isinstance(optimizer, torch.optim.LBFGS):
        return f"{name} looks at all parameters at once", \
            "AdamW and its like update each by itself."
    if not each_alone and not module.startswith("torch.optim."):
        return (f"{name} is not torch's, and may look at all parameters at once",
                "each_alone=True says that it does not.")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} was made with differentiable=True, so its state has a history", \
            "Make it without."
    if not _compat.steps_by_its_class(optimizer):
        return f"{name} has another step than its class", \
            "Call offload_optimizer before what replaces it."
    return None


def _tell(why: str, remedy: str) -> None:
    tell("anabranch: an optimizer's state stays on the GPU",
         Cause.NOT_OFFLOADED.because(why, remedy),
         is_allowed=Cause.NOT_OFFLOADED in config.resolve(None).allow)


class OffloadedState:
    """What comes before an optimizer's own class."""

    state: dict[Any, Any]
    param_groups: list[dict[str, Any]]
    _own: Any = None  # class
    _in_flight_bytes = _IN_FLIGHT_BYTES
    _is_short = False  # of pinned memory
    _least_free: int | None = None  # bytes of the host's memory, which are left alone

    def _begin(self, in_flight_bytes: int) -> None:
        self._in_flight_bytes = in_flight_bytes
        for group in self.param_groups:
            if device_of(group["params"]) is None \
                    and any(host_memory.may_leave(one.device) for one in group["params"]):
                _tell("a group has parameters on several devices, or of classes that wrap tensors",
                      "Give parameters that are plain tensors on one GPU a group of their own.")
        self._move_out()

    @property
    def pinned_state_bytes(self) -> int:
        """Of its state, in pinned memory."""
        return sum(value.numel() * value.itemsize for *_, value in self._tensors(stay=False)
                   if host_memory.is_pinned(value))

    def step(self, closure: Callable[[], Any] | None = None, **given: Any) -> Any:
        """One step of the optimizer; hooks run around all of it."""
        if closure is None:
            answer = None
        else:
            with torch.enable_grad():
                answer = closure()
        step = _compat.own_step(type(self)._own)
        update = _Narrowed(self, lambda: step(self, **given))
        staying, chunks = chunks_of(self.param_groups, self.state, self._in_flight_bytes)
        try:
            if staying or not chunks:
                self._bring_back()
                update(staying)
            if chunks:
                step_in_chunks(chunks, self.state, update, self._home_for, self._in_flight_bytes)
        finally:
            update.end()
        return answer

    def state_dict(self) -> dict[str, Any]:
        """torch's, with what is in pinned memory as it lies there; steps go on to write it."""
        self._wait()
        parent: Any = super()
        return parent.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """torch's, but that state goes to pinned memory and not by way of the GPU."""
        self._wait()
        parent: Any = super()
        with _Landing(self._home_for):
            parent.load_state_dict(state_dict)

    def __getstate__(self) -> Any:
        self._wait()
        parent: Any = super()
        return parent.__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        parent: Any = super()
        parent.__setstate__(state)
        self._move_out()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies are offloaded, too."""
        return _empty, (type(self)._own, self._in_flight_bytes), self.__getstate__()

    def _tensors(self, stay: bool) -> Iterator[tuple[Tensor, dict[Any, Any], Any, Tensor]]:
        """Parameter, its state, key and tensor, of groups whose state stays or of the others: what
        is large."""
        for group in self.param_groups:
            if (device_of(group["params"]) is None) != stay:
                continue
            for parameter in group["params"]:
                for state, key, value in moving_of(self.state, parameter):
                    yield parameter, state, key, value

    def _move_out(self) -> None:
        """To pinned memory, behind what is queued."""
        for _, state, key, value in self._tensors(stay=False):
            if not host_memory.is_pinned(value) and (home := self._home_for(value)) is not None:
                state[key] = home.copy_(value, non_blocking=True)

    def _bring_back(self) -> None:
        """Of groups whose state stays: a load has put it into pinned memory all the same, or
        parameters of another kind have come to the group."""
        for parameter, state, key, value in self._tensors(stay=True):
            if host_memory.is_pinned(value) and host_memory.may_leave(parameter.device):
                state[key] = torch.empty_like(value, device=parameter.device).copy_(value)

    def _home_for(self, value: Tensor, dtype: torch.dtype | None = None) -> Tensor | None:
        if self._is_short:
            return None
        try:
            if self._least_free is None:
                self._least_free = int(host_free_bytes() * _HOST_SHARE)
            return host_memory.pinned_like(value, dtype or value.dtype, self._least_free)
        except (RuntimeError, OSError) as error:
            self._is_short = True
            _tell(f"no {value.numel() * value.itemsize} bytes of pinned memory are to be had "
                  f"({str(error).strip().splitlines()[0]})", "Free memory of the host.")
            return None

    def _wait(self) -> None:
        """Until all copies have been made that are queued."""
        for device in {one.device for group in self.param_groups for one in group["params"]}:
            if host_memory.may_leave(device):
                lanes_of(device).synchronize()


class _Narrowed:
    """Steps of an optimizer whose groups have some of their parameters. Each finds the groups as
    the first one did, so that what a step counts in a group is counted once."""

    def __init__(self, optimizer: Any, step: Callable[[], Any]) -> None:
        self._optimizer, self._step = optimizer, step
        self._groups = optimizer.param_groups
        self._before = [dict(group) for group in self._groups]
        self._last: dict[int, dict[str, Any]] = {}  # by number

    def __call__(self, parameters: dict[int, list[Tensor]]) -> None:
        groups = {number: {**self._before[number], "params": parameters[number]}
                  for number in sorted(parameters)}
        self._last |= groups
        self._optimizer.param_groups = list(groups.values())
        try:
            self._step()
        finally:
            self._optimizer.param_groups = self._groups

    def end(self) -> None:
        """What the last step of a group has put there stays."""
        for number, group in self._last.items():
            before = self._before[number]
            self._groups[number].update(
                {key: value for key, value in group.items()
                 if key != "params" and (key not in before or before[key] is not value)})


class _Landing(TorchFunctionMode):
    """While a state is loaded, what torch would send to a GPU becomes what it answers in pinned
    memory."""

    def __init__(self, home_for: Callable[[Tensor, torch.dtype | None], Tensor | None]) -> None:
        super().__init__()
        self._home_for = home_for

    def __torch_function__(self, function: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.to and isinstance(kwargs.get("device"), torch.device) \
                and host_memory.may_leave(kwargs["device"]) and moves(args[0]):
            home = self._home_for(args[0], kwargs.get("dtype"))
            if home is not None:
                return home.copy_(args[0])
        return function(*args, **kwargs)


@functools.cache
def _offloaded(kind: Any) -> Any:
    """A class of optimizers, with the name of its own."""
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__,
             "__doc__": kind.__doc__, "_own": kind, "step": _compat.with_hooks(OffloadedState.step)}
    return type(kind.__name__, (OffloadedState, kind), about)


def _empty(kind: Any, in_flight_bytes: int) -> Any:
    made = object.__new__(_offloaded(kind))
    made._in_flight_bytes = in_flight_bytes
    return made
