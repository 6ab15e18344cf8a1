# SPDX-License-Identifier: Apache-2.0
"""Where in the user's code nodes of a graph come from."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node


def source_of(nodes: Sequence[Node]) -> str:
    """File and line of the user's code behind the first node that has one."""
    for node in nodes:
        for line in reversed((node.meta.get("stack_trace") or "").splitlines()):
            if line.strip().startswith("File "):
                file, number = line.split('"')[1], line.split("line ")[1].split(",")[0]
                return f"{file.rsplit('/', 1)[-1]}:{number}"
    return ""
