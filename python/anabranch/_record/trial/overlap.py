# SPDX-License-Identifier: Apache-2.0
"""Whether a recording whose kernels may run side by side is worth having.

It is kept where it does what the step does, is faster than the one in captured order, and takes no
more memory than the plain step and what is granted beside that. Where lanes are asked for by name,
it is kept unless it is slower. Threads and failure as in ``verify``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from anabranch import _compat
from anabranch._core.capture import ANY_BYTES
from anabranch._record.launch.recording import StepRecording
from anabranch._record.memory.shortage import Short
from anabranch._record.trial.earlier import Earlier
from anabranch._record.trial.run import Run
from anabranch._record.trial.trial import Trial
from anabranch._record.trial.verify import Trusted, Untrusted, verify

log = logging.getLogger("anabranch.record")
NOT_FASTER = "one of about its size was no faster side by side"
NO_MEMORY = "a launch side by side finds no memory"
_LEAST_GAIN, _LEAST_ASKED_GAIN = 1.02, 0.98
_LEAST_SAMPLES, _SAMPLES = 3, 9
_AHEAD_CYCLES = 4_000_000  # of the GPU, some two milliseconds: longer than a launch takes the CPU
_MOST_SECONDS = 1.0
_STRETCHES_BYTES = 4 << 20  # kStretchBytes of src/record/cuda/stretches.h
# To put more than that back from the host's memory some times takes longer than a gain is worth;
# but that of copies with the host's memory beside kernels, which may halve a step.
_MOST_COPIED_BYTES = 8 << 30


class Room(NamedTuple):
    """What a launch side by side may take beside one in captured order: up to what the plain step
    takes, and what is granted. Where it takes more, kernels run no further ahead of their order
    than ``window_bytes``. ``is_asked``: lanes are asked for by name."""

    size_bytes: int
    window_bytes: int
    is_asked: bool = False


@dataclasses.dataclass
class Allowance:
    """What launches of one try may take. ``parallel_bytes``: what the user grants beside the plain
    step, None for ``slack_bytes`` for each lane that is asked for by name; ``free_bytes``: before
    the try. ``held_bytes``: of what plain calls free as they go, and the plain run of a trial and a
    launch hold to the end."""

    parallel_bytes: int | None
    slack_bytes: int
    free_bytes: int
    held_bytes: int
    earlier: Earlier
    plain_bytes: int = 0  # the plain run's peak, less what was allocated before
    let_go_bytes: int = 0  # of gradients that it has let go of
    asked_lanes: int = 1  # by name, in its first capture

    @property
    def plain_takes(self) -> int:
        """Bytes that a launch may take without taking more than the plain step."""
        return self.plain_bytes + self.let_go_bytes - self.held_bytes

    @property
    def granted_bytes(self) -> int:
        """What a launch side by side may take beside that. Of slack no more than half of what is
        free then: others have to find memory, too."""
        if not self.earlier.has_slack:
            return 0
        if self.parallel_bytes is not None:
            return self.parallel_bytes
        free = max(0, self.free_bytes - self.plain_bytes)
        return min(self.slack_bytes * self.asked_lanes, free // 2)

    def room(self, ordered: StepRecording) -> Room:
        """What one side by side may take beside this one in captured order. What that takes more
        than the plain step is no reason against lanes that are asked for."""
        spare, granted = self.plain_takes - ordered.launch_bytes, self.granted_bytes
        is_asked, is_told = self.asked_lanes > 1, self.parallel_bytes is not None
        spare = max(spare, 0) if is_asked else spare
        return Room(spare + granted, spare + (granted if is_asked or is_told else 0), is_asked)


class ChosenOrder(NamedTuple):
    recorded: StepRecording
    gain: float = 0.0  # times as fast side by side; 0 where that was not measured
    why_in_order: str = ""  # and why it was not
    answer: Any = None  # of the run that stands


def bytes_ahead(recorded: StepRecording) -> int:
    """That copies from the host's memory may bring ahead of who reads them."""
    return recorded.ahead_bytes if recorded.counts.host_copies else 0


def make_to_fit(ordered: StepRecording, room: Room,
                make: Callable[[int], StepRecording]) -> StepRecording:
    """A recording side by side. Where it takes more than there is room beside the one in captured
    order, one that keeps closer to that order, so that fewer microbatches are under way at once:
    ``make`` is given what temporaries may take besides. How they can be placed shows only then, so
    half as much is tried as well, and of stretches, whose arenas add up to no peak, none at all. If
    none fits, the last one whose kernels leave the order."""
    made, window = make(ANY_BYTES), room.window_bytes
    bounds = [window, window // 2] if window > 0 else []
    if not bounds and _is_cut(ordered):
        bounds = [0]
    for bytes_beside in bounds:
        if _grown(ordered, made) <= _most_grown(ordered, made, room):
            break
        closer = make(bytes_beside)
        if closer.counts.lanes < 2:
            break
        made = closer
    return made


def _grown(ordered: StepRecording, overlapped: StepRecording) -> int:
    return overlapped.peak_bytes - ordered.peak_bytes


def _most_grown(ordered: StepRecording, overlapped: StepRecording, room: Room) -> int:
    """Stretches take a little more than a plain step in captured order, too."""
    return max(room.size_bytes, _STRETCHES_BYTES if _is_cut(ordered) else 0) \
        + bytes_ahead(overlapped)


def _is_cut(recorded: StepRecording) -> bool:
    return len(recorded.stretches) > 1


def choose_overlap(trial: Trial, plain: Run, verdict: Trusted, ordered: StepRecording,
                   overlapped: StepRecording, agree: Callable[[bool], bool],
                   room: Room, earlier: Earlier) -> ChosenOrder:
    """One of the two. ``verdict`` is that on the recording in captured order, with the run whose
    state is there; afterwards it is that of the answer's. Where ``earlier`` tells which is faster,
    they are not timed."""
    standing = verdict.standing
    is_faster = earlier.is_faster(ordered.counts)
    if is_faster is None and room.is_asked and _takes_long(trial, overlapped):
        is_faster = True  # which is not measured
    is_known = not agree(is_faster is None)
    if is_known and agree(not is_faster):
        return ChosenOrder(ordered, 0.0, NOT_FASTER, standing.answer)
    why = _why_not_tried(trial, ordered, overlapped, room)
    if agree(bool(why)):
        return ChosenOrder(ordered, 0.0, why or "another process keeps it", standing.answer)
    standing.let_go()
    trial.rewind()
    if agree(not _has_memory(trial, ordered, overlapped)):
        return ChosenOrder(ordered, 0.0, NO_MEMORY, trial.launch(ordered))
    try:
        verified = verify(trial, plain, overlapped, agree, ordered, verdict.seen).standing
    except Untrusted as error:
        log.warning("anabranch: kernels stay in their captured order: %s [E0329]", error)
        trial.rewind()
        return ChosenOrder(ordered, 0.0, str(error), trial.launch(ordered))
    if is_known:
        return ChosenOrder(overlapped, 0.0, "", verified.answer)
    verified.let_go()
    (one, other), answer = _seconds(trial, (ordered, overlapped), agree,
                                    are_apart=_grown(ordered, overlapped) > 0)
    least = min(_LEAST_ASKED_GAIN, _LEAST_GAIN) if room.is_asked else _LEAST_GAIN
    is_kept = not agree(one / other < least)
    earlier.note(ordered.counts, is_kept)
    return ChosenOrder(overlapped if is_kept else ordered, one / other, "", answer)


def _takes_long(trial: Trial, overlapped: StepRecording) -> bool:
    """Whether to put the state back for each sample takes longer than a gain is worth."""
    return trial.copied_to == "host" and trial.copied_bytes > _MOST_COPIED_BYTES \
        and not overlapped.counts.host_copies


def _why_not_tried(trial: Trial, ordered: StepRecording, overlapped: StepRecording,
                   room: Room) -> str:
    grown, most = _grown(ordered, overlapped), _most_grown(ordered, overlapped, room)
    if grown > most:
        return (f"side by side they would take {grown} bytes more than in captured order, and may "
                f"take {most} (parallel_bytes grants more)")
    if _takes_long(trial, overlapped) and not room.is_asked:
        return f"side by side was not tried: each try puts {trial.copied_bytes} bytes back"
    return ""


def _has_memory(trial: Trial, ordered: StepRecording, overlapped: StepRecording) -> bool:
    """Whether there is the memory for its launch. What one in captured order takes has just been
    there."""
    try:
        if _grown(ordered, overlapped) > 0:
            trial.reserve(overlapped, is_alone=True)
    except Short:
        return False
    return True


def _seconds(trial: Trial, recordings: Sequence[StepRecording], agree: Callable[[bool], bool],
             are_apart: bool) -> tuple[list[float], Any]:
    """Medians of samples taken in turn, and the answer of a launch that stands. Processes that run
    a step together take as many. Each recording has been launched before. What a step counts may be
    an index, and a few steps on be behind the end of something: that is put back before each
    sample. All of the state, which may take longer than the sample, is after every few.
    ``are_apart``: what one has left cached is given back before the other, in whose parts its own
    do not lie: both would take more than either."""
    samples: list[list[float]] = [[] for _ in recordings]
    start = time.perf_counter()
    for i in range(_SAMPLES):
        for number, recorded in enumerate(recordings):
            trial.rewind(is_whole=number == 0 and i > 0 and i % _LEAST_SAMPLES == 0)
            if are_apart:
                _make_room(trial, recorded)
            samples[number].append(_sample(trial, recorded))
        if agree(time.perf_counter() - start > _MOST_SECONDS):
            break
        if i + 1 >= _LEAST_SAMPLES and not agree(not _are_clear(*samples)):
            break
    trial.rewind()
    if are_apart:
        _make_room(trial, recordings[0])
    return [statistics.median(of_it) for of_it in samples], trial.launch(recordings[0])


def _make_room(trial: Trial, recorded: StepRecording) -> None:
    """There was enough before. Other processes of the step go on, whatever this one finds."""
    with contextlib.suppress(Short):
        trial.reserve(recorded, is_alone=True)


def _are_clear(ordered: Sequence[float], overlapped: Sequence[float]) -> bool:
    """Whether all samples say the same."""
    return max(overlapped) * _LEAST_GAIN < min(ordered) \
        or min(overlapped) * _LEAST_GAIN > max(ordered)


def _sample(trial: Trial, recorded: StepRecording) -> float:
    """Of one launch: what the GPU takes, as in a row of launches."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    _compat.keep_gpu_busy(_AHEAD_CYCLES)
    begin.record()
    answer = trial.launch(recorded)
    end.record()
    end.synchronize()
    del answer
    return float(begin.elapsed_time(end)) / 1000
