# SPDX-License-Identifier: Apache-2.0
"""One recording of a graph on the host device, and the Python function that launches it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

from anabranch import _compat, errors
from anabranch._compile.graph import StreamGraph
from anabranch._compile.host.assemble import Assembly
from anabranch._compile.regions import CompiledRegion
from anabranch._compile.threads import HostOptions
from anabranch._core.library import last_error
from anabranch._core.record import launch_function, new_address_table
from anabranch._core.trace import Trace


class HostInstance:
    """One recording and the function that calls it."""

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion], args: list[Any],
                 options: HostOptions, **how: Any) -> None:
        """``how`` are keywords of Assembly."""
        self.planned = Assembly(graph, regions, args, options.device(), options.native_regions,
                                **how)
        self.run = _make_call(self.planned)

    def attach_trace(self, trace: Trace | None) -> None:
        self.planned.recording.attach_trace(trace)


def _make_call(assembly: Assembly) -> Callable[[list[Any]], Any]:
    """Writes the call as one straight Python function: it is on the hot path of every step."""
    count = len(assembly.graph.placeholders)
    names = [f"a{i}" for i in range(count)]
    lines = ["def run(args):", f"    {', '.join(names)}{',' if count == 1 else ''} = args"
             if count else "    pass", "    args.clear()"]
    addresses = [f"a{i}.data_ptr()" for i in assembly.given]
    addresses += [f"c{i}" for i in range(len(assembly.constants))]
    for i, out in enumerate(assembly.outputs):
        lines.append(f"    o{i} = empty({out.sizes!r}, {out.strides!r}, d{i})")
        addresses.append(f"o{i}.data_ptr()")
    lines += [
        f"    pack(table, 0, {', '.join(addresses)})",
        "    if launch(recording, table, count): fail()",
        f"    return ({''.join(f'{expression}, ' for expression in assembly.results)})",
    ]
    table = new_address_table(len(addresses))
    scope: dict[str, Any] = {
        "empty": _compat.empty_strided_cpu,
        "pack": struct.Struct(f"={len(addresses)}Q").pack_into,
        "table": table,
        "count": len(addresses),
        "launch": launch_function,
        "recording": assembly.recording.handle,
        "fail": _raise_launch_failure,
        "inf": math.inf,
        "nan": math.nan,
    }
    scope.update({f"d{i}": out.dtype for i, out in enumerate(assembly.outputs)})
    scope.update({f"c{i}": c.data_ptr() for i, c in enumerate(assembly.constants)})
    exec("\n".join(lines), scope)
    return scope["run"]


def _raise_launch_failure() -> None:
    error = last_error()
    raise errors.from_native(error.code, error.message)
