# SPDX-License-Identifier: Apache-2.0
"""The compiled module looks at what Python looks at, and answers the same."""

from __future__ import annotations

import struct
import sys
import weakref

import pytest
import torch
from torch import Tensor, nn

from anabranch import _compat
from anabranch._record import quick

pytestmark = pytest.mark.oldest
WAYS = {"compiled": (quick.module.gradients_are, quick.addresses),
        "python": (lambda some, told: quick.tell_gradients(some) == told, quick._addresses)}


@pytest.fixture(params=WAYS)
def ways(request):
    return WAYS[request.param]


def test_the_compiled_module_is_there_and_knows_where_tensors_are():
    assert quick.module is not None and quick.addresses is quick.module.addresses
    assert quick.tells_autograd and quick.tells_modes and quick.sets_gradients
    assert quick.tells_versions == (sys.version_info[:2] in ((3, 11), (3, 12)))


def test_which_gradients_there_are_is_seen(ways):
    gradients_are, _ = ways
    some = [nn.Parameter(torch.ones(2)), torch.ones(2), torch.ones(2, requires_grad=True)]
    assert gradients_are(some, bytes([3, 2, 3])) and gradients_are((), b"")
    assert not gradients_are(some, bytes([3, 2])) and not gradients_are(some, bytes([3, 3, 3]))
    some[2].grad = torch.ones(2)
    assert not gradients_are(some, bytes([3, 2, 3])) and gradients_are(some, bytes([3, 2, 1]))
    some[0].requires_grad = False
    assert gradients_are(some, bytes([2, 2, 1]))

    class Mine(nn.Parameter):
        grad = None

    mine = Mine(torch.ones(2))
    assert gradients_are([mine], bytes([3]))
    Mine.grad = torch.ones(2)
    assert gradients_are([mine], bytes([1])) and not gradients_are([mine], bytes([3]))


@pytest.mark.skipif(not quick.tells_autograd, reason="torch counts them")
def test_versions_are_counted_as_torch_counts_them_or_left_to_it():
    """Tensors of inference mode have none, and torch leaves them out."""
    base, other = torch.ones(4), nn.Parameter(torch.ones(4))
    some, before = [base, other, base[1:]], (base._version, other._version)
    assert quick.increment_versions(some, struct.pack("2Q", 1, 2))
    assert (base._version, other._version) == (before[0] + 1, before[1] + 1)
    assert some[2]._version == base._version
    with torch.inference_mode():
        without = torch.ones(2)
    for not_told in (without, None, 3):
        assert not quick.increment_versions([not_told], bytes(8))
    assert not quick.increment_versions([base], struct.pack("Q", 1))
    assert not quick._increment_versions(some, bytes(8)) and base._version == before[0] + 1


@pytest.mark.skipif(not quick.sets_gradients, reason="torch's Python sets gradients")
def test_gradients_are_let_go_of_and_set_as_torchs_python_does():
    owners = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(6)), torch.ones(4)]
    bases = [torch.arange(8.), torch.rand(6)]
    view = ((2, 3), (1, 2), 1)
    rows = quick.gradient_row(0, 0, view) + quick.gradient_row(1, 1, None)
    twice = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    assert quick.set_gradients(twice, bases, b"".join(
        quick.gradient_row(i, 0, ((2,), (1,), 2 * i + 1)) for i in range(2)))
    assert [owner.grad.tolist() for owner in twice] == [[1, 2], [3, 4]]
    for _ in range(3):
        assert quick.set_gradients(owners, bases, rows)
        assert torch.equal(owners[0].grad, torch.as_strided(bases[0], *view))
        assert owners[0].grad.stride() == (1, 2) and not owners[0].grad._is_view()
        assert owners[0].grad.untyped_storage().data_ptr() == bases[0].data_ptr()
        assert owners[1].grad is bases[1] and owners[2].grad is None
    gone = [weakref.ref(owners[0].grad), weakref.ref(bases.pop())]
    kept = owners[0].grad
    assert quick.let_go_of_gradients(owners, struct.pack("2Q", 0, 1))
    assert all(owner.grad is None for owner in owners)
    assert gone[0]() is kept and gone[1]() is None
    del kept
    assert gone[0]() is None
    (owners[0].sum() + owners[1].sum()).backward()  # as where Python has let go of them
    assert torch.equal(owners[0].grad, torch.ones(2, 3))


@pytest.mark.skipif(not quick.sets_gradients, reason="torch's Python sets gradients")
def test_gradients_of_what_is_no_tensor_of_torchs_own_are_left_to_python():
    class Mine(nn.Parameter):
        grad = property(lambda owner: "mine")

    base, row = torch.ones(2), quick.gradient_row(0, 0, None)
    for owner in (Mine(torch.ones(2)), base.as_subclass(Mine), None, 3):
        assert not quick.let_go_of_gradients([owner], bytes(8))
        assert not quick.set_gradients([owner], [base], row)
    owner = nn.Parameter(torch.ones(2))
    for other in (None, base.as_subclass(Mine)):
        assert not quick.set_gradients([owner], [other], row)
    for rows in (row[:-8], quick.gradient_row(0, 0, ((2,), (1,), 0))[:-8],
                 quick.gradient_row(1, 0, None), quick.gradient_row(0, 1, None)):
        assert not quick.set_gradients([owner], [base], rows) and owner.grad is None, rows
    assert not quick.let_go_of_gradients([], bytes(8)) and not quick.let_go_of_gradients([owner], 3)
    assert not quick._let_go_of_gradients([owner], bytes(8))
    assert not quick._set_gradients([owner], [base], row)


def test_addresses_are_those_that_torch_says(ways):
    _, addresses = ways
    base = torch.zeros(64)

    class Mine(Tensor):
        pass

    some = [base, base[3:], nn.Parameter(base[5:]), base.view(8, 8).t(), torch.empty(0),
            base.as_subclass(Mine), base.to(torch.complex64).conj()]
    told = struct.pack("7Q", *(tensor.data_ptr() for tensor in some))
    assert addresses(some, b"", None) == addresses(tuple(some), b"", None) == told
    offsets = range(7)
    assert addresses(some, struct.pack("7Q", *offsets), None) == struct.pack(
        "7Q", *(tensor.data_ptr() + i for i, tensor in zip(offsets, some, strict=True)))
    assert addresses([], b"", None) == b""
    which = struct.pack("3Q", 6, 1, 1)
    assert addresses(some, b"", which) == struct.pack("3Q", *(some[i].data_ptr() for i in (6, 1, 1)))
    assert addresses(tuple(some), struct.pack("3Q", 8, 0, 4), which) == struct.pack(
        "3Q", some[6].data_ptr() + 8, some[1].data_ptr(), some[1].data_ptr() + 4)
    assert addresses(some, b"", b"") == b""
    with pytest.raises(IndexError):
        addresses(some, b"", struct.pack("Q", 7))


def test_an_address_is_that_of_now(ways):
    """Also of an object that has become another tensor, whose memory may be gone."""
    _, addresses = ways
    one, other = torch.ones(4), torch.zeros(4)
    before, after = one.data_ptr(), other.data_ptr()
    assert addresses([one], b"", None) == struct.pack("Q", before)
    torch.utils.swap_tensors(one, other)
    assert addresses([one, other], b"", None) == struct.pack("2Q", after, before)
    one.data = other
    assert addresses([one], b"", None) == struct.pack("Q", before)


def test_what_has_no_address_raises_as_torch_does(ways):
    _, addresses = ways
    with pytest.raises(TypeError):
        addresses([None], b"", None)
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(RuntimeError):
        addresses([torch.ones(1), sparse], b"", None)


def test_functions_of_cxx_are_called_in_known_releases_alone(monkeypatch):
    """Nothing says what they answer in a newer one."""
    named = _compat.library_function.__wrapped__
    assert named("gradient") and named("data_pointer")
    monkeypatch.setattr("anabranch._compat.library.version", (99, 0))
    assert named("gradient") == named("increment_version") == 0 and named("data_pointer")


C, CUDA, CUDNN = torch._C, torch.backends.cuda, torch.backends.cudnn


def of_attribute(owner, name, value):
    before = getattr(owner, name)
    return (lambda: setattr(owner, name, value)), (lambda: setattr(owner, name, before))
