# SPDX-License-Identifier: Apache-2.0
"""Which Python code a plain run of a step executes, and which functions of C it calls.

Python 3.12 and newer tell it by ``sys.monitoring``, also of the threads on which torch runs a
backward; 3.11 by ``sys.setprofile``, of the thread that runs the step alone. While torch compiles
nothing is observed: what a compiler reads is no input of the step.

Threads: one observer at a time in a process; another one observes nothing. Failure: ``is_complete``
stays False where others have taken what observers need, such as a debugger or a profiler.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import types
import weakref
from typing import Any, NamedTuple, Protocol

from anabranch import _compat
from anabranch._record.observe.inputs import Inputs, is_compilers, module_of
from anabranch._record.observe.names import Chain

# Whether the variables of a function's frame are shown as a copy, which a monitor may empty.
_ARE_COPIES = sys.version_info[:2] == (3, 12)
_TOOLS = (4, 3)  # of sys.monitoring: those that nobody claims by convention
_one = threading.Lock()


class _Aside(weakref.ref[Any]):
    """Of a value that is not held."""


def _set_aside(value: Any) -> Any:
    """What a run makes ends with it, as without an observer: it may be all that a step computes,
    and its history. What can't be referred to weakly is held: numbers, texts, built-in containers.
    """
    try:
        return _Aside(value)
    except TypeError:
        return value


class Ran(NamedTuple):
    """Code that ran: with these globals, and these values of free variables when it first did."""

    code: types.CodeType
    globals: dict[str, Any]
    free: dict[str, Any]  # set aside
    of: type = type(None)  # its first argument, or the class of that

    @classmethod
    def in_frame(cls, frame: types.FrameType) -> Ran:
        code, there = frame.f_code, frame.f_locals
        first = there.get(code.co_varnames[0]) if code.co_argcount else None
        ran = cls(code, frame.f_globals,
                  {name: _set_aside(there[name]) for name in code.co_freevars if name in there},
                  first if isinstance(first, type) else type(first))
        if _ARE_COPIES and code.co_flags & inspect.CO_OPTIMIZED:
            there.clear()  # they would live as long as the frame does
        return ran

    @classmethod
    def of_function(cls, function: types.FunctionType) -> Ran:
        free = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (),
                              strict=True):
            with contextlib.suppress(ValueError):  # an empty one
                free[name] = _set_aside(cell.cell_contents)
        return cls(function.__code__, function.__globals__, free)

    def variable(self, chain: Chain, default: Any = None) -> Any:
        """What the chain begins with; ``default`` where that is not there, or no more."""
        if chain.is_global:
            return self.globals.get(chain.variable, default)
        value = self.free.get(chain.variable, default)
        if type(value) is not _Aside:
            return value
        there = value()
        return default if there is None else there


class _Teller(Protocol):
    is_of_all_threads: bool

    def begin(self) -> bool: ...
    def end(self) -> None: ...


class Observer:
    """Observes this thread from ``begin()`` to ``end()``. ``ran``: by code. ``inputs``: what it has
    called of C."""

    def __init__(self) -> None:
        self.ran: dict[types.CodeType, Ran] = {}
        self.inputs = Inputs()
        self.is_complete = False  # whether all was observed
        self.is_paused = False  # while code runs that is not the step's
        self.has_drawn = False  # it has taken what further calls take before they run
        self._thread = threading.get_ident()
        self._elsewhere: dict[int, bool] = {}  # other threads, by their numbers
        self._teller: _Teller = _Monitored(self) if sys.version_info >= (3, 12) else _Profiled(self)
        self._open = contextlib.ExitStack()

    def begin(self) -> None:
        if _one.acquire(blocking=False):
            self._open.callback(_one.release)
            self.is_complete = self._teller.begin()
            if self.is_complete:
                self._open.enter_context(_compat.around_compiling(self._pause, self._go_on))

    def end(self) -> None:
        self._teller.end()  # before more of Python's own code runs
        self._open.close()

    def _pause(self) -> None:
        if self._compiles_here():
            self._teller.end()

    def _go_on(self) -> None:
        if self._compiles_here():
            self.is_complete &= self._teller.begin()

    def _compiles_here(self) -> bool:
        """Whether what this thread compiles is the step's: a backward is compiled on autograd's."""
        return not self.is_elsewhere() if self._teller.is_of_all_threads \
            else threading.get_ident() == self._thread

    def is_elsewhere(self) -> bool:
        """Whether this is another thread, and none on which torch runs a backward."""
        thread = threading.get_ident()
        if thread == self._thread:
            return False
        if thread not in self._elsewhere:
            self._elsewhere[thread] = not _compat.is_autograds_thread(threading.get_native_id())
        return self._elsewhere[thread]

    def note(self, frame: types.FrameType) -> None:
        if self.is_paused:
            return
        if frame.f_code not in self.ran and not is_compilers(frame):
            self.ran[frame.f_code] = Ran.in_frame(frame)
        if frame.f_code in self.inputs.codes:
            self.inputs.started(frame)


class _Monitored:
    """By sys.monitoring. Of each code, the first start is told."""

    is_of_all_threads = True

    def __init__(self, observer: Observer) -> None:
        self._observer, self._tool = observer, -1

    def begin(self) -> bool:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        self._tool = next((one for one in _TOOLS if monitoring.get_tool(one) is None), -1)
        if self._tool < 0:
            return False
        monitoring.use_tool_id(self._tool, "anabranch")
        events = monitoring.events
        for event, callback in ((events.PY_START, self._started), (events.PY_RESUME, self._started),
                                (events.CALL, self._calls)):
            monitoring.register_callback(self._tool, event, callback)
        monitoring.restart_events()  # an earlier observer may have seen enough of some
        monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME | events.CALL)
        return True

    def end(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        if self._tool >= 0:
            monitoring.set_events(self._tool, 0)
            monitoring.free_tool_id(self._tool)
            self._tool = -1

    def _started(self, code: types.CodeType, offset: int) -> Any:
        if self._observer.is_elsewhere():
            return None
        observer, frame = self._observer, sys._getframe(1)
        observer.note(frame)
        may_be_others = code not in observer.ran and not _compat.is_compilers(module_of(frame))
        return None if observer.is_paused or may_be_others or code in observer.inputs.codes \
            else sys.monitoring.DISABLE  # type: ignore[attr-defined]

    def _calls(self, code: types.CodeType, offset: int, function: Any, first: Any) -> None:
        if type(function) is not types.FunctionType and not self._observer.is_paused \
                and not self._observer.is_elsewhere():
            missing = sys.monitoring.MISSING  # type: ignore[attr-defined]
            self._observer.inputs.called(
                function, None if first is missing else first, sys._getframe(1))


class _Profiled:
    """By sys.setprofile."""

    is_of_all_threads = False

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def begin(self) -> bool:
        if sys.getprofile() is not None:
            return False
        sys.setprofile(self._told)
        return True

    def end(self) -> None:
        if sys.getprofile() == self._told:
            sys.setprofile(None)

    def _told(self, frame: types.FrameType, event: str, function: Any) -> None:
        if event == "call":
            self._observer.note(frame)
        elif event == "c_call" and not self._observer.is_paused:
            self._observer.inputs.called(function, getattr(function, "__self__", None), frame)
