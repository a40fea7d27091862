"""Two processes with half a batch each are one process with the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import Processes
from torch import Tensor

from spectralclip.nn import CenterNorm, ScalarBatchNorm

pytestmark = pytest.mark.slow  # until the processes have started

KINDS = {"center": CenterNorm, "scalar": ScalarBatchNorm}
SIZES = [4, 7]  # of the parts of the batch


@pytest.fixture(scope="module")
def pair() -> Iterator[Processes]:
    processes = Processes(2)
    yield processes
    processes.close()


def _case(kind: str, momentum: float | None) -> tuple[Any, list[Tensor], Tensor]:
    """A norm, two batches, and weights for a loss; the same in every process."""
    torch.manual_seed(1)
    norm = KINDS[kind](3, momentum=momentum, sync=True, dtype=torch.float64)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(3))
    scales = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64).view(3, 1)
    drawn = [torch.randn(sum(SIZES), 3, 5, dtype=torch.float64) for _ in range(3)]
    return norm, [scales * (x + 2) for x in drawn[:2]], drawn[2]


def _trained(norm: Any, batches: list[Tensor], weights: Tensor) -> dict[str, Any]:
    outputs, inputs = [], [x.clone().requires_grad_() for x in batches]
    for x in inputs:
        y = norm(x)
        (weights * y.sin()).sum().backward()
        outputs.append(y.detach())
    return {
        "outputs": outputs,
        "inputs": [x.grad for x in inputs],
        "parameters": [parameter.grad for parameter in norm.parameters()],
        "buffers": dict(norm.named_buffers()),
        "evaluated": norm.eval()(batches[0]).detach(),
    }


def _on_a_part(kind: str, momentum: float | None, alone: bool = False) -> dict[str, Any]:
    norm, batches, weights = _case(kind, momentum)
    rank = dist.get_rank()
    if alone:
        # Every process has to make every group.
        norm.process_group = [dist.new_group([one]) for one in range(2)][rank]
    return _trained(norm, *([x.split(SIZES)[rank] for x in batches], weights.split(SIZES)[rank]))


@pytest.mark.parametrize("momentum", [0.2, None])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_batch_are_normalized_as_the_whole(
    pair: Processes, kind: str, momentum: float | None
) -> None:
    first, second = pair.run(_on_a_part, kind, momentum)
    whole = _trained(*_case(kind, momentum))
    for name in ("outputs", "inputs"):
        for one, other, expected in zip(first[name], second[name], whole[name], strict=True):
            torch.testing.assert_close(torch.cat([one, other]), expected)
    joined = torch.cat([first["evaluated"], second["evaluated"]])
    torch.testing.assert_close(joined, whole["evaluated"])
    gradients = zip(*(result["parameters"] for result in (first, second, whole)), strict=True)
    for one, other, expected in gradients:
        torch.testing.assert_close(one + other, expected)
    for found in (first, second):
        torch.testing.assert_close(found["buffers"], whole["buffers"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_process_is_on_its_own(pair: Processes, kind: str) -> None:
    found = pair.run(_on_a_part, kind, 0.2, True)
    for rank, result in enumerate(found):
        norm, batches, weights = _case(kind, 0.2)
        parts = [x.split(SIZES)[rank] for x in batches]
        torch.testing.assert_close(result, _trained(norm, parts, weights.split(SIZES)[rank]))


def _with_one_row() -> Any:
    norm = ScalarBatchNorm(2, sync=True)
    y = norm(torch.full((1, 2), float(dist.get_rank())))
    return y.detach(), norm.running_mean, norm.running_var


def test_one_row_in_each_process_is_enough(pair: Processes) -> None:
    for rank, (y, mean, variance) in enumerate(pair.run(_with_one_row)):
        torch.testing.assert_close(y, torch.full((1, 2), 2.0 * rank - 1), rtol=1e-4, atol=0)
        torch.testing.assert_close(mean, torch.full((2,), 0.05))
        torch.testing.assert_close(variance, torch.full((2,), 0.95))
