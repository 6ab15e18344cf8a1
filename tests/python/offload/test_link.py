# SPDX-License-Identifier: Apache-2.0
"""The link between a device and the host's memory is measured once a machine, and kept."""

import dataclasses

import pytest
import torch

from anabranch import doctor
from anabranch._offload import link

pytestmark = pytest.mark.oldest
HOST = torch.device("cpu")
LINK = link.MeasuredLink("cuda:0", 50e9, 40e9, 45e9, 30e9, 9e9, 8e9, 2e12, 7000, 1, 0)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The keys under which something was measured."""
    keys = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(link, "_known", {})
    monkeypatch.setattr(link, "_key_of", lambda device: "A GPU")
    monkeypatch.setattr(link, "measure", lambda device: keys.append(device) or LINK)
    return keys


def another_process():
    link._known.clear()


class Gpu:
    type = "cuda"


def test_the_hosts_own_memory_is_measured():
    found = link.measure(HOST)
    assert all(getattr(found, field.name) > 0 for field in dataclasses.fields(found)
               if field.name.endswith("_rate"))
    assert found.latency_ns > 0 and 0 < found.link().both_ways <= 1


def test_the_slower_way_says_how_much_is_left_when_both_copy():
    assert LINK.link().both_ways == 30e9 / 40e9


def test_what_was_measured_is_found_by_the_next_process(measured):
    first = link.link_of(Gpu())
    another_process()
    assert link.link_of(Gpu()) == first == LINK and len(measured) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 0, "links": {}}',
                                     '{"version": 1, "links": {"A GPU": {"device": "x"}}}'])
def test_a_file_that_cannot_be_used_is_written_anew(measured, tmp_path, content):
    (tmp_path / "anabranch").mkdir()
    (tmp_path / "anabranch/links.json").write_text(content)
    assert link.link_of(Gpu()) == LINK
    another_process()
    assert link.link_of(Gpu()) == LINK and len(measured) == 1


def test_without_a_folder_to_write_to_it_is_measured_by_each_process(measured, tmp_path):
    (tmp_path / "anabranch").write_text("a file")
    assert link.link_of(Gpu()) == LINK
    another_process()
    assert link.link_of(Gpu()) == LINK and len(measured) == 2


def test_the_doctor_shows_what_was_measured(measured):
    link.link_of(Gpu())
    (row,) = [row for row in doctor.findings() if row.name == "link of A GPU"]
    assert row.text == ("50.0 GB/s out, 40.0 in; 45.0 and 30.0 at once; 9.0 and 8.0 with pageable "
                        "memory; 7.0 us a copy; NUMA node 1, the process on 0")
