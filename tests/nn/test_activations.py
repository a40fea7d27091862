"""Activations that sort, against torch's own sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracle.slopes import jacobian_norms
from spectralclip._lipschitz import lipschitz_bounds
from spectralclip.nn import GroupSort, MaxMin

SHAPES = [((6,), 1), ((4, 3, 5), 1), ((3, 5, 8), -1), ((3, 6, 2), 2)]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_maxima_come_first_and_then_the_minima(shape: tuple[int, ...], dim: int) -> None:
    x = numbers(3, *shape)
    channels = x.movedim(dim, 0)
    pairs = torch.stack([channels[: len(channels) // 2], channels[len(channels) // 2 :]])
    expected = pairs.sort(0, descending=True).values.flatten(0, 1).movedim(0, dim)
    assert torch.equal(MaxMin(dim)(x), expected)
    assert torch.equal(GroupSort(2, dim)(x), expected)


def test_groups_are_sorted_and_lie_apart() -> None:
    x = numbers(2, 12, 3)
    y = GroupSort(4)(x)
    for group in range(3):
        assert torch.equal(y[:, group::3], x[:, group::3].sort(1, descending=True).values)
    assert torch.equal(GroupSort(1)(x), x)


@pytest.mark.parametrize("module", [MaxMin(), GroupSort(2), GroupSort(3)], ids=str)
def test_lengths_of_moves_are_kept(module: nn.Module) -> None:
    norms = jacobian_norms(module, numbers(20, 6, 2))
    assert torch.allclose(norms, torch.ones(()).double())
    x, gradient = numbers(2, 6, 2).requires_grad_(), numbers(2, 6, 2).flip(0)
    (back,) = torch.autograd.grad(module(x), x, gradient)
    assert float(back.norm()) == pytest.approx(float(gradient.norm()))
    bound = lipschitz_bounds(module, torch.randn(2, 6, 2), local=False)
    assert bound.upper == 1.0


@pytest.mark.filterwarnings("ignore")  # of what torch calls deprecated
def test_derivatives_of_every_kind_and_order() -> None:
    x = numbers(3, 8).requires_grad_()
    assert torch.autograd.gradcheck(MaxMin(), x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(MaxMin(), x)


def test_equal_numbers_stay_where_they_are() -> None:
    x = torch.ones(1, 4, requires_grad=True)
    (back,) = torch.autograd.grad(MaxMin()(x), x, torch.arange(4.0)[None])
    assert torch.equal(back, torch.arange(4.0)[None])


@pytest.mark.filterwarnings("ignore")  # of what torch calls deprecated
@pytest.mark.parametrize(
    "compiled",
    [
        torch.jit.script,
        lambda module: torch.jit.trace(module, torch.zeros(2, 8)),
        lambda module: torch.compile(module, fullgraph=True, backend="aot_eager"),
        lambda module: torch.export.export(module, (torch.zeros(3, 8),)).module(),
        lambda module: torch.func.vmap(module),
    ],
    ids=["script", "trace", "compile", "export", "vmap"],
)
def test_compiled_it_is_the_same(compiled: Any) -> None:
    module, x = nn.Sequential(MaxMin(-1)), numbers(3, 8).float().requires_grad_()
    found = compiled(module)(x)
    assert torch.equal(found, module(x))
    both = (torch.autograd.grad(y.square().sum(), x)[0] for y in (found, module(x)))
    assert torch.equal(*both)


@pytest.mark.parametrize("module", [MaxMin(), GroupSort(3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_layout_and_precision_are_kept(module: nn.Module, dtype: torch.dtype) -> None:
    x = numbers(2, 6, 4, 4).to(dtype)
    y = module(x.to(memory_format=torch.channels_last))
    assert y.dtype == dtype and torch.equal(y, module(x))


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (MaxMin(), (2, 5), r"MaxMin needs a multiple of 2 channels, got 5 along axis 1"),
        (GroupSort(4), (2, 6, 4), r"GroupSort needs a multiple of 4 channels, got 6"),
        (MaxMin(3), (2, 4, 4), r"MaxMin got a tensor of shape \[2, 4, 4\], which has no axis 3"),
    ],
    ids=str,
)
def test_channels_that_fall_into_no_groups_are_refused(
    module: nn.Module, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        module(torch.zeros(shape))


@pytest.mark.parametrize("module", [MaxMin, lambda dim: GroupSort(2, dim)])
def test_an_axis_is_an_integer(module: Callable[[Any], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"dim must be an integer.*got 1\.5"):
        module(1.5)


@pytest.mark.parametrize("size", [0, -2, 2.0, True])
def test_a_group_has_a_size(size: object) -> None:
    with pytest.raises(ValueError, match="group_size must be an integer of at least 1"):
        GroupSort(size)  # type: ignore[arg-type]


def test_they_say_what_they_were_made_with() -> None:
    assert (str(MaxMin(2)), str(GroupSort(4))) == (
        "MaxMin(dim=2)",
        "GroupSort(group_size=4, dim=1)",
    )
