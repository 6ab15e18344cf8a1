# SPDX-License-Identifier: Apache-2.0
"""How long compiling takes from a cold cache, against Inductor.

Question: what does a first call cost, for a graph of one stream and for one of several? Each
measurement is a process of its own with a cache folder of its own. In both, the toolchain is
warmed up first by compiling another, smaller model of the same form (precompiled header,
instruction-set probes, worker processes); the time is that of the first forward and backward of
the model itself. Rivals alternate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

from torch_common import MISSED, Row, Sample, arguments, print_table, ratio, save

REACH = {"one stream": 1.2, "several streams": 2.5}
REPEATS, QUICK_REPEATS = 5, 2


def first_step(backend: str, streams: bool, width: int, seed: int) -> float:
    import torch
    import torch.nn.functional as F
    from torch_common import compile_with

    import anabranch

    torch.manual_seed(seed)
    weights = [torch.randn(width, width, requires_grad=True) for _ in range(4)]

    def branch(x, first, second):
        return F.layer_norm(F.gelu(x @ first) @ second, (width,)).softmax(dim=1)

    def plain(x):
        return branch(x, *weights[:2]) * branch(x.sin(), *weights[2:])

    def on_streams(x):
        with anabranch.stream("a"):
            left = branch(x, *weights[:2])
        with anabranch.stream("b"):
            right = branch(x.sin(), *weights[2:])
        return left * right

    x = torch.randn(16, width)
    function = on_streams if streams else plain
    start = time.perf_counter()
    compile_with(function, backend)(x).sum().backward()
    seconds = time.perf_counter() - start
    found = [weight.grad.clone() for weight in weights]
    wanted = torch.autograd.grad(plain(x).sum(), weights)
    torch.testing.assert_close(found, list(wanted), rtol=1e-3, atol=1e-3)
    return seconds


def child(backend: str, streams: bool) -> None:
    first_step(backend, streams, 24, 1)  # the warm-up: its kernels have other sizes
    print(json.dumps(first_step(backend, streams, 40, 2)))


def in_own_process(backend: str, streams: bool) -> float:
    with tempfile.TemporaryDirectory(prefix="anabranch-cold-") as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "ANABRANCH_PROGRESS": "0"}
        told = subprocess.run([sys.executable, __file__, "child", backend, str(int(streams))],
                              env=environment, capture_output=True, text=True)
    if told.returncode != 0:
        raise RuntimeError(f"{backend}: {told.stderr[-2000:]}")
    return json.loads(told.stdout.splitlines()[-1])


def seconds_text(sample: Sample) -> str:
    return f"{sample.median:.2f} s +-{sample.iqr:.2f}"


def main() -> bool:
    chosen = arguments(__doc__.splitlines()[0])
    rows, details = [], {}
    for what, reach in REACH.items():
        streams = what != "one stream"
        samples = {"compile": Sample([]), "ours": Sample([])}
        for _ in range(QUICK_REPEATS if chosen.quick else REPEATS):
            samples["compile"].rounds.append(in_own_process("inductor", streams))
            samples["ours"].rounds.append(in_own_process(chosen.backend, streams))
        figure, figure_spread = ratio(samples["compile"], samples["ours"])
        rows.append(Row(f"first step, {what}", seconds_text(samples["ours"]),
                        seconds_text(samples["compile"]), figure, figure_spread, reach,
                        at_least=False))
        details[what] = {name: sample.rounds for name, sample in samples.items()}
    print_table("Compiling from a cold cache, toolchain warm", rows, chosen.backend)
    save("torch_compile_time", __doc__, chosen, rows, rounds_s=details)
    return all(row.reached for row in rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3] == "1")
    else:
        raise SystemExit(0 if main() else MISSED)
