# SPDX-License-Identifier: Apache-2.0
"""Why a step is not recorded, in words for its user: the code, what to write instead, the line.

Threads: any. Failure: none.
"""

from __future__ import annotations

import enum
import re
import sys
from types import FrameType, TracebackType
from typing import NamedTuple

from anabranch.errors import RecordError, code_text

ON_CPU = "it answers a tensor on the CPU, whose value a launch cannot tell"
ANOTHER_ANSWER = "it answers something else in a second capture"
# Says torch of memory that is not pinned.
FROM_THE_CPU = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"


class Reason(NamedTuple):
    """``text`` says in short why something runs unrecorded, and ``remedy`` in a sentence what to
    write instead. ``place`` is the user's line, "at train.py:88 in step", where it is known."""

    text: str
    code: int
    remedy: str = ""
    place: str = ""

    def __str__(self) -> str:
        return self.text


class Cause(enum.IntEnum):
    """By code, what to write instead. Those of the package itself are in errors.CODES under the
    same names; the first ones are the core's. docs/errors.md has a section for each."""

    remedy: str

    def __new__(cls, code: int, remedy: str) -> Cause:
        made = int.__new__(cls, code)
        made._value_, made.remedy = code, remedy
        return made

    RACE = 201, "Order the two kernels by wait_stream or an event."
    NOT_RECORDABLE = 308, "Move what the message names out of the step."
    CAPTURES_DIFFER = 309, (
        "Keep what changes from call to call in a tensor on the GPU, or give it as an argument.")
    WAITS_FOR_GPU = 311, (
        "Choose on the GPU (torch.where), or read the value (.item(), an if, a mask for an index) "
        'after the step; or compile the model with backend="anabranch", which records what lies '
        "between.")
    COPIES_FROM_CPU = 312, (
        "Make what is constant on the GPU, before the step; give what changes as an argument.")
    LEGACY_STREAM = 313, (
        "Detach what outside holds of its parameters with gradients (a loss, a copy of a weight); "
        "a library's kernels belong on torch's current stream.")
    NOT_CAPTURABLE = 314, (
        "Make the optimizer with capturable=True, or with fused=True where it has that.")
    UNJOINED_STREAM = 315, (
        "Begin each stream with side.wait_stream(current), and end with current.wait_stream(side).")
    GENERATOR_STATE = 316, (
        "Draw from torch's default generator, and leave its state alone inside the step.")
    BROKE_IN_CAPTURE = 317, "Move what raises out of the step."
    RECORDING_FAULT = 318, "Report it: it is a mistake of Anabranch's."
    ANSWER_ON_CPU = 319, "Answer it on the GPU, and copy it to the CPU after the step."
    OTHER_ANSWER = 320, "Answer tensors, and compute in Python outside of the step."
    ANSWER_WANTS_GRADIENT = 321, (
        "Answer what is only looked at detached, call it under torch.no_grad(), put the backward "
        'inside, or use torch.compile(backend="anabranch").')
    RANDOM_ON_CPU = 322, (
        "Draw them on the GPU, or outside and give it them; or compile the model with "
        'backend="anabranch", which records what lies between.')
    LEAVES_TENSORS = 323, "Answer the tensors, or leave them by themselves in an attribute."
    STEPPED_BY_HAND = 324, "Change it outside of the step."
    ARGUMENT_REFUSED = 325, "Move it to the step's GPU before the call, detached and contiguous."
    READS_CPU_ARGUMENT = 326, "Move it to the GPU before the call, or compute that outside."
    NOTHING_ON_GPU = 327, "Give it tensors on the GPU, and move the model there."
    UNTRACKED_TENSOR = 328, "Give it to the step, or name it in state=."
    LAUNCH_DIFFERS = 329, (
        "Keep what Python counts or decides in a tensor on the GPU, or give it as an argument.")
    PROCESSES_APART = 330, "Give all processes the same shapes and numbers in the same calls."
    OUT_OF_MEMORY = 331, "Leave more of the GPU free: a smaller batch, or fewer recordings."
    TOO_MANY_SIGNATURES = 332, (
        "Pad sizes to one of a few, keep numbers in tensors on the GPU, or raise max_recordings.")
    CHANGING_VALUE = 333, (
        "Keep it in a tensor on the GPU; guards=False leaves out what the step does not read.")
    PYTHON_CHANGES = 334, (
        "Change it outside of the step, or name what is decided with guard=.")
    DEPENDS_ON_DATA = 335, (
        "Use a form of it whose size is fixed (torch.where, a mask that multiplies), or call it "
        "outside of the model.")
    GRAPH_IN_PARTS = 336, "Use an operator that stays on the GPU, or call it outside of the model."
    TRAINER_LEFT = 337, "Write the loop by hand, with anabranch.record around its step."
    OTHER_MEMORY = 338, "Write into the tensor (tensor.copy_()), or move it outside of the step."

    NOT_OFFLOADED = 339, (
        "Free memory of the host, or leave hooks on saved tensors out; activation_memory=None "
        "keeps all.")
    OTHER_ALLOCATOR = 340, (
        "Leave torch's own allocator in place: no change_current_allocator(), no backend: in "
        "PYTORCH_CUDA_ALLOC_CONF.")

    HIDDEN_INPUT = 341, (
        "Read it outside of the step and give it as an argument, or allow it where the GPU's work "
        "does not depend on it.")
    OPERATORS_SEEN = 342, (
        "Put it inside the step, whose recording repeats what it does on the GPU, or leave it out.")

    def because(self, text: str, remedy: str = "") -> Reason:
        return Reason(text, self.value, remedy or self.remedy)


ANSWER_MISSED = "it answers tensors that require gradients and runs no backward through them"
RANDOM_ON_CPU = ("it draws random numbers on the CPU (torch's, Python's or numpy's), and launches "
                 "would go on with those of its recording")


class NotRecordable(Exception):
    """Why a step runs unrecorded. Without ``cause`` it has that of its class."""

    cause: Cause = Cause.NOT_RECORDABLE

    def __init__(self, reason: Reason | str, cause: Cause | None = None, remedy: str = "") -> None:
        super().__init__(str(reason))
        self.reason = reason if isinstance(reason, Reason) else \
            (cause or self.cause).because(reason, remedy)


class Moved(NotRecordable):
    """It gives a tensor other memory."""

    cause = Cause.OTHER_MEMORY

    def __init__(self) -> None:
        super().__init__("it gives a tensor that it has, or is given, other memory (tensor.data = "
                         "..., tensor.set_(), module.to()), which a launch would not do")


class Aliased(NotRecordable):
    """Its kernels name memory both as an argument's and as the state's."""

    cause = Cause.ARGUMENT_REFUSED


class BrokeWhileNoted(NotRecordable):
    """Something raised inside a noted call: without notes it may not."""


class Apart(NotRecordable):
    """Other processes that have collectives with it do not record it now."""

    cause = Cause.PROCESSES_APART


class BrokeUntold(NotRecordable):
    """It asked whether it was captured, was told that it was not, and broke."""


class CopiedFromTheCpu(NotRecordable):
    """It copies from memory of the CPU that torch takes in no capture."""


class OtherGraph(NotRecordable):
    """Two captures of it differ in more than addresses."""

    cause = Cause.CAPTURES_DIFFER


class CountsFound(NotRecordable):
    """A first capture has shown numbers that it changes; the next ones tell how."""

    cause = Cause.PYTHON_CHANGES


class Again(NotRecordable):
    """The plain run has told what a try has to know; the next call records."""

    cause = Cause.RECORDING_FAULT


class Empty(NotRecordable):
    """There is nothing to launch, at least this time: no reason to raise."""

    cause = Cause.NOTHING_ON_GPU


def reason_of(error: Exception) -> Reason:
    """What broke a capture, and what may be done about it."""
    # Of a compiler, since Dynamo has found something else than in plain runs: what stopped it.
    inside = getattr(error, "inner_exception", None)
    broke, act = (inside, "compiled anew and captured") if isinstance(inside, Exception) else \
        (error, "captured")
    first = _first_line(broke)
    cause = next((cause for text, cause in _SAID if text in first), Cause.BROKE_IN_CAPTURE)
    return cause.because(f"{type(broke).__name__} while it was {act}: {first}")


def reason_of_fault(error: Exception) -> Reason:
    """What broke in Anabranch itself."""
    return Cause.RECORDING_FAULT.because(
        f"{type(error).__name__} while it was recorded or compared: {_first_line(error)}")


def reason_for(error: Exception) -> Reason:
    """Why there is no recording, of the error that a try has ended with. The core's own errors have
    codes, and say what messages say anyway."""
    if isinstance(error, NotRecordable):
        return error.reason
    code = int(getattr(error, "code", Cause.RECORDING_FAULT))
    text = _ENDS.sub("", str(error)).removeprefix("record: ")
    return Reason(text, code, _REMEDIES.get(code, ""))


def strict_error(act: str, why: Reason, without: str) -> RecordError:
    """For who forbids what strict forbids; ``without`` says what happens without it."""
    place = f" ({why.place})" if why.place else ""
    allowed = f'Without strict, or with allow=["{code_text(why.code)}"], {without}.'
    return RecordError(why.code, f"{act}: {why.text}{place}, and strict=True forbids to run it "
                       "unrecorded.", f"{why.remedy} {allowed}".lstrip())


def without_frames(error: Exception) -> Exception:
    """The error without its traceback, whose frames would keep tensors alive. What they tell of the
    user's line is in its reason then."""
    place = ""
    link: BaseException | None = error
    while link is not None:
        place = place or _raised_at(link.__traceback__)
        link.__traceback__, following = None, link.__cause__ or link.__context__
        link.__cause__ = link.__context__ = None
        link = following
    if isinstance(error, NotRecordable) and place:
        error.reason = error.reason._replace(place=f"at {place}")
    return error


def called_from(frame: FrameType | None) -> FrameType | None:
    """The user's frame that a call comes from, by one that it has led to; None where there is none,
    as on the thread that runs a backward."""
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    return frame


def line_of(frame: FrameType, line: int) -> str:
    code = frame.f_code
    return f"{code.co_filename.rsplit('/', 1)[-1]}:{line} in {code.co_name}"


def _raised_at(traceback: TracebackType | None) -> str:
    """The innermost line of the user's in it."""
    found = ""
    while traceback is not None:
        if _is_users(traceback.tb_frame):
            found = line_of(traceback.tb_frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _is_users(frame: FrameType) -> bool:
    """Whether its code is neither Python's own, torch's nor ours. What Inductor has written is in
    modules of torch's."""
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] not in _NOT_USERS


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


_NOT_USERS = frozenset(("", "torch", "triton", "anabranch", *sys.stdlib_module_names))
_REMEDIES = {cause.value: cause.remedy for cause in Cause}
# What the core's messages end with.
_ENDS = re.compile(r"\.?( The step (does not repeat, so it )?runs unrecorded; strict=True "
                   r"raises\.)?( \[E\d{4}\])?$")
# By what torch and the driver say of a capture.
_SAID = (
    ("operation not permitted when stream is capturing", Cause.WAITS_FOR_GPU),
    ("failed due to a previous error during capture", Cause.WAITS_FOR_GPU),  # that was caught
    (FROM_THE_CPU, Cause.COPIES_FROM_CPU),
    # Whoever has such a tensor keeps the parameter's node of the gradient, and the stream of then.
    ("legacy stream depend on a capturing", Cause.LEGACY_STREAM),
    ("capturable is False", Cause.NOT_CAPTURABLE),
    ("unjoined work", Cause.UNJOINED_STREAM),
    ("dependency created on uncaptured work", Cause.UNJOINED_STREAM),
    ("CUDA generator not in capture mode", Cause.GENERATOR_STATE),
    ("current_seed during CUDA graph capture", Cause.GENERATOR_STATE),
    ("set_state_index method during capturing", Cause.GENERATOR_STATE),
)
