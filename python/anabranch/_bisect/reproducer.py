# SPDX-License-Identifier: Apache-2.0
"""A small program that shows a difference again: the graph's code, its arguments, and both ways to
run it.

The program needs torch and this package, and the file of tensors that lies beside it. Threads: any.
Failure: PlanFileError [E0501] where a file cannot be written.
"""

from __future__ import annotations

import dataclasses
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from anabranch import _compat
from anabranch._bisect.compare import Tolerance
from anabranch._bisect.graphs import GraphCall
from anabranch._bisect.regions import RegionValues, streams_of
from anabranch._bisect.verdict import Blame
from anabranch._compile.regions import CompiledRegion
from anabranch._write_file import write_file

_MOST_BYTES = 16 << 20  # of tensors that are saved; others are drawn anew
_SEEDS = 64

_PROGRAM = '''\
# {title}
# Needs torch and anabranch, and {data} beside it.

from math import inf, nan
from pathlib import Path

import torch
from torch import device

import anabranch

{settings}
SAVED = torch.load(Path(__file__).with_suffix(".pt"), weights_only=True)


def made(item):
    """A tensor as it was saved, or a random one of its sizes, strides and dtype."""
    if not isinstance(item, tuple):
        return item
    sizes, strides, dtype, where = item
    memory = torch.empty_strided(sizes, strides, dtype=dtype, device=where)
    return memory.copy_(torch.randn(sizes, generator=torch.Generator().manual_seed(0)))


{classes}

{parts}


def step({arguments}):
{body}


def run(function, is_other=False):
    torch.manual_seed(0)
    given = [made(item) for item in SAVED["arguments"]]
    given = [one.clone() if isinstance(one, torch.Tensor) else one for one in given]
    if is_other:
        given = [1 - one if isinstance(one, torch.Tensor) and one.is_floating_point() else one
                 for one in given]
    with torch.no_grad():
        results = function(*given)
    return [*results, *given]


def difference(found, wanted):
    """The largest, among the elements that are not within bounds."""
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        if not isinstance(other, torch.Tensor) or other.numel() == 0:
            continue
        kind = torch.complex128 if other.is_complex() else torch.float64
        a, b = one.to(kind), other.to(kind)
        exact = not (other.is_floating_point() or other.is_complex())
        rtol = 0.0 if exact else {rtol}
        atol = 0.0 if exact else {atol}
        apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
        apart = apart.nan_to_num(nan=inf)
        wrong = apart > atol + rtol * b.abs()
        worst = max(worst, float(apart[wrong].max()) if wrong.any() else 0.0)
    return worst


wanted = run(step)
compiled = torch.compile(step, {how}, dynamic=False)
largest = 0.0
for seed in {seeds}:
    with anabranch.config.patch({launch}):
        run(compiled, is_other=True)  # or memory would hold what is right from the last time
        largest = max(largest, difference(run(compiled), wanted))
print(f"largest difference: {{largest:.3g}}")
assert largest == 0.0, f"differs from eager by {{largest:.3g}}"
'''


@dataclasses.dataclass
class _Part:
    """A piece of the program: a graph, and names of what it is given and makes."""

    gm: GraphModule
    inputs: list[str]
    outputs: list[str] | None  # None: what it makes is what the program answers
    stream: str | None = None


class NotWritable(Exception):
    """There is no program of this graph; the text says why."""


def write_reproducer(path: Path, call: GraphCall, place: Blame, options: dict[str, Any] | None,
                     tolerance: Tolerance) -> Path:
    """Writes ``path``, and its tensors beside it. ``options`` are those of our backend, None for
    Inductor's. Raises NotWritable."""
    if call.streamed is None:
        parts, arguments, answers = _of_graph(call)
    else:
        parts, arguments, answers = _of_regions(call, place)
    constants = [_constants(part.gm) for part in parts]
    data = io.BytesIO()
    torch.save(_saved([value for _, value in arguments], constants), data)
    is_order = place.kind == "order"
    backend = 'backend="inductor"' if options is None else \
        f"backend=anabranch.backend, options={ {**options, 'strict': call.streamed is not None}!r}"
    text = _PROGRAM.format(
        title=_one_line(place.text), data=path.with_suffix(".pt").name,
        settings=_compat.changed_settings(),
        classes="\n\n".join(_class(i, part.gm) for i, part in enumerate(parts)),
        parts="\n".join(_instance(i, names) for i, names in enumerate(constants)),
        arguments=", ".join(name for name, _ in arguments), body=_body(parts, arguments, answers),
        rtol=_rtol(tolerance), atol=_atol(tolerance), how=backend,
        seeds=f"range(1, {_SEEDS + 1})" if is_order else "[None]",
        launch="" if options is None else _launch(call, place))
    write_file("write reproducer", path.with_suffix(".pt"), data.getvalue())
    write_file("write reproducer", path, text.encode())
    return path


def _launch(call: GraphCall, place: Blame) -> str:
    """A race needs a thread for each stream, however few cores there are."""
    if place.kind != "order" or call.streamed is None:
        return "delay_seed=seed"
    return f"delay_seed=seed, max_threads={len({*streams_of(call.streamed.regions)})}"


def _of_graph(call: GraphCall) -> tuple[list[_Part], list[tuple[str, Any]], str]:
    arguments = [(f"a{i}", arg) for i, arg in enumerate(call.args)]
    return [_Part(call.gm, [name for name, _ in arguments], None)], arguments, ""


def _of_regions(call: GraphCall, place: Blame) -> tuple[list[_Part], list[tuple[str, Any]], str]:
    """One region where it is wrong alone, else all of the graph."""
    assert call.streamed is not None
    regions, values = list(call.streamed.regions), RegionValues(call)
    if place.kind in ("kernel", "tape"):
        while regions and regions[0].graph.name != place.regions[0]:
            values.run(regions.pop(0).graph)
        regions = regions[:1]
    names: dict[Node, str] = {}
    arguments: list[tuple[str, Any]] = []
    made = {value for region in regions for value in region.graph.outputs}
    for value in (value for region in regions for value in region.graph.inputs):
        if value not in made and value not in names:
            names[value] = f"a{len(arguments)}"
            arguments.append((names[value], values.laid_out(value)))
    names |= {value: f"v{i}" for i, value in enumerate(
        value for region in regions for value in region.graph.outputs)}
    parts = [_Part(region.graph.module, [names[value] for value in region.graph.inputs],
                   [names[value] for value in region.graph.outputs], stream)
             for region, stream in zip(regions, _streams(regions), strict=True)]
    answers = [names[value] for region in regions for value in region.graph.outputs]
    return parts, arguments, ", ".join(answers)


def _streams(regions: Sequence[CompiledRegion]) -> list[str | None]:
    """A graph is split only where it has two streams: one region alone is on one of its own."""
    return streams_of(regions) if len(regions) > 1 else ["region"]


def _body(parts: Sequence[_Part], arguments: Sequence[tuple[str, Any]], answers: str) -> str:
    lines = []
    for i, part in enumerate(parts):
        line = f"part{i}({', '.join(part.inputs)})"
        if part.outputs is None:
            return f"    return {line}"
        line = f"{', '.join(part.outputs)}, = {line}" if part.outputs else line
        if part.stream is not None:
            lines.append(f"with anabranch.stream({part.stream!r}):")
            line = f"    {line}"
        lines.append(line)
    if len(parts) == 1:  # a graph of one stream is not split
        first = next((name for name, value in arguments if isinstance(value, Tensor)), None)
        answers = ", ".join(filter(None, [answers, f"{first} * 2" if first else None]))
    return textwrap.indent("\n".join([*lines, f"return {answers},"]), "    ")


def _class(number: int, gm: GraphModule) -> str:
    return f"class Part{number}(torch.nn.Module):\n{textwrap.indent(gm.code.strip(), '    ')}\n"


def _instance(number: int, constants: dict[str, Tensor]) -> str:
    lines = [f"part{number} = Part{number}()"]
    lines += [f'part{number}.{name} = made(SAVED["constants"][{number}][{name!r}])'
              for name in constants]
    return "\n".join(lines)


def _constants(gm: GraphModule) -> dict[str, Tensor]:
    found = {}
    for node in gm.graph.nodes:
        if node.op in ("call_module", "call_method"):
            raise NotWritable(f"its graph has a {node.op} in it")
        if node.op == "get_attr":
            value = getattr(gm, str(node.target), None)
            if not isinstance(value, Tensor):
                raise NotWritable(f"{node.target} in its graph is no tensor")
            found[str(node.target)] = value.detach()
    return found


def _saved(arguments: Sequence[Any], constants: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    tensors += [one for part in constants for one in part.values()]
    is_little = sum(one.untyped_storage().nbytes() for one in tensors) <= _MOST_BYTES

    def kept(value: Any) -> Any:
        if not isinstance(value, Tensor) or is_little or not value.is_floating_point():
            return value
        return tuple(value.shape), value.stride(), value.dtype, str(value.device)

    return {"arguments": list(map(kept, arguments)),
            "constants": [{name: kept(one) for name, one in part.items()} for part in constants]}


def _rtol(tolerance: Tolerance) -> str:
    return repr(tolerance.rtol) if tolerance.rtol is not None else \
        "max(1e-7, min(4e-2, 1e3 * torch.finfo(other.dtype).eps))"


def _atol(tolerance: Tolerance) -> str:
    return repr(tolerance.atol) if tolerance.atol is not None else \
        "max(1e-5, rtol * float(b.abs().nan_to_num(0.0, posinf=0.0).max()))"


def _one_line(text: str) -> str:
    return " ".join(text.split())
