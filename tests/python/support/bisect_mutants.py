# SPDX-License-Identifier: Apache-2.0
"""Twenty faults that are planted into what we compile and record, and what has to be said of each.

A mutant has a function that plants its fault with monkeypatch, or a context. They share one program, whose regions
are, in order: ambient.0 (the product h), a.1 and b.2 (of h), ambient.3 (of their sum), a.4 and ambient.5
(of that).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

import torch
import torch._inductor.config as inductor_config

import anabranch
from anabranch._compile import regions
from anabranch._compile.host.assemble import Assembly
from anabranch._compile.host.tape_writer import TapeWriter
from anabranch._compile.program import RegionProgram
from anabranch._core.program import READ, View
from anabranch._fx import clone_outputs

REGIONS = ("ambient.0", "a.1", "b.2", "ambient.3", "a.4")


def program(x, w):
    h = x @ w
    with anabranch.stream("a"):
        a = torch.relu(h @ w)
    with anabranch.stream("b"):
        b = torch.tanh(h @ w.t())
    c = (a + b) @ w
    with anabranch.stream("a"):
        d = torch.sigmoid(c @ w)
    return d, c @ w.t()


def inputs():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(16, 16, generator=generator), torch.randn(16, 16, generator=generator) / 4


def as_operators(module, example_inputs, **keywords):
    """In the place of Inductor: a graph that runs as torch's operators."""
    def run(values):
        given = list(values)
        values.clear()
        return module(*given)

    def call(values):
        return call.current_callable(values)

    call._boxed_call, call.current_callable = True, run
    return call


@dataclasses.dataclass
class Mutant:
    """``regions`` are those that have to be named; a wait's is (maker, reader)."""

    kind: str
    rung: str
    plant: Callable = lambda monkeypatch: None
    regions: tuple[str, ...] = ()
    is_native: bool = False  # needs Inductor's code: its regions run from C++
    around: Callable = contextlib.nullcontext

    def __str__(self):
        return " ".join([self.kind, *self.regions])


def wrong_kernel(name):
    """Inductor's code of a region answers one more; of every region without a name."""
    def plant(monkeypatch):
        compile_region = regions._compile_region

        def wrong(region, *given):
            compiled = compile_region(region, *given)
            if name in (None, region.name):
                run = compiled.current_callable

                def answer(values):
                    first, *rest = run(values)
                    return [first + 1, *rest]

                compiled.current_callable = answer
            return compiled

        monkeypatch.setattr(regions, "_compile_region", wrong)
    return plant


def lost_call(name):
    """The last call of a region is not in its tape; of every region without a name."""
    def plant(monkeypatch):
        finish = TapeWriter.finish

        def wrong(writer):
            if name in (None, writer._part.region.graph.name):
                writer._part.recording.calls.pop()
            return finish(writer)

        monkeypatch.setattr(TapeWriter, "finish", wrong)
    return plant


def note_makers(monkeypatch):
    """Gives a RegionProgram what each region makes, by its name."""
    init = RegionProgram.__init__

    def noting(made, graph, all_regions, *rest):
        made._made_by = {region.name: region.outputs for region in all_regions}
        init(made, graph, all_regions, *rest)

    monkeypatch.setattr(RegionProgram, "__init__", noting)


def lost_wait(maker, reader):
    """A region declares that it reads nothing of what another one makes."""
    def plant(monkeypatch):
        add_step = RegionProgram._add_step

        def wrong(made, stream, region, needs):
            if region.name != reader:
                return add_step(made, stream, region, needs)
            values = [value for _, value in region.accesses]
            lost = [i for i, value in enumerate(values) if value in made._made_by[maker]]
            builder, compute = made._builder, made._builder.compute

            def less(stream, name, accesses, source):
                accesses = [(READ, View(access[1], 0, 1, (0,), (1,))) if i in lost else access
                            for i, access in enumerate(accesses)]
                return compute(stream, name, accesses, source)

            builder.compute = less
            try:
                return add_step(made, stream, region, needs)
            finally:
                del builder.compute

        note_makers(monkeypatch)
        monkeypatch.setattr(RegionProgram, "_add_step", wrong)
    return plant


def shared_buffer(maker, other):
    """What two regions make lies in one buffer."""
    def plant(monkeypatch):
        add = RegionProgram._add

        def wrong(made, key, *rest):
            add(made, key, *rest)
            if key in made._made_by[other]:
                made._places[key] = made._places[made._made_by[maker][0]]

        note_makers(monkeypatch)
        monkeypatch.setattr(RegionProgram, "_add", wrong)
    return plant


def swapped_answers(monkeypatch):
    make = Assembly._result_expression
    monkeypatch.setattr(Assembly, "_result_expression", lambda assembly, node, outputs: make(
        assembly, next(other for other in assembly.graph.output.args[0] if other is not node),
        outputs))


def wrong_pass(monkeypatch):
    """One of our passes makes another operator of one."""
    def change(gm):
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default):
            node.target = torch.ops.aten.sin.default
        gm.recompile()

    monkeypatch.setattr(clone_outputs, "clone_aliased_outputs", change)


def wrong_relu():
    return inductor_config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"})


IN_PYTHON, NATIVE = "streams, on one thread in Python", "native regions, on one thread"
MUTANTS = [
    *(Mutant("kernel", IN_PYTHON, wrong_kernel(name), (name,)) for name in REGIONS),
    *(Mutant("tape", NATIVE, lost_call(name), (name,), is_native=True) for name in REGIONS),
    *(Mutant("order", "threads", lost_wait(*pair), pair) for pair in
      (("ambient.0", "a.1"), ("ambient.0", "b.2"), ("b.2", "ambient.3"), ("ambient.3", "a.4"))),
    Mutant("memory", IN_PYTHON, shared_buffer("a.1", "b.2"), ("b.2",)),
    Mutant("answers", IN_PYTHON, swapped_answers),
    Mutant("passes", "anabranch, one stream", wrong_pass),
    Mutant("graph", "inductor", is_native=True, around=wrong_relu),
]
