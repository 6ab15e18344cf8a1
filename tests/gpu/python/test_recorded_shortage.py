# SPDX-License-Identifier: Apache-2.0
"""A step that fits into memory is recorded in that memory, and one that does not fit runs as torch
runs it."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from recordings import DEVICE, everything, launches, normal, told
from torch import nn

import anabranch
from anabranch._record.launch import recording, stretch

MIB = 1 << 20
# What is this large torch takes exactly, and 20 MiB of something smaller decide nothing.
WIDTH, LAYERS, ROWS, CALLS = 2048, 12, 2048, 7
SHARES = (1.0, 1.02, 1.05, 1.1, 1.25, 1.5)


def network():
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(*layers).to(DEVICE)


def training_step(way):
    """Model, optimizer and a step of them, with a compiled model."""
    model = network()
    if way == "backend":
        compiled = torch.compile(model, backend=anabranch.backend)
    else:
        compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(compiled(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, anabranch.record(step) if way == "record" else step


def given(seed):
    return normal(seed, ROWS, WIDTH), normal(100 + seed, ROWS, WIDTH)


def train(way, calls=CALLS):
    """What every call leaves, on the CPU, and the step."""
    model, optimizer, step = training_step(way)
    found = []
    for seed in range(calls):
        answer = step(*given(seed))
        left = everything(answer, model, optimizer)
        found.append({name: tensor.cpu() for name, tensor in left.items()})
        del left, answer
    return found, step


def clean():
    gc.collect()
    torch._dynamo.reset()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def plain():
    """What the plain loop leaves, and reserves at its peak; of the kernels that are recorded
    (same_kernels in conftest.py is around tests alone)."""
    clean()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    with torch._inductor.config.patch(allow_buffer_reuse=False):
        found, _ = train("plain")
    peak = torch.cuda.max_memory_reserved() - before
    clean()
    return found, peak


@pytest.fixture
def allowed():
    """Lets this process have so many bytes of the GPU beside what it has."""
    total = torch.cuda.mem_get_info()[1]

    def allow(size_bytes):
        clean()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + size_bytes) / total)

    yield allow
    torch.cuda.set_per_process_memory_fraction(1.0)
    clean()


def assert_follows(found, wanted, told_of):
    for i, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        try:
            assert_same(mine, theirs)
        except AssertionError as error:
            raise AssertionError(f"call {i}: {error}\n{told_of}") from None


@pytest.mark.parametrize("way", ["record", "backend"])
@pytest.mark.parametrize("share", SHARES)
def test_at_a_limit_at_which_the_plain_step_runs_ours_does_and_is_like_it(plain, allowed, way, share):
    wanted, peak = plain
    allowed(int(peak * share))
    found, step = train(way)
    text = told(step) if way == "record" else ""
    assert_follows(found, wanted, text)
    if share >= 1.25 and way == "record":
        assert launches(step) > 0, text


def test_a_limit_below_what_the_step_needs_is_torchs_own_error(allowed):
    allowed(100 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        train("record")


def test_peaks_of_torch_are_those_of_memory_and_not_of_addresses(plain):
    """The device tells what was really taken; the peak goes no higher than that, and what little
    each of two streams may keep cached where memory is plentiful, and copies in a 32nd of it."""
    _, peak = plain
    clean()
    before, total = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[1]
    torch.cuda.reset_peak_memory_stats()
    _, step = train("record")
    [report] = [one for one in step.reports if one.nodes]
    copied, is_there = report.recording.copied, report.recording.copied_to == "GPU"
    assert copied > 0 and (not is_there or copied <= total // 32)
    assert torch.cuda.max_memory_reserved() - before \
        <= 1.05 * peak + 128 * MIB + copied * is_there + report.parallel_bytes, told(step)
    assert report.recording.peak <= torch.cuda.max_memory_reserved() + 32 * MIB


def test_copies_lie_in_the_hosts_memory_where_somebody_has_set_a_limit(plain, allowed):
    _, peak = plain
    allowed(2 * peak)
    _, step = train("record")
    [report] = [one for one in step.reports if one.nodes]
    assert report.recording.copied_to == "host" and report.recording.copied > 0, told(step)


def test_what_was_plain_for_want_of_memory_is_recorded_when_there_is_more(plain, monkeypatch):
    """A launch finds no memory until what another takes is free again."""
    wanted, _ = plain
    reserve, is_full = recording.StepRecording.reserve, True

    def reserved(self):
        if is_full:
            raise torch.OutOfMemoryError("Tried to allocate 64.00 MiB.")
        reserve(self)

    monkeypatch.setattr(recording.StepRecording, "reserve", reserved)
    other = torch.empty(256 * MIB, dtype=torch.uint8, device=DEVICE)
    model, optimizer, step = training_step("record")
    for seed in range(5):
        step(*given(seed))
    assert launches(step) == 0 and "bytes were free" in told(step), told(step)
    is_full = False
    del other
    torch.cuda.empty_cache()
    for seed in range(5, CALLS):
        answer = step(*given(seed))
    assert launches(step) > 0, told(step)
    left = everything(answer, model, optimizer)
    assert_same({name: tensor.cpu() for name, tensor in left.items()}, wanted[-1])


def test_a_gpu_that_another_process_fills_meanwhile_changes_nothing(plain):
    """It takes all that is left, and gives it back, again and again."""
    wanted, _ = plain
    program = ("import torch, time\n"
               "print('ready', flush=True)\n"
               "end = time.time() + 60\n"
               "while time.time() < end:\n"
               "    free = torch.cuda.mem_get_info()[0]\n"
               "    held = torch.empty(int(free * 0.98), dtype=torch.uint8, device='cuda')\n"
               "    time.sleep(0.02)\n"
               "    del held\n"
               "    torch.cuda.empty_cache()\n"
               "    time.sleep(0.02)\n")
    _ = train("plain", 1)  # compiled
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        other.stdout.readline()
        for _ in range(3):
            try:
                found, step = train("record")
            except torch.OutOfMemoryError:
                clean()
                continue  # the plain step has not its memory either
            assert_follows(found, wanted, told(step))
    finally:
        other.kill()
        other.wait()


def test_a_step_whose_runs_differ_is_verified_within_bounds_under_a_limit(allowed):
    """Atomics add in another order each time: values are kept of what differs, and of nothing
    else."""
    rows = torch.randint(0, 50, (200_000,), device=DEVICE)
    x = normal(0, 200_000, 64)
    table, other = torch.zeros(50, 64, device=DEVICE), normal(1, 4_000_000)

    def step(x):
        table.index_add_(0, rows, x)
        other.mul_(0.5)
        return table.sum()

    allowed(96 * MIB)
    recorded = anabranch.record(step)
    for _ in range(4):
        recorded(x)
    [report] = recorded.reports
    assert report.nodes and report.verified in ("within bounds", "bitwise"), told(recorded)
    wanted = torch.zeros(50, 64, device=DEVICE)
    for _ in range(4):
        wanted.index_add_(0, rows, x)
    torch.testing.assert_close(table, wanted, rtol=1e-3, atol=1e-2)


def test_no_recording_with_a_wrong_address_is_trusted(monkeypatch):
    """Each address of a launch is that of other memory in turn, as large and as well aligned, that
    nobody else uses; the checksums find every one."""
    monkeypatch.setattr("anabranch._record.trial.trial._SMALL_BYTES", 0)
    monkeypatch.setattr("anabranch._record.trial.trial.grantable_bytes", lambda *asked: 0)
    gather = stretch.Stretch._gather

    def made():
        w, state = normal(0, 101, 101), normal(1, 101, 101)

        def step(x):
            y = (x @ w).relu()
            state.mul_(0.5).add_(y.t() @ y)
            return y.sum(0), (y * 2).exp()

        return anabranch.record(step, max_parallel_kernels=1)

    recorded, x, other = made(), normal(2, 103, 101), normal(3, 1 << 16)
    for _ in range(3):
        recorded(x)
    [report] = recorded.reports
    assert report.nodes, told(recorded)
    for wrong in range(report.slots):
        def elsewhere(self, *args, wrong=wrong):
            addresses = bytearray(gather(self, *args))
            addresses[8 * wrong:8 * wrong + 8] = other.data_ptr().to_bytes(8, "little")
            return bytes(addresses)

        monkeypatch.setattr(stretch.Stretch, "_gather", elsewhere)
        mutant = made()
        for _ in range(5):
            mutant(x)
        [report] = mutant.reports
        assert report.reason and not report.nodes, f"slot {wrong}: {report}, {report.unsure} unsure"
        monkeypatch.setattr(stretch.Stretch, "_gather", gather)


def test_all_memory_is_given_back_with_the_recordings():
    def once():
        model, optimizer, step = training_step("record")
        for seed in range(4):
            step(*given(seed))
        assert launches(step), told(step)

    def left():
        clean()
        torch._C._cuda_clearCublasWorkspaces()
        return torch.cuda.memory_allocated()

    once()
    before = left()
    once()
    assert left() <= before


UNDER_ANOTHER_ALLOCATOR = """
import torch, anabranch
torch.manual_seed(0)
model = torch.nn.Linear(8, 8, device="cuda")
x = torch.randn(4, 8, device="cuda")

def train(model):
    for one in model.parameters():
        one.grad = None
    loss = model(x).square().sum()
    loss.backward()
    return [loss.detach(), *(one.grad for one in model.parameters())]

wanted = train(model)
compiled = torch.compile(model, backend=anabranch.backend)
step = anabranch.record(lambda: train(model))
for _ in range(4):
    for found in (train(compiled), step()):
        torch.testing.assert_close(found, wanted)
print([report.code for report in step.reports])
"""


def test_under_another_allocator_of_torch_all_runs_as_torch_runs_it(run_python):
    found = run_python(UNDER_ANOTHER_ALLOCATOR,
                       PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[340]" and "E0340" in found.stderr
