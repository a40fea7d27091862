"""What the counts of the training benchmark are made of, and what its page makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.training.compiled import Compiled, kernels_in
from benchmarks.training.counts import COMPARED, COUNTED, Setting, Training
from benchmarks.training.hardware import MARK, MODEL, seconds, with_table
from benchmarks.training.methods import OURS
from benchmarks.training.models import small_convnet

ROW = {"model": MODEL, "kernels": 100, "reads": 2, "bytes": 300_000_000}
CODE = """
cpp_fused_add_0 = async_compile.cpp_pybinding(['float*'], r'''
extern "C" void kernel(float* out_ptr0)
{
    {
        for(int64_t x0=0L; x0<4L; x0+=1L)
        {
        }
    }
    {
        for(int64_t x0=0L; x0<8L; x0+=1L)
        {
        }
    }
}
''')
cpp_fused_mul_1 = async_compile.cpp_pybinding(['float*'], r'''
extern "C" void kernel(float* out_ptr0)
{
    {
    }
}
''')
class Runner:
    def call(self, args):
        buf0 = empty_strided_cpu((4, ), (1, ), torch.float32)
        # Topologically Sorted Source Nodes: [a], Original ATen: [aten.bmm]
        extern_kernels.bmm(buf0, reinterpret_tensor(buf0, (4, ), (1, ), 0), out=buf0)
        cpp_fused_add_0(buf0)
        cpp_fused_mul_1(buf0)
        cpp_fused_add_0(buf0)
        buf1 = torch.ops.aten.topk.default(buf0, 2)
        assert_size_stride(buf1, (2, ), (1, ), 'torch.ops.aten.topk.default')
"""


def test_the_kernels_of_compiled_code_are_those_it_calls() -> None:
    assert kernels_in(CODE) == Compiled(functions=3, loops=5, external=2)


@pytest.mark.parametrize("name", COMPARED)
def test_a_step_reads_a_norm_a_layer_or_nothing(name: str) -> None:
    training = Training(Setting("small convnet", small_convnet, (1, 28, 28)), COUNTED[name]())
    training.settle()
    first, second = training.count(), training.count()
    layers = len(training.attachment.layers)
    assert first.reads == second.reads == (0 if name == OURS else layers)
    if name == OURS:
        assert first == second
    assert first.kernels > layers


def test_an_estimate_is_of_launches_or_of_memory_and_of_stalls() -> None:
    assert seconds(ROW, 5e-6, 1e12) == pytest.approx(100 * 5e-6 + 2 * 50e-6)
    assert seconds(ROW, 5e-6, 1e11) == pytest.approx(3e-3 + 2 * 50e-6)


def test_the_table_goes_between_its_marks() -> None:
    page = f"before\n{MARK}\nold\n{MARK}\nafter"
    part: dict[str, Any] = {"rows": [{**ROW, "method": "some"}], "compiled": None}
    assert with_table(page, {"parts": {}}) == page
    found = with_table(page, {"parts": {"counts": part}})
    assert "| some | 100 | 2 | 300 | 1.1 ms | 0.6 to 1.1 ms | 0.6 to 1.1 ms |" in found
    assert found.startswith("before\n") and found.endswith("\nafter") and "old" not in found
