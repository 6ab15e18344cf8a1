# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions: one base class, one class a family of codes.

A message names the act, the thing and both values; the remedy says what to do next. Both appear in
str(error) with the code between them, and docs/errors.md has a section for each code. The codes
01xx to 05xx belong to the C++ core, which words its own messages; 0311 to 0399, 06xx and 07xx are
Python's.
"""

from __future__ import annotations

import reprlib

__all__ = [
    "ALLOWABLE",
    "CODES",
    "AnabranchError",
    "CompileError",
    "ConfigError",
    "LaunchError",
    "PlanError",
    "PlanFileError",
    "ProgramError",
    "RecordError",
    "WrongArgument",
    "code_text",
    "family_of",
    "from_native",
    "shown",
]

# Python's codes, in order; a number is never used again. The core's stand in its codes.inc.
# 03xx: why something runs unrecorded; each has what to write instead in _record/refusals.py.
CODES: dict[int, tuple[str, str]] = {
    311: ("WaitsForGpu", "a step waits for the GPU, or asks it for a value, while it is captured"),
    312: ("CopiesFromCpu", "a step copies from the CPU what may be something else in each call"),
    313: ("LegacyStream", "a step queues work on the default stream while it is captured"),
    314: ("NotCapturable", "an optimizer counts its steps on the CPU"),
    315: ("UnjoinedStream", "a stream of a step does not begin or does not end in its capture"),
    316: ("GeneratorState", "a step uses a generator's state in a way that no capture takes"),
    317: ("BrokeInCapture", "a step raises when it is captured, and not otherwise"),
    318: ("RecordingFault", "recording failed by itself, and the step did not"),
    319: ("AnswerOnCpu", "a step answers a tensor on the CPU"),
    320: ("OtherAnswer", "a step answers something else in each call"),
    321: ("AnswerWantsGradient",
          "a step answers tensors that want gradients, and a backward may follow"),
    322: ("RandomOnCpu", "a step draws random numbers on the CPU"),
    323: ("LeavesTensors", "a step leaves tensors where a launch cannot leave its own"),
    324: ("SteppedByHand", "a step changes numbers of an optimizer or a scheduler in Python"),
    325: ("ArgumentRefused", "an argument cannot be given to a launch"),
    326: ("ReadsCpuArgument", "a step reads an argument on the CPU, or computes with it there"),
    327: ("NothingOnGpu", "nothing of a step is on a GPU"),
    328: ("UntrackedTensor", "a step uses a tensor that nothing found from it leads to"),
    329: ("LaunchDiffers", "a launch does not leave what the step leaves"),
    330: ("ProcessesApart", "processes that share collectives do not record the step together"),
    331: ("OutOfMemory", "memory ran out while a step was recorded or launched"),
    332: ("TooManySignatures", "a step has more signatures than are recorded"),
    333: ("ChangingValue", "a value changes between calls, and each is recorded by itself"),
    334: ("PythonChanges", "a recorded step changes values of Python, and its launches do not"),
    335: ("DependsOnData", "sizes, numbers or branches of a compiled graph depend on data"),
    336: ("GraphInParts", "a compiled graph has an operator that no CUDA graph takes"),
    337: ("TrainerLeft", "the steps of a Trainer are not recorded"),
    338: ("OtherMemory", "a step gives a tensor other memory"),
    339: ("NotOffloaded", "saved tensors that should be in the host's memory are on the GPU"),
    340: ("OtherAllocator", "the GPU's memory comes from another allocator than torch's own"),
    341: ("HiddenInput", "a step takes in a clock, random numbers, a file or a queue"),
    342: ("OperatorsSeen", "a step is called where somebody sees its operators"),
    601: ("StreamName", "a stream's name or a number of lanes cannot be used"),
    602: ("FellBack", "a graph cannot be compiled in streams and runs through Inductor"),
    603: ("TorchTooOld", "the installed torch is older than the oldest supported one"),
    604: ("TorchMissing", "torch is not installed"),
    605: ("CompilerMissing", "no C++ compiler was found"),
    606: ("LibraryMissing", "Anabranch's native library cannot be loaded"),
    607: ("FallbackRefused", "a fall-back was needed, and strict forbids it"),
    608: ("StreamPriority", "a stream's priority is no whole number, or it has two"),
    610: ("LibraryVersion", "the native library and the Python package differ in version"),
    611: ("WrongArgument", "an argument is of a kind that the function cannot take"),
    612: ("DeferredWork", "a function is given whose work is not done when it returns"),
    613: ("StreamLost", "a stream in compiled code had no effect, since its code ran in eager"),
    614: ("NothingToWrite", "an explanation has no plan or no events to write"),
    615: ("ExplainRunning", "explain or bisect is called while a call of either runs"),
    616: ("BudgetMissed", "saved tensors take more memory than activation_memory allows"),
    701: ("UnknownOption", "no option has this name"),
    702: ("WrongType", "an option's value has the wrong type"),
    703: ("OutOfRange", "an option's value is outside its range"),
    704: ("ModeRefused", "a mode of another backend was asked for"),
}

# What runs as torch runs it, with a warning, or an error under strict: Python's 03xx, what the core
# refuses of a captured step, and what the backend falls back from.
ALLOWABLE = frozenset((*(code for code in CODES if code < 400), 107, 201, 202, 303, 307, 308, 309,
                       404, 602, 607, 613, 616))


def code_text(code: int) -> str:
    """The code as messages show it: 602 -> "E0602"."""
    return f"E{code:04d}"


class AnabranchError(Exception):
    """Base of every error of this package; `code`, `message` and `remedy` are its parts."""

    def __init__(self, code: int, message: str, remedy: str = "") -> None:
        super().__init__(code, message, remedy)  # all three: so that the error can be pickled
        self.code = code
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        tag = f"[{code_text(self.code)}]"
        # The core ends its messages with the code already.
        text = self.message if tag in self.message else f"{self.message} {tag}"
        return f"{text}\n{self.remedy}" if self.remedy else text


class ProgramError(AnabranchError):
    """E01xx: a program breaks a rule."""


class PlanError(AnabranchError):
    """E02xx: a plan is not sound."""


class RecordError(AnabranchError):
    """E03xx: a plan could not be made real on a device, or a step may not run unrecorded."""


class RecordWarning(UserWarning):
    """Something runs as torch runs it, and is not recorded. The text has up to three lines: what
    and why; the user's line with the code, [E0311]; what to write instead. Once a code and line.
    Python's filters for warnings apply, but for those that make it an error: strict=True raises
    RecordError instead. The option `allow` names codes of which nothing is said."""


class LaunchError(AnabranchError):
    """E04xx: a launch was refused or failed."""


class PlanFileError(AnabranchError):
    """E05xx: a plan file cannot be read or written."""


class CompileError(AnabranchError):
    """E06xx: torch, the compiler or a graph stands in the way of compiling."""


class WrongArgument(CompileError, TypeError):
    """An argument of a public function is of a kind that it cannot take. Also a TypeError."""


class ConfigError(AnabranchError):
    """E07xx: an option is unknown or has a value it cannot have."""


_FAMILIES: dict[int, type[AnabranchError]] = {
    1: ProgramError,
    2: PlanError,
    3: RecordError,
    4: LaunchError,
    5: PlanFileError,
    6: CompileError,
    7: ConfigError,
}


def family_of(code: int) -> type[AnabranchError]:
    """The class of its hundred; AnabranchError itself for a code of no known family."""
    return _FAMILIES.get(code // 100, AnabranchError)


def from_native(code: int, message: str) -> AnabranchError:
    """The exception for a status of the core; the caller raises it."""
    return family_of(code)(code, message)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def shown(value: object) -> str:
    """A value and its type for a message: short, on one line, and without asking it for anything
    where it is of no type of Python's own."""
    kind = type(value)
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits ({kind.__name__})"
    if kind.__module__ != "builtins":
        return f"of the type {kind.__module__}.{kind.__qualname__}"
    return f"{_SHORT.repr(value)} ({kind.__name__})".replace("\n", " ")
