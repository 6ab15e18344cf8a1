# SPDX-License-Identifier: Apache-2.0
"""What is private is taken out of text that people paste into reports, and nothing else is."""

from pathlib import Path

import pytest

from anabranch import _redact
from anabranch._redact import redact


@pytest.fixture(autouse=True)
def somebody(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/alice"))
    monkeypatch.setattr(_redact.getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(_redact.socket, "gethostname", lambda: "box7.example.org")
    for cached in (_redact._folders, _redact._names):
        cached.cache_clear()
    yield
    for cached in (_redact._folders, _redact._names):
        cached.cache_clear()


@pytest.mark.parametrize("private, public", [
    ("in /home/alice", "in ~"),
    ("'/home/alice/secret/build/lib.so' is not there", "'~/.../lib.so' is not there"),
    ("/data/alice/secret/lib.so: broken", "/.../lib.so: broken"),
    ("at /mnt/box7/x.py:12", "at /.../x.py:12"),
    ("alice's run on box7.example.org", "<user>'s run on <host>"),
    ("runs on box7", "runs on <host>"),
])
def test_what_is_private_is_taken_out(private, public):
    assert redact(private) == public


def test_folders_of_the_package_are_written_from_its_name():
    assert redact(str(Path(_redact.__file__).parent / "lib" / "x.so")) == "anabranch/lib/x.so"


@pytest.mark.parametrize("text", [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "g++ (Debian 12.2.0-14) 12.2.0", "2.15.0+cu132",
    "malice", "box70", "GiB/s", "see https://ui.perfetto.dev/a/b", "and/or", "CUDA 12.4",
])
def test_all_else_stays_as_it_is(text):
    assert redact(text) == text


def test_a_home_that_is_the_root_of_the_file_system_is_no_folder_to_hide(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    _redact._folders.cache_clear()
    assert redact("a / b") == "a / b"


def test_a_user_without_a_name_is_no_failure(monkeypatch):
    def fails():
        raise KeyError("uid not found: 1000")

    monkeypatch.setattr(_redact.getpass, "getuser", fails)
    _redact._names.cache_clear()
    assert redact("alice on box7") == "alice on <host>"
