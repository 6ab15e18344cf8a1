# SPDX-License-Identifier: Apache-2.0
"""Memory against time: what a forward saves is kept, computed again, or in pinned memory meanwhile.

    python bench/gpu/offload.py [results.json] [--rounds N] [--quick] [--models llama vit unet]
        [--shares 0.8 0.6 0.4] [--ways torch ours ...]

Question: how much of a training step's peak memory can go, and what does a step take then? Rivals
train the same model from the same weights on the same batch, in bf16: torch.compile, which keeps
all; its option activation_memory_budget; its pass that offloads, given all that it may move;
save_on_cpu around the compiled model; checkpoints around each block; and ours, which is given a
share of what torch saves, as compiled graphs and in one recording of the whole step. A row is a
fresh model. The peak is that of allocated memory in a step, over what lies there between steps; the
time is the median of steps, each to the end of a synchronise. Losses are compared before times.

Beside it is what our plan expects before anything is compiled: the peak, which is torch.compile's
less what the plan expects to leave out of it; the peak that our recordings tell before they are
launched; and the bound below which no plan can be, the longer of torch.compile's step with what is
computed again, and of the copies each way.

The first model also trains where the GPU has too little free memory for it, the rest being taken by
a block: plainly, which has to run out of memory; with activation_memory="fit"; and plainly with
each half of the batch after the other, which fits and does the same work.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.nn.functional as F
from cases.llama import Llama, Shape, loss_of, rotation
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from turns import Sample, save, time_call

import anabranch

DTYPE, STEPS, APART = torch.bfloat16, 4, 0.02
MIB = 1 << 20
WORKSPACES = 512 * MIB  # that libraries keep, and what fragments take
RECORDED = ", recorded"
FREE_SHARE = 0.75  # of the peak of a plain step, where it is not to fit
Step = Callable[[], Tensor]
Loss = Callable[[], Tensor]


class VitBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for part in self.into(self.first(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Vit(nn.Module):
    def __init__(self, layers: int, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.places = nn.Parameter(torch.zeros(1, 196, width))
        self.blocks = nn.ModuleList(VitBlock(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class ConvBlock(nn.Module):
    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(given, made, 3, padding=1), nn.GroupNorm(8, made),
                                   nn.SiLU(), nn.Conv2d(made, made, 3, padding=1),
                                   nn.GroupNorm(8, made), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.convs(x)


class Unet(nn.Module):
    def __init__(self, width: int, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.blocks = nn.ModuleList(ConvBlock(a, b) for a, b in
                                    zip([3, *widths[:-1]], widths, strict=True))
        self.ups = nn.ModuleList(ConvBlock(a + b, b) for a, b in
                                 zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for level, block in enumerate(self.blocks):
            x = block(F.max_pool2d(x, 2) if level else x)
            skipped.append(x)
        skipped.pop()
        for up in self.ups:
            x = up(torch.cat((F.interpolate(x, scale_factor=2.0), skipped.pop()), dim=1))
        return self.out(x)


@dataclasses.dataclass
class Problem:
    """``loss`` calls a model, or what was compiled of it, with one part of the batch."""

    model: nn.Module
    loss: Callable[[Callable[..., Tensor], int], Tensor]
    parts: int = 1


def llama(is_quick: bool) -> Problem:
    shape = Shape(layers=4 if is_quick else 16)
    rotations = rotation(shape, "cuda", DTYPE)
    tokens = torch.randint(shape.vocabulary, (4, 2048), device="cuda")
    return Problem(Llama(shape), lambda call, _: loss_of(call(tokens, *rotations), tokens))


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, *rotations: Tensor) -> Tensor:
        return loss_of(self.model(tokens, *rotations), tokens)


def llama_with_loss(is_quick: bool, parts: int) -> Problem:
    """What the loss takes is in the compiled graph, so that a plan knows of it."""
    shape = Shape(layers=4 if is_quick else 16)
    rotations = rotation(shape, "cuda", DTYPE)
    batch = torch.randint(shape.vocabulary, (4, 2048), device="cuda").chunk(parts)
    return Problem(WithLoss(Llama(shape)), lambda call, i: call(batch[i], *rotations), parts)


def vit(is_quick: bool) -> Problem:
    images = torch.randn(128, 3, 224, 224, device="cuda", dtype=DTYPE)
    classes = torch.randint(1000, (128,), device="cuda")
    return Problem(Vit(4 if is_quick else 12),
                   lambda call, _: F.cross_entropy(call(images).float(), classes))


def unet(is_quick: bool) -> Problem:
    images = torch.randn(8, 3, 256, 256, device="cuda", dtype=DTYPE)
    return Problem(Unet(32 if is_quick else 64),
                   lambda call, _: F.mse_loss(call(images).float(), images.float()))


MODELS = {"llama": llama, "vit": vit, "unet": unet}
UNFIT = "llama that does not fit"


def mark_all(graph: torch.fx.Graph) -> None:
    """Everything that torch's pass can offload, from half a MiB on."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.numel() * value.itemsize >= 1 << 19:
            node.meta["should_offload"] = True


def checkpointed(model: nn.Module) -> None:
    """The same model; each block is computed again."""
    for name, blocks in model.named_children():
        if name in ("blocks", "ups"):
            for block in blocks:
                block.forward = _checkpointed(block.forward)


def _checkpointed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: checkpoint(function, *given, use_reentrant=False)


def compiled(model: nn.Module, **options: Any) -> Callable[..., Tensor]:
    if options:
        return torch.compile(model, backend=anabranch.backend, dynamic=False, options=options)
    return torch.compile(model, dynamic=False)


@contextlib.contextmanager
def settings(**of_functorch: Any) -> Iterator[None]:
    with functorch_config.patch(enable_autograd_cache=False, **of_functorch):
        yield


@contextlib.contextmanager
def torchs_offloading() -> Iterator[None]:
    names = {name: True for name in (
        "enable_activation_offloading", "activation_offload_separate_stream",
        "activation_offload_sink_wait", "activation_reload_prefetch")
        if hasattr(functorch_config, name)}
    with settings(**names), inductor_config.patch(joint_custom_post_pass=mark_all):
        yield


@dataclasses.dataclass
class Way:
    """``around`` is around the compilation, and ``during`` around each forward."""

    compile: Callable[[nn.Module], Callable[..., Tensor]]
    around: Callable[[], contextlib.AbstractContextManager[Any]] = settings
    during: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    prepare: Callable[[nn.Module], None] = lambda model: None
    is_recorded: bool = False


def ways(shares: list[float]) -> dict[str, Way]:
    found = {"torch.compile": Way(compiled)}
    for share in shares:
        found[f"torch, budget {share}"] = Way(
            compiled, lambda share=share: settings(activation_memory_budget=share))
    found["torch, its offloading"] = Way(compiled, torchs_offloading)
    found["torch, save_on_cpu"] = Way(
        compiled, during=lambda: torch.autograd.graph.save_on_cpu(pin_memory=True))
    found["torch, checkpoints"] = Way(compiled, prepare=checkpointed)
    for share in shares:
        for is_recorded in (False, True):
            found[f"ours, {share}{RECORDED if is_recorded else ''}"] = ours(share, is_recorded)
    return found


def ours(share: float | str, is_recorded: bool) -> Way:
    return Way(lambda model: compiled(model, activation_memory=share, allow={616}),
               is_recorded=is_recorded)


def step_of(way: Way, problem: Problem) -> Callable[[], Tensor]:
    way.prepare(problem.model)
    call = way.compile(problem.model)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=1e-4)

    def step() -> Tensor:
        total = torch.zeros((), device="cuda")
        for i in range(problem.parts):
            with way.during():
                loss = problem.loss(call, i) / problem.parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return anabranch.record(step) if way.is_recorded else step


def measure(make: Callable[[bool], Problem], way: Way, is_quick: bool,
            rounds: int) -> dict[str, Any]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    problem = make(is_quick)
    problem.model.to("cuda", DTYPE)
    begun = time.perf_counter()
    step = step_of(way, problem)
    with way.around():
        losses = [float(step()) for _ in range(STEPS)]
    torch.cuda.synchronize()
    ready_s = time.perf_counter() - begun
    torch._C._cuda_clearCublasWorkspaces()  # torch keeps them; a recording has its own
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    times = Sample([round(time_call(step)[0], 1) for _ in range(rounds)])
    graphs = [] if way.is_recorded else anabranch.explain(step).graphs
    reports = [report for report in (step.reports if way.is_recorded else [
        report for graph in graphs for report in graph.recordings]) if report.nodes]
    return {"peak_mib": round(peak / MIB, 1), "step_us": times.median, "iqr": times.iqr,
            "ready_s": round(ready_s, 1), "losses": losses, "rounds": times.rounds,
            "planned": planned(graphs), "arenas_mib": arenas(reports),
            "recordings_mib": round(peak_of(reports) / MIB, 1) if reports else None}


def planned(graphs: list[Any]) -> list[dict[str, Any]]:
    """What the plans of a step's graphs expect, and how many tensors have which choice."""
    found = [graph.activations.to_dict() for graph in graphs if graph.activations is not None]
    return [{**{key: value for key, value in one.items() if key != "tensors"},
             "choices": collections.Counter(tensor["choice"] for tensor in one["tensors"])}
            for one in found]


def arenas(reports: list[Any]) -> list[tuple[float, float]]:
    """What each recording holds beside what it is given and answers, and the least that this could
    be in its order."""
    return [(round(one.arena_bytes / MIB, 1), round(one.arena_lower_bound_bytes / MIB, 1))
            for one in reports]


def peak_of(reports: list[Any]) -> int:
    """Of launches one after the other, a forward's and its backward's, say: what an earlier one
    answers is there while a later one runs, which tells what of that it lets go of."""
    answered = [0, *itertools.accumulate(report.answered_bytes for report in reports)]
    return max(before + report.launch_peak_bytes
               for before, report in zip(answered, reports, strict=False))


def expected(row: dict[str, Any], plain: dict[str, Any]) -> dict[str, float]:
    """The peak, and the time below which no plan with these choices can be."""
    plans = row["planned"]
    less = sum(plan["step_kept_bytes"] - plan["step_peak_bytes"] for plan in plans)
    copies_us = max(sum(plan["pinned_bytes"] / plan[way] for plan in plans) * 1e6
                    for way in ("out_bytes_per_s", "in_bytes_per_s"))
    computed_us = plain["step_us"] + sum(plan["recompute_ns"] for plan in plans) / 1e3
    return {"expected_mib": round(plain["peak_mib"] - less / MIB, 1),
            "bound_us": round(max(computed_us, copies_us), 1)}


def tried(make: Callable[[bool], Problem], way: Way, is_quick: bool, rounds: int) -> dict[str, Any]:
    """A row. A rival that breaks is one, too."""
    row: dict[str, Any] = {}
    try:
        row = measure(make, way, is_quick, rounds)
    except Exception as error:
        row["broke"] = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    gc.collect()
    torch.cuda.empty_cache()
    return row


def told(name: str, way: str, row: dict[str, Any]) -> None:
    shown = {key: value for key, value in row.items() if key not in ("rounds", "losses")}
    print(f"{name:6} {way:26} {shown}", flush=True)


def rows_of(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    is_quick, rounds = chosen.quick, chosen.rounds
    for way, how in ways(chosen.shares or ([0.5] if is_quick else [0.8, 0.6, 0.4])).items():
        if way != "torch.compile" and not way.startswith(tuple(chosen.ways)):
            continue
        row = found[way] = tried(MODELS[name], how, is_quick, rounds)
        if row.get("planned"):
            row |= expected(row, found["torch.compile"])
        told(name, way, row)
    compare_losses(name, found, found["torch.compile"].get("losses", []))
    return found


def compare_losses(name: str, found: dict[str, Any], wanted: list[float]) -> None:
    for way, row in found.items():
        row["same_losses"] = all(abs(a - b) <= APART * abs(b) for a, b in
                                 zip(row.get("losses", []), wanted, strict=False))
        if not row["same_losses"]:
            print(f"{name:6} {way:26} OTHER LOSSES {row.get('losses')}, wanted {wanted}")


def rows_that_do_not_fit(is_quick: bool, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def add(name: str, way: Way, parts: int = 1) -> None:
        found[name] = tried(lambda quick: llama_with_loss(quick, parts), way, is_quick, rounds)
        told(UNFIT, name, found[name])

    add("torch.compile, all memory", Way(compiled))
    plain = found["torch.compile, all memory"]
    weights = sum(parameter.numel() * DTYPE.itemsize
                  for parameter in llama(is_quick).model.parameters())
    gc.collect()
    torch.cuda.empty_cache()
    left = int(FREE_SHARE * plain["peak_mib"] * MIB) + weights + WORKSPACES
    taken = torch.empty(torch.cuda.mem_get_info()[0] - left, dtype=torch.uint8, device="cuda")
    add("torch.compile", Way(compiled))
    add("ours, fit", ours("fit", False))
    add(f"ours, fit{RECORDED}", ours("fit", True))
    add("torch.compile, halves", Way(compiled), parts=2)
    del taken
    torch.cuda.empty_cache()
    compare_losses(UNFIT, found, plain.get("losses", []))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="small models and one share")
    parser.add_argument("--models", nargs="*", choices=(*MODELS, UNFIT),
                        default=[*MODELS, UNFIT])
    parser.add_argument("--shares", nargs="*", type=float, help="of what is saved, that may stay")
    parser.add_argument("--ways", nargs="*", default=["torch", "ours"], help="how names begin")
    chosen = parser.parse_args()
    answers: dict[str, Any] = {}
    for name in chosen.models:
        answers[name] = rows_that_do_not_fit(chosen.quick, chosen.rounds) if name == UNFIT \
            else rows_of(name, chosen)
        save(chosen.results, "gpu_offload", quick=chosen.quick, answers=answers)


if __name__ == "__main__":
    main()
