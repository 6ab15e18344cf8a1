# SPDX-License-Identifier: Apache-2.0
"""A library that a killed process left in Inductor's cache is compiled again."""

from __future__ import annotations

import logging

import pytest
import torch

from anabranch import _compat
from anabranch._compile import broken_libraries
from anabranch._compile.broken_libraries import check_is_whole, without_broken_libraries

PROGRAM = """
import logging, sys, torch, anabranch
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)

def model(x):
    with anabranch.stream("left"):
        a = torch.tanh(x @ x) + x
    return a + torch.sin(x @ x.t())

x = torch.randn(8, 8)
call = torch.compile(model, backend="anabranch", options={"strict": True})
torch.testing.assert_close(call(x), model(x))
print("right")
"""


def test_libraries_that_are_empty_or_cut_short_are_compiled_again(run_python, tmp_path):
    cache = tmp_path / "inductor"

    def run():
        done = run_python(PROGRAM, TORCHINDUCTOR_CACHE_DIR=str(cache))
        assert done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr
        return done.stdout

    assert "compiled again" not in run()
    for i, library in enumerate(cache.rglob("*.main.so")):
        with open(library, "r+b") as file:
            file.truncate(5000 * (i % 2))
    assert run().count("is compiled again") >= 2


@pytest.mark.oldest
def test_whole_libraries_and_what_is_none_are_left_to_the_loader(tmp_path):
    whole = torch.__path__[0] + "/lib/libc10.so"
    check_is_whole(whole)
    text = tmp_path / "text.so"
    text.write_text("no library" * 20)
    check_is_whole(str(text))
    part = tmp_path / "part.so"
    with open(whole, "rb") as file:
        part.write_bytes(file.read(5000))
    with pytest.raises(OSError, match=r"part.so: file too short"):
        check_is_whole(str(part))


def failing(error):
    def compile_():
        calls.append(1)
        raise error

    calls = []
    return compile_, calls


@pytest.mark.oldest
def test_only_broken_libraries_of_the_cache_are_removed_and_each_once(tmp_path, monkeypatch,
                                                                      caplog):
    monkeypatch.setattr(_compat, "inductors_cache", lambda: str(tmp_path / "cache"))
    inside, outside = tmp_path / "cache" / "ab" / "x.main.so", tmp_path / "y.so"
    inside.parent.mkdir(parents=True)
    for file in (inside, outside):
        file.touch()
    with caplog.at_level(logging.WARNING, "anabranch.compile"):
        for error, wanted in ((ImportError(f"{outside}: file too short"), 1),
                              (OSError(f"{inside}: undefined symbol: f"), 1),
                              (ValueError("something else"), 1),
                              (OSError(f"{inside}: invalid ELF header"), 2)):
            compile_, calls = failing(error)
            with pytest.raises(type(error)):
                without_broken_libraries(compile_)
            assert len(calls) == wanted, error
    assert outside.exists() and not inside.exists()
    [said] = [record.message for record in caplog.records]
    assert str(inside) in said


@pytest.mark.oldest
def test_what_caused_an_error_is_looked_at_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(_compat, "inductors_cache", lambda: str(tmp_path))
    error = RuntimeError("cannot compile")
    error.__cause__ = OSError(f"{tmp_path}/z.so: cannot read file data: Is a directory")
    assert broken_libraries._broken_library(error) == tmp_path / "z.so"
