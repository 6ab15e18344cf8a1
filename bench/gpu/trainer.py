# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer over a compiled model, with one line of ours and without it.

    python bench/gpu/trainer.py [results.json] [--only NAME ...] [--rounds N]

Both trainers have torch_compile=True, a fused AdamW and a cosine schedule. They take turns: a round
is a training of 80 steps, of which the last 60 are timed, so that data, callbacks and logs count.
The losses of 100 steps from the same weights are compared in a process of its own, under torch's
deterministic algorithms and with the same memory plan of Inductor's for both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from cases.clients import LAYERS, VOCABULARY, llama_of_transformers
from turns import Times, faster, save

from anabranch.integrations import transformers as integration

BATCH, LENGTH, TEXTS = 1, 256, 512
STEPS, UNTIMED, COMPARED = 80, 20, 100
OURS, PLAIN = "one line of ours", "torch_compile"
LEAST = 2.5  # times as fast as without our line
# The Trainer asks in each step whether the loss is a number, and waits for the GPU to know.
CASES: dict[str, dict[str, Any]] = {
    "weights in bf16": {},
    "weights in bf16, losses unfiltered": {"logging_nan_inf_filter": False},
    "autocast": {"bf16": True},
}
JUDGED = "weights in bf16"


def make_model(is_autocast: bool) -> Any:
    model = llama_of_transformers()
    return model if is_autocast else model.to(torch.bfloat16)


def make_trainer(way: str, folder: str, steps: int, arguments: dict[str, Any]) -> Any:
    import transformers

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (TEXTS, LENGTH), generator=generator)
    trainer = transformers.Trainer(
        make_model(arguments.get("bf16", False)), transformers.TrainingArguments(folder, **{
            "max_steps": steps, "per_device_train_batch_size": BATCH, "torch_compile": True,
            "optim": "adamw_torch_fused", "lr_scheduler_type": "cosine", "learning_rate": 3e-4,
            "logging_steps": 20, "report_to": [], "save_strategy": "no", "disable_tqdm": True,
            **arguments}),
        train_dataset=[{"input_ids": text, "labels": text} for text in tokens])
    trainer.remove_callback(transformers.PrinterCallback)
    return integration.record(trainer) if way == OURS else trainer


def add_clock(trainer: Any) -> Any:
    """A callback that times the last steps of a training, from a synchronise to a synchronise."""
    import transformers

    class Clock(transformers.TrainerCallback):
        begin = step_us = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == UNTIMED:
                torch.cuda.synchronize()
                self.begin = time.perf_counter()
            if state.global_step == STEPS:
                torch.cuda.synchronize()
                self.step_us = (time.perf_counter() - self.begin) * 1e6 / (STEPS - UNTIMED)

    clock = Clock()
    trainer.add_callback(clock)
    return clock


def reports_of(trainer: Any) -> dict[str, list[str]]:
    return {part: [str(report) for report in found]
            for part, found in integration.reports(trainer).items()}


def timed(name: str, rounds: int) -> dict[str, Any]:
    print(f"\n{name}: {LAYERS} layers, {BATCH} x {LENGTH} tokens", flush=True)
    found = {way: Times() for way in (OURS, PLAIN)}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {way: make_trainer(way, folder, STEPS, CASES[name]) for way in found}
        clocks = {way: add_clock(trainer) for way, trainer in trainers.items()}
        for index in range(-1, rounds):  # the first compiles, and records
            for way in found if index % 2 == 0 else reversed(found):
                trainers[way].train()
                if index >= 0:
                    found[way].end_to_end.rounds.append(round(clocks[way].step_us, 1))
    more, spread = faster(found, OURS, PLAIN)
    print("  " + ", ".join(f"{way} {times.end_to_end.median / 1000:.2f} ms a step"
                           for way, times in found.items())
          + f": {more:.2f} times as fast (IQR {spread:.2f})", flush=True)
    return {"case": name, "step_us": {way: times.end_to_end.median for way, times in found.items()},
            "raw": {way: times.end_to_end.rounds for way, times in found.items()},
            "over_compile": round(more, 2), "iqr": round(spread, 2),
            "reports": reports_of(trainers[OURS])}


def losses_of(way: str, name: str) -> dict[str, Any]:
    """In a process of its own: what the Trainer logs for each step."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    with tempfile.TemporaryDirectory() as folder, \
            torch._inductor.config.patch(allow_buffer_reuse=False):
        trainer = make_trainer(way, folder, COMPARED, {**CASES[name], "logging_steps": 1})
        trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    return {"losses": [float(log["loss"]).hex() for log in logs],
            "norms": [float(log["grad_norm"]).hex() for log in logs],
            "reports": reports_of(trainer) if way == OURS else {}}


def compared(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for way in (OURS, PLAIN):
        done = subprocess.run([sys.executable, __file__, "--one", way, name],
                              stdout=subprocess.PIPE, text=True, check=True,
                              env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
        found[way] = json.loads(done.stdout.splitlines()[-1])
    apart = {what: sum(a != b for a, b in zip(found[OURS][what], found[PLAIN][what], strict=True))
             for what in ("losses", "norms")}
    print(f"  {apart['losses']} of {COMPARED} losses and {apart['norms']} norms differ", flush=True)
    return {"losses_apart": apart["losses"], "norms_apart": apart["norms"],
            "last_loss": float.fromhex(found[OURS]["losses"][-1]),
            "compared_reports": found[OURS]["reports"]}


def judged(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [{"what": f"trainer, {case['case']}: losses that differ from its own",
             "figure": case["losses_apart"], "at_most": 0, "reached": case["losses_apart"] == 0}
            for case in cases]
    return [{"what": f"trainer, {case['case']}: times as fast", "figure": case["over_compile"],
             "at_least": LEAST, "reached": case["over_compile"] >= LEAST}
            for case in cases if case["case"] == JUDGED] + rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", choices=CASES, default=[*CASES])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(losses_of(*chosen.one)), flush=True)
        return
    try:
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        return
    cases: list[dict[str, Any]] = []
    for name in chosen.only:
        cases.append({**timed(name, chosen.rounds), **compared(name)})
        print(*(f"  {row}" for row in judged(cases[-1:])), sep="\n", flush=True)
        save(chosen.results, "gpu_trainer", transformers=transformers.__version__, cases=cases,
             judged=judged(cases))


if __name__ == "__main__":
    main()
