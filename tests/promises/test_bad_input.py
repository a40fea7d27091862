"""What is refused, and that the message names the layer, the trouble and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spectralclip as sc

# Every way in: what one refuses, all refuse.
ENTRIES: dict[str, Callable[..., Any]] = {
    "as_operator": sc.as_operator,
    "check_affine": sc.check_affine,
    "svds": lambda layer, shape: sc.svds(layer, shape, k=1),
    "spectral_norm": lambda layer, shape: sc.spectral_norm(layer, shape),
    "differentiable": lambda layer, shape: sc.spectral_norm(layer, shape, differentiable=True),
    "singular_values": lambda layer, shape: sc.singular_values(layer, shape),
}
every_entry = pytest.mark.parametrize("entry", ENTRIES)


def filled(layer: Any, name: str, value: float) -> Any:
    with torch.no_grad():
        getattr(layer, name).view(-1)[1] = value
    return layer


# --- Not affine ---------------------------------------------------------------------------


class HiddenReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)))


class RandomInEvaluation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)


class MixesTheBatch(nn.Module):
    """Linear in the whole batch, but its rows see each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), HiddenReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def biased_relu() -> nn.Module:
    """Its kinks lie far from the origin."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    nn.init.constant_(layer[0].bias, 100.0)
    return layer


NOT_AFFINE: dict[str, tuple[Callable[[], Any], tuple[int, ...], str]] = {
    "relu": (lambda: nn.ReLU(), (4,), r"ReLU\(\) is not affine"),
    "relu in a sequential": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
        (4,),
        r"ReLU\(\) \(submodule '1'\) is not affine",
    ),
    "relu in a list": (
        lambda: [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())],
        (4,),
        r"ReLU\(\) \(submodule '1\.1'\) is not affine",
    ),
    "relu with a large bias": (biased_relu, (4,), r"ReLU\(\) \(submodule '1'\) is not affine"),
    "hidden relu": (lambda: HiddenReLU(), (4,), "HiddenReLU.* is not affine"),
    "hidden relu in a module": (
        lambda: Outer(),
        (4,),
        r"HiddenReLU.* \(submodule 'block\.1'\) is not affine",
    ),
    "sigmoid": (lambda: nn.Sigmoid(), (4,), r"Sigmoid\(\) is not affine"),
    "gelu": (lambda: [nn.Linear(4, 4), nn.GELU()], (4,), r"GELU.* is not affine"),
    "max pool": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)),
        (1, 6, 6),
        r"MaxPool2d.*\(submodule '1'\) is not affine",
    ),
    "layer norm": (lambda: nn.LayerNorm(6), (6,), "LayerNorm.* is not affine"),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 3), "GroupNorm.* is not affine"),
    "instance norm": (lambda: nn.InstanceNorm2d(3), (3, 4, 4), "InstanceNorm2d.* is not affine"),
    "softmax": (lambda: nn.Softmax(-1), (5,), "Softmax.* is not affine"),
    "batch norm without statistics": (
        lambda: nn.BatchNorm2d(3, track_running_stats=False),
        (3, 4, 4),
        "BatchNorm2d",
    ),
    "norm": (lambda: lambda x: x.norm(dim=1, keepdim=True), (4,), "is not affine"),
    "square": (lambda: torch.square, (4,), "is not affine"),
    "absolute value": (lambda: torch.abs, (4,), "is not affine"),
    "random in evaluation": (lambda: RandomInEvaluation(), (50,), "RandomInEvaluation"),
    "rows that see each other": (lambda: MixesTheBatch(), (4,), "MixesTheBatch"),
    "bag of maxima": (
        lambda: nn.EmbeddingBag(5, 3, mode="max"),
        (2, 5),
        "EmbeddingBag.*not affine",
    ),
}


@every_entry
@pytest.mark.parametrize("name", NOT_AFFINE)
def test_not_affine(name: str, entry: str) -> None:
    make, in_shape, message = NOT_AFFINE[name]
    layer = make()
    with pytest.raises(sc.NotAffineError, match=message):
        ENTRIES[entry](layer, in_shape)


def test_not_affine_is_a_value_error() -> None:
    assert issubclass(sc.NotAffineError, ValueError)


# --- Shapes -------------------------------------------------------------------------------

WRONG_SHAPES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "linear": (lambda: nn.Linear(4, 3), (5,), r"Linear.*shape \(5,\).*without the batch"),
    "conv channels": (lambda: nn.Conv2d(3, 4, 3), (2, 8, 8), r"Conv2d.*shape \(2, 8, 8\)"),
    "conv with a batch": (lambda: nn.Conv2d(3, 4, 3), (1, 3, 8, 8), "without the batch dimension"),
    "conv too small": (lambda: nn.Conv2d(3, 4, 5), (3, 4, 4), r"Conv2d.*\(3, 4, 4\)"),
    "conv without channels": (lambda: nn.Conv2d(1, 4, 3), (8, 8), "Conv2d"),
    # torch takes these for a single unbatched input: one channel in, one out.
    "conv2d without channels, one filter": (lambda: nn.Conv2d(1, 1, 3), (8, 8), "Conv2d"),
    "conv1d without channels, one filter": (lambda: nn.Conv1d(1, 1, 3), (8,), "Conv1d"),
    "transposed without channels, one filter": (
        lambda: nn.ConvTranspose2d(1, 1, 3),
        (8, 8),
        "ConvTranspose2d",
    ),
    "batch norm": (lambda: nn.BatchNorm2d(3), (4, 5, 5), "BatchNorm2d"),
    "reflect too narrow": (
        lambda: nn.Conv2d(1, 1, 5, padding=2, padding_mode="reflect"),
        (1, 2, 2),
        "Conv2d",
    ),
    "second of a list": (
        lambda: [nn.Conv2d(2, 3, 3), nn.Conv2d(4, 3, 3)],
        (2, 6, 6),
        r"Conv2d\(4, 3.*shape \(3, 4, 4\)",
    ),
    "embedding": (lambda: nn.Embedding(5, 3), (4,), "Embedding"),
    "empty": (lambda: nn.Linear(4, 3), (), "Linear.*at least one dimension"),
    "a zero": (lambda: nn.Linear(4, 3), (0,), r"Linear.*no empty one.*\(0,\)"),
    "a zero inside": (lambda: nn.Conv2d(3, 4, 3), (3, 0, 8), r"Conv2d.*\(3, 0, 8\)"),
    "negative": (lambda: nn.Linear(4, 3), (-4,), r"Linear.*\(-4,\)"),
    "flattens the batch": (lambda: nn.Flatten(0), (2, 3), "Flatten.*batch"),
    "empty output": (lambda: lambda x: x[:, :0], (4,), "empty output"),
}


@every_entry
@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_wrong_shape(name: str, entry: str) -> None:
    make, in_shape, message = WRONG_SHAPES[name]
    with pytest.raises(ValueError, match=message):
        ENTRIES[entry](make(), in_shape)


@every_entry
@pytest.mark.parametrize("in_shape", [(4.5,), ("four",), (None,)], ids=str)
def test_shape_that_is_none(in_shape: Any, entry: str) -> None:
    with pytest.raises((TypeError, ValueError), match="in_shape"):
        ENTRIES[entry](nn.Linear(4, 3), in_shape)


@every_entry
def test_shape_that_the_layer_does_not_know(entry: str) -> None:
    with pytest.raises(ValueError, match=r"Conv2d.*give in_shape"):
        ENTRIES[entry](nn.Conv2d(4, 3, 3), None)


def test_a_size_alone_is_a_shape() -> None:
    assert sc.as_operator(nn.Linear(4, 3), 4).in_shape == (4,)


# --- Weights ------------------------------------------------------------------------------


def integer_linear() -> nn.Module:
    layer = nn.Linear(4, 3, bias=False)
    layer.weight = nn.Parameter(torch.ones(3, 4, dtype=torch.int32), requires_grad=False)
    return layer


def complex_linear() -> nn.Module:
    return nn.Linear(4, 3, dtype=torch.complex64)


def uninitialized() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3))


BAD_WEIGHTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "nan": (
        lambda: filled(nn.Linear(4, 3), "weight", float("nan")),
        ValueError,
        r"'weight' of Linear.*NaN or infinite",
    ),
    "infinite": (
        lambda: filled(nn.Linear(4, 3), "weight", float("inf")),
        ValueError,
        r"'weight' of Linear.*NaN or infinite",
    ),
    "nan in a list": (
        lambda: [nn.Linear(4, 4), filled(nn.Linear(4, 3), "weight", float("-inf"))],
        ValueError,
        r"'1\.weight' of .*Linear.*NaN or infinite",
    ),
    "nan bias": (
        lambda: filled(nn.Linear(4, 3), "bias", float("nan")),
        ValueError,
        r"'bias' of Linear.*NaN or infinite",
    ),
    "nan statistics": (
        lambda: filled(nn.BatchNorm1d(4), "running_var", float("nan")),
        ValueError,
        r"'running_var' of BatchNorm1d.*NaN or infinite",
    ),
    # The square root of a negative variance is NaN, though the variance is finite.
    "negative variance": (
        lambda: filled(nn.BatchNorm1d(4), "running_var", -3.0),
        ValueError,
        "BatchNorm1d.*NaN",
    ),
    "integers": (integer_linear, TypeError, r"'weight' of Linear.*int32.*floating-point"),
    "complex": (complex_linear, TypeError, r"'weight' of Linear.*complex64.*floating-point"),
    "meta": (
        lambda: nn.Linear(4, 3, device="meta"),
        ValueError,
        r"'weight' of Linear.*meta device.*to_empty",
    ),
    "lazy": (uninitialized, ValueError, r"'1\.weight' of .*no size yet.*example input"),
    "nan from a callable": (lambda: lambda x: x * float("nan"), ValueError, "NaN or infinite"),
}


@every_entry
@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_bad_weights(name: str, entry: str) -> None:
    make, error, message = BAD_WEIGHTS[name]
    with pytest.raises(error, match=message):
        ENTRIES[entry](make(), (4,))


# --- Layers that are none -----------------------------------------------------------------


@every_entry
@pytest.mark.parametrize("layer", ["conv", None, 3, ["conv"], [nn.Linear(4, 4), None]], ids=str)
def test_no_layer(layer: Any, entry: str) -> None:
    with pytest.raises(TypeError, match="Expected a module, an affine callable or a sequence"):
        ENTRIES[entry](layer, (4,))


@every_entry
@pytest.mark.parametrize("layer", [[], (), nn.Sequential(), [[], nn.Sequential()]], ids=str)
def test_empty_sequence(layer: Any, entry: str) -> None:
    with pytest.raises(ValueError, match="empty sequence"):
        ENTRIES[entry](layer, (4,))


@every_entry
def test_layer_that_returns_no_tensor(entry: str) -> None:
    with pytest.raises(ValueError, match=r"LSTM.*tuple"):
        ENTRIES[entry](nn.LSTM(4, 3), (5, 4))


@every_entry
def test_layer_that_needs_two_inputs(entry: str) -> None:
    with pytest.raises(ValueError, match=r"Bilinear.*cannot be applied"):
        ENTRIES[entry](nn.Bilinear(4, 4, 3), (4,))


# --- Vectors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "shape"), [("matvec", (4, 3)), ("rmatvec", (4,)), ("gram", (3,)), ("matvec", ())]
)
def test_vector_of_wrong_shape(method: str, shape: tuple[int, ...]) -> None:
    op = sc.as_operator(nn.Linear(4, 3), (4,))
    expected = "(3,)" if method == "rmatvec" else "(4,)"
    message = (
        f"{method} of Linear.*expects shape {re.escape(expected)}.*got {re.escape(str(shape))}"
    )
    with pytest.raises(ValueError, match=message):
        getattr(op, method)(torch.zeros(shape))


def test_pullback_of_unequal_batches() -> None:
    op = sc.as_operator(nn.Linear(4, 3), (4,))
    for method in (op.pullback, op.bilinear):
        with pytest.raises(ValueError, match=r"as many u as v.*2 and 5"):
            method(torch.zeros(2, 3), torch.zeros(5, 4))
        with pytest.raises(ValueError, match=r"expects shape \(3,\)"):
            method(torch.zeros(2, 4), torch.zeros(2, 4))


def test_operator_with_another_shape() -> None:
    op = sc.as_operator(nn.Linear(4, 3), (4,))
    with pytest.raises(ValueError, match="in_shape"):
        sc.as_operator(op, (5,))


# --- Arguments of the solvers -------------------------------------------------------------

LINEAR = nn.Linear(6, 4)


@pytest.mark.parametrize("k", [0, -1, 5, 100])
@pytest.mark.parametrize("solver", ["auto", "lanczos", "power-qr", "exact"])
def test_k_out_of_range(k: int, solver: str) -> None:
    chosen: Any = {
        "auto": lambda: "auto",
        "lanczos": sc.Lanczos,
        "power-qr": lambda: sc.PowerQR(iterations=3),
        "exact": sc.Exact,
    }[solver]()
    with pytest.raises(ValueError, match=rf"(?s)(?=.*Linear)(?=.*\b4\b)(?=.*{k}\b)"):
        sc.svds(LINEAR, (6,), k=k, solver=chosen)


@pytest.mark.parametrize("k", [1.5, 2.0, "2", True], ids=repr)
def test_k_that_is_no_count(k: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"\bk\b"):
        sc.svds(LINEAR, (6,), k=k)


@pytest.mark.parametrize("tol", [0, 0.0, -1e-3, float("nan"), float("inf")], ids=repr)
def test_tolerance_that_is_none(tol: float) -> None:
    with pytest.raises(ValueError, match="tol"):
        sc.svds(LINEAR, (6,), k=1, tol=tol)
    with pytest.raises(ValueError, match="tol"):
        sc.spectral_norm(LINEAR, (6,), tol=tol)


@pytest.mark.parametrize("solver", ["arpack", "", None, 3, sc.Lanczos], ids=repr)
def test_unknown_solver(solver: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"(?s)solver.*auto"):
        sc.svds(LINEAR, (6,), k=1, solver=solver)


SOLVERS = {"auto": "auto", "lanczos": sc.Lanczos(), "power-qr": sc.PowerQR(iterations=3)}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shape", [(5,), (2, 5), (4,), (), (2, 2, 6)], ids=str)
def test_start_of_wrong_shape(shape: tuple[int, ...], solver: str) -> None:
    with pytest.raises(ValueError, match=r"v0"):
        sc.svds(LINEAR, (6,), k=2, v0=torch.ones(shape), solver=SOLVERS[solver])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_start_that_is_not_finite(value: float, solver: str) -> None:
    start = torch.ones(2, 6)
    start[1, 3] = value
    with pytest.raises(ValueError, match=r"v0.*(NaN|finite)"):
        sc.svds(LINEAR, (6,), k=2, v0=start, solver=SOLVERS[solver])


@pytest.mark.parametrize("iterations", [0, -3])
def test_power_qr_without_iterations(iterations: int) -> None:
    with pytest.raises(ValueError, match="iteration"):
        sc.svds(LINEAR, (6,), k=1, solver=sc.PowerQR(iterations=iterations))


@pytest.mark.parametrize("shift", [-1.0, float("nan")])
def test_power_qr_with_a_bad_shift(shift: float) -> None:
    with pytest.raises(ValueError, match="shift"):
        sc.svds(LINEAR, (6,), k=1, solver=sc.PowerQR(iterations=3, shift=shift))


def test_whole_spectrum_that_would_not_fit() -> None:
    layer = nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect")
    with pytest.raises(ValueError, match=r"(?s)(?=.*Conv2d)(?=.*1048576|.*1,048,576)(?=.*svds)"):
        sc.singular_values(layer, (64, 128, 128))
