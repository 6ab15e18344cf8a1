# SPDX-License-Identifier: Apache-2.0
"""Writing a whole file: a test for each line of the table in docs/file-formats.md; and what an
explanation says where it has nothing to write."""

from __future__ import annotations

import logging
import os
import re
import stat
import threading

import pytest
import torch

import anabranch
from anabranch import _write_file
from anabranch._write_file import write_file
from anabranch.errors import PlanFileError

pytestmark = [pytest.mark.oldest, pytest.mark.own]


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_of_the_process(tmp_path):
    before = os.umask(0o027)
    try:
        write_file("write", tmp_path / "new", b"abc")
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"abc" and mode_of(tmp_path / "new") == 0o640
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_a_file_is_replaced_and_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "kept"
    path.write_text("what was there before, and longer")
    path.chmod(mode)
    before = path.stat().st_ino
    write_file("write", path, b"abc")
    assert path.read_bytes() == b"abc" and mode_of(path) == mode
    assert path.stat().st_ino != before  # whoever reads the old one still sees all of it


def test_a_link_stays_one_and_its_target_is_written(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("what was there before")
    link.symlink_to("target")
    before = target.stat().st_ino
    write_file("write", link, b"abc")
    assert link.is_symlink() and target.read_bytes() == b"abc" and target.stat().st_ino == before


def test_nothing_is_made_through_a_link_to_nothing(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(PlanFileError, match="No such file"):
        write_file("write", tmp_path / "link", b"abc")
    assert (tmp_path / "link").is_symlink() and not (tmp_path / "nothing").exists()


def test_the_name_beside_it_must_be_new(tmp_path, monkeypatch):
    monkeypatch.setattr(_write_file.secrets, "token_hex", lambda size: "foreseen")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".anabranch-foreseen").symlink_to("victim")
    with pytest.raises(PlanFileError, match="File exists"):
        write_file("write", tmp_path / "new", b"abc")
    assert (tmp_path / "victim").read_text() == "precious" and not (tmp_path / "new").exists()
    assert (tmp_path / ".anabranch-foreseen").is_symlink()


def test_devices_are_written_through():
    write_file("write", "/dev/null", b"abc")
    with pytest.raises(PlanFileError) as caught:
        write_file("write trace", "/dev/full", b"abc")
    assert str(caught.value) == "write trace '/dev/full': No space left on device [E0501]"
    assert stat.S_ISCHR(os.lstat("/dev/full").st_mode)
    assert stat.S_ISCHR(os.lstat("/dev/null").st_mode)


def test_a_fifo_is_written_through(tmp_path):
    path, read = tmp_path / "fifo", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_file("write", path, b"abc")
    reader.join()
    assert read == [b"abc"] and stat.S_ISFIFO(path.stat().st_mode)


def test_nothing_is_left_behind_where_it_cannot_write(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("whole")
    for path in (tmp_path / "no/such", "", tmp_path):
        with pytest.raises(PlanFileError):
            write_file("write", path, b"abc")

    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_write_file.os, "rename", fail)
    with pytest.raises(PlanFileError, match="Input/output error"):
        write_file("write", tmp_path / "old", b"abc")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "whole"


def test_a_file_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "fixed"
    path.write_text("precious")
    monkeypatch.setattr(_write_file.os, "access", lambda *arguments: False)
    with pytest.raises(PlanFileError, match="Permission denied"):
        write_file("write", path, b"abc")
    assert path.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of others to write")
def test_a_file_is_left_to_its_owner(tmp_path):
    path = tmp_path / "theirs"
    path.write_text("what was there before")
    os.chown(path, 12345, 12345)
    before = path.stat()
    write_file("write", path, b"abc")
    after = path.stat()
    assert path.read_bytes() == b"abc" and (after.st_uid, after.st_gid) == (12345, 12345)
    assert after.st_ino == before.st_ino and len(list(tmp_path.iterdir())) == 1


def test_names_in_messages_do_not_steer_a_terminal(tmp_path):
    with pytest.raises(PlanFileError) as caught:
        write_file("write", tmp_path / "no" / "a\x1b[2J\u202eb", b"abc")
    assert "a\\x1b[2J\\u202eb" in str(caught.value)


@pytest.mark.parametrize("act, words", [
    ("save_plan", "has no plan for '.*it' and wrote nothing: no graph of several streams ran"),
    ("save_timeline", "has no event for '.*it': no graph of several streams ran on the CPU")])
def test_an_explanation_without_plans_says_that_there_is_nothing_to_write(tmp_path, caplog, act,
                                                                          words):
    report = anabranch.explain(torch.relu, torch.ones(2))
    with caplog.at_level(logging.WARNING):
        answer = getattr(report, act)(tmp_path / "it")
    assert answer == ([] if act == "save_plan" else tmp_path / "it")
    (record,) = caplog.records
    assert record.name == "anabranch.explain" and "[E0614]" in record.getMessage()
    assert re.search(words, record.getMessage())


def test_a_timeline_is_written_by_the_same_rule(tmp_path):
    report = anabranch.explain(torch.relu, torch.ones(2))
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch(mode=0o600)
    link.symlink_to("target")
    report.save_timeline(target)
    report.save_timeline(link)
    assert link.is_symlink() and target.read_text() == '{"traceEvents": []}'
    assert mode_of(target) == 0o600
