# SPDX-License-Identifier: Apache-2.0
"""Work that fails on a stream of a recorded step: the call that queues it returns, whatever waits
for it raises, and so does every call that follows. The GPU's context is lost with it, so that each
case has a process of its own.
"""

from __future__ import annotations

import pytest

# The work begins when the calls behind it have been made.
PROGRAM = """
import os, sys
import torch, anabranch
from compare import compiled

side = torch.cuda.Stream()

def step(x, index):
    current = torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        y = torch.gather(x, 0, index)
    current.wait_stream(side)
    return y + 1

call = {call}
x = torch.arange(8.0, device="cuda")
right = torch.arange(8, device="cuda").flip(0)
wrong = torch.full_like(right, 1 << 40)
for _ in range({calls}):
    assert torch.equal(call(x, right), x.flip(0) + 1)
torch.cuda.synchronize()

def tell(what, function):
    try:
        answer = function()
        print(what, "returns", flush=True)
        return answer
    except (RuntimeError, anabranch.AnabranchError) as error:
        print(what, "raises", flush=True)
        print(type(error).__name__, error, file=sys.stderr)

torch.cuda._sleep(1_000_000_000)  # half a second
{rest}
os._exit(0)  # what is left cannot be freed
"""

LAUNCHED = """
y = tell("a launch", lambda: call(x, wrong))
tell("waiting", lambda: {wait})
for _ in range(2):
    tell("a call", lambda: call(x, right))
"""

BEFORE = """
tell("plain work", lambda: x.gather(0, wrong))
for _ in range(2):
    tell("recording", lambda: call(x, right))
tell("waiting", torch.cuda.synchronize)
"""

RECORDED = "anabranch.record(step)"
COMPILED = "compiled(step)"


def said(run_python, **parts):
    found = run_python(PROGRAM.format(**parts))
    assert found.returncode == 0, found.stderr[-4000:]
    return found.stdout.splitlines(), found.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize(("call", "wait"), [
    (RECORDED, "torch.cuda.synchronize()"), (RECORDED, "y.tolist()"),
    (RECORDED, "torch.cuda.current_stream().synchronize()"),
    (COMPILED, "torch.cuda.synchronize()")])
def test_what_waits_for_failed_work_raises_and_so_does_every_later_call(run_python, call, wait):
    lines, errors = said(run_python, call=call, calls=4, rest=LAUNCHED.format(wait=wait))
    assert lines == ["a launch returns", "waiting raises", "a call raises", "a call raises"], errors


@pytest.mark.slow
def test_recording_on_a_lost_context_raises(run_python):
    lines, errors = said(run_python, call=RECORDED, calls=1, rest=BEFORE)
    assert lines == ["plain work returns", "recording raises", "recording raises",
                     "waiting raises"], errors
