"""Maxima and minima of the same numbers side by side, and other ways to put parts together."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import operation_draws_affine
import operation_draws_bent
import operation_draws_products
import pytest
import torch
from operation_draws import DRAWERS, draw_call
from torch import Tensor, nn
from torch.autograd import forward_ad

from oracle.slopes import Function, climbed, jacobian_norms
from spectralclip._bounds import norm_bounds
from spectralclip._lipschitz.bounds import lipschitz_bounds
from spectralclip._lipschitz.flow import Flow, Ref, leaves
from spectralclip._lipschitz.following import follow
from spectralclip._lipschitz.operations import refusal
from spectralclip._lipschitz.sorting import COPIES, with_sorted
from spectralclip.nn import GroupSort, MaxMin

assert operation_draws_affine and operation_draws_bent and operation_draws_products

high, low = torch.maximum, torch.minimum


def exact_constant(function: Callable[[Tensor], Tensor], size: int) -> float:
    """The constant of copies, maxima and minima, which are linear where the order is the same.

    There is one Jacobian for each order of the entries, and no other.
    """
    orders = torch.tensor(list(itertools.permutations(range(size))), dtype=torch.float64)
    moves = 0.25 * torch.eye(size, dtype=torch.float64)  # which leave the order as it is
    matrices = [
        torch.stack([(function((x + m)[None]) - function(x[None])).flatten() for m in moves]) / 0.25
        for x in orders
    ]
    return max(float(torch.linalg.matrix_norm(matrix, ord=2)) for matrix in matrices)


def has_forward_derivative(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Torch 2.6 has none for `aminmax`."""
    with forward_ad.dual_level():
        try:
            function(forward_ad.make_dual(x, x))
        except NotImplementedError:
            return False
    return True


def halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.cat([high(a, b), low(a, b)], 1)


def in_pairs(x: Tensor) -> Tensor:
    return x.reshape(len(x), x.shape[1] // 2, 2, *x.shape[2:])


def written(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y[:, ::2] = high(x[:, ::2], x[:, 1::2])
    y[:, 1::2] = low(x[:, ::2], x[:, 1::2])
    return y


def written_over(x: Tensor) -> Tensor:
    y, (a, b) = x.clone(), x.chunk(2, 1)
    y[:, : x.shape[1] // 2] = high(a, b)
    y[:, x.shape[1] // 2 :] = low(a, b)
    return y


def both(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(*x.chunk(2, 1))


SORTED: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": halves,
    "minima first": both(lambda a, b: torch.cat([low(a, b), high(a, b)], 1)),
    "swapped": both(lambda a, b: torch.cat([high(a, b), low(b, a)], 1)),
    "torch.max": both(lambda a, b: torch.cat([torch.max(a, b), torch.min(a, b)], 1)),
    "fmax": both(lambda a, b: torch.cat([torch.fmax(a, b), torch.fmin(a, b)], 1)),
    "split": lambda x: torch.cat(
        [high(*x.split(x.shape[1] // 2, 1)), low(*x.split(x.shape[1] // 2, 1))], 1
    ),
    "slices": lambda x: torch.cat([high(x[:, ::2], x[:, 1::2]), low(x[:, ::2], x[:, 1::2])], 1),
    "stacked": lambda x: torch.stack(
        [high(x[:, ::2], x[:, 1::2]), low(x[:, ::2], x[:, 1::2])], 2
    ).flatten(1, 2),
    "amax of a view": lambda x: torch.cat([(y := in_pairs(x)).amax(2), y.amin(2)], 1),
    "max of a view": lambda x: torch.stack(
        [(y := in_pairs(x)).max(2).values, y.min(2).values], 2
    ).reshape(x.shape),
    "axis kept": lambda x: torch.cat(
        [(y := in_pairs(x)).amax(2, keepdim=True), y.amin(2, keepdim=True)], 2
    ).flatten(1, 2),
    "aminmax": lambda x: torch.cat(torch.aminmax(in_pairs(x), dim=2), 1),
    "unbound": lambda x: torch.cat([high(*in_pairs(x).unbind(2)), low(*in_pairs(x).unbind(2))], 1),
    "maximum of one way, minimum of another": lambda x: torch.cat(
        [in_pairs(x).amax(2), low(x[:, ::2], x[:, 1::2])], 1
    ),
    "sort": lambda x: in_pairs(x).sort(dim=2).values.flatten(1, 2),
    "written": written,
    "in parts": both(
        lambda a, b: torch.cat([*high(a, b).split(1, 1), *low(a, b).split(1, 1)[::-1]], 1)
    ),
    "turned round": both(lambda a, b: torch.cat([high(a, b).flip(1), low(a, b).roll(1, 1)], 1)),
    "of pieces": lambda x: torch.cat(
        [
            torch.cat([high(a, b), low(a, b)], 1)
            for a, b in zip(*(half.split(1, 1) for half in x.chunk(2, 1)), strict=True)
        ],
        1,
    ),
    "with itself turned": lambda x: torch.cat(
        [high(x, x.flip(1))[:, : x.shape[1] // 2], low(x, x.flip(1))[:, : x.shape[1] // 2]], 1
    ),
    "beside noise": both(
        lambda a, b: torch.cat([high(a, b), low(a, b), 0 * torch.rand(a.shape)], 1)
    ),
    "twice": lambda x: halves(halves(x).roll(1, 1)),
    "MaxMin": MaxMin(),
    "GroupSort": GroupSort(4),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its forward mode
@pytest.mark.parametrize("name", SORTED)
@pytest.mark.parametrize("shape", [(4,), (8, 2, 3)], ids=str)
def test_sorting_written_by_hand_has_constant_one(name: str, shape: tuple[int, ...]) -> None:
    example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    bound = lipschitz_bounds(Function(SORTED[name]), example)
    assert bound.upper == pytest.approx(1.0, rel=1e-12)
    assert bound.product == pytest.approx(1.0, rel=1e-12)
    if has_forward_derivative(SORTED[name], example):  # which the lower end comes from
        assert bound.lower == pytest.approx(1.0, rel=1e-2)


def test_the_step_says_what_it_is() -> None:
    def largest_and_smallest(x: Tensor) -> Tensor:
        return torch.cat([x.amax(1), x.amin(1)])

    model = nn.Sequential(nn.Linear(3, 4), Function(halves))
    (_, step) = lipschitz_bounds(model, torch.randn(1, 3), local=False).steps
    assert (step.where, step.operation, step.factor) == ("1", "maximum + minimum", 1.0)
    assert step.note == "sorted in pairs"
    (step,) = lipschitz_bounds(Function(largest_and_smallest), torch.randn(1, 5), local=False).steps
    assert (step.factor, step.note) == (1.0, "sorted in groups")


# --- What looks similar and is steeper -----------------------------------------------------------

# Of inputs with four entries.
ROOT2, ROOT3 = math.sqrt(2), math.sqrt(3)
SIMILAR: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    # Maxima alone are taken one by one.
    "the maximum twice": (both(lambda a, b: torch.cat([high(a, b), high(a, b)], 1)), 2.0),
    "maximum twice, minimum once": (
        both(lambda a, b: torch.cat([high(a, b), high(a, b), low(a, b)], 1)),
        ROOT2,
    ),
    "other partners": (
        lambda x: torch.cat([high(x[:, :1], x[:, 1:2]), low(x[:, :1], x[:, 2:3])], 1),
        ROOT2,
    ),
    "partners turned round": (
        both(lambda a, b: torch.cat([high(a, b), low(a, b.flip(1))], 1)),
        ROOT2,
    ),
    "overlapping slices": (
        lambda x: torch.cat([high(x[:, :3], x[:, 1:]), low(x[:, :3], x[:, 1:])], 1),
        ROOT2,
    ),
    "with itself": (lambda x: torch.cat([high(x, x), low(x, x)], 1), ROOT2),
    "with itself in part": (
        lambda x: torch.cat([high(x, x.flip(1)), low(x, x.flip(1))], 1),
        ROOT2,
    ),
    "along an axis of one": (
        lambda x: torch.cat([x[:, None].amax(1), x[:, None].amin(1)], 1),
        ROOT2,
    ),
    "an entry twice in a set": (
        lambda x: torch.cat([x[:, [0, 0, 1]].amax(1), x[:, [0, 0, 1]].amin(1)]),
        1.0,
    ),
    "the same entry thrice": (
        lambda x: torch.cat([x[:, :1].expand(-1, 3).amax(1), x[:, :1].expand(-1, 3).amin(1)]),
        ROOT2,
    ),
    "and the input": (
        both(lambda a, b: torch.cat([high(a, b), low(a, b), a, b], 1)),
        ROOT2,
    ),
    "and a half of it": (both(lambda a, b: torch.cat([high(a, b), low(a, b), a], 1)), ROOT2),
    "side by side, broadcast": (
        lambda x: torch.cat([high(x[:, :1], x[:, 1:]), low(x[:, :1], x[:, 1:])], 1),
        ROOT3,
    ),
    "expanded": (both(lambda a, b: torch.cat([high(a, b), low(a, b)], 1).repeat(1, 3)), ROOT3),
    "written twice": (lambda x: torch.cat([written(x), written(x)], 1), ROOT2),
    # That nothing is left of what was there before is not seen.
    "written over": (written_over, ROOT2),
}


@pytest.mark.parametrize("name", SIMILAR)
def test_what_looks_similar_has_its_own_constant(name: str) -> None:
    function, constant = SIMILAR[name]
    bound = lipschitz_bounds(Function(function), torch.randn(1, 4), local=False)
    assert exact_constant(function, 4) <= bound.upper * (1 + 1e-9)
    assert bound.upper == pytest.approx(constant, rel=1e-9)


A = torch.tensor([[2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
B = torch.tensor([[2.0, 0.5], [0.0, 3.0]], dtype=torch.float64)
STEEPER: dict[str, Callable[[Tensor], Tensor]] = {
    "of two layers": lambda x: torch.cat([high(x @ A, x @ B), low(x @ A, x @ B)], 1),
    "of layers that differ": lambda x: torch.cat([high(x @ A, x @ B), low(x @ A, x @ A.T)], 1),
    "of a value and its double": lambda x: torch.cat([high(x, 2 * x), low(x, 2 * x)], 1),
    "of a value and its opposite": lambda x: torch.cat([high(x, -x), low(x, -x)], 1),
    "minus the minimum": lambda x: torch.cat([high(*(y := x @ A).T), -low(*y.T)]),
    "of a maximum": lambda x: torch.cat(
        [high(h := high(*(y := x @ A).T), y[:, 0]), low(h, y[:, 0]), h]
    ),
    "of a ReLU": lambda x: torch.cat([high(x, x.relu() @ A), low(x, x.relu() @ A)], 1),
    "with a constant": lambda x: torch.cat([high(x, A[:1]), low(x, A[:1]), x @ B], 1),
    "with a pad": lambda x: torch.cat(
        [(y := nn.functional.pad(x, (1, 1)))[:, 1:].amax(1), y[:, :3].amin(1), x.sum(1)]
    ),
    "scaled in between": lambda x: torch.cat([3 * high(*x.T), low(*x.T)]),
}


@pytest.mark.parametrize("name", STEEPER)
def test_no_place_is_steeper_than_the_bound(name: str) -> None:
    model = Function(STEEPER[name])
    upper = lipschitz_bounds(model, torch.randn(1, 2).double(), local=False).upper
    points = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)).double()
    truth = max(float(jacobian_norms(model, points).max()), climbed(model, 2, 0, 3))
    assert truth <= upper * (1 + 1e-6)
    assert upper <= 3 * truth


def test_examples_that_influence_each_other_count_together() -> None:
    def across(x: Tensor) -> Tensor:
        return torch.cat([high(x, x.flip(0)), low(x, x.flip(0))], 1)

    def once(x: Tensor) -> Tensor:
        return torch.cat([high(x, x.flip(0))[:1], low(x, x.flip(0))[:1]])

    batch = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert lipschitz_bounds(Function(across), batch).upper == pytest.approx(ROOT2)
    assert lipschitz_bounds(Function(once), batch).upper == pytest.approx(1.0)


def test_places_without_a_bound_are_not_passed_over() -> None:
    def drawn(x: Tensor) -> Tensor:
        y = x[:, torch.randperm(4)]
        return torch.cat([high(*y.chunk(2, 1)), low(*y.chunk(2, 1))], 1)

    def looked_up(x: Tensor) -> Tensor:
        y = x[:, x[0].argsort()]
        return torch.cat([high(*y.chunk(2, 1)), low(*y.chunk(2, 1))], 1)

    def placed(x: Tensor) -> Tensor:
        y = in_pairs(x).max(2)
        return torch.cat([y.values, in_pairs(x).amin(2), y.indices], 1)

    for function in (drawn, looked_up, placed):
        with torch.random.fork_rng():
            bound = lipschitz_bounds(Function(function), torch.randn(1, 4), local=False)
        assert math.isinf(bound.upper) and bound.unbounded


# What is drawn for `cat` and `stack` scales its parts before.
@pytest.mark.parametrize("name", sorted((set(COPIES) & set(DRAWERS)) - {"cat", "stack"}))
def test_what_counts_as_a_copy_makes_no_other_numbers(name: str) -> None:
    calls = [call for seed in range(12) if (call := draw_call(name, seed)) is not None]
    looked_at = 0
    for call in calls:
        x = torch.arange(1.0, 1.0 + math.prod(call.shape), dtype=torch.float64)
        flow = follow(Function(call), [x], {})
        nodes = [node for node in flow.nodes if node.operation == name]
        read = [leaf for node in nodes for leaf in leaves(node.argument(COPIES[name]))]
        if all(isinstance(leaf, Ref) for leaf in read) and not any(refusal(n, flow) for n in nodes):
            looked_at += 1
            assert all(bool(torch.isin(made, x).all()) for made in call(x))
    assert looked_at > 0


# --- Programs put together at random -------------------------------------------------------------

SIZE = 4
MOVES: list[Callable[[Tensor, int], Tensor]] = [
    lambda x, n: x[min(n % 2, len(x) - 1) :],
    lambda x, n: x[min(n % 2, len(x) - 1) :: 2],
    lambda x, n: x[: max(1, len(x) // 2)],
    lambda x, n: x.flip(0),
    lambda x, n: x.roll(n),
    lambda x, n: torch.cat([x, x[: n % 2 + 1]]),
    lambda x, n: torch.cat(x.split(1)[::-1]),
    lambda x, n: torch.stack([x, x.flip(0)], 1).flatten()[n % 2 :],
    lambda x, n: x[[n % len(x), -1]],
]
EXTREMES: list[Callable[[Tensor, Tensor], Tensor]] = [
    high,
    low,
    lambda a, b: torch.stack([a, b]).amax(0),
    lambda a, b: torch.stack([a, b]).min(0).values,
    lambda a, b: torch.aminmax(torch.stack([a, b], 1), dim=1)[0],
    lambda a, b: torch.stack([a, b, a.flip(0)]).max(0).values,
    lambda a, b: torch.cat([a, b]).amin(0, keepdim=True),
]


def drawn_program(seed: int) -> Callable[[Tensor], Tensor]:
    """Copies, then maxima and minima of these, then some of all of them side by side."""
    rng = random.Random(seed)
    draws = [[rng.randrange(1000) for _ in range(3)] for _ in range(14)]
    joined = [rng.randrange(1000) for _ in range(rng.randint(2, 5))]

    def program(x: Tensor) -> Tensor:
        copies = [x.flatten()]
        for kind, which, n in draws[:3]:
            copies.append(MOVES[kind % len(MOVES)](copies[which % len(copies)], n))
        made = list[Tensor]()
        for kind, first, second in draws[3 : 5 + seed % 4]:
            values = copies + made if seed % 3 == 0 else copies
            a, b = values[first % len(values)], values[second % len(values)]
            size = min(len(a), len(b))
            made.append(EXTREMES[kind % len(EXTREMES)](a[:size], b[len(b) - size :]))
            made.append(EXTREMES[(kind + 1) % 2](a[:size], b[len(b) - size :]))
        values = made if seed % 2 else made + copies
        return torch.cat([values[-1], values[-2], *(values[n % len(values)] for n in joined)])

    return program


def check_programs(seeds: range) -> int:
    """Compare bounds with the exact constants; how many of them are the same."""
    tight = 0
    for seed in seeds:
        program = drawn_program(seed)
        bound = lipschitz_bounds(Function(program), torch.randn(1, SIZE), local=False)
        truth = exact_constant(program, SIZE)
        assert truth <= bound.upper * (1 + 1e-9), f"program {seed}"
        tight += bound.upper <= truth * (1 + 1e-9)
    return tight


FEW, MANY = 16, 600


def test_no_drawn_program_is_steeper_than_its_bound() -> None:
    assert check_programs(range(FEW)) >= FEW // 3


@pytest.mark.slow
def test_no_drawn_program_of_many_is_steeper_than_its_bound() -> None:
    assert check_programs(range(FEW, MANY)) >= MANY // 3


# --- Parts of one value put together again --------------------------------------------------------

PERMUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "chunks": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "strided": lambda x: torch.cat([x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)], 1),
    "stacked": lambda x: torch.stack(x.unbind(1), -1),
}


def operations(flow: Flow) -> list[str]:
    return [flow.nodes[index].operation for index in sorted(flow.needed())]


@pytest.mark.parametrize("name", PERMUTED)
def test_parts_put_together_again_are_the_value_in_another_order(name: str) -> None:
    layer = nn.Conv2d(3, 4, 3, padding=1)
    example = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(layer, Function(PERMUTED[name]), nn.ReLU())
    assert operations(with_sorted(follow(model, [example], {}))).count("permuted") == 1
    bound = lipschitz_bounds(model, example, local=False)
    assert bound.upper == bound.product == norm_bounds(layer, (3, 6, 6)).upper
    assert [step.operation for step in bound.steps] == ["Conv2d", "relu"]


def test_parts_that_are_missing_or_used_twice_are_left_as_they_are() -> None:
    def some(x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], x[:, 2:]], 1)

    def twice(x: Tensor) -> Tensor:
        return torch.cat([x[:, :2], x[:, 1:]], 1)

    for function, constant in ((some, 1.0), (twice, ROOT2)):
        flow = follow(Function(function), [torch.randn(1, 3)], {})
        assert operations(with_sorted(flow)) == operations(flow)
        bound = lipschitz_bounds(Function(function), torch.randn(1, 3))
        assert bound.upper == pytest.approx(constant, rel=1e-6)
