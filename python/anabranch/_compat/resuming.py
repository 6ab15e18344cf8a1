# SPDX-License-Identifier: Apache-2.0
"""Blocks of ``anabranch.stream`` and ``overlap`` where Dynamo breaks a graph.

Dynamo cuts a frame inside a ``with`` if it can enter the context again: it calls a function that it
finds by name with constants, around the call that breaks and at the start of what it compiles
behind. For ``torch.fx.traceback.annotate`` it refuses, and gives the whole frame to eager. So our
blocks are a kind of their own to it. Frames that it still gives to eager are found as they run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FrameType
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo import convert_frame, trace_rules
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource
from torch._dynamo.utils import ExactWeakKeyDictionary
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.ctx_manager import ContextWrappingVariable
from torch._dynamo.variables.torch import TorchCtxManagerClassVariable

Pairs = tuple[tuple[str, Any], ...]


def resume_streams(module: str, name: str, kind: type) -> None:
    """Lets Dynamo cut frames inside ``with function(*pairs)``, whatever the backend, and inside
    ``with block``, where that was made before. The function has this name; it answers a block, an
    object of this kind, which has its ``pairs``."""

    class ResumedBlock(_Block):
        def module_name(self) -> str:
            return module

        def fn_name(self) -> str:
            return name

    class Function(TorchCtxManagerClassVariable):
        def call_function(self, tx: Any, args: Any, kwargs: Any) -> ResumedBlock:
            return ResumedBlock(tuple(pair.as_python_constant() for pair in args))

    def of_object(builder: VariableBuilder, block: Any) -> ResumedBlock:
        builder.install_guards(GuardBuilder.TYPE_MATCH)
        pairs = VariableTracker.build(builder.tx, block.pairs, AttrSource(builder.source, "pairs"))
        return ResumedBlock(pairs.as_python_constant())  # which guards on them

    rules: dict[str, Any] = trace_rules.manual_torch_name_rule_map
    rules[f"{module}.{name}"] = Function
    trace_rules.get_torch_obj_rule_map.cache_clear()
    for with_numpy in (True, False):
        VariableBuilder._type_dispatch_impl(with_numpy)[kind] = of_object


class _Block(ContextWrappingVariable):
    """While Dynamo traces it, the annotation is on; Dynamo gives it to the nodes that it makes. An
    object may be entered within itself."""

    _nonvar_fields = {"entered", *ContextWrappingVariable._nonvar_fields}  # noqa: RUF012

    def __init__(self, pairs: Pairs, **keywords: Any) -> None:
        super().__init__(target_values=pairs, **keywords)
        # What ends each entry, and how many operators there were before it.
        self.entered: list[tuple[contextlib.ExitStack, int]] = []

    def enter(self, tx: Any, *args: Any) -> Any:
        stack = contextlib.ExitStack()
        stack.enter_context(torch.fx.traceback.annotate(dict(self.target_values)))
        stack.enter_context(torch.fx.traceback.preserve_node_meta())
        tx.output.add_cleanup_hook(stack.close)
        self.entered.append((stack, tx.output.count_calls()))
        _blocks_of(tx.f_code).setdefault(self.target_values, None)
        return ConstantVariable.create(None)

    def exit(self, tx: Any, *args: Any) -> Any:
        stack, calls_before = self.entered.pop()
        stack.close()
        blocks = _blocks_of(tx.f_code)
        is_used = tx.output.count_calls() > calls_before
        blocks[self.target_values] = blocks.get(self.target_values) or is_used
        return ConstantVariable.create(None)

    def python_type(self) -> type:
        return contextlib.AbstractContextManager


# By the code in which they stand, the blocks that Dynamo has traced: whether there is an operator
# in one. None until the end of one has been seen.
_blocks: ExactWeakKeyDictionary = ExactWeakKeyDictionary()


def _blocks_of(code: CodeType) -> dict[Pairs, bool | None]:
    if code not in _blocks:
        _blocks[code] = {}
    return _blocks[code]


def watch_eager_frames(ours: Callable[..., Any], functions: Iterable[Any], decorated: CodeType,
                       lose: Callable[[Mapping[str, Any], FrameType, Pairs], None],
                       ) -> Callable[[FrameType, Pairs], None]:
    """What is to be called with the frame of a block that is entered in eager. It calls ``lose``,
    with the options of the compiled call around, where that is for the backend ``ours`` and Dynamo
    has given the frame to eager. Dynamo leaves it and ``functions`` alone; ``decorated`` is what
    runs around decorated functions."""

    @torch.compiler.disable
    def look(callback: Any, frame: FrameType, pairs: Pairs) -> None:
        options = _options_for(ours, callback)
        if options is not None and (_blocks.get(frame.f_code) or {}).get(pairs) is not False:
            lose(options, frame, pairs)

    def entered(frame: FrameType, pairs: Pairs) -> None:
        callback = get_eval_frame_callback()
        # In what Dynamo has made of a frame, a block is there for the call that breaks the graph;
        # and what a decorator is on is compiled by itself then, inside the block.
        if callback and frame.f_code not in convert_frame.output_codes \
                and frame.f_code is not decorated:
            look(callback, frame, pairs)

    for function in (entered, *functions):
        skip_code(function.__code__)
    return entered


def _options_for(ours: Callable[..., Any], callback: Any) -> Mapping[str, Any] | None:
    """The options of a compiled call, from what Dynamo asks about each frame in it; None where
    frames are not for our backend, or only later calls are to be compiled."""
    options: Mapping[str, Any] = {}
    link = callback if isinstance(callback, convert_frame.CatchErrorsWrapper) else None
    while link is not None and link is not ours:
        options = getattr(link, "kwargs", {}).get("options") or options
        link = (getattr(link, "_torchdynamo_orig_backend", None)
                or getattr(link, "compiler_fn", None))
    return None if link is None else options
