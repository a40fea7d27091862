"""`init_at_bound_`: norms at their bounds, compared with dense matrices in float64."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, HALF_CASES, Case, Residual, modules, params, parts, train_batch_norm
from seeds import seeded
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from untouched import assert_same, state, surroundings

import spectralclip as sc
from oracle import dense_matrix, dense_norm
from spectralclip.methods import SpectralClip

BOUND = 0.7
REFUSED = ("weight-norm", "orthogonal", "spectral-norm", "old-", "constant", "partly-frozen")
# In bfloat16, a matrix of two or three columns has no rounding that is closer.
COARSE = ("conv2d-reflect-bfloat16", "conv-bn-bfloat16", "residual-bfloat16")


def as_model(case: Case) -> tuple[nn.Module, Tensor]:
    """A case's layer as a model, and an input for it."""
    layer = case.make()
    model = nn.Sequential(*parts(layer)) if isinstance(layer, (list, tuple)) else layer
    first = next(modules(layer))
    if isinstance(first, nn.Embedding):
        return model, torch.zeros(1, *case.in_shape[:-1], dtype=torch.long)
    return model, torch.zeros(1, *case.in_shape, dtype=next(model.parameters()).dtype)


def has_weights(case: Case) -> bool:
    return "callable" not in case.tags and any(
        True for module in modules(case.make()) for _ in module.parameters()
    )


def singular_values(layer: sc.FoundLayer) -> list[np.ndarray]:
    """All of them, for each input size."""
    matrices = (dense_matrix(list(layer.modules), shape) for shape in layer.in_shapes)
    return [np.linalg.svd(matrix, compute_uv=False) for matrix in matrices]


EVERY = [
    case for case in CASES + HALF_CASES if has_weights(case) and "embedding-bag" not in case.name
]
ACCEPTED = [case for case in EVERY if not case.name.startswith(REFUSED)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", params(ACCEPTED))
def test_norms_are_at_the_bound(case: Case) -> None:
    model, x = as_model(case)
    outside = surroundings()
    results = sc.init_at_bound_(model, x, max_norm=BOUND)
    assert_same(outside, surroundings())
    layers = sc.find_layers(model, x)
    assert list(results) == list(layers)
    half = x.dtype in (torch.bfloat16, torch.float16)
    tol = 2e-3 if case.name in COARSE else 1e-3 if half else 2e-5
    for name, result in results.items():
        values = singular_values(layers[name])
        largest, smallest = max(v[0] for v in values), min(v[-1] for v in values)
        assert largest == pytest.approx(BOUND, rel=tol)
        assert result.norm == pytest.approx(largest, rel=1e-4) and result.max_norm == BOUND
        assert result.smallest is not None
        assert result.smallest == pytest.approx(smallest, rel=5e-3 if half else 1e-4, abs=1e-6)


@pytest.mark.parametrize("case", params([case for case in EVERY if case.name.startswith(REFUSED)]))
def test_what_is_refused_is_as_it_was(case: Case) -> None:
    model, x = as_model(case)
    before = state(model)
    with pytest.raises(ValueError, match=r"[Ll]ayer.*(remove_param|no param|are frozen)"):
        sc.init_at_bound_(model, x)
    assert_same(before, state(model))


def resnet() -> nn.Module:
    with seeded(0):
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(12),
            nn.Flatten(),
            nn.Linear(12 * 4 * 4, 10),
        )


IMAGE = torch.zeros(1, 3, 8, 8)


def test_a_network_keeps_norms() -> None:
    """Up to the first layer that has fewer outputs than inputs, no matter which inputs."""
    model = resnet().eval()
    results = sc.init_at_bound_(model, IMAGE, max_norm=1.0)
    assert [result.how for result in results.values()] == [
        *("single tap", "taps of one window", "equal factors", "orthogonal matrix")
    ]
    assert all(result.smallest > 0.95 for result in results.values())
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = model[:2](x)
    torch.testing.assert_close(y.flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))
    # And nothing is left to clip.
    clipped = sc.clip_model_(model, IMAGE, 1.0)
    assert all(result.distance == 0 for result in clipped.values())


def test_only_weights_and_biases_change() -> None:
    model = resnet().to(memory_format=torch.channels_last)
    model[3].weight.requires_grad_(False)
    train_batch_norm(model[1])
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    places = [(p.data_ptr(), p.stride(), p.requires_grad) for p in model.parameters()]
    sc.init_at_bound_(model, IMAGE)
    assert places == [(p.data_ptr(), p.stride(), p.requires_grad) for p in model.parameters()]
    assert model.training and bool((model[0].weight.grad == 1).all())
    after = model.state_dict()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    weights = {f"{index}.{name}" for index in (0, 7) for name in ("weight", "bias")}
    assert changed == {*weights, "5.weight"}  # "3" is frozen
    assert not any(after[f"{index}.bias"].any() for index in (0, 7))


def test_draws_follow_the_generator() -> None:
    def drawn(seed: int | None) -> Tensor:
        model = resnet()
        source = None if seed is None else torch.Generator().manual_seed(seed)
        sc.init_at_bound_(model, IMAGE, generator=source)
        return model[7].weight.detach()

    assert torch.equal(drawn(1), drawn(1)) and torch.equal(drawn(None), drawn(None))
    assert not torch.allclose(drawn(1), drawn(2))


@pytest.mark.parametrize(
    "max_norm",
    [{"3": 2.0, "7": 0.3}, lambda name, layer: {"3": 2.0, "7": 0.3}.get(name)],
    ids=["by-name", "function"],
)
def test_bounds_may_differ_and_leave_layers_alone(max_norm: Any) -> None:
    model = resnet()
    before = state(model[:3])
    results = sc.init_at_bound_(model, IMAGE, max_norm=max_norm)
    assert list(results) == ["3", "7"]
    assert_same(before, state(model[:3]))
    layers = sc.find_layers(model, IMAGE)
    for name, bound in {"3": 2.0, "7": 0.3}.items():
        assert singular_values(layers[name])[0][0] == pytest.approx(bound, rel=1e-5)


class Shared(nn.Module):
    """One weight in an embedding and a dense layer, and one convolution at two sizes."""

    def __init__(self, hooked: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 5, padding_idx=2), nn.Linear(5, 12)
        self.head.weight = self.embedding.weight
        self.conv = nn.Conv1d(5, 5, 3, padding=1)
        if hooked:  # so that nothing is known of it, and its norm depends on the size
            self.conv.register_forward_hook(lambda module, args, y: 3 * y)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x).mT
        y = self.conv(y) + self.conv(y[..., :3]).relu().sum(-1, keepdim=True)
        return self.head(y.mT.relu())


@pytest.mark.parametrize("hooked", [False, True])
def test_shared_weights_and_sizes_are_within_each_bound(hooked: bool) -> None:
    model, x = Shared(hooked), torch.zeros(1, 9, dtype=torch.long)
    results = sc.init_at_bound_(model, x, max_norm={"embedding": 2.0, "conv": 1.5, "head": 0.5})
    layers = sc.find_layers(model, x)
    assert len(layers["conv"].in_shapes) == 2
    largest = {name: max(v[0] for v in singular_values(one)) for name, one in layers.items()}
    assert largest == pytest.approx({"embedding": 0.5, "conv": 1.5, "head": 0.5}, rel=1e-5)
    assert {name: one.norm for name, one in results.items()} == pytest.approx(largest, rel=1e-4)
    assert not model.embedding.weight[2].any() and not model.head.bias.any()
    assert results["conv"].how == ("scaled" if hooked else "single tap")


@pytest.mark.parametrize("columns", [4, 9, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rounded_weights_are_at_the_bound(columns: int, dtype: torch.dtype) -> None:
    layer = nn.Linear(columns, columns + 3).to(dtype)
    result = sc.init_at_bound_(layer, torch.zeros(1, columns, dtype=dtype), max_norm=1.3)[""]
    values = np.linalg.svd(layer.weight.detach().double().numpy(), compute_uv=False)
    assert layer.weight.dtype == dtype
    assert values[0] == pytest.approx(1.3, rel=1e-3) and values[-1] > 0.98 * 1.3
    assert result.norm == pytest.approx(values[0], rel=1e-5)


class Skip(nn.Module):
    """`x + W x`: its norm does not follow the scale of W."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + x @ self.weight.T


@pytest.mark.parametrize("bound", [1.2, 3.0])
def test_norms_that_do_not_follow_the_scale_are_reached(bound: float) -> None:
    layer = Skip()
    result = sc.init_at_bound_(layer, torch.zeros(1, 6), max_norm=bound)[""]
    values = np.linalg.svd(np.eye(6) + layer.weight.detach().double().numpy(), compute_uv=False)
    assert values[0] == pytest.approx(bound, rel=1e-4)
    assert result.smallest == pytest.approx(values[-1], rel=1e-3) and result.how == "scaled"


def zero_norm() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    nn.init.zeros_(norm.weight)
    return nn.Sequential(nn.Linear(6, 4), norm)


BAD = {
    "out-of-reach": (Skip, {"max_norm": 0.5}, "2 times the bound"),
    "zero-batch-norm": (zero_norm, {}, "batch norm has zero weights"),
    "too-large": (lambda: nn.Linear(6, 4).half(), {"max_norm": 1e8}, "NaN or infinite"),
    "too-small": (lambda: nn.Linear(6, 4).half(), {"max_norm": 1e-20}, "so small a bound"),
    "unknown-name": (lambda: nn.Linear(6, 4), {"max_norm": {"x": 1.0}}, "not among"),
    "not-positive": (lambda: nn.Linear(6, 4), {"max_norm": -1.0}, "positive number"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_failure_leaves_the_whole_model_as_it_was(name: str) -> None:
    """Also the layers that come first, which had been drawn by then."""
    make, arguments, message = BAD[name]
    last = make()
    dtype = next(last.parameters()).dtype
    model = nn.Sequential(nn.Linear(5, 6).to(dtype), nn.ReLU(), last)
    if name == "too-small":
        arguments = {"max_norm": lambda name, layer: 1e-20 if name == "2" else 1.0}
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        sc.init_at_bound_(model, torch.zeros(1, 5, dtype=dtype), **arguments)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_seed_is_no_generator() -> None:
    with pytest.raises(TypeError, match="manual_seed"):
        sc.init_at_bound_(nn.Linear(2, 2), torch.zeros(1, 2), generator=3)  # type: ignore[arg-type]


def test_large_layers_without_a_closed_form_leave_the_smallest_value_open() -> None:
    layer = nn.Conv2d(8, 8, 3, padding=1)
    layer.register_forward_hook(lambda module, args, y: 3 * y)
    result = sc.init_at_bound_(layer, torch.zeros(1, 8, 12, 12))[""]
    assert result.smallest is None and math.isclose(result.norm, 1.0, rel_tol=1e-3)


def test_parametrized_parts_of_a_module_are_refused() -> None:
    branch = parametrizations.weight_norm(nn.Conv2d(2, 2, 3, padding=1))
    with pytest.raises(ValueError, match="remove_parametrizations"):
        sc.init_at_bound_(Residual(branch), torch.zeros(1, 2, 5, 5))


# --- One bound for the network ---------------------------------------------------------------


@pytest.mark.parametrize("compose", ["conv_bn", "none"])
@pytest.mark.parametrize("max_lipschitz", [0.5, 30.0])
def test_the_network_starts_at_its_bound(compose: Any, max_lipschitz: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)),
    )
    example = torch.zeros(1, 2, 8, 8)
    results = sc.init_at_bound_(model, example, max_lipschitz=max_lipschitz, compose=compose)
    layers = sc.find_layers(model, example, compose)
    norms = [dense_norm(list(one.modules), one.in_shapes[0]) for one in layers.values()]
    assert math.prod(norms) == pytest.approx(max_lipschitz, rel=2e-3)
    assert len({result.max_norm for result in results.values()}) == 1


@pytest.mark.parametrize("method", [SpectralClip(), SpectralClip(compose="conv_bn")])
def test_a_network_that_starts_at_its_bound_is_not_clipped_when_it_is_attached(
    method: SpectralClip,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(512, 5)),
    )
    composed = {"compose": method.compose} if method.compose == "conv_bn" else {}
    sc.init_at_bound_(model, IMAGE, max_lipschitz=10.0, **composed)
    assert sc.lipschitz_bounds(model, IMAGE).upper == pytest.approx(10.0, rel=1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    sc.attach(model, optimizer, IMAGE, method=method, max_lipschitz=10.0)
    model.eval()(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    # Norms are left a little below their bounds.
    assert sc.lipschitz_bounds(model, IMAGE).upper > 9.0


@pytest.mark.parametrize("proportions", [{"2": 5.0}, lambda name, _: None if name == "0" else 1.0])
def test_layers_may_be_left_out_of_the_network_s_bound(proportions: Any) -> None:
    torch.manual_seed(0)
    first = parametrizations.weight_norm(nn.Linear(4, 4))
    model, x = nn.Sequential(first, nn.ReLU(), nn.Linear(4, 4)), torch.zeros(1, 4)
    before = dense_norm(first, (4,))
    with pytest.raises(ValueError, match=r"remove_parametrizations"):
        sc.init_at_bound_(model, x, max_lipschitz=3.0)
    results = sc.init_at_bound_(model, x, max_lipschitz=3.0, proportions=proportions)
    assert list(results) == ["2"] and dense_norm(first, (4,)) == before
    assert before * dense_norm(model[2], (4,)) == pytest.approx(3.0, rel=2e-3)


def test_the_norms_of_layers_are_in_the_given_proportions() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    results = sc.init_at_bound_(
        model, torch.zeros(1, 4), max_lipschitz=2.0, proportions={"0": 4.0, "2": 2.0}
    )
    assert {name: one.norm for name, one in results.items()} == pytest.approx(
        {"0": 2.0, "2": 1.0}, rel=1e-3
    )
    with pytest.raises(ValueError, match="give max_lipschitz"):
        sc.init_at_bound_(model, torch.zeros(1, 4), proportions={"0": 1.0})


def test_not_both_bounds() -> None:
    with pytest.raises(ValueError, match="not both"):
        sc.init_at_bound_(nn.Linear(2, 2), torch.zeros(1, 2), max_norm=1.0, max_lipschitz=1.0)


def test_frozen_layers_stay_as_they_are_and_count_at_their_norms() -> None:
    """A normalization of pixels as a first layer, here by a factor of 4."""
    pixels = nn.Conv2d(3, 3, 1, bias=True)
    with torch.no_grad():
        pixels.weight.copy_(4 * torch.eye(3)[..., None, None])
    pixels.requires_grad_(False)
    before = [parameter.clone() for parameter in pixels.parameters()]
    model = nn.Sequential(pixels, nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    example = torch.zeros(1, 3, 6, 6)
    results = sc.init_at_bound_(model, example, max_lipschitz=1.0)
    assert list(results) == ["1", "3"]
    assert all(map(torch.equal, pixels.parameters(), before))
    for name, layer in sc.find_layers(model, example).items():
        wanted = 4.0 if name == "0" else 0.5
        assert dense_norm(layer.modules[0], layer.in_shapes[0]) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("max_norm", [1.0, {"0": 1.0}])
def test_frozen_layers_alone_or_by_name_are_refused(max_norm: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.ReLU(), nn.Linear(4, 4))
    if max_norm == 1.0:
        model[2].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"layers \['0'.*\] are frozen.*requires_grad_"):
        sc.init_at_bound_(model, torch.zeros(1, 4), max_norm=max_norm)
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
