# SPDX-License-Identifier: Apache-2.0
"""The compiled module looks at what Python looks at, and answers the same."""

from __future__ import annotations

import collections
import struct

import pytest
import torch
from torch import Tensor, nn

from anabranch._record import quick

pytestmark = pytest.mark.oldest
WAYS = {"compiled": (quick.stand, quick.gradients_are, quick.addresses),
        "python": (quick._stand, quick._gradients_are, quick._addresses)}
VALUES_STAND = {"compiled": quick.values_stand, "python": quick._values_stand}


@pytest.fixture(params=WAYS)
def ways(request):
    return WAYS[request.param]


def test_the_compiled_module_is_there_and_knows_where_tensors_are():
    assert quick._module is not None and quick.addresses is quick._module.addresses


class Holder:
    """One that Python looks up itself."""

    def __init__(self, **things):
        self.things = things

    def __getitem__(self, key):
        return self.things[key]


def test_the_very_same_things_stand_there_or_they_do_not(ways):
    stand, _, _ = ways
    a, b, equal = [1], [2], [1]
    plain, listed, own = {"a": a}, [a, b], Holder(b=b)
    ordered = collections.OrderedDict(a=a)
    holders, keys, things = (plain, listed, own, ordered), ("a", 1, "b", "a"), (a, b, b, a)
    assert stand(holders, keys, things) and stand((), (), ())
    assert not stand(holders, keys, ()) and not stand(holders[:3], keys, things)
    plain["a"] = equal
    assert not stand(holders, keys, things)
    plain["a"] = a
    assert stand(holders, keys, things)
    for gone in (lambda: own.things.clear(), lambda: listed.pop(), lambda: plain.clear()):
        gone()
        assert not stand(holders, keys, things)


def test_what_a_holder_raises_is_a_no_unless_it_ends_the_program(ways):
    stand, _, _ = ways

    class Raising:
        def __getitem__(self, key):
            raise key

    assert not stand((Raising(),), (OverflowError(),), (None,))
    with pytest.raises(KeyboardInterrupt):
        stand((Raising(),), (KeyboardInterrupt(),), (None,))


@pytest.mark.parametrize("values_stand", VALUES_STAND.values(), ids=VALUES_STAND)
def test_dictionaries_have_the_very_same_values_in_their_order_or_they_do_not(values_stand):
    a, b, equal = [1], [2], [1]
    plain, by_default = {"x": a, "y": b}, collections.defaultdict(list, z=a)
    dicts, values = (plain, by_default, {}), ((a, b), (a,), ())
    assert values_stand(dicts, values) and values_stand((), ())
    assert not values_stand(dicts, values[:2]) and not values_stand((5,), ((),))
    by_default["more"] = b
    assert not values_stand(dicts, values)
    del by_default["more"]
    assert values_stand(dicts, values)
    plain["x"] = equal
    assert not values_stand(dicts, values)
    plain["x"], plain["y"] = b, a
    assert not values_stand(dicts, values)
    del plain["x"]
    assert not values_stand(dicts, values)
    plain["x"] = b  # in another place of the order
    assert values_stand(dicts, ((a, b), (a,), ()))


def test_which_gradients_there_are_is_seen(ways):
    _, gradients_are, _ = ways
    some = [nn.Parameter(torch.ones(2)), torch.ones(2), torch.ones(2, requires_grad=True)]
    assert gradients_are(some, bytes([3, 2, 3])) and gradients_are((), b"")
    assert not gradients_are(some, bytes([3, 2])) and not gradients_are(some, bytes([3, 3, 3]))
    some[2].grad = torch.ones(2)
    assert not gradients_are(some, bytes([3, 2, 3])) and gradients_are(some, bytes([3, 2, 1]))
    some[0].requires_grad = False
    assert gradients_are(some, bytes([2, 2, 1]))


def test_addresses_are_those_that_torch_says(ways):
    _, _, addresses = ways
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
    _, _, addresses = ways
    one, other = torch.ones(4), torch.zeros(4)
    before, after = one.data_ptr(), other.data_ptr()
    assert addresses([one], b"", None) == struct.pack("Q", before)
    torch.utils.swap_tensors(one, other)
    assert addresses([one, other], b"", None) == struct.pack("2Q", after, before)
    one.data = other
    assert addresses([one], b"", None) == struct.pack("Q", before)


def test_what_has_no_address_raises_as_torch_does(ways):
    _, _, addresses = ways
    with pytest.raises(TypeError):
        addresses([None], b"", None)
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(RuntimeError):
        addresses([torch.ones(1), sparse], b"", None)
