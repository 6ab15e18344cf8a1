# SPDX-License-Identifier: Apache-2.0
"""Where in the user's code nodes of a graph come from."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from torch.fx import Graph, Node

_FRAME = re.compile(r'File "([^"\n]*)", line (\d+), in ([^\n]*)(?:\n[ \t]+([^\n]*))?')


class SourceLine(NamedTuple):
    """``file`` as Python names it, a whole path in most cases; ``text`` without its indent."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


def lines_of(nodes: Iterable[Node]) -> list[SourceLine]:
    """The lines of the user's code behind nodes, each once, in the order of the nodes."""
    found = (_innermost(node.meta.get("stack_trace") or "") for node in nodes)
    return list(dict.fromkeys(line for line in found if line is not None))


def source_of(nodes: Iterable[Node]) -> str:
    """File and line of the user's code behind the first node that has one."""
    for node in nodes:
        line = _innermost(node.meta.get("stack_trace") or "")
        if line is not None:
            return str(line)
    return ""


def inherit_lines(graph: Graph) -> None:
    """Nodes without a line get that of the first input that has one: sums of gradients, which
    autograd makes and Inductor fuses with products."""
    for node in graph.nodes:
        if node.op == "call_function" and not lines_of([node]):
            of = next((given for given in node.all_input_nodes if lines_of([given])), None)
            if of is not None:
                node.meta["stack_trace"] = of.meta["stack_trace"]


@functools.lru_cache(1024)
def _innermost(trace: str) -> SourceLine | None:
    """Of a traceback, as text."""
    frames = _FRAME.findall(trace)
    if not frames:
        return None
    file, line, function, text = frames[-1]
    return SourceLine(file, int(line), function, text.strip())
