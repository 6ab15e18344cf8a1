# SPDX-License-Identifier: Apache-2.0
"""How steps on a GPU race: rivals take turns, a call a round, each timed from before the call to
the end of a synchronise. Many calls in one go would hide what the CPU costs, which is asked here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from torch_common import Sample, fresh_code, machine, ratio  # noqa: F401 (scripts take it here)

Step = Callable[[], Any]


@dataclasses.dataclass
class Times:
    """Of one rival, in microseconds: to the end of its work, and until the call returned."""

    end_to_end: Sample = dataclasses.field(default_factory=lambda: Sample([]))
    cpu: Sample = dataclasses.field(default_factory=lambda: Sample([]))

    def row(self) -> dict[str, float]:
        return {"end_to_end_us": self.end_to_end.median, "iqr": self.end_to_end.iqr,
                "cpu_us": self.cpu.median}

    def raw(self) -> dict[str, list[float]]:
        return {"end_to_end_us": self.end_to_end.rounds, "cpu_us": self.cpu.rounds}


def time_call(step: Step) -> tuple[float, float]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6, (returned - start) * 1e6


def race(steps: Mapping[str, Step], rounds: int,
         begin_together: Step = lambda: None) -> dict[str, Times]:
    """Steps that have been warmed up. ``begin_together`` is called before each that is timed: the
    processes of a collective step wait for one another there."""
    found = {name: Times() for name in steps}
    for index in range(rounds):
        for name in steps if index % 2 == 0 else reversed(steps):
            steps[name]()  # the first after another rival's
            torch.cuda.synchronize()
            begin_together()
            whole, cpu = time_call(steps[name])
            found[name].end_to_end.rounds.append(round(whole, 1))
            found[name].cpu.rounds.append(round(cpu, 1))
    return found


def faster(found: Mapping[str, Times], ours: str, rival: str) -> tuple[float, float]:
    """How many times as fast: median and interquartile range over the rounds."""
    return ratio(found[ours].end_to_end, found[rival].end_to_end)


def frozen(step: Step, **capture: Any) -> Step:
    """The step captured by hand into one graph that is replayed, as torch documents it.
    ``capture`` goes to torch.cuda.graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **capture):
        answer = step()

    def replay() -> Any:
        graph.replay()
        return answer

    return replay


def over_gpus(count: int, program: str, *arguments: str) -> Any:
    """What the program says last, as JSON, run by a process for each of so many GPUs; None, and
    why, where there are fewer."""
    if torch.cuda.device_count() < count:
        print(f"skipped: {count} GPUs are needed, there are {torch.cuda.device_count()}")
        return None
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               f"--nproc-per-node={count}", program, *arguments]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(said.splitlines()[-1])


def compare_over_gpus(count: int, bench: str, program: str,
                      compare: Callable[[int], dict[str, Any]]) -> None:
    """The main program of a benchmark whose steps race in so many processes. ``compare`` is given
    the rounds, and answers what its process has found: ``report``, ``rounds`` and what is shown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    if "RANK" in os.environ:
        return _process(compare, chosen.rounds)
    answer = over_gpus(count, program, "--rounds", str(chosen.rounds))
    if answer is None:
        return None
    print(*answer["report"], sep="\n")
    print(json.dumps({key: answer[key] for key in answer if key not in ("rounds", "report")},
                     indent=1))
    save(chosen.results, bench, gpus=count, nccl=".".join(map(str, torch.cuda.nccl.version())),
         **answer)
    return None


def _process(compare: Callable[[int], dict[str, Any]], rounds: int) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    answer = compare(rounds)
    if rank == 0:
        print(json.dumps(answer), flush=True)
    torch.cuda.synchronize()
    dist.barrier()
    os._exit(0)  # graphs with collectives go before their communicator, and here both just go


def driver() -> str | None:
    """Its version; None where there is no nvidia-smi to tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def save(path: Path | None, bench: str, **found: Any) -> None:
    if path is None:
        return
    about = {**machine(), "gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda,
             "driver": driver()}
    path.write_text(json.dumps({"bench": bench, "command": "make bench-gpu", "machine": about,
                                **found}, indent=1) + "\n")
