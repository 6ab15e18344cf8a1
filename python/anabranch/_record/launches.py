# SPDX-License-Identifier: Apache-2.0
"""The launch of a recording for one call, and what is done where it cannot be launched as it is.

Arguments at other alignments are copied, tensors in blocks are opened where addresses are not
enough, and the step runs plainly where there is no memory for a launch, or where a launch would do
something else.

Threads: any, several at once. Failure: AnabranchError of a launch that has begun; what the plain
step raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat, errors
from anabranch._core.library import NativeError
from anabranch._record.capture.host_draws import DrawnOtherwise
from anabranch._record.faults import BEGUN
from anabranch._record.launch.in_turn import BAD_BINDING
from anabranch._record.launch.saved_blocks import InBlocks, opened
from anabranch._record.memory.gpu import empty_cache, free_bytes
from anabranch._record.memory.shortage import OF_LAUNCH, Short, Shortage
from anabranch._record.refusals import Reason
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import BoundState, Specialization
from anabranch._record.tensors import any_overlap

Call = Callable[[list[Any]], Any]


class Launches:
    """Of one callable's recordings. ``call`` and ``call_last`` run the callable, as a Recorder is
    given them; ``tell(head, why)`` says why a call runs plainly."""

    def __init__(self, name: str, call: Call, call_last: Call, kind: CallableKind,
                 tell: Callable[[str, Reason], None]) -> None:
        self._name, self._call, self._call_last = name, call, call_last
        self._saved, self._frees_inputs, self._tell = kind.saved, kind.is_backward, tell

    @_compat.untraced
    def launch(self, spec: Specialization, leaves: list[Any], bound: BoundState,
               given: list[Tensor], words: Sequence[int] = (),
               owners: Sequence[Tensor] | None = None) -> Any:
        """Of the recording of ``spec``, with what is ``given`` and where that is ``bound``;
        ``owners`` of gradients, where they are known."""
        recording = spec.recording
        if recording is None:  # another thread has just found that it is wrong
            return self._call_last(leaves)
        offsets: bytes | None = b""
        places = leaves.places if isinstance(leaves, InBlocks) else None
        if places is not None:
            offsets = recording.offsets(places, spec.arguments)
            if offsets is None:
                return self._launch_opened(spec, leaves, bound, given)
        if recording.has_overlaps and not recording.fits(given, places):
            spec.plain_calls += 1
            return self._call(leaves)
        saved, layout = self._saved, recording.layout
        in_blocks = saved is not None and layout is not None and saved.may_pass(layout)
        if owners is None:
            owners = spec.owners(leaves, bound.parameters)
        frees = leaves if self._frees_inputs else None
        short: Short | None = None
        try:
            if spec.on_host is not None:
                given[:] = spec.on_host.sent(given)
            run = _compat.in_profiles(recording.launch, self._name)
            BEGUN.runs += 1
            answer = run(given, owners, bound.objects_now() if bound.objects else (),
                         at=offsets, in_blocks=in_blocks, words=words, frees=frees)
        except DrawnOtherwise:
            return self.run_plainly(spec, leaves)
        except torch.OutOfMemoryError:
            if frees == []:
                raise  # a part of it has run, and let go of what it was given
            short = Short(OF_LAUNCH, recording.launch_bytes, free_bytes(recording.device))
        except NativeError as error:
            if error.code != BAD_BINDING:
                raise errors.from_native(error.code, str(error.message)) from None
            if places is not None:
                return self._launch_opened(spec, leaves, bound, given)
            return self.launch_elsewhere(spec, leaves, bound, given, words, owners)
        if short is not None:
            return self._launch_later(spec, short, recording.device, leaves)
        if saved is not None and layout is not None and not in_blocks:
            saved.watch(layout, answer)
        return answer if bound.mutations is None else bound.apply(answer)

    def run_plainly(self, spec: Specialization, leaves: list[Any]) -> Any:
        spec.plain_calls += 1
        return self._call_last(leaves)

    def _launch_opened(self, spec: Specialization, leaves: list[Any], bound: BoundState,
                       given: list[Tensor]) -> Any:
        """Launches with the tensors that lie in blocks, where their addresses are not enough. A
        backward's lists of blocks are emptied: its stretches free what nobody else holds."""
        tensors = opened(leaves)
        if self._frees_inputs:
            leaves.clear()
            given.clear()
        in_them = spec.given(tensors, bound, [])
        assert in_them is not None  # compiled graphs, whose leaves these are, read no gradients
        return self.launch(spec, tensors, bound, in_them)

    def _launch_later(self, spec: Specialization, short: Short, device: int,
                      leaves: list[Any]) -> Any:
        """Runs plainly: there is no memory for a launch, and the plain step takes less at once."""
        empty_cache()
        spec.shortage_tries += 1
        spec.shortage = Shortage(short, device, free_bytes(device), spec.shortage_tries)
        spec.note(shortage=str(spec.shortage))
        spec.plain_calls += 1
        self._tell(f"{self._name} runs unrecorded for now",
                   short.reason._replace(text=str(spec.shortage)))
        return self._call_last(leaves)

    def launch_elsewhere(self, spec: Specialization, leaves: list[Any], bound: BoundState,
                         given: list[Tensor], words: Sequence[int] = (),
                         owners: Sequence[Tensor] | None = None) -> Any:
        """Launches, after a launch has been refused, with copies of arguments whose addresses the
        kernels do not take, and copies them back. A backward lets go of them instead. Runs plainly
        where that would write one, where tensors overlap now that did not when the step was
        recorded, and where it draws: other kernels draw for such addresses, and other numbers."""
        recording = spec.recording
        misaligned = recording.misaligned(given) if recording is not None else []
        if recording is not None and misaligned and recording.random is None \
                and all(i < len(spec.arguments) for i in misaligned) \
                and not any_overlap(given, set(misaligned)) \
                and not (self._frees_inputs and recording.writes(misaligned)):
            with torch.no_grad():
                copies = {i: given[i].detach().clone() for i in misaligned}
            moved = [copies.get(i, tensor) for i, tensor in enumerate(given)]
            frees = leaves if self._frees_inputs else None
            if owners is None:
                owners = spec.owners(leaves, bound.parameters)
            if frees is not None:
                given[:] = moved
                moved, copies = [], {}  # nothing else holds them
            BEGUN.runs += 1
            try:
                answer = applied(bound, recording.launch(
                    given, owners, bound.objects_now(), at=moved, words=words, frees=frees))
            except (NativeError, torch.OutOfMemoryError):
                if frees == []:
                    raise  # as in launch()
            else:
                for i, copy in copies.items():
                    given[i].data.copy_(copy)
                return answer
        spec.plain_calls += 1
        return self._call(leaves)


def applied(bound: BoundState | None, answer: Any) -> Any:
    """What a launch has answered, once its side effects have been applied."""
    return answer if bound is None or bound.mutations is None else bound.apply(answer)
