"""What a benchmark counts of a sequence of operations, against a count by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.training.counter import Count, counting

X = torch.arange(12.0).view(3, 4)
FLOAT = 4


def counted(work: Callable[[], object]) -> Count:
    with counting() as count:
        work()
    return count


def test_an_operation_is_a_kernel_with_its_inputs_and_outputs() -> None:
    assert counted(lambda: (X + X).sum()) == Count(kernels=2, bytes=FLOAT * (3 * 12 + 12 + 1))


def test_views_are_no_kernels() -> None:
    views = counted(lambda: X.t()[None].transpose(1, 2).expand(5, 3, 4)[0].unbind())
    assert (views.kernels, views.reads, views.bytes) == (0, 0, 0)
    assert views.views == 6  # the index is a selection


def test_memory_that_is_set_aside_is_no_kernel() -> None:
    assert counted(lambda: X.new_empty(3)).kernels == 0
    assert counted(lambda: X.new_zeros(3)).kernels == 1


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x[0, 0]),
    "bool": lambda x: bool(x[0, 0]),
    "int": lambda x: int(x[0, 0]),
    "tolist": lambda x: x.tolist(),
    "tolist of a number": lambda x: x[0, 0].tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "nonzero": lambda x: x.nonzero(),
    "equal": lambda x: torch.equal(x, x),
    "a decomposition with checks": lambda x: torch.linalg.cholesky(torch.eye(2)),
    "to another device": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("name", READS)
def test_what_the_host_waits_for_is_one_read(name: str) -> None:
    assert counted(lambda: READS[name](X)).reads == 1


def test_a_mask_as_an_index_is_a_read_and_places_are_none() -> None:
    mask, places = X > 3, torch.tensor([2, 0])
    assert counted(lambda: X[mask]).reads == 1
    assert counted(lambda: X[places]).reads == 0


def test_tensors_are_read_as_usual_afterwards() -> None:
    counted(lambda: None)
    assert "tolist" not in vars(Tensor) and "numpy" not in vars(Tensor)
    assert X[0].tolist() == [0, 1, 2, 3]


def test_lists_of_contiguous_tensors_are_one_kernel() -> None:
    ones = [torch.ones(4), torch.ones(2, 3)]
    assert counted(lambda: torch._foreach_add(ones, ones)) == Count(kernels=1, bytes=FLOAT * 3 * 10)
    assert counted(lambda: torch._foreach_mul_(ones, 2.0)).bytes == FLOAT * 2 * 10


def test_lists_of_others_are_a_kernel_for_each() -> None:
    ones, transposed = [torch.ones(3, 2)] * 3, [torch.ones(2, 3).t()] * 3
    assert counted(lambda: torch._foreach_add(ones, transposed)).kernels == 3
    assert counted(lambda: torch._foreach_mul(transposed, 2.0)).kernels == 3
    rows = [torch.ones(2)] * 3
    assert counted(lambda: torch._foreach_add(ones, rows)).kernels == 3


def test_bytes_of_what_is_repeated_overwritten_and_given_to_write_to() -> None:
    repeated, out = torch.ones(1, 4).expand(3, 4), torch.empty(3, 4)
    assert counted(lambda: torch.mul(repeated, X, out=out)).bytes == FLOAT * (4 + 12 + 12)
    assert counted(lambda: out.copy_(X)).bytes == FLOAT * (12 + 12)
    assert counted(lambda: out.add_(X)).bytes == FLOAT * (12 + 12 + 12)


def test_a_backward_pass_is_counted() -> None:
    weight = torch.ones(4, requires_grad=True)
    loss = (X @ weight).sum()
    assert counted(loss.backward).kernels > 0
