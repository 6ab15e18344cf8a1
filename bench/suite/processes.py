# SPDX-License-Identifier: Apache-2.0
"""Jobs of the suite, each in a process of its own that is killed when it hangs.

The process that starts them has imported what they need and never touches the GPU, so that they
are forked from it and begin at once. Where a fork cannot use the GPU they start from nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from measure import Job, measure
from standstill import Turn, Turns, signal_all

NEEDED = ("torch._dynamo.utils", "transformers", "timm", "torchvision", "anabranch")
POLL_S = 0.05
TAIL = 400  # characters of what a process said last


@dataclasses.dataclass(frozen=True)
class Task:
    """``cache`` is the folder of compiled code, ``place`` where its answer and output go,
    ``compilers`` how many compile for it at once; 0: as many as torch takes. ``is_alone``: nothing
    else runs beside it; else it is timed in its turn."""

    job: Job
    cache: Path
    place: Path
    limit_s: float
    compilers: int = 0
    is_alone: bool = True

    @property
    def turn(self) -> Turn:
        return Turn(self.place)

    @property
    def answer(self) -> Path:
        return self.place.with_suffix(".json")

    @property
    def output(self) -> Path:
        return self.place.with_suffix(".log")


def _own_output(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _child(task: Task) -> None:
    os.setsid()  # so that what it starts can be ended with it
    _own_output(task.output)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(task.cache / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(task.cache / "triton")
    if task.compilers:
        importlib.import_module("torch._inductor.config").compile_threads = task.compilers
    row = measure(task.job, None if task.is_alone else task.turn)
    task.answer.write_text(json.dumps(row))
    sys.stdout.flush()
    os._exit(0)  # what is left is threads and memory, and may hang


def _touch_gpu() -> None:
    import torch

    torch.zeros(1, device="cuda")
    os._exit(0)


def context_for(device: str) -> BaseContext:
    """With all imported that jobs need."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asks for the GPU without touching it
    for name in NEEDED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    fork = multiprocessing.get_context("fork")
    if device == "cuda":
        probe = fork.Process(target=_touch_gpu)
        probe.start()
        probe.join()
        if probe.exitcode != 0:
            print("a forked process cannot use the GPU: each starts from nothing", flush=True)
            return multiprocessing.get_context("spawn")
    return fork


def _end(process: Any) -> None:
    """It and all that it started."""
    signal_all([process], signal.SIGKILL)
    process.join()


def _row_of(task: Task, process: Any, timed_out: bool) -> dict[str, Any]:
    if task.answer.exists():
        return json.loads(task.answer.read_text())
    said = task.output.read_text(errors="replace")[-TAIL:] if task.output.exists() else ""
    why = f"killed after {task.limit_s:.0f} s" if timed_out else f"exit code {process.exitcode}"
    return {"batch": task.job.batch, "precision": task.job.precision,
            "error": {"stage": "process", "message": f"{why}; it said last: {said}"}}


def is_short(row: dict[str, Any]) -> bool:
    """Whether memory ran out: the step's, or that of the reference by which it is judged."""
    said = row.get("error", {}).get("message", ""), row.get("accuracy", {}).get("by", "")
    return any("OutOfMemoryError" in text for text in said)


def run_all(context: BaseContext, tasks: Sequence[Task], at_once: int,
            may_start: Callable[[], bool] = lambda: True
            ) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Rows as they come; no further task is begun once ``may_start`` says no. What ran out of memory
    beside others is run once more when they are done, by itself, and has no row before."""
    short = []
    for task, row in _run_side_by_side(context, tasks, at_once, may_start):
        if at_once > 1 and is_short(row):
            short.append(task)
        else:
            yield task, row
    yield from _run_side_by_side(context, short, 1, may_start)


def _run_side_by_side(context: BaseContext, tasks: Sequence[Task], at_once: int,
                      may_start: Callable[[], bool]) -> Iterator[tuple[Task, dict[str, Any]]]:
    waiting, running, turns = list(tasks), [], Turns()
    while running or (waiting and may_start()):
        while waiting and len(running) < at_once and turns.is_free and may_start():
            task = waiting.pop(0)
            task.place.parent.mkdir(parents=True, exist_ok=True)
            task.answer.unlink(missing_ok=True)
            task.turn.clear()
            process = context.Process(target=_child, args=(task,))
            process.start()
            running.append((task, process, time.monotonic()))
        for entry in list(running):
            task, process, start = entry
            timed_out = time.monotonic() - start > task.limit_s
            if timed_out or not process.is_alive():
                process.join(0)
                row = _row_of(task, process, timed_out)
                _end(process)
                running.remove(entry)
                yield task, row
        turns.look((task.turn, process) for task, process, _ in running if not task.is_alone)
        time.sleep(POLL_S)
