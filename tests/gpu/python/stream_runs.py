# SPDX-License-Identifier: Apache-2.0
"""The random programs of tests/python/support/random_streams.py on a GPU: made, run, compared."""

from __future__ import annotations

import contextlib
import functools

import torch
from compare import compiled
from random_streams import INPUTS, SyncWriter, at, function_of, inputs, left_by
from stream_places import gpu, nowhere

from anabranch._record.trial.plain_steps import capture_stream

CALLS = 4  # plain, captured, recorded, launched
SLOW = functools.partial(torch.cuda._sleep, 200_000)  # a tenth of a millisecond


def two_kinds_of_streams():
    """A place whose streams are of both of torch's classes. torch gives 32 streams in turn: none of
    these is another one, or that of captures, which would order what lacks a sync."""
    made, taken = gpu(), {capture_stream(torch.cuda.current_device()).stream_id}
    for name, new in (("A", torch.cuda.Stream), ("B", lambda: torch.Stream("cuda")),
                      ("C", torch.cuda.Stream)):
        stream = new()
        while stream.stream_id in taken:
            stream = new()
        taken.add(stream.stream_id)
        setattr(made, name, stream)
    return made


def program(seed, **how):
    writer = SyncWriter(seed, **how)
    text = writer.text()
    return writer, function_of(text, f"program {seed}"), text


@contextlib.contextmanager
def shown(text):
    """A failure shows the program."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{error}\n{text}") from error


def assert_alike(call, plain, make):
    """``make()`` answers the same inputs each time."""
    (found, shared), (wanted, wanted_shared) = left_by(call, make()), left_by(plain, make())
    apart = [name for name, tensor in wanted.items() if not torch.equal(found[name], tensor)]
    assert not apart and shared == wanted_shared, apart


def inputs_of(writer, seed, wants_gradients=False):
    return inputs(seed, wants_gradients=wants_gradients, size=writer.size, device="cuda",
                  is_aliased=writer.is_aliased)


class Together:
    """Several programs as one function, which takes less time to compile: of four tensors each."""

    def __init__(self, seeds, **how):
        self._made = [program(seed, **how) for seed in seeds]
        self._seeds = seeds
        self.text = "\n".join(text for _, _, text in self._made)

    def over(self, place):
        calls = [at(function, place) for _, function, _ in self._made]

        def run(*given):
            found = []
            for i, call in enumerate(calls):
                found += call(*given[INPUTS * i:INPUTS * (i + 1)])
            return found

        return run

    def inputs(self, call, wants_gradients=False):
        return [tensor for seed, (writer, _, _) in zip(self._seeds, self._made, strict=True)
                for tensor in inputs_of(writer, CALLS * seed + call, wants_gradients)]


def queue_slow_work(place):
    """At the head of each stream."""
    for stream in (place.A, place.B, place.C):
        with torch.cuda.stream(stream):
            SLOW()


def assert_compiled_alike(together, place, options, wants_gradients=False, before=lambda: None):
    """``before`` each call, then each stream is busy for a while."""
    call = compiled(together.over(place), options=options)
    with shown(together.text):
        for i in range(CALLS):
            before()
            queue_slow_work(place)
            assert_alike(call, together.over(nowhere()),
                         functools.partial(together.inputs, i, wants_gradients))
    return call
