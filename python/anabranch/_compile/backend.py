# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(model, backend="anabranch")``.

Inductor's own pipeline runs, with two parts replaced: the partitioner (``_fx.partitioner``), and
the compilation of the graphs that come out of AOTAutograd. A graph of one stream is compiled by
Inductor as ever; a graph with stream annotations is split into regions, planned and recorded. On a
GPU it is split where no CUDA graph is to be recorded of it, or a stream has a priority.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from anabranch import _compat, config, errors, streams
from anabranch._arguments import wrong
from anabranch._compile import kept_graphs, report
from anabranch._compile.asked import AskedStreams, asking, nodes_of
from anabranch._compile.broken_libraries import without_broken_libraries
from anabranch._compile.cuda_streams.instance import CudaInstance, CudaQueues
from anabranch._compile.cuts import Cuts, find_cuts, record_parts
from anabranch._compile.graph import StreamGraph, Unsupported, has_collectives
from anabranch._compile.host.instance import HostInstance
from anabranch._compile.kept_graphs import GraphFacts
from anabranch._compile.lost_streams import lose
from anabranch._compile.regions import CompiledRegion, compile_regions
from anabranch._compile.streamed_graph import Instance, RecordedStreams, StreamedGraph
from anabranch._compile.threads import HostOptions, lanes_of
from anabranch._compile.user_streams import extract
from anabranch._compile.user_streams.ties import Ties
from anabranch._compile.views import refresh_view_strides
from anabranch._core.library import NativeError
from anabranch._fx import attention_seeds, clone_outputs
from anabranch._fx.bucket_gathers import bucket_gathers
from anabranch._fx.partitioner import SavingPartitioner, tangents_in
from anabranch._fx.source import inherit_lines, lines_of
from anabranch._offload.activation_memory import ActivationMemory
from anabranch._offload.copies import moves_saved
from anabranch._offload.recorded import (
    MovingBackward,
    MovingForward,
    SavingBlocks,
    recorded_inputs,
)
from anabranch._record.launch.saved_blocks import SavedBlocks
from anabranch._record.recorded_graph import RecordedGraph
from anabranch._record.refusals import Cause, Reason
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.warn import note
from anabranch.streams import ANNOTATION, OFFLOAD, OVERLAP

RecordOf = Callable[[Callable[[list[Any]], Any]], RecordedGraph]

log = logging.getLogger("anabranch.compile")
_FELL_BACK, _REFUSED, _BUDGET_MISSED = 602, 607, 616


def backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend, as ``torch.compile`` calls it.

    ``options`` are those of ``anabranch.config`` and beat it; an unknown one raises ConfigError.
    ``mode`` must be None or "default". Raises AnabranchError where strict forbids a fall-back, and
    WrongArgument [E0611] where it is called with a model.
    """
    if mode not in (None, "default"):
        raise errors.ConfigError(
            704, f"backend: mode={mode!r} is Inductor's, and anabranch has only 'default'.",
            "Leave mode out, or say mode=None where something else would be meant; "
            "options={...} takes the names of anabranch.config.")
    if not isinstance(gm, GraphModule):
        raise wrong("backend", "the graph", gm, "one of torch.compile",
                    "Let torch.compile call it: torch.compile(model, backend=anabranch.backend).")
    chosen = config.resolve(options)
    _wish_as_around(gm)
    asked = AskedStreams(gm)
    if chosen.streams:
        _ = asked.priorities  # one each, also where a recording has no use for them
    ties = _take_streams_out(chosen, gm)
    try:
        compiled = _compile(chosen, config.follow(options, HostOptions.of), asked, ties is not None,
                            gm, example_inputs)
    except (errors.AnabranchError, _compat.TorchDynamoException):
        raise  # by the latter Dynamo is told to begin anew, among others
    except Exception as error:
        if not _is_mistake(error):
            raise
        compiled = _compat.compile_fx(gm, example_inputs)
        _tell_mistake(chosen, error)
    return ties.around(compiled) if ties else compiled


def _compile(chosen: config.Options, at_launch: Callable[[], HostOptions], asked: AskedStreams,
             is_tied: bool, gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Through AOTAutograd. ``at_launch`` answers the options of a launch on the host; ``is_tied``:
    streams of torch have been taken out of the graph."""
    is_on_gpu = any(isinstance(given, torch.Tensor) and given.is_cuda for given in example_inputs)
    streamed = chosen.streams and not is_on_gpu and bool(asked.streams)
    memory = None if streamed else ActivationMemory(chosen)
    patches: dict[str, Any] = {
        "custom_partitioner_fn": SavingPartitioner(streamed, memory, kept_graphs.version(chosen)),
        "triton.cudagraphs": False}
    if is_on_gpu and chosen.record and _lanes(chosen, _asked_lanes(chosen, asked)) > 1:
        patches |= _compat.OWN_BUFFERS
    saved = SavedBlocks()
    is_kept = not is_tied and memory is not None and _may_be_kept(gm, chosen)
    cache = _compat.graphs_from_cache(functools.partial(_resume, chosen, saved)) if is_kept \
        else _compat.without_autograd_cache()
    with _compat.own_compile_context(), cache:
        return _compat.compile_fx(
            gm,
            example_inputs,
            inner_compile=functools.partial(_compile_graph, chosen, at_launch, saved,
                                            SavingBlocks(), memory, is_kept),
            config_patches=patches,
        )


def _may_be_kept(gm: GraphModule, chosen: config.Options) -> bool:
    """Whether all that AOTAutograd makes of it may come from its cache later: wishes stand in no
    key of a cache, and plans for memory depend on the machine."""
    return chosen.activation_memory is None and not report.keeps_graphs() and not any(
        _compat.annotation(node, wish) for node in nodes_of(gm)
        for wish in (ANNOTATION, OVERLAP, OFFLOAD))


def _resume(chosen: config.Options, saved: SavedBlocks, key: str, compiled: Any) -> None:
    """A graph has come out of AOTAutograd's cache. KeyError where nothing is known of it."""
    phases = report.Phases()
    facts = kept_graphs.facts_of_kept(key)
    unrecorded = _record(chosen, facts, compiled, saved) if facts.is_on_gpu else None
    report.add(facts, compiled, None, unrecorded, phases)


def _wish_as_around(gm: GraphModule) -> None:
    """What is compiled by itself, since it is called where a graph breaks, overlaps and offloads as
    what is around the break. The name of a stream around means nothing there: a graph runs as a
    whole."""
    around = streams.around()
    wishes = {key: around[key] for key in (OVERLAP, OFFLOAD) if key in around}
    if wishes:
        for node in gm.graph.nodes:
            node.meta["custom"] = {**wishes, **(node.meta.get("custom") or {})}


def _take_streams_out(chosen: config.Options, gm: GraphModule) -> Ties | None:
    """torch's own streams and events. Those that cannot be taken out are left to Inductor."""
    try:
        return extract.take_out(gm, check=chosen.streams, strict=chosen.strict)
    except extract.NotUnderstood as error:
        _fall_back(chosen, str(error))
        return None


def _compile_graph(chosen: config.Options, *how: Any, **keywords: Any) -> Any:
    """Compiles one graph of AOTAutograd: as ours, or behind a mistake of ours as Inductor does."""
    *_, gm, example_inputs = how
    try:
        return _compile_ours(chosen, *how, **keywords)
    except (errors.AnabranchError, _compat.TorchDynamoException):
        raise
    except Exception as error:
        if moves_saved(gm.graph):  # which Inductor alone would not
            raise
        compiled = _compat.compile_fx_inner(gm, example_inputs, **keywords)
        _tell_mistake(chosen, error)
        return compiled


def _compile_ours(
    chosen: config.Options, at_launch: Callable[[], HostOptions], saved: SavedBlocks,
    moved: SavingBlocks, memory: ActivationMemory | None, is_kept: bool, gm: GraphModule,
    example_inputs: Sequence[Any], **keywords: Any
) -> Any:
    """A forward, backward or inference. ``is_kept``: it may come from a cache later."""
    phases = report.Phases()
    if _kind(keywords) == "forward":
        _compat.keep_saved_tensors()
    if _kind(keywords) != "backward":
        clone_outputs.clone_aliased_outputs(gm)
    is_on_gpu = _is_on_gpu(gm)
    asked = AskedStreams(gm)
    is_whole = is_on_gpu and _is_recorded_whole(chosen, asked)
    if is_whole:
        bucket_gathers(gm, chosen.bucket_bytes)
        attention_seeds.drop_unused_seeds(gm)
    inherit_lines(gm.graph)
    kept = report.keep(gm)
    streamed, reason = _split(chosen, at_launch, gm, asked, keywords, is_whole, phases)
    cuts = _cuts(chosen, gm) if is_whole and not moves_saved(gm.graph) else Cuts()
    is_planned = memory is not None and memory.planned is not None
    compiled = streamed or _compile_unsplit(gm, example_inputs, keywords, cuts, phases, is_planned)
    facts, unrecorded = _facts_of(gm, _kind(keywords), _asked_lanes(chosen, asked), cuts), None
    if is_on_gpu:
        if streamed and chosen.record:
            compiled = RecordedStreams(streamed)
        moving = functools.partial(_record_moving, compiled, gm.graph, facts.kind, moved) \
            if moves_saved(gm.graph) else None
        unrecorded = _record(chosen, facts, compiled, saved, moving)
    planned = memory.planned if memory and facts.kind == "forward" else None
    if planned is not None and planned.reason:
        _miss_budget(chosen, planned.reason)
    elif streamed and facts.kind == "forward" and chosen.activation_memory is not None:
        _miss_budget(chosen, "a graph of several streams keeps all that it saves")
    report.add(facts, compiled, reason, unrecorded, phases, kept, planned)
    key = _compat.key_of_graph(compiled)
    if is_kept and planned is None and not moves_saved(gm.graph) and key is not None:
        kept_graphs.keep(key, facts)
    return _boxed(compiled) if streamed else compiled


def _facts_of(gm: GraphModule, kind: str, asked_lanes: int, cuts: Cuts) -> GraphFacts:
    nodes = gm.graph.nodes
    return GraphFacts(kind, sum(node.op == "call_function" for node in nodes), lines_of(nodes),
                      _is_on_gpu(gm), _is_dynamic(gm), asked_lanes, cuts,
                      _compat.results_of_forward() if kind == "forward" else None,
                      tangents_in(recorded_inputs(gm.graph)))


def _cuts(chosen: config.Options, gm: GraphModule) -> Cuts:
    """Under strict what cannot be recorded as one is to raise, with its reason, unless that is
    allowed."""
    cuts = find_cuts(gm)
    codes = {why.code for why in cuts.reasons}
    return cuts if not chosen.strict or (codes and codes <= chosen.allow) else Cuts()


def _is_recorded_whole(chosen: config.Options, asked: AskedStreams) -> bool:
    """What runs beside what is then found in the recording. Priorities are not: kernels have those
    of the streams on which they are captured."""
    return chosen.record and not (chosen.streams and any(asked.priorities.values()))


def _split(chosen: config.Options, at_launch: Callable[[], HostOptions], gm: GraphModule,
           asked: AskedStreams, keywords: dict[str, Any], is_whole: bool, phases: report.Phases,
           ) -> tuple[StreamedGraph | None, str | None]:
    """The graph in regions; or nothing, and why, if it has streams that are not followed."""
    if not asked.streams and not (asked.most > 1 and has_collectives(gm)):
        return None, None
    if not chosen.streams:
        return None, "streams=False"
    if is_whole:
        return None, None
    try:
        return _compile_streams(chosen, at_launch, gm, asked, keywords, phases), None
    except Unsupported as error:
        _fall_back(chosen, str(error))
        return None, str(error)


def _compile_unsplit(gm: GraphModule, example_inputs: Sequence[Any], keywords: dict[str, Any],
                     cuts: Cuts, phases: report.Phases, is_planned: bool) -> Any:
    """``is_planned``: what is saved has been, so memory counts."""
    in_order = _compat.in_graph_order if moves_saved(gm.graph) else contextlib.nullcontext
    where_used = _compat.fused_where_used if is_planned else contextlib.nullcontext
    try:
        with cuts.compiling(), phases.of("Inductor"), in_order(), where_used():
            return without_broken_libraries(
                lambda: _compat.compile_fx_inner(gm, example_inputs, **keywords))
    except Exception as error:
        if _compat.is_missing_compiler(error):
            raise _no_compiler(error) from error
        raise


def _compile_streams(
    chosen: config.Options, at_launch: Callable[[], HostOptions], gm: GraphModule,
    asked: AskedStreams, keywords: dict[str, Any], phases: report.Phases
) -> StreamedGraph | None:
    """None where all of the graph turns out to be on one stream."""
    with phases.of("regions"):
        refresh_view_strides(gm)
        graph = StreamGraph(gm, asked, _device_of(gm))
        if len(graph.stream_names) == 1 or len(set(graph.streams.values())) == 1:
            return None
        regions = graph.regions()
    lanes = lanes_of(chosen, len(set(graph.streams.values())))
    try:
        with phases.of("Inductor"):
            compiled = without_broken_libraries(lambda: compile_regions(
                graph, regions, _fake_mode(graph), lanes, keywords, chosen.progress))
    except NativeError:
        raise
    except Exception as error:
        if _compat.is_missing_compiler(error):
            raise _no_compiler(error) from error
        log.debug("Inductor failed on a region", exc_info=True)
        raise Unsupported(f"Inductor cannot compile a region ({type(error).__name__}: "
                          f"{str(error).splitlines()[0] if str(error) else ''})") from error
    log.info("%s: %d regions on %d streams", _kind(keywords), len(regions),
             len(graph.stream_names))
    streamed = StreamedGraph(graph, compiled, _instances(graph, compiled), at_launch)
    with phases.of("plan"):
        streamed.prepare()
    return streamed


def _instances(graph: StreamGraph, regions: Sequence[CompiledRegion],
               ) -> Callable[[list[Any], HostOptions], Instance]:
    if graph.device.type == "cpu":
        return functools.partial(HostInstance, graph, regions)
    queues = CudaQueues(graph.device)
    return lambda args, options: CudaInstance(graph, regions, queues, args)


def _record(chosen: config.Options, facts: GraphFacts, compiled: Any, saved: SavedBlocks,
            moving: Callable[[RecordOf], None] | None = None) -> Reason | None:
    """Has what is compiled recorded as it runs, or its parts; or why not as one. ``moving`` does it
    in another way."""
    if not chosen.record:
        return Reason("record=False", 0)  # asked for: no code
    if not _compat.is_inductors_graph(compiled):
        return Cause.NOTHING_ON_GPU.because("it has no operators")
    name, whole = f"a {facts.kind} graph", None
    lanes = facts.asked_lanes
    chosen = dataclasses.replace(chosen, max_parallel_kernels=_lanes(chosen, lanes))

    def record(call: Callable[[list[Any]], Any]) -> RecordedGraph:
        kind = CallableKind(saved_from=facts.saved_from, is_backward=facts.kind == "backward",
                            tangents=facts.tangents,
                            pair=saved if facts.kind != "inference" else None)
        return RecordedGraph(asking(lanes, call), chosen, name, kind, dynamic=facts.is_dynamic)

    if moving is not None:
        moving(record)
        return None
    if not facts.cuts.reasons:
        whole = compiled.current_callable = record(compiled.current_callable)
    record_parts(compiled, chosen, name, facts.is_dynamic, facts.cuts, whole, lanes)
    return facts.cuts.reasons[0] if facts.cuts.reasons else None


def _record_moving(compiled: Any, graph: Graph, kind: str, moved: SavingBlocks,
                   record: RecordOf) -> None:
    """Of a graph that moves what is saved."""
    moving = MovingBackward if kind == "backward" else MovingForward
    compiled.current_callable = moving(compiled.current_callable, graph, moved, record)


def _no_compiler(error: Exception) -> errors.CompileError:
    return errors.CompileError(
        605, f"compile: no C++ compiler works ({str(error).splitlines()[0]}).",
        "Install one (apt-get install g++), or name it in $CXX.")


def _fall_back(chosen: config.Options, reason: str,
               what: str = "a graph with streams runs through Inductor as one region") -> None:
    is_allowed = bool({_FELL_BACK, _REFUSED} & chosen.allow)
    if chosen.strict and not is_allowed:
        raise errors.CompileError(
            _REFUSED, f"compile: {reason}, and strict=True forbids to fall back to Inductor.",
            f"Without strict {what}.")
    told = f"{what}: {reason}"
    if note((_FELL_BACK, reason), told, Reason(reason, _FELL_BACK), is_allowed=is_allowed):
        log.warning("anabranch: %s [E0602]", told)


def _is_mistake(error: Exception) -> bool:
    """Whether something of ours is among what led to it, besides the call of torch's compiler."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("anabranch.")
               and frame.f_code not in (backend.__code__, _compile.__code__)
               for frame, _ in frames)


def _tell_mistake(chosen: config.Options, error: Exception) -> None:
    log.debug("a mistake of Anabranch's", exc_info=error)
    first = (str(error).strip().splitlines() or [""])[0]
    _fall_back(chosen, f"a mistake of Anabranch's, {type(error).__name__}: {first}",
               "a graph is compiled by Inductor alone")


def _miss_budget(chosen: config.Options, why: str) -> None:
    is_allowed = _BUDGET_MISSED in chosen.allow
    what = f"a forward saves more than activation_memory allows: {why}"
    if chosen.strict and not is_allowed:
        raise errors.CompileError(
            _BUDGET_MISSED, f"compile: {what}, and strict=True forbids to miss it.",
            "Without strict as little is kept as can be.")
    if note((_BUDGET_MISSED, what), what, Reason(what, _BUDGET_MISSED), is_allowed=is_allowed):
        log.warning("anabranch: %s [E0616]", what)


def _boxed(graph: StreamedGraph | RecordedStreams) -> Callable[[list[Any]], Any]:
    def call(args: list[Any]) -> Any:
        return graph(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd passes one list
    return call


def _asked_lanes(chosen: config.Options, asked: AskedStreams) -> int:
    return asked.lanes if chosen.streams else 1


def _lanes(chosen: config.Options, asked_lanes: int) -> int:
    """How many kernels of its recording may run side by side. On a GPU, streams that are named mean
    that some should: which, and what waits for what, is found in the recording."""
    return max(chosen.max_parallel_kernels, asked_lanes)


def _is_on_gpu(gm: GraphModule) -> bool:
    return _device_of(gm).type == "cuda"


def _device_of(gm: GraphModule) -> torch.device:
    """The first GPU that an input is on, or the host."""
    return next((value.device for value in _inputs(gm)
                 if isinstance(value, torch.Tensor) and value.is_cuda), torch.device("cpu"))


def _is_dynamic(gm: GraphModule) -> bool:
    return any(isinstance(value, torch.SymInt) for value in _inputs(gm))


def _inputs(gm: GraphModule) -> list[Any]:
    return [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]


def _fake_mode(graph: StreamGraph) -> Any:
    for node in graph.gm.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode
    raise Unsupported("the graph has no tensors")


def _kind(keywords: Mapping[str, Any]) -> str:
    if keywords.get("is_backward"):
        return "backward"
    return "inference" if keywords.get("is_inference") else "forward"


_compat.take_events_behind_writes(backend)
_compat.resume_streams(streams.__name__, "annotated", streams.StreamBlock)
streams.entered_in_eager = _compat.watch_eager_frames(backend, streams.IN_EAGER, streams.DECORATED,
                                                      lose)
