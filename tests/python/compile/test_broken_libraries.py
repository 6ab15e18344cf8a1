# SPDX-License-Identifier: Apache-2.0
"""A library that a killed process left in Inductor's cache is compiled again."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch
from compare import compiled
from torch._inductor.utils import fresh_cache

import anabranch
from anabranch import _compat
from anabranch._compile import broken_libraries
from anabranch._compile.broken_libraries import check_is_whole, without_broken_libraries


def model(x):
    with anabranch.stream("left"):
        a = torch.tanh(x) * x
    return a + torch.sin(x @ x.t())


def test_libraries_that_are_empty_or_cut_short_are_compiled_again(tmp_path, caplog):
    """In a folder of another name: the loader knows those that it has loaded by theirs."""
    kept, x = tmp_path / "kept", torch.randn(8, 8)

    def said_with(what):
        caplog.clear()
        with fresh_cache(dir=str(tmp_path)):
            cache = Path(_compat.inductors_cache())
            shutil.copytree(what, cache, dirs_exist_ok=True)
            torch.compiler.reset()
            call = compiled(model, options={"strict": True})
            torch.testing.assert_close(call(x), model(x))
            shutil.copytree(cache, kept, dirs_exist_ok=True)
        return [record.message for record in caplog.records if "compiled again" in record.message]

    kept.mkdir()
    assert not said_with(kept)
    libraries = list(kept.rglob("*.main.so"))
    for i, library in enumerate(libraries):
        with open(library, "r+b") as file:
            file.truncate(5000 * (i % 2))
    assert len(libraries) >= 2 and len(said_with(kept)) == len(libraries)


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
