# SPDX-License-Identifier: Apache-2.0
"""What is noted of a captured step: all that is written, and nothing that is not known for certain.

No GPU is needed: the notes are asked for the CPU's work, and a counter stands for a capture.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from noting import Marks, at, compiled, compiled_notes, notes_of, overwrite, reads, tuner_of, writes
from torch._inductor.codecache import PyCodeCache
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from anabranch import _compat
from anabranch._compat import cuda
from anabranch._fx import schema
from anabranch._record.capture.access_notes import AccessNotes

pytestmark = pytest.mark.own
aten = torch.ops.aten


# Operators


@pytest.mark.oldest
def test_a_product_reads_its_operands_writes_its_result_and_has_scratch():
    x, w = torch.randn(4, 5), torch.randn(5, 6)
    notes, y = notes_of(torch.mm, x, w)
    [work] = notes.works
    assert (reads(work), writes(work), work.has_scratch) == (at(x, w), at(y), True)


@pytest.mark.oldest
def test_an_out_tensor_is_written_also_where_the_operator_moves_it():
    x, w, out = torch.randn(4, 5), torch.randn(5, 6), torch.empty(1)
    before = out.data_ptr()
    with pytest.warns(UserWarning, match="resized"):
        notes, _ = notes_of(lambda: torch.mm(x, w, out=out))
    [work] = notes.works
    assert writes(work) == {before, out.data_ptr()} and reads(work) == at(x, w)


@pytest.mark.oldest
def test_lists_of_tensors_are_noted_and_tensors_without_elements_are_not():
    a, b, empty = torch.ones(3), torch.ones(4), torch.ones(0)
    notes, _ = notes_of(torch._foreach_add_, [a, b, empty], 1)
    joined, result = notes_of(torch.cat, [a, b, empty])
    assert [writes(work) for work in notes.works] == [at(a, b)]
    assert [(reads(w), writes(w)) for w in joined.works] == [(at(a, b), at(result))]
    assert not joined.works[0].has_scratch


@pytest.mark.oldest
def test_only_of_a_copy_the_hosts_memory_need_not_be_told():
    notes, host, accesses = AccessNotes(Marks()), torch.ones(2), {}
    assert not notes._add(accesses, [(host, True)])
    assert notes._add(accesses, [(host, True)], with_host=True) and accesses == {}
    other = torch.ones(2, device="meta")
    assert not notes._add(accesses, [(other, True)], with_host=True)


def test_a_tensor_both_read_and_written_counts_as_written_at_the_address_of_its_view():
    x = torch.randn(8)
    notes, _ = notes_of(lambda: x[4:].add_(x[4:]))
    assert [work.accesses for work in notes.works] == [((x.data_ptr() + 16, True),)]


@pytest.mark.oldest
def test_the_nodes_of_a_piece_lie_between_two_marks_of_its_own():
    x = torch.randn(4, 4)
    notes, _ = notes_of(lambda: x.mm(x).mm(x))
    assert [work.mark for work in notes.works] == [2, 4]


@pytest.mark.oldest
@pytest.mark.parametrize("run", [
    lambda x: x.view(16), lambda x: x[1:].t(), lambda x: aten.expand(x, [2, 4, 4]),
    overwrite, lambda x: aten.linalg_cholesky_ex(x), aten.linalg_lu_factor_ex,
    lambda x: x.to_sparse(), lambda x: x.to("meta"),
    lambda x: x.to("meta") + 1,
    lambda x: torch.ops.prims.normal([2], mean=0.0, std=1.0, dtype=torch.float32, device="cpu",
                                     requires_grad=False),
    lambda x: torch.ops.prims.inductor_random([2], torch.tensor(1), "rand"),
], ids=["view", "slice", "expand", "custom operator", "cholesky", "lu", "sparse",
        "to another device", "on another device", "random primitive",
        "random primitive of Inductor"])
def test_what_queues_nothing_or_is_not_known_gets_no_note(run):
    x = torch.rand(4, 4)
    notes, _ = notes_of(run, x)
    assert notes.works == []


@pytest.mark.oldest
@pytest.mark.parametrize("run", [
    aten.uniform_, lambda x: aten.native_dropout(x, 0.5, True)[0], torch.rand_like,
    lambda x: aten.randint.low_out(0, 9, [4, 4], out=x)],
    ids=["uniform_", "dropout", "rand_like", "seeds"])
def test_what_draws_random_numbers_is_noted_as_any_operator(run):
    x = torch.rand(4, 4)
    notes, y = notes_of(run, x)
    [work] = notes.works
    assert y.data_ptr() in writes(work)


@pytest.mark.oldest
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_attention_is_noted_whether_it_drops_or_not(share):
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    notes, y = notes_of(
        torch.inference_mode()(F.scaled_dot_product_attention), q, k, v, None, share)
    assert any(reads(work) >= at(q, k, v) and y.data_ptr() in writes(work)
               for work in notes.works)


@pytest.mark.oldest
@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_count_as_written_although_the_schema_does_not_say_so(training):
    x, weight, bias = torch.randn(4, 3, 5), torch.ones(3), torch.zeros(3)
    mean, variance = torch.zeros(3), torch.ones(3)
    notes, _ = notes_of(aten.native_batch_norm, x, weight, bias, mean, variance, training, 0.1,
                        1e-5)
    [work] = notes.works
    assert writes(work) >= at(mean, variance) and reads(work) == at(x, weight, bias)


@pytest.mark.oldest
@pytest.mark.parametrize(("operator", "written"), [
    (aten.native_batch_norm.out,
     {"running_mean", "running_var", "out", "save_mean", "save_invstd"}),
    (aten.cudnn_batch_norm.default, {"running_mean", "running_var"}),
    (aten._cudnn_rnn_backward.default, {"weight_buf", "reserve", "dropout_state"}),
    (aten._foreach_add_.Scalar, {"self"}), (aten.addmm.dtype_out, {"out"}),
    (aten.addmm.default, set()), (aten._flash_attention_backward.default, set())])
def test_the_written_arguments_of_an_operator(operator, written):
    """Also of those that only a GPU has."""
    names = [argument.name for argument in operator._schema.arguments]
    assert {name for name, is_written in schema.arguments_of(operator, names, {}) if is_written} \
        == written


@pytest.mark.oldest
def test_an_operator_made_of_others_is_noted_once_also_where_it_arrives_whole():
    x, w, b = torch.randn(4, 5), torch.randn(6, 5), torch.randn(6)
    with torch.inference_mode():
        notes, y = notes_of(F.linear, x, w, b)
    [work] = [work for work in notes.works if y.data_ptr() in writes(work)]
    assert reads(work) == at(x, w, b) and len(notes.works) == 1


@pytest.mark.oldest
def test_a_tensor_of_a_wrapping_class_gets_no_note():
    class Wrapping(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return function(*(arg.inner if isinstance(arg, cls) else arg for arg in args))

    notes, _ = notes_of(aten.sin, Wrapping(torch.ones(4)))
    assert notes.works == []


@pytest.mark.oldest
def test_operators_of_higher_order_pass_through_a_noted_call():
    class Increment(torch._ops.HigherOrderOperator):
        def __call__(self, x):
            return super().__call__(x)

    increment = Increment("anabranch_test_increment")
    increment.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(lambda x: x + 1)
    increment.fallthrough(torch._C.DispatchKey.AutogradCPU)
    notes, result = notes_of(increment, torch.ones(2))
    assert result.tolist() == [2.0, 2.0] and notes.works == []


# Every byte that an operator changes is noted.

def _tensor(*shape):
    return torch.rand(*shape) + 0.1


def _indices(*shape, below):
    return torch.randint(0, below, shape)


def _batch_norm():
    return aten.native_batch_norm, (_tensor(2, 3, 4), _tensor(3), _tensor(3), _tensor(3),
                                    _tensor(3), True, 0.1, 1e-5)


OPERATORS = {
    "mm": lambda: (aten.mm, (_tensor(3, 4), _tensor(4, 5))),
    "mm.out": lambda: (lambda a, b, out: aten.mm.out(a, b, out=out),
                       (_tensor(3, 4), _tensor(4, 5), _tensor(3, 5))),
    "addmm.out": lambda: (lambda c, a, b, out: aten.addmm.out(c, a, b, out=out),
                          (_tensor(5), _tensor(3, 4), _tensor(4, 5), _tensor(3, 5))),
    "addmm in place": lambda: (aten.addmm_, (_tensor(3, 5), _tensor(3, 4), _tensor(4, 5))),
    "bmm.out": lambda: (lambda a, b, out: aten.bmm.out(a, b, out=out),
                        (_tensor(2, 3, 4), _tensor(2, 4, 5), _tensor(2, 3, 5))),
    "baddbmm.out": lambda: (lambda c, a, b, out: aten.baddbmm.out(c, a, b, out=out),
                            (_tensor(2, 3, 5), _tensor(2, 3, 4), _tensor(2, 4, 5),
                             _tensor(2, 3, 5))),
    "addmv": lambda: (aten.addmv_, (_tensor(3), _tensor(3, 4), _tensor(4))),
    "convolution": lambda: (aten.convolution, (
        _tensor(1, 2, 6, 6), _tensor(3, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
    "convolution_backward": lambda: (aten.convolution_backward, (
        _tensor(1, 3, 4, 4), _tensor(1, 2, 6, 6), _tensor(3, 2, 3, 3), [3], [1, 1], [0, 0], [1, 1],
        False, [0, 0], 1, [True, True, True])),
    "native_batch_norm": _batch_norm,
    "native_batch_norm.out": lambda: (
        lambda *a: aten.native_batch_norm.out(*a[:8], out=a[8], save_mean=a[9], save_invstd=a[10]),
        (*_batch_norm()[1], _tensor(2, 3, 4), _tensor(3), _tensor(3))),
    "_native_batch_norm_legit": lambda: (aten._native_batch_norm_legit, _batch_norm()[1]),
    "_batch_norm_with_update": lambda: (aten._batch_norm_with_update, (
        *_batch_norm()[1][:5], 0.1, 1e-5)),
    "batch_norm_update_stats": lambda: (aten.batch_norm_update_stats, (
        _tensor(2, 3, 4), _tensor(3), _tensor(3), 0.1)),
    "native_layer_norm": lambda: (aten.native_layer_norm, (
        _tensor(2, 3), [3], _tensor(3), None, 1e-5)),
    "native_group_norm": lambda: (aten.native_group_norm, (
        _tensor(2, 4, 3), _tensor(4), _tensor(4), 2, 4, 3, 2, 1e-5)),
    "copy_": lambda: (aten.copy_, (_tensor(3, 4), _tensor(4))),
    "fill_": lambda: (aten.fill_, (_tensor(3), 2.0)),
    "clone": lambda: (aten.clone, (_tensor(3),)),
    "index": lambda: (aten.index, (_tensor(5, 3), [_indices(4, below=5)])),
    "index_put_": lambda: (aten.index_put_, (
        _tensor(5, 3), [_indices(4, below=5)], _tensor(4, 3), True)),
    "index_add_": lambda: (aten.index_add_, (
        _tensor(5, 3), 0, _indices(4, below=5), _tensor(4, 3))),
    "scatter_": lambda: (aten.scatter_, (_tensor(5, 3), 0, _indices(2, 3, below=5), _tensor(2, 3))),
    "scatter_reduce_": lambda: (aten.scatter_reduce_, (
        _tensor(5, 3), 0, _indices(2, 3, below=5), _tensor(2, 3), "amax")),
    "masked_scatter_": lambda: (aten.masked_scatter_, (_tensor(4), _tensor(4) > 0.5, _tensor(4))),
    "embedding": lambda: (aten.embedding, (_tensor(5, 3), _indices(4, below=5))),
    "embedding_renorm_": lambda: (aten.embedding_renorm_, (
        _tensor(5, 3), _indices(4, below=5), 0.1, 2.0)),
    "embedding_dense_backward": lambda: (aten.embedding_dense_backward, (
        _tensor(4, 3), _indices(4, below=5), 5, -1, False)),
    "_embedding_bag": lambda: (aten._embedding_bag, (
        _tensor(5, 3), _indices(4, below=5), torch.tensor([0, 2]))),
    "sort": lambda: (aten.sort, (_tensor(7),)),
    "topk.values": lambda: (lambda x, v, i: aten.topk.values(x, 2, values=v, indices=i),
                            (_tensor(7), _tensor(2), _indices(2, below=3))),
    "cumsum.out": lambda: (lambda x, out: aten.cumsum.out(x, 0, out=out), (_tensor(7), _tensor(7))),
    "cat.out": lambda: (lambda a, b, out: aten.cat.out([a, b], out=out),
                        (_tensor(3), _tensor(4), _tensor(7))),
    "_fused_adam_": lambda: (lambda p, g, m, v, step: aten._fused_adam_(
        [p], [g], [m], [v], [], [step], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8,
        amsgrad=False, maximize=False), (*(_tensor(4) for _ in range(4)), torch.tensor(1.0))),
    "_fused_sgd_": lambda: (lambda p, g, m: aten._fused_sgd_(
        [p], [g], [m], weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.0, nesterov=False,
        maximize=False, is_first_step=False), tuple(_tensor(4) for _ in range(3))),
    "_foreach_lerp_": lambda: (lambda a, b, c, d: aten._foreach_lerp_([a, b], [c, d], 0.5),
                               tuple(_tensor(4) for _ in range(4))),
    "_foreach_copy_": lambda: (lambda a, b, c, d: aten._foreach_copy_([a, b], [c, d]),
                               tuple(_tensor(4) for _ in range(4))),
    "_amp_foreach_unscale": lambda: (
        lambda a, found, scale: aten._amp_foreach_non_finite_check_and_unscale_([a], found, scale),
        (_tensor(4), torch.zeros(1), _tensor(1))),
    "_fft_c2r": lambda: (lambda x: aten._fft_c2r(x, [0, 1], 2, 4), (
        torch.view_as_complex(_tensor(4, 3, 2)),)),
    "linalg_vector_norm": lambda: (aten.linalg_vector_norm, (_tensor(3, 4), 2.0)),
    "avg_pool2d": lambda: (aten.avg_pool2d, (_tensor(1, 2, 4, 4), [2, 2])),
    "max_pool2d_with_indices": lambda: (aten.max_pool2d_with_indices, (
        _tensor(1, 2, 4, 4), [2, 2])),
    "upsample_bicubic2d": lambda: (aten.upsample_bicubic2d, (_tensor(1, 2, 4, 4), [8, 8], False)),
    "grid_sampler_2d": lambda: (aten.grid_sampler_2d, (
        _tensor(1, 2, 4, 4), _tensor(1, 3, 3, 2), 0, 0, False)),
    "resize_": lambda: (aten.resize_, (_tensor(4), [9])),
}


@pytest.mark.oldest
@pytest.mark.parametrize("name", OPERATORS)
def test_every_byte_that_an_operator_changes_belongs_to_a_tensor_noted_as_written(name):
    operator, args = OPERATORS[name]()
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    tensors += [item for arg in args if isinstance(arg, list) for item in arg
                if isinstance(item, torch.Tensor)]
    before = [(tensor.data_ptr(), tensor.clone()) for tensor in tensors]
    memory = [torch.as_strided(tensor, tensor.shape, tensor.stride()) for tensor in tensors]
    notes, result = notes_of(operator, *args)
    [work] = notes.works
    for kept, (address, old) in zip(memory, before, strict=True):
        if not torch.equal(kept, old):
            assert address in writes(work), f"{name} writes an argument that counts as read"
    results = result if isinstance(result, (tuple, list)) else [result]
    for tensor in results:
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            assert tensor.data_ptr() in writes(work)


# Compiled graphs


@pytest.mark.oldest
def test_compiled_products_are_noted_with_what_each_reads_and_writes():
    x, wq, wk, b = torch.randn(8, 16), torch.randn(16, 16), torch.randn(16, 16), torch.randn(16)
    function = compiled(lambda: (x @ wq, torch.addmm(b, x, wk)))
    notes, (q, k) = compiled_notes(function)
    assert {(frozenset(reads(w)), frozenset(writes(w))) for w in notes.works} == {
        (frozenset(at(x, wq)), frozenset(at(q))), (frozenset(at(b, x, wk)), frozenset(at(k)))}
    assert all(work.has_scratch for work in notes.works)


def attention(x, weight):
    q, k, v = (x @ weight).view(2, 6, 3, 4, 8).unbind(2)
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return y.transpose(1, 2).reshape(2, 6, 32)


def convolution(image, weight):
    return F.conv2d(F.softmax(image, dim=1), weight, padding=1)


def embedding(indices, table, weight):
    return F.embedding(indices, table) @ weight


MODELS = {
    "attention": (attention, lambda: (_tensor(2, 6, 32), _tensor(32, 96))),
    "convolution": (convolution, lambda: (_tensor(1, 3, 8, 8), _tensor(4, 3, 3, 3))),
    "embedding": (embedding, lambda: (_indices(2, 6, below=5), _tensor(5, 8), _tensor(8, 8))),
}


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward_are_noted_on_whatever_thread_they_run(name):
    function, make = MODELS[name]
    args = make()
    weight = args[-1].requires_grad_()
    model = compiled(function)
    model(*args).sum().backward()
    expected, weight.grad = weight.grad, None
    notes = AccessNotes(Marks(), "cpu")
    with notes.known_calls():
        result = model(*args)
        forward = len(notes.works)
        loss = result.sum()
        threads = set()
        weight.register_hook(lambda grad: threads.add(threading.get_ident()))
        caller = threading.Thread(target=loss.backward)
        caller.start()
        caller.join()
    assert forward > 0 and len(notes.works) > forward and threads == {caller.ident}
    is_copied = name == "convolution"  # into another layout, by a kernel that is not noted
    assert is_copied or any(weight.data_ptr() in reads(work) for work in notes.works[:forward])
    assert not any(weight.data_ptr() in writes(work) for work in notes.works)
    assert torch.equal(weight.grad, expected)
    marks = [work.mark for work in notes.works]
    assert marks == sorted(set(marks))


@pytest.mark.oldest
@pytest.mark.parametrize("is_compiled", [True, False])
def test_gradients_of_several_compiled_graphs_are_added_up_in_place(is_compiled):
    """As in a plain backward: a third gradient would be in the recording. Of eager code all is noted
    all the same."""
    def layer(x, w):
        return (x @ w).relu()

    if is_compiled:
        layer = torch.compile(layer, backend="aot_eager")
    x, w = torch.randn(3, 5), torch.randn(5, 5, requires_grad=True)
    loss = layer(layer(x, w), w).sum()
    loss.backward(retain_graph=True)
    expected, w.grad = w.grad, None
    notes = AccessNotes(Marks(), "cpu")
    with torch.profiler.profile() as profile, notes.known_calls():
        loss.backward()
    added = {event.key: event.count for event in profile.key_averages()}
    assert ("aten::add_" in added, "aten::add" in added) == (is_compiled, not is_compiled)
    assert (len(notes.works) == 1) is is_compiled  # the ones that it begins with
    assert torch.equal(w.grad, expected)
    assert not _compat.dispatch_modes()


@pytest.mark.oldest
def test_a_capture_lets_go_of_the_gradients_that_compiled_graphs_make(monkeypatch):
    """Their storages are kept for nobody else, or the engine would think that somebody has them."""
    module, generated = SimpleNamespace(empty_strided_cuda=None), cuda._generated
    monkeypatch.setattr(PyCodeCache, "modules", [module])
    monkeypatch.setattr("anabranch._compat.cuda.empty_strided_cuda", torch.empty_strided)
    with _compat.keep_generated_tensors():
        saved, gradient = (module.empty_strided_cuda((4,), (1,)) for _ in range(2))
        assert [kept.data_ptr() for kept in generated] == [saved.data_ptr(), gradient.data_ptr()]
        _compat.let_go_of_generated([None, gradient])
        assert [kept.data_ptr() for kept in generated] == [saved.data_ptr()]
    assert not generated


@pytest.mark.oldest
def test_results_and_mutations_are_those_of_a_call_without_notes():
    def function(x, w):
        y = x @ w
        x.add_(1.0)
        return y, x.sum(), y.view(-1)

    w = torch.randn(4, 4)
    model, plain, noted = compiled(function), torch.ones(4, 4), torch.ones(4, 4)
    expected = model(plain, w)
    notes = AccessNotes(Marks(), "cpu")
    with notes.known_calls():
        found = model(noted, w)
    assert all(map(torch.equal, found, expected)) and torch.equal(noted, plain)
    assert found[2].data_ptr() == found[0].data_ptr() and notes.works


def graph_of(call):
    """A compiled graph that is only its callable."""
    graph = object.__new__(CompiledFxGraph)
    graph.__dict__.update(current_callable=call, fx_kwargs={}, _compile_context=None,
                          _fx_graph_cache_key=None, compiled_fn_runner=None)
    return graph


@pytest.mark.oldest
def test_the_list_of_inputs_reaches_the_graph_and_is_emptied_by_it():
    def call(inputs):
        a, b = inputs
        inputs.clear()
        return [a.mm(b)]

    inputs = [torch.eye(3), torch.eye(3)]
    notes = AccessNotes(Marks(), "cpu")
    with notes.known_calls():
        [result] = graph_of(call)(inputs)
    assert inputs == [] and torch.equal(result, torch.eye(3)) and len(notes.works) == 1


@pytest.mark.oldest
def test_a_graph_within_a_graph_is_noted_once():
    inner = graph_of(lambda inputs: [inputs[0].mm(inputs[0])])
    x, notes = torch.eye(3), AccessNotes(Marks(), "cpu")
    with notes.known_calls():
        graph_of(lambda inputs: inner(inner(inputs)))([x])
    assert [work.mark for work in notes.works] == [2, 4]


@torch.library.custom_op("anabranch_test::calls_a_graph", mutates_args=())
def calls_a_graph(x: torch.Tensor) -> torch.Tensor:
    y = x + 1  # not seen: the operator is taken as a whole
    return graph_of(lambda inputs: [inputs[0].mm(inputs[0])])([y])[0]


@pytest.mark.oldest
def test_of_a_custom_operator_only_the_graphs_that_it_calls_are_noted():
    x, notes = torch.eye(3), AccessNotes(Marks(), "cpu")
    with notes.known_calls(), notes.noted():
        calls_a_graph(x)
    [work] = notes.works
    assert work.has_scratch and notes._mark() > work.mark


@pytest.mark.oldest
def test_an_exception_goes_through_and_leaves_no_patch_and_no_note():
    before = CompiledFxGraph.__call__, CachingAutotuner.run
    notes, x = AccessNotes(Marks(), "cpu"), torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        with notes.known_calls():
            assert CompiledFxGraph.__call__ is not before[0]
            graph_of(lambda inputs: [torch.mm(*inputs)])([x, x])
    assert (CompiledFxGraph.__call__, CachingAutotuner.run) == before and notes.works == []
    assert notes.has_raised
    torch.ones(2, 2).mm(torch.ones(2, 2))
    assert notes.works == []


@pytest.mark.oldest
def test_patches_go_with_the_last_thread_that_is_inside():
    before = CachingAutotuner.run
    notes = AccessNotes(Marks(), "cpu")
    first_is_out, second_is_in = threading.Event(), threading.Event()
    seen = []

    def second():
        with notes.noted():
            second_is_in.set()
            first_is_out.wait(60)
            seen.append(CachingAutotuner.run)

    thread = threading.Thread(target=second)
    with notes.noted():
        thread.start()
        assert second_is_in.wait(60)
    first_is_out.set()
    thread.join()
    assert seen[0] is not before and CachingAutotuner.run is before


@pytest.mark.oldest
def test_a_thread_whose_stream_is_not_captured_notes_nothing_and_makes_no_marks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    marks = Marks()
    notes = AccessNotes(marks)
    with notes.known_calls(), notes.noted():
        torch.ones(2, 2).mm(torch.ones(2, 2))
        tuner_of(["in_ptr0"]).run(torch.ones(2), stream=0)
    assert marks.count == 0 and notes.works == []


@pytest.mark.oldest
def test_a_seam_that_torch_lacks_means_no_notes(monkeypatch):
    monkeypatch.delattr(CachingAutotuner, "run")
    monkeypatch.delattr(CompiledFxGraph, "__call__")
    x, notes = torch.eye(2), AccessNotes(Marks(), "cpu")
    with notes.known_calls(), notes.noted():
        x.mm(x)
    assert len(notes.works) == 1 and "run" not in vars(CachingAutotuner)
