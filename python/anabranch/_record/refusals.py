# SPDX-License-Identifier: Apache-2.0
"""Why a step is not recorded, in words for its user.

Threads: any. Failure: none.
"""

from __future__ import annotations

ON_CPU = "it answers a tensor on the CPU, whose value a launch cannot tell"
ANOTHER_ANSWER = "it answers something else in a second capture"
OTHER_MEMORY = ("it gives a tensor that it is given, or has, other memory (tensor.data = ..., "
                "tensor.set_(), module.to()), which a launch would not do; write into the tensor "
                "(tensor.copy_()), or do it outside")
# Says torch of memory that is not pinned.
FROM_THE_CPU = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"


class NotRecordable(Exception):
    """Why a step runs unrecorded; its text names the cause."""


class Aliased(NotRecordable):
    """Its kernels name memory both as an argument's and as the state's."""


class BrokeWhileNoted(NotRecordable):
    """Something raised inside a noted call: without notes it may not."""


class Apart(NotRecordable):
    """Other processes that have collectives with it do not record it now."""


class BrokeUntold(NotRecordable):
    """It asked whether it was captured, was told that it was not, and broke."""


class CopiedFromTheCpu(NotRecordable):
    """It copies from memory of the CPU that torch takes in no capture."""


class OtherGraph(NotRecordable):
    """Two captures of it differ in more than addresses."""


class Again(NotRecordable):
    """The plain run has told what a try has to know; the next call records."""


class Empty(NotRecordable):
    """There is nothing to launch, at least this time: no reason to raise."""


def reason_of(error: Exception) -> str:
    """What broke a capture, and what may be done about it."""
    first = _first_line(error)
    hint = next((f". {hint}" for text, hint in _HINTS if text in first), "")
    return f"{type(error).__name__} while it was captured: {first}{hint}"


def reason_of_fault(error: Exception) -> str:
    """What broke in Anabranch itself."""
    return f"{type(error).__name__} while it was recorded or compared: {_first_line(error)}"


def without_frames(error: Exception) -> Exception:
    """The error without its traceback, whose frames would keep tensors alive."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__, following = None, link.__cause__ or link.__context__
        link.__cause__ = link.__context__ = None
        link = following
    return error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


# By what torch says.
_HINTS = (
    # Whoever has such a tensor keeps the parameter's node of the gradient, and the stream of then.
    ("legacy stream depend on a capturing",
     "Perhaps something outside holds a tensor that was computed from its parameters with "
     "gradients (a loss, a copy of a weight): detach it"),
    ("operation not permitted when stream is capturing",
     "Perhaps it needs a value of the GPU's in Python: .item(), .tolist(), an if, a mask for an "
     "index, nonzero()"),
    ("capturable is False",
     "Make the optimizer with capturable=True, or with fused=True where it has that: otherwise it "
     "counts its steps on the CPU"),
    (FROM_THE_CPU,
     "Make what is constant on the GPU, and before (a buffer, a tensor in the closure); what "
     "changes is an argument"),
)
