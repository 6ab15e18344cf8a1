# SPDX-License-Identifier: Apache-2.0
"""Tapes over the real tensor library: every way of calling it gives torch's own bits, at whatever
addresses, and leaves nothing behind."""

from __future__ import annotations

import resource
import threading

import pytest
import torch

from anabranch import _compat
from anabranch._compile.host.tape_writer import tensor_library
from anabranch._core.library import NativeError
from anabranch._core.tape import (
    Address,
    DataOf,
    HandleOf,
    Integers,
    ListValue,
    SomeValue,
    TapeBuilder,
    TensorValue,
)

pytestmark = [pytest.mark.oldest, pytest.mark.own]
NO_BUFFER = 1 << 21  # above every access a tape serves


def dtype_of(tensor):
    return _compat.dtype_code(tensor.dtype)


def view(tape, access, tensor):
    return tape.view(access, 0, dtype_of(tensor), tensor.shape, tensor.stride())


def library_call(tape, name, *arguments):
    tape.call(name, _compat.library_function(name), list(arguments), fallible=True)


def ints(*values):
    return ListValue(list(values))


def address(tensor):
    return tensor.data_ptr()


def poisoned(tensor):
    """Memory of the same layout that holds nothing the test expects."""
    fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return fresh.fill_(77 if tensor.dtype is not torch.bool else True)


def check(write, eager, make_inputs, seed=None):
    """Builds a tape by ``write(tape, inputs, outputs)`` (registers) and runs it three times at new
    addresses and once more at the last: each time as ``eager`` does, and nowhere else."""
    inputs = make_inputs()
    expected = eager(*inputs)
    tape = TapeBuilder(tensor_library())
    registers = [view(tape, i, t) for i, t in enumerate([*inputs, *expected])]
    write(tape, registers[:len(inputs)], registers[len(inputs):])
    tape = tape.finish()
    before = []
    for _ in range(3):
        inputs = make_inputs()
        outputs = [poisoned(t) for t in expected]
        _run_and_compare(tape, eager, inputs, outputs, seed)
        for old_outputs, old_values in before:
            assert all(torch.equal(a, b) for a, b in zip(old_outputs, old_values))
        before.append((outputs, [t.clone() for t in outputs]))
    for tensor in inputs:
        if tensor.is_floating_point():
            tensor.mul_(0.5)
    _run_and_compare(tape, eager, inputs, outputs, seed)


def _run_and_compare(tape, eager, inputs, outputs, seed):
    if seed is not None:
        torch.manual_seed(seed)
    expected = eager(*inputs)
    if seed is not None:
        torch.manual_seed(seed)
    tape.run([address(t) for t in [*inputs, *outputs]])
    for got, want in zip(outputs, expected, strict=True):
        assert torch.equal(got, want)


def check_dispatch(op, overload, arguments, eager, make_inputs):
    """One boxed call: ``arguments`` makes its values from the registers of the inputs; all its
    results are copied out."""
    def write(tape, inputs, outputs):
        values = arguments(*(TensorValue(r) for r in inputs))
        results = tape.dispatch(op, overload, values, len(outputs))
        for result, output in zip(results, outputs):
            tape.copy(output, result)
    check(write, eager, make_inputs)


# ---- functions of the C ABI, called plainly


def test_mm_of_a_transposed_view():
    def write(tape, inputs, outputs):
        a, b = inputs
        library_call(tape, "mm_out", HandleOf(outputs[0]), HandleOf(a), HandleOf(b))
    check(write, lambda a, b: [torch.mm(a, b)],
          lambda: [torch.randn(5, 7).t(), torch.randn(5, 3)])


@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (0.5, -2.0)])
def test_addmm_takes_its_doubles(alpha, beta):
    def write(tape, inputs, outputs):
        library_call(tape, "addmm_out", HandleOf(outputs[0]), *map(HandleOf, inputs), beta, alpha)
    check(write, lambda c, a, b: [torch.addmm(c, a, b, beta=beta, alpha=alpha)],
          lambda: [torch.randn(4), torch.randn(6, 5), torch.randn(5, 4)])


def test_bmm_and_baddbmm():
    def write(tape, inputs, outputs):
        c, a, b = map(HandleOf, inputs)
        library_call(tape, "bmm_out", HandleOf(outputs[0]), a, b)
        library_call(tape, "baddbmm_out", HandleOf(outputs[1]), c, a, b, 0.25, 3.0)
    check(write,
          lambda c, a, b: [torch.bmm(a, b), torch.baddbmm(c, a, b, beta=0.25, alpha=3.0)],
          lambda: [torch.randn(3, 4, 6), torch.randn(3, 4, 5), torch.randn(3, 5, 6)])


def test_randint_takes_sizes_by_pointer_and_torchs_random_numbers():
    def write(tape, inputs, outputs):
        library_call(tape, "randint_low_out", HandleOf(outputs[0]), -5, 1 << 40, Integers([4, 9]),
                     2)
    check(write, lambda: [torch.randint(-5, 1 << 40, (4, 9))], list, seed=3)


# ---- operators, called through the dispatcher


def test_convolution_with_and_without_bias():
    def make():
        return [torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 3), torch.randn(6)]
    check_dispatch(
        "aten::convolution", "",
        lambda x, w, b: [x, w, SomeValue(b), ints(2, 1), ints(1, 1), ints(1, 1), 0, ints(0, 0), 2],
        lambda x, w, b: [torch.conv2d(x, w, b, (2, 1), (1, 1), (1, 1), 2)], make)
    check_dispatch(
        "aten::convolution", "",
        lambda x, w, b: [x, w, None, ints(1, 1), ints(0, 0), ints(1, 1), 0, ints(0, 0), 2],
        lambda x, w, b: [torch.conv2d(x, w, None, 1, 0, 1, 2)], make)


def test_convolution_backward_takes_an_optional_list():
    def eager(grad, x, w):
        return torch.ops.aten.convolution_backward(
            grad, x, w, [3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True])
    check_dispatch(
        "aten::convolution_backward", "",
        lambda grad, x, w: [grad, x, w, SomeValue(ints(3)), ints(1, 1), ints(0, 0), ints(1, 1), 0,
                            ints(0, 0), 1, ints(1, 1, 1)],
        eager, lambda: [torch.randn(2, 3, 6, 6), torch.randn(2, 1, 8, 8), torch.randn(3, 1, 3, 3)])


def test_a_stable_sort_has_two_results():
    check_dispatch("aten::sort", "stable", lambda x: [x, SomeValue(1), 1, 0],
                   lambda x: torch.sort(x, stable=True, dim=1), lambda: [torch.randn(5, 33)])


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    def eager(q, k, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    check_dispatch("aten::_scaled_dot_product_flash_attention_for_cpu", "",
                   lambda q, k, v: [q, k, v, 0.0, int(causal), None, None], eager,
                   lambda: [torch.randn(2, 3, 17, 8) for _ in range(3)])


def test_attention_with_a_scale():
    def eager(q, k, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=0.3)
    check_dispatch("aten::_scaled_dot_product_flash_attention_for_cpu", "",
                   lambda q, k, v: [q, k, v, 0.0, 0, None, SomeValue(0.3)], eager,
                   lambda: [torch.randn(2, 3, 17, 8) for _ in range(3)])


def test_cumsum_with_a_dtype():
    dtype = _compat.dtype_code(torch.float64)
    check_dispatch("aten::cumsum", "", lambda x: [x, 1, None],
                   lambda x: [torch.cumsum(x, 1)], lambda: [torch.randn(3, 50)])
    check_dispatch("aten::cumsum", "", lambda x: [x, 0, SomeValue(dtype)],
                   lambda x: [torch.cumsum(x, 0, dtype=torch.float64)],
                   lambda: [torch.randn(3, 50)])


def test_index_takes_a_list_of_optional_tensors():
    check_dispatch(
        "aten::index", "Tensor",
        lambda x, rows, columns: [x, ListValue([SomeValue(rows), None, SomeValue(columns)])],
        lambda x, rows, columns: [x[rows, :, columns]],
        lambda: [torch.randn(6, 4, 5), torch.randint(0, 6, (7,)), torch.randint(0, 5, (7,))])


def test_cat_takes_a_list_of_tensors():
    check_dispatch("aten::cat", "", lambda a, b: [ListValue([a, b, a]), 1],
                   lambda a, b: [torch.cat([a, b, a], 1)],
                   lambda: [torch.randn(2, 3), torch.randn(2, 4)])


def test_an_operator_that_writes_into_a_buffer():
    def write(tape, inputs, outputs):
        tape.release(tape.dispatch("aten::cumsum", "out", [TensorValue(inputs[0]), 0, None,
                                                           TensorValue(outputs[0])], 1)[0])
    check(write, lambda x: [torch.cumsum(x, 0)], lambda: [torch.randn(40)])


# ---- calls that feed each other


def test_results_go_on_as_views_and_as_data():
    def write(tape, inputs, outputs):
        x = inputs[0]
        values, _ = tape.dispatch("aten::sort", "stable", [TensorValue(x), None, 0, 0], 2)
        flipped = tape.view_of(values, 4, _compat.dtype_code(torch.float32), (5, 6), (1, 5))
        library_call(tape, "mm_out", HandleOf(outputs[0]), HandleOf(flipped), HandleOf(inputs[1]))
        tape.release(values)

    def eager(x, y):
        values = torch.sort(x, stable=True, dim=0).values
        return [values.as_strided((5, 6), (1, 5), 1) @ y]
    check(write, eager, lambda: [torch.randn(31), torch.randn(6, 2)])


def test_plain_functions_get_addresses_and_data():
    import ctypes

    seen = []
    keep = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    function = keep(lambda *words: seen.append(words))
    x = torch.arange(8.0)
    tape = TapeBuilder(tensor_library())
    register = view(tape, 0, x)
    tape.call("keep", ctypes.cast(function, ctypes.c_void_p).value,
              [Address(0, 12), DataOf(register), -3], fallible=False)
    tape = tape.finish()
    for tensor in (x, x.clone()):
        tape.run([address(tensor)])
        assert seen.pop() == (address(tensor) + 12, address(tensor), -3)


def test_scalars_and_tensors_without_elements():
    check_dispatch("aten::cat", "", lambda a, b: [ListValue([a, b]), 0],
                   lambda a, b: [torch.cat([a, b])], lambda: [torch.randn(0), torch.randn(3)])
    check_dispatch("aten::cumsum", "", lambda x: [x, 0, None], lambda x: [torch.cumsum(x, 0)],
                   lambda: [torch.randn(())])


def test_a_tape_runs_on_another_thread():
    def write(tape, inputs, outputs):
        result = tape.dispatch("aten::cumsum", "", [TensorValue(inputs[0]), 0, None], 1)[0]
        tape.copy(outputs[0], result)
    failures = []

    def work():
        try:
            check(write, lambda x: [torch.cumsum(x, 0)], lambda: [torch.randn(100)])
        except BaseException as error:
            failures.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures


# ---- failure


def failing_tape(x):
    tape = TapeBuilder(tensor_library())
    register = view(tape, 0, x)
    results = tape.dispatch("aten::sort", "stable", [TensorValue(register), None, 0, 0], 2)
    listed = ListValue([TensorValue(results[0]), TensorValue(register)])
    tape.dispatch("aten::cat", "", [listed, 7], 1)
    return tape.finish()


def test_a_failing_operator_stops_the_run_with_its_words():
    x = torch.randn(4)
    tape = failing_tape(x)
    for _ in range(2):  # and the tape can be run again
        with pytest.raises(NativeError, match=r"r3 = aten::cat\(\[r1, r0\], 7\): ") as e:
            tape.run([address(x)])
        if _compat.library_function("last_error"):
            assert "out of range" in str(e.value)


def test_an_operator_that_does_not_exist_stops_the_run():
    x = torch.randn(4)
    tape = TapeBuilder(tensor_library())
    tape.dispatch("aten::no_such_operator", "", [TensorValue(view(tape, 0, x))], 1)
    with pytest.raises(NativeError, match="no_such_operator"):
        tape.finish().run([address(x)])


def test_a_result_with_unplanned_strides_stops_the_run():
    x = torch.randn(3, 5)
    tape = TapeBuilder(tensor_library())
    result = tape.dispatch("aten::cumsum", "", [TensorValue(view(tape, 0, x)), 0, None], 1)[0]
    tape.expect(result, (3, 5), (1, 3))
    with pytest.raises(NativeError, match="dim 0 came with stride 5, .* compiled for 1"):
        tape.finish().run([address(x)])


def test_neither_runs_nor_failures_keep_memory():
    x = torch.randn(1 << 18)  # 1 MiB a tensor
    good = TapeBuilder(tensor_library())
    good.dispatch("aten::cumsum", "", [TensorValue(view(good, 0, x)), 0, None], 1)
    good, bad = good.finish(), failing_tape(x[: 1 << 14])

    def work(times):
        for _ in range(times):
            good.run([address(x)])
            with pytest.raises(NativeError):
                bad.run([address(x)])

    work(10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work(150)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10  # KiB


def test_what_a_tape_cannot_do_is_refused_with_a_code():
    tape = TapeBuilder(tensor_library())
    tape.call("wide", 1, [0] * 7 + [1.0], fallible=False)
    tape.view(NO_BUFFER, 0, 6, (1,), (1,))
    tape.copy(5, 6)
    with pytest.raises(NativeError, match="7 words and 1 doubles") as e:
        tape.finish()
    assert e.value.code == 304
    assert f"names access {NO_BUFFER}" in str(e.value)
    assert "names r5" in str(e.value)


def test_a_tape_needs_only_the_functions_it_calls():
    tape = TapeBuilder()
    tape.view(0, 0, 6, (1,), (1,))
    with pytest.raises(NativeError, match="needs the tensor library's create_view"):
        tape.finish()


def test_a_tape_tells_what_it_calls():
    x = torch.randn(4)
    lines = str(failing_tape(x)).splitlines()
    assert lines[0].startswith("r0 = view of b0+0, dtype 6, sizes [4], strides [1]")
    assert lines[1:] == ["r1, r2 = aten::sort.stable(r0, none, 0, 0)",
                         "r3 = aten::cat([r1, r0], 7)"]
