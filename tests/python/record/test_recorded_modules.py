# SPDX-License-Identifier: Apache-2.0
"""A model that `anabranch.record` was given is a module: what torch does to the plain one it does to
this one, inside of others too, and with the same names.

Nothing is recorded here, for want of a GPU: its calls run the model.
"""

from __future__ import annotations

import abc
import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

import anabranch
from anabranch import RecordedCallable, RecordedModule
from anabranch._record import recorded_callable

pytestmark = [pytest.mark.oldest, pytest.mark.filterwarnings("ignore::anabranch.RecordWarning")]

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Net(nn.Module):
    """With everything that a module may hold, and names that a recorded callable has too."""

    def __init__(self, width=3):
        super().__init__()
        self.layer, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("shift", torch.zeros(width))
        self.state, self.calls = "the model's", 0

    def forward(self, x):
        self.calls += 1
        return self.norm(self.layer(x)) * self.scale + self.shift

    def reset(self):
        self.calls = 0
        return "the model's"


class Outer(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.first, self.net = nn.Linear(3, 3), wrap(Net())

    def forward(self, x):
        return self.net(self.first(x))


def made(kind=Outer, wrap=anabranch.record, seed=0):
    torch.manual_seed(seed)
    return kind(wrap) if kind is Outer else wrap(kind())


def plainly(model):
    return model


def pair(kind=Outer):
    """Recorded and plain, with the same numbers."""
    return made(kind), made(kind, plainly)


def names(items):
    return [name for name, _ in items]


def assert_equal(one, other):
    assert names(one.state_dict().items()) == names(other.state_dict().items())
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    assert torch.equal(one(X), other(X))


@pytest.mark.parametrize("kind", [Net, Outer])
def test_names_of_parameters_buffers_modules_and_of_a_state_dict_are_the_layers_own(kind):
    recorded, plain = pair(kind)
    for of in ("named_parameters", "named_buffers", "named_modules", "named_children"):
        assert names(getattr(recorded, of)()) == names(getattr(plain, of)())
    assert_equal(recorded, plain)
    assert repr(recorded) == repr(plain)


def test_a_state_dict_goes_both_ways():
    recorded, other = made(), made(wrap=plainly, seed=1)
    other.load_state_dict(recorded.state_dict())
    assert_equal(recorded, other)
    recorded.load_state_dict(made(wrap=plainly, seed=2).state_dict(), assign=True)
    assert_equal(recorded, made(wrap=plainly, seed=2))
    alone = made(Net, seed=3)
    alone.load_state_dict(recorded.net.state_dict())
    assert torch.equal(alone.layer.weight, recorded.net.layer.weight)


@pytest.mark.parametrize("optimizer_before", [False, True], ids=["behind it", "before it"])
def test_a_layer_recorded_inside_another_module_trains(optimizer_before):
    def trained(wrap):
        model = made(wrap=plainly)
        optimizer = torch.optim.SGD(model.parameters(), lr=.1) if optimizer_before else None
        model.net = wrap(model.net)
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(X).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return model

    assert_equal(trained(anabranch.record), trained(plainly))


@pytest.mark.parametrize("change", [
    lambda model: model.eval(), lambda model: model.train(False).train(),
    lambda model: model.double().float(), lambda model: model.to(torch.float64).to(torch.float32),
    lambda model: model.requires_grad_(False), lambda model: model.apply(nn.init.ones_)
    if isinstance(model, nn.Linear) else model, lambda model: model.bfloat16().float(),
    lambda model: model.to("meta").to_empty(device="cpu").apply(zero), lambda model: model.cpu()])
def test_what_is_done_to_it_is_done_to_the_model(change):
    recorded, plain = pair()
    assert change(recorded) is recorded
    change(plain)
    assert_equal(recorded, plain)
    inner, model = recorded.net, recorded.net.anabranch.__wrapped__
    assert [part.training for part in recorded.modules()] == [
        part.training for part in plain.modules()]
    assert [tensor.requires_grad for tensor in recorded.parameters()] == [
        tensor.requires_grad for tensor in plain.parameters()]
    assert inner.training is model.training and inner.layer is model.layer
    assert all(map(lambda a, b: a is b, inner.parameters(), model.parameters()))


@torch.no_grad()
def zero(module):
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        tensor.zero_()


def test_gradients_are_let_go_of_through_it():
    recorded = made()
    recorded(X).sum().backward()
    assert all(tensor.grad is not None for tensor in recorded.net.parameters())
    recorded.net.zero_grad()
    assert all(tensor.grad is None for tensor in recorded.net.parameters())


def test_attributes_are_those_of_the_model():
    recorded = made(Net)
    model = recorded.anabranch.__wrapped__
    recorded.rate, recorded.scale = 3.0, nn.Parameter(torch.zeros(3))
    recorded.more = nn.Linear(1, 1)
    assert model.rate == 3.0 and model.scale is recorded.scale and model.more is recorded.more
    assert torch.equal(recorded(X), torch.zeros(2, 3)) and model.calls == recorded.calls == 1
    del recorded.more
    assert not hasattr(model, "more") and "more" not in names(recorded.named_children())
    with pytest.raises(AttributeError, match="nothing"):
        recorded.nothing  # noqa: B018


def test_it_is_an_object_of_the_models_class():
    recorded = made(Net)
    assert isinstance(recorded, Net) and isinstance(recorded, RecordedModule)
    assert recorded.__class__ is Net and issubclass(type(recorded), Net)
    assert type(recorded) is type(made(Net)) and type(recorded).__name__ == "Net"
    assert not isinstance(recorded, RecordedCallable)
    assert type(type(recorded)(5)) is Net and recorded.__class__(5).layer.in_features == 5


def test_what_a_recorded_callable_has_is_there_where_the_model_has_nothing_of_that_name():
    recorded = made(Net)
    recorded(X)
    assert [report.calls for report in recorded.reports] == [1]
    assert "no GPU" in recorded.precompile(X).reason
    assert recorded.state == recorded.reset() == "the model's"
    assert recorded.anabranch.state == () and recorded.anabranch.name == recorded.name == "Net"
    recorded.anabranch.reset()
    assert recorded.reports == []
    assert {"reports", "precompile", "anabranch", "layer", "calls"}.issubset(dir(recorded))


def test_with_options_answers_a_module_over_the_same_model():
    recorded = made(Net)
    for other in (recorded.with_options(max_recordings=3), anabranch.record(recorded)):
        assert isinstance(other, Net) and other.layer is recorded.layer and other == recorded
    other = anabranch.record(Net(), max_recordings=4).with_options(strict=True)
    assert (other.anabranch._chosen.max_recordings, other.anabranch._chosen.strict) == (4, True)


# Hooks


def hooked(model, seen):
    def note(name):
        return lambda module, *rest: seen.append((name, module))

    model.register_forward_pre_hook(note("before"))
    model.register_forward_hook(note("behind"))
    model.register_forward_hook(lambda module, given, answer: answer * 2)
    model.register_full_backward_hook(note("backward"))
    model.register_state_dict_pre_hook(note("saved"))
    model.register_load_state_dict_post_hook(note("loaded"))
    return model


@pytest.mark.parametrize("is_inside", [False, True], ids=["alone", "inside"])
def test_hooks_that_are_registered_with_it_run_once(is_inside):
    found = []
    for wrap in (anabranch.record, plainly):
        outer, seen = made(wrap=wrap), []
        hooked(outer.net, seen)
        model = outer if is_inside else outer.net
        model(X.clone().requires_grad_()).sum().backward()
        model.load_state_dict(model.state_dict())
        assert all(module == outer.net for _, module in seen)
        found.append(([name for name, _ in seen], model(X)))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


def test_hooks_of_the_model_are_its_own_and_one_that_is_removed_is_gone():
    recorded, seen = made(Net), []
    model = recorded.anabranch.__wrapped__
    handles = [model.register_forward_hook(lambda *given: seen.append("model's")),
               recorded.register_forward_hook(lambda *given: seen.append("recorded's"))]
    recorded(X), model(X)
    assert seen == ["model's", "recorded's"] * 2
    for handle in handles:
        handle.remove()
    recorded(X)
    assert len(seen) == 4


def test_who_keeps_modules_by_name_finds_it_by_either():
    outer, found = made(), []
    known = {module: name for name, module in outer.named_modules()}
    for module in outer.modules():
        module.register_forward_hook(lambda module, *rest: found.append(known[module]))
    outer(X)
    assert found == ["first", "net.layer", "net.norm", "net", ""]
    assert known[outer.net.anabranch.__wrapped__] == "net"


# In several places


def test_a_model_that_stands_in_several_places_is_one_module():
    model, tied = Net(), [plainly, anabranch.record, anabranch.record]
    several, same = (nn.ModuleList(wrap(model) for wrap in wraps) for wraps in (tied, [plainly] * 3))
    for of in ("named_parameters", "named_modules", "named_buffers"):
        assert names(getattr(several, of)()) == names(getattr(same, of)())
    assert list(several.state_dict()) == list(same.state_dict())
    assert len(set(several)) == 1 and several[0] == several[1] == several[2] != Net()
    calls = []
    several.apply(lambda module: calls.append(module))
    assert len(calls) == len(list(same.modules()))
    other = copy.deepcopy(several)
    assert other[0].layer is other[1].layer is other[2].layer is not model.layer


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), wrap(nn.Linear(3, 5, bias=False))
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.embed(ids))

    found = []
    for wrap in (anabranch.record, plainly):
        torch.manual_seed(0)
        model = Tied(wrap)
        optimizer = torch.optim.SGD(model.parameters(), lr=.1)
        for _ in range(2):
            model(torch.arange(5)).square().sum().backward()
            optimizer.step()
        assert model.head.weight is model.embed.weight
        assert copy.deepcopy(model).head.weight is not model.embed.weight
        found.append(model.embed.weight)
    assert torch.equal(*found)


# Copies


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved], ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", [Net, Outer])
def test_copies_are_recorded_modules_with_weights_of_their_own(kind, copied):
    recorded = made(kind, lambda model: anabranch.record(model, max_recordings=5, strict=True))
    other = copied(recorded)
    inner = other if kind is Net else other.net
    assert isinstance(inner, RecordedModule) and isinstance(inner, Net)
    assert inner.anabranch._chosen.max_recordings == 5 and not inner.reports
    assert_equal(other, recorded)
    zero(inner.layer)
    assert not torch.equal(other(X), recorded(X))
    assert inner.layer is inner.anabranch.__wrapped__.layer


def test_a_shallow_copy_has_attributes_of_its_own_and_the_same_tensors():
    recorded = made(Net)
    other = copy.copy(recorded)
    other.calls = 100
    assert recorded.calls == 0 and other.layer is recorded.layer
    assert isinstance(other, RecordedModule) and isinstance(other, Net)


def test_it_is_averaged_and_checkpointed():
    outer, plain = pair()
    average = torch.optim.swa_utils.AveragedModel(outer)
    average.update_parameters(outer)
    outer.eval(), plain.eval(), average.eval()
    assert torch.equal(average(X), plain(X)) and isinstance(average.module.net, RecordedModule)
    assert torch.equal(checkpoint(outer.net, X, use_reentrant=False), plain.net(X))


def test_it_is_let_go_of_with_its_model_and_the_models_end_is_seen_once():
    ends = []

    class Ending(nn.Linear):
        def __del__(self):
            ends.append(1)

    recorded = anabranch.record(Ending(3, 3))
    weight = weakref.ref(recorded.weight)
    recorded(X)
    del recorded
    gc.collect()
    assert ends == [1] and weight() is None


# What torch makes of it


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


@pytest.mark.parametrize("is_recorded_one", [True, False], ids=["through it", "through the model"])
def test_a_parametrized_weight_is_computed_in_both(is_recorded_one):
    model = nn.Linear(3, 3)
    recorded = anabranch.record(model)
    wanted = model.weight.detach() * 2
    through = recorded if is_recorded_one else model
    parametrize.register_parametrization(through, "weight", Doubled())
    for one in (recorded, model):
        assert torch.equal(one.weight, wanted) and torch.equal(one(X), X @ wanted.T + model.bias)
        assert list(one.state_dict()) == ["bias", "parametrizations.weight.original"]
    assert isinstance(recorded, RecordedModule) and parametrize.is_parametrized(recorded)
    other = copy.deepcopy(recorded)
    assert torch.equal(other(X), recorded(X))
    parametrize.remove_parametrizations(through, "weight")
    assert torch.equal(recorded(X), model(X)) and list(recorded.state_dict()) == ["bias", "weight"]


@pytest.mark.parametrize("change", [
    parametrizations.weight_norm, parametrizations.orthogonal, nn.utils.weight_norm,
    nn.utils.spectral_norm, lambda model: prune.l1_unstructured(model, "weight", 2)])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_torch_does_to_a_weight_it_does_to_its(change):
    found = []
    for wrap in (anabranch.record, plainly):
        torch.manual_seed(0)
        model = change(wrap(nn.Linear(3, 3)))
        model(X).square().sum().backward()
        found.append((model(X), list(model.state_dict())))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]


@pytest.mark.parametrize("wrapped", [lambda lazy: anabranch.record(lazy),
                                     lambda lazy: nn.Sequential(anabranch.record(lazy))])
def test_a_lazy_layer_becomes_what_it_is_to_be(wrapped):
    lazy = nn.LazyLinear(4)
    model = wrapped(lazy)
    assert model(X).shape == (2, 4)
    assert type(lazy) is nn.Linear and [tensor.shape for tensor in model.parameters()] == [
        (4, 3), (4,)]


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_ddp_and_data_parallel_take_it(one_process):
    recorded, plain = pair()
    wrapped = nn.parallel.DistributedDataParallel(recorded)
    wrapped(X).sum().backward()
    plain(X).sum().backward()
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(
        recorded.parameters(), plain.parameters(), strict=True))
    alone = nn.parallel.DistributedDataParallel(recorded.net)
    assert list(alone.state_dict())[0] == "module.scale" and alone(X).requires_grad
    # A replica belongs to one call, and is the model's.
    replica = nn.DataParallel(recorded.net).module._replicate_for_data_parallel()
    assert type(replica) is Net


def test_fsdp2_shards_it(one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    recorded, plain = pair()
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(recorded.net, mesh=mesh)
    fully_shard(recorded, mesh=mesh)
    assert isinstance(recorded.net, FSDPModule) and isinstance(recorded.net, RecordedModule)
    for model in (recorded, plain):
        torch.optim.SGD(model.parameters(), lr=.1)
        model(X).square().sum().backward()
    assert torch.allclose(recorded(X), plain(X))
    assert torch.allclose(recorded.net.layer.weight.grad.full_tensor(), plain.net.layer.weight.grad)


def test_functional_calls_exchange_its_tensors():
    recorded, plain = (model.eval() for model in pair())
    exchanged = {name: tensor * 2 for name, tensor in plain.named_parameters()}
    found = [torch.func.functional_call(model, exchanged, (X,)) for model in (recorded, plain)]
    assert torch.equal(*found)
    grads = [torch.func.grad(lambda given, model=model: torch.func.functional_call(
        model, given, (X,)).sum())(exchanged) for model in (recorded, plain)]
    assert all(map(torch.equal, grads[0].values(), grads[1].values()))


@pytest.mark.parametrize("wrap", [
    lambda model: torch.compile(model, backend="eager", fullgraph=True),
    lambda model: model.compile(backend="eager", fullgraph=True) or model,
    torch.fx.symbolic_trace, lambda model: torch.jit.trace(model, X), torch.jit.script,
    lambda model: torch.export.export(model, (X,)).module(),
    lambda model: torch.export.unflatten(torch.export.export(model, (X,), strict=True)),
], ids=["compile", "compile in place", "symbolic_trace", "jit.trace", "jit.script", "export",
        "strict export"])
@pytest.mark.parametrize("kind", [Net, Outer])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_is_made_of_a_module_with_it_inside_is_what_is_made_of_the_plain_one(wrap, kind):
    recorded, plain = (model.eval() for model in pair(Still if kind is Net else Around))
    found = wrap(recorded)
    assert torch.equal(found(X), plain(X))
    assert [name.removeprefix("_orig_mod.") for name in found.state_dict()] == list(
        plain.state_dict())


def test_compiled_code_around_it_is_that_around_the_plain_layer_also_on_a_gpu(monkeypatch, recwarn):
    monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: True)
    recorded, plain = made(Around, plainly), made(Around, plainly)
    recorded.net = anabranch.record(recorded.net)
    torch._dynamo.reset()
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph

    assert torch.equal(torch.compile(recorded, backend=backend, fullgraph=True)(X), plain(X))
    torch.compile(plain, backend=backend, fullgraph=True)(X)
    assert len({tuple(str(node.target) for node in graph.graph.nodes if "call" in node.op)
                for graph in graphs}) == 1
    told = [str(one.message) for one in recwarn]  # torch's own of Python 3.13.0
    assert not [one for one in told if not one.startswith("Guards may run slower")], told


class Still(nn.Module):
    """Changes nothing of its own, which exports forbid."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

    def forward(self, x):
        return self.norm(self.layer(x))


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.net = nn.Linear(3, 3), Still()

    def forward(self, x):
        return self.net(self.first(x))


# What models there are


def test_a_recorded_forward_of_a_model_leaves_the_model_as_it_is():
    recorded, plain = made(wrap=plainly), made(wrap=plainly)
    recorded.forward = anabranch.record(recorded.forward)
    recorded.net.forward = anabranch.record(recorded.net.forward)
    assert_equal(recorded, plain)
    assert_equal(copy.deepcopy(recorded), plain)
    assert [report.calls for report in recorded.forward.reports] == [1]


def test_a_call_of_the_models_own_is_what_runs():
    class Scaling(Still):
        def __call__(self, x, by=2):
            return super().__call__(x) * by

    torch.manual_seed(0)
    model = Scaling()
    assert torch.equal(anabranch.record(model)(X, by=3), model(X, by=3))


@pytest.mark.parametrize("of", [
    torch.jit.script, lambda model: torch.jit.trace(model, X), torch.fx.symbolic_trace,
    lambda model: torch.export.export(model, (X,)).module(),
    lambda model: torch.compile(model, backend="eager"), nn.DataParallel],
    ids=["scripted", "traced", "of torch.fx", "exported", "compiled", "DataParallel"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_models_of_all_makes_are_recorded_as_modules(of):
    torch.manual_seed(0)
    model = of(Still())
    recorded = anabranch.record(model)
    assert isinstance(recorded, RecordedModule) and isinstance(recorded, type(model))
    assert torch.equal(recorded(X), model(X))
    assert list(recorded.state_dict()) == list(model.state_dict())
    assert isinstance(copy.deepcopy(recorded), RecordedModule)


def test_a_class_that_is_particular_about_its_classes_is_derived_from():
    class Once(type):
        known = set()

        def __new__(cls, name, bases, body, **keywords):
            assert name not in cls.known
            cls.known.add(name)
            return super().__new__(cls, name, bases, body)

    class Named(Still, metaclass=Once):
        __slots__ = ("slotted",)

        def __init__(self):
            super().__init__()
            self.slotted = 3

        def __init_subclass__(cls, *, needed):
            raise AssertionError

        def __eq__(self, other):
            return isinstance(other, Named)

        __hash__ = None

        def __getattr__(self, name):
            return 42 if name == "magic" else super().__getattr__(name)

    class Abstract(Still, abc.ABC):
        @abc.abstractmethod
        def method(self): ...

    class Concrete(Abstract):
        def method(self):
            return self.layer

    named, concrete = anabranch.record(Named()), anabranch.record(Concrete())
    assert named(X).shape == (2, 3) and (named.slotted, named.magic) == (3, 42)
    assert named == Named() and named != 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(named)
    assert concrete.method() is concrete.layer and isinstance(concrete, Abstract)
    assert not isinstance(Still(), type(concrete)) and isinstance(Concrete(), Abstract)


def test_explain_and_bisect_take_it():
    recorded = made(Net)
    assert anabranch.explain(recorded, X).callables == [recorded.anabranch]
    assert "nothing is recorded without one" in str(anabranch.bisect(recorded, X))
