# SPDX-License-Identifier: Apache-2.0
"""A long plan with what a launch of it did: as a step of thousands of kernels has it."""

from __future__ import annotations

import ctypes
import random

from anabranch._core.device import Device
from anabranch._core.program import READ, ROLE_INPUT, ROLE_TEMPORARY, WRITE, ProgramBuilder
from anabranch._core.record import RegionFunction, record
from anabranch._core.trace import Trace, plan_contents
from anabranch._explain.contents import last_launch

SIZE = 256  # bytes


def long_plan(steps=5000, streams=8, seed=0):
    """Steps that each read the last few results of their stream, and now and then of another."""
    draw = random.Random(seed)
    builder = ProgramBuilder()
    lanes = [0, *(builder.add_stream(f"side {i}") for i in range(1, streams))]
    x = builder.add_buffer("x", ROLE_INPUT, SIZE)
    made = {lane: [x] for lane in lanes}
    for i in range(steps):
        lane = draw.choice(lanes)
        given = {draw.choice(made[lane][-4:]), draw.choice(made[lane][-2:])}
        if draw.random() < 0.15:
            given.add(made[draw.choice(lanes)][-1])
        result = builder.add_buffer(f"buf{i}", ROLE_TEMPORARY, SIZE * draw.randint(1, 16), 64)
        made[lane].append(result)
        builder.compute(lane, f"triton_poi_fused_add_gelu_mul_{i}",
                        [*((READ, buffer) for buffer in sorted(given)), (WRITE, result)],
                        source=f"model.py:{100 + i % 400}")
    return builder.build().make_plan()


def launched(plan):
    """What a page shows of a launch of the plan on the host, whose regions do nothing."""
    nothing = RegionFunction(lambda context, call: 0)
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    names = [step.name.decode() for step in plan.program.steps]
    recording = record(plan, Device.host(), dict.fromkeys(names, (address, 0)))
    trace = Trace()
    recording.attach_trace(trace)
    slots = [(ctypes.c_char * SIZE)() for _ in plan.slots]
    recording.launch([ctypes.addressof(slot) for slot in slots])
    recording.attach_trace(None)
    return last_launch(trace.events)


def contents_of_plan(plan, launch=None, title="a long plan"):
    return {"title": title, "graphs": [{"name": title, "plan": plan_contents(plan),
                                        "launch": launch}]}
