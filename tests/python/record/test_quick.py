# SPDX-License-Identifier: Apache-2.0
"""The compiled module looks at what Python looks at, and answers the same."""

from __future__ import annotations

import collections
import gc
import struct
import sys
import weakref
from types import CellType

import pytest
import torch
from torch import Tensor, nn

from anabranch import _compat
from anabranch._record import quick

pytestmark = pytest.mark.oldest
WAYS = {"compiled": (quick.stand, quick.gradients_are, quick.addresses),
        "python": (quick._stand, quick._gradients_are, quick._addresses)}
HOLDING = {"compiled": quick.holding, "python": quick._holding}
STANDING = {"compiled": quick.standing, "python": quick._standing}
ANSWERS_ARE = {"compiled": quick.answers_are, "python": quick._answers_are}


@pytest.fixture(params=WAYS)
def ways(request):
    return WAYS[request.param]


def test_the_compiled_module_is_there_and_knows_where_tensors_are():
    assert quick._module is not None and quick.addresses is quick._module.addresses
    assert quick.tells_autograd and quick.tells_modes and quick.sets_gradients
    assert quick.tells_versions == (sys.version_info[:2] in ((3, 11), (3, 12)))


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
    cell = CellType(a)
    assert stand((cell,), (CellType,), (a,)) and not stand((cell,), (CellType,), (b,))
    del cell.cell_contents
    assert not stand((cell,), (CellType,), (a,))
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


@pytest.fixture(params=[True, False], ids=["versions", "no versions"])
def versions(request):
    """Whether the compiled module goes by the versions of dictionaries."""
    quick._module.learn_versions(request.param and quick.tells_versions)
    yield request.param and quick.tells_versions
    quick._module.learn_versions(quick.tells_versions)


def is_so(questions):
    return quick.answers_are(*zip(*questions, strict=True)) if questions else True


@pytest.mark.parametrize("standing", STANDING.values(), ids=STANDING)
def test_questions_are_whether_the_very_same_things_stand_there(standing, versions):
    class Named:
        scale = [1]

    a, b, equal = [1], [2], [1]
    plain, listed, own, cell = {"a": a, "b": b}, [a, b], Holder(b=b), CellType(a)
    ordered, of_class = collections.OrderedDict(a=a), vars(Named)
    before = Named.scale
    places = [(plain, "a", a), (listed, 1, b), (own, "b", b), (ordered, "a", a), (plain, "b", b),
              (cell, CellType, a), (of_class, "scale", before), (listed, 0, a)]
    asked = standing(*zip(*places, strict=True))
    assert is_so(asked) and is_so(asked) and is_so(standing((), (), ()))
    assert not is_so(standing((plain, {}), ("a", "a"), (a, a)))
    for change, back in (
            (lambda: plain.update(a=equal), lambda: plain.update(a=a)),
            (lambda: plain.pop("b"), lambda: plain.update(b=b)),
            (lambda: listed.reverse(), lambda: listed.reverse()),
            (lambda: listed.pop(), lambda: listed.append(b)),
            (lambda: own.things.clear(), lambda: own.things.update(b=b)),
            (lambda: ordered.update(a=b), lambda: ordered.update(a=a)),
            (lambda: setattr(cell, "cell_contents", b), lambda: setattr(cell, "cell_contents", a)),
            (lambda: setattr(Named, "scale", equal), lambda: setattr(Named, "scale", before))):
        change()
        assert not is_so(asked) and not is_so(asked)
        back()
        assert is_so(asked) and is_so(asked)
    plain["more"] = listed[:]  # which nobody asks for
    assert is_so(asked)


def test_what_has_not_changed_is_not_looked_through_again(versions):
    looks = []

    class Key:
        def __init__(self, change=lambda: None):
            self.change = change

        def __hash__(self):
            return 7

        def __eq__(self, other):
            looks.append(other)
            self.change()
            return False

    thing, first, key = [1], Key(), Key()
    holder = {first: None, key: thing}  # of one hash, so that the first is looked at
    asked = quick.standing([holder], [key], [thing])

    def looks_of_next():
        looks.clear()
        assert is_so(asked)
        return len(looks)

    holder["more"] = None
    assert looks_of_next() == 1 and looks_of_next() == (0 if versions else 1)
    holder["more"] = thing
    assert looks_of_next() == 1
    # It changes while it is looked at: what has been seen then may not be so any more.
    first.change = lambda: holder.update(more=len(looks))
    holder["more"] = None
    assert looks_of_next() == looks_of_next() == 1


def whole(dicts, values, has_keys=False):
    return [(one, tuple(one) if has_keys else None, some)
            for one, some in zip(dicts, values, strict=True)]


@pytest.mark.parametrize("holding", HOLDING.values(), ids=HOLDING)
@pytest.mark.parametrize("has_keys", [False, True])
def test_dictionaries_have_the_very_same_items_in_their_order_or_they_do_not(
        holding, has_keys, versions):
    a, b, equal = [1], [2], [1]
    plain, by_default = {"x": a, "y": b}, collections.defaultdict(list, z=a)
    hold = holding(whole((plain, by_default, {}), ((a, b), (a,), ()), has_keys))
    assert hold() and holding(())()
    by_default["more"] = b
    assert not hold()
    del by_default["more"]
    assert hold()
    plain["x"] = equal
    assert not hold()
    plain["x"], plain["y"] = b, a
    assert not hold()
    del plain["x"]
    assert not hold()
    plain["x"] = b  # in another place of the order
    assert hold() is not has_keys
    del plain["x"], plain["y"]
    plain["x"], plain["another"] = a, b
    assert hold() is not has_keys


@pytest.mark.parametrize("holding", HOLDING.values(), ids=HOLDING)
def test_what_dictionaries_are_compared_with_lives_as_long_as_the_comparison(holding):
    """And no longer, where the two are of one cycle."""
    hold = holding([({"a": Holder()}, None, ())])
    gc.collect()
    assert not hold()
    one = {"x": Holder()}
    one["itself"] = holding([(one, ("x",), (one["x"],))])
    seen = weakref.ref(one["x"])
    del one
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("answers_are", ANSWERS_ARE.values(), ids=ANSWERS_ARE)
def test_functions_answer_what_is_equal_or_they_do_not(answers_are):
    def failing():
        raise OverflowError

    def stopping():
        raise KeyboardInterrupt

    functions, arguments = (len, abs, str), (("ab",), (-3.5,), (12,))
    assert answers_are(functions, arguments, (2, 3.5, "12")) and answers_are((), (), ())
    assert not answers_are(functions, arguments, (2, 3.5, "13"))
    assert not answers_are(functions, arguments, (2, 3.5))
    assert not answers_are((failing,), ((),), (None,))
    with pytest.raises(KeyboardInterrupt):
        answers_are((stopping,), ((),), (None,))


def test_which_gradients_there_are_is_seen(ways):
    _, gradients_are, _ = ways
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


def test_functions_of_cxx_are_called_in_known_releases_alone(monkeypatch):
    """Nothing says what they answer in a newer one."""
    named = _compat.library_function.__wrapped__
    assert named("gradient") and named("data_pointer")
    monkeypatch.setattr("anabranch._compat.library.version", (99, 0))
    assert named("gradient") == named("increment_version") == 0 and named("data_pointer")
