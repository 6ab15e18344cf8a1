# SPDX-License-Identifier: Apache-2.0
"""Marking parts of a model with streams."""

from __future__ import annotations

from typing import Any

import torch.fx.traceback

# The key under which a stream's name lies in the metadata of a graph's nodes.
ANNOTATION = "anabranch.stream"


def stream(name: str) -> Any:
    """What runs inside belongs to the stream ``name``::

        with anabranch.stream("side"):
            b = self.side(x)

    Steps of one stream run in order, those of different streams may run at the same time. The
    meaning of a program is that of the program without streams: every wait that this needs is
    derived, in the forward and in the backward. Streams nest, the inner name wins. In eager mode
    and under other compilers this does nothing. Raises ConfigError [E0601] unless ``name`` is a
    string that is not empty; "ambient" is the stream of the caller.
    """
    if not isinstance(name, str) or not name:
        _refuse(name)
    return torch.fx.traceback.annotate({ANNOTATION: name})


def _refuse(name: object) -> None:
    from .errors import CompileError

    raise CompileError(
        601,
        f"stream: the name {name!r} is {type(name).__name__}, and it must be a string that is not "
        "empty.",
    )
