"""Layers that are orthogonal, or 1-Lipschitz, by construction: SOC, Cayley, LOT, ECO and AOL."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from torch import Tensor, nn
from training_cases import (
    EXAMPLE,
    assert_identical,
    sgd,
    small_network,
    snapshot,
    train,
    true_norms,
)

from oracle import dense_matrix, dense_norm, singular_values
from spectralclip import FoundLayer, Method, NormWarning, attach, find_layers
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods.baselines._swap import SwapMethod
from spectralclip.methods.baselines.aol import AOL
from spectralclip.methods.baselines.cayley import Cayley
from spectralclip.methods.baselines.eco import ECO
from spectralclip.methods.baselines.lot import LOT
from spectralclip.methods.baselines.soc import SOC

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some of its docstrings are not raw strings.
        from orthogonium.layers.conv.adaptiveSOC import fast_skew_ortho_conv as package_soc
        from orthogonium.layers.conv.AOL.aol import AOLReparametrizer
        from orthogonium.legacy.cayley_ortho_conv import Cayley as PackageCayley

    HAS_PACKAGE = True
except ImportError:
    HAS_PACKAGE = False
needs_package = pytest.mark.skipif(not HAS_PACKAGE, reason="orthogonium and einops are missing")

METHODS: dict[str, Callable[[], SwapMethod]] = {
    "soc": SOC,
    "cayley": Cayley,
    "lot": lambda: LOT(iterations=40),
    "eco": ECO,
}
MARKS = {"cayley": needs_package}
over_methods = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in METHODS]
)
over_all = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in [*METHODS, "aol"]]
)

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "square": (lambda: nn.Conv2d(3, 3, 3, padding=1), (3, 6, 6)),
    "fewer outputs": (lambda: nn.Conv2d(4, 2, 3, padding=1), (4, 9, 6)),
    "more outputs": (lambda: nn.Conv2d(2, 5, 3, padding=1, bias=False), (2, 5, 6)),
    "reflect": (lambda: nn.Conv2d(2, 2, 5, padding=2, padding_mode="reflect"), (2, 8, 8)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 6, 6)),
    "dilated": (lambda: nn.Conv1d(2, 3, 5, padding=4, dilation=2), (2, 8)),
    "even": (lambda: nn.Conv1d(2, 2, 4, padding="same", dilation=2), (2, 12)),
    "stride": (lambda: nn.Conv2d(2, 5, 3, stride=2, padding=1), (2, 8, 6)),
    "patches": (lambda: nn.Conv2d(2, 5, 3, stride=3), (2, 9, 6)),
    "mixed stride": (lambda: nn.Conv3d(1, 2, 3, padding=1, stride=(1, 2, 1)), (1, 3, 4, 4)),
    "dense": (lambda: nn.Linear(5, 3), (5,)),
    "pointwise": (lambda: nn.Conv2d(4, 6, 1, groups=2, stride=2), (4, 6, 6)),
}


def method_of(name: str) -> SwapMethod:
    return AOL() if name == "aol" else METHODS[name]()


def attached(method: Method, layer: nn.Module, in_shape: tuple[int, ...], **kw: Any) -> Any:
    """A model of this layer alone in float64, and the attachment."""
    model = nn.Sequential(layer.double())
    return model, attach(model, None, torch.zeros(1, *in_shape).double(), method=method, **kw)


def rank_of(layer: Any, in_shape: tuple[int, ...]) -> int:
    """How many singular values are not zero by shape, on a torus."""
    if isinstance(layer, nn.Linear):
        return min(layer.weight.shape)
    outputs = layer.out_channels // layer.groups
    phases = 1 if math.prod(layer.kernel_size) == 1 else math.prod(layer.stride)
    inputs = layer.in_channels // layer.groups * phases
    positions = math.prod(n // s for n, s in zip(in_shape[1:], layer.stride, strict=True))
    return int(layer.groups * min(outputs, inputs) * positions)


# --- What they promise -----------------------------------------------------------------------


@over_methods
@pytest.mark.parametrize("kind", LAYERS)
def test_all_singular_values_are_the_bound_and_the_plain_layer_is_the_same(
    kind: str, name: str
) -> None:
    make, in_shape = LAYERS[kind]
    layer = make()
    if name == "eco" and kind in ("stride", "patches", "mixed stride"):
        with pytest.raises(ValueError, match="ECO found no layer"):
            attached(method_of(name), layer, in_shape)
        return
    rank = rank_of(layer, in_shape)
    model, attachment = attached(method_of(name), layer, in_shape, max_norm=0.7)
    swapped = dense_matrix(model, in_shape)
    values = np.linalg.svd(swapped, compute_uv=False)
    np.testing.assert_allclose(values[:rank], 0.7, rtol=0, atol=1e-9)
    np.testing.assert_allclose(values[rank:], 0, atol=1e-9)
    attachment.remove()
    assert "forward" not in vars(model[0])
    np.testing.assert_allclose(dense_matrix(model, in_shape), swapped, rtol=0, atol=1e-12)
    if len(in_shape) > 1 and kind != "pointwise":
        assert model[0].padding_mode == "circular"
        assert repr(model[0]).startswith(f"Conv{len(in_shape) - 1}d(")


@over_methods
def test_single_precision(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1))
    attachment = attach(model, None, torch.zeros(1, 8, 8, 8), method=method_of(name))
    attachment.remove()
    values = singular_values(model.double(), (8, 8, 8))
    np.testing.assert_allclose(values, 1, rtol=0, atol=2e-6)


@pytest.mark.sampled(4)
@over_methods
@pytest.mark.parametrize("scale", [30.0, 1e3, 3e4, 1e12, 1e25])
def test_large_weights_in_single_precision(name: str, scale: float) -> None:
    """Rounding is not to add up, nor are squares to overflow."""
    if name in ("lot", "cayley") and scale > 1e15:
        pytest.skip("products of weights overflow")
    model = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 7, 1))
    with torch.no_grad():
        for conv in model:
            conv.weight.mul_(scale)
    attach(model, None, torch.zeros(1, 24, 4, 4), method=method_of(name)).remove()
    for conv in model:
        values = singular_values(conv.double(), (24, 4, 4))
        np.testing.assert_allclose(values[: rank_of(conv, (24, 4, 4))], 1, rtol=0, atol=3e-6)


@over_methods
def test_gradients_of_large_weights(name: str) -> None:
    layer = nn.Linear(4, 4, bias=False).double()
    with torch.no_grad():
        layer.weight.mul_(60)
    method: Any = method_of(name)
    weight = layer.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(method.orthogonal, (weight[None],), rtol=1e-4, atol=1e-6)


@over_methods
def test_orthogonal_after_training(name: str) -> None:
    model = small_network()
    optimizer = sgd(model, lr=0.1)
    attachment = attach(model, optimizer, EXAMPLE, method=method_of(name))
    before = snapshot(model)
    train(model, optimizer, 4)
    layers = attachment.layers
    assert set(layers) == ({"0", "6", "9"} if name == "eco" else {"0", "3", "6", "9"})
    for key in layers:
        assert not torch.equal(model.get_parameter(f"{key}.weight"), before[f"{key}.weight"])
    results = attachment.finalize()
    assert set(results) == set(layers)
    assert all(result.distance == 0 for result in results.values())  # nothing was left to clip
    for key, layer in layers.items():
        twin = copy.deepcopy(layer.modules[0]).double()
        values = singular_values(twin, layer.in_shapes[0])
        np.testing.assert_allclose(values, 1, rtol=0, atol=1e-5, err_msg=key)
    assert model.eval()(EXAMPLE).shape == (2, 10)


# --- Against closed forms on the dense matrix ------------------------------------------------


def circular(channels: int = 3, **kw: Any) -> nn.Conv2d:
    """Its matrix is square, and a function of it is again that of a circular convolution."""
    return nn.Conv2d(
        channels, channels, 3, padding=1, padding_mode="circular", bias=False, **kw
    ).double()


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_soc_is_the_exponential_of_the_skew_part(scale: float) -> None:
    conv = circular()
    with torch.no_grad():
        conv.weight.mul_(scale)
    matrix = dense_matrix(conv, (3, 5, 5))
    model, _ = attached(SOC(), conv, (3, 5, 5))
    expected = expm((matrix - matrix.T) / 2)
    np.testing.assert_allclose(dense_matrix(model, (3, 5, 5)), expected, atol=1e-12)


@needs_package
def test_cayley_is_the_cayley_transform() -> None:
    conv = circular()
    matrix = dense_matrix(conv, (3, 5, 5))
    skew, identity = matrix - matrix.T, np.eye(len(matrix))
    model, _ = attached(Cayley(), conv, (3, 5, 5))
    expected = (identity - skew) @ np.linalg.inv(identity + skew)
    np.testing.assert_allclose(dense_matrix(model, (3, 5, 5)), expected, atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
def test_lot_is_the_nearest_orthogonal_layer(stride: int) -> None:
    conv = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", stride=stride).double()
    u, _, v = np.linalg.svd(dense_matrix(conv, (2, 6, 6)), full_matrices=False)
    model, _ = attached(LOT(iterations=60), conv, (2, 6, 6))
    np.testing.assert_allclose(dense_matrix(model, (2, 6, 6)), u @ v, atol=1e-9)


def test_eco_is_the_exponential_of_the_dilated_layer() -> None:
    conv = circular()
    spread = copy.deepcopy(conv)
    spread.dilation, spread.padding = (3, 3), (3, 3)
    spread._reversed_padding_repeated_twice = [3] * 4
    matrix = dense_matrix(spread, (3, 9, 9))
    model, attachment = attached(ECO(), conv, (3, 9, 9))
    expected = expm((matrix - matrix.T) / 2)
    np.testing.assert_allclose(dense_matrix(model, (3, 9, 9)), expected, atol=1e-12)
    attachment.remove()
    assert model[0].weight.shape == (3, 3, 3, 3)
    assert (model[0].dilation, model[0].padding) == ((3, 3), (3, 3))


def test_aol_scales_by_the_sums_of_the_gram_matrix() -> None:
    """A side of seven is enough for all five by five shifts of a 3x3 kernel to be apart."""
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular", bias=False).double()
    matrix = dense_matrix(conv, (3, 7, 7))
    factors = np.abs(matrix.T @ matrix).sum(0) ** -0.5
    model, _ = attached(AOL(), conv, (3, 7, 7), max_norm=0.9)
    np.testing.assert_allclose(dense_matrix(model, (3, 7, 7)), 0.9 * matrix * factors, atol=1e-12)


# --- Against the package ---------------------------------------------------------------------


@needs_package
def test_soc_of_the_package() -> None:
    """Its exponential of a small skew-symmetric kernel, as one long explicit kernel."""
    weight = 0.02 * torch.randn(3, 3, 3, 3)
    with torch.no_grad():
        exponential = package_soc.ConvExponential(3, 3, 3, 1, exp_niter=6)
        kernel = exponential(package_soc.Skew(1)(weight))
    long = nn.Conv2d(3, 3, kernel.shape[-1], padding="same", padding_mode="circular", bias=False)
    conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
    with torch.no_grad():
        long.weight.copy_(kernel)
        conv.weight.copy_(2 * weight)
    model, _ = attached(SOC(), conv, (3, 9, 9))
    expected = dense_matrix(long.double(), (3, 9, 9))
    np.testing.assert_allclose(dense_matrix(model, (3, 9, 9)), expected, atol=1e-6)


@needs_package
def test_the_layer_of_the_package_for_soc_is_above_one() -> None:
    """One factor for each channel leaves nothing skew-symmetric, however many terms follow."""
    layer = package_soc.FastSOC(4, 4, 3, exp_params=package_soc.ExpParams(6)).double()
    assert dense_norm([layer], (4, 14, 14)) > 1.005


@needs_package
def test_cayley_of_the_package() -> None:
    theirs = PackageCayley(3, 5, 3).double()
    conv = nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular").double()
    with torch.no_grad():
        for ours, other in ((conv.weight, theirs.weight), (conv.bias, theirs.bias)):
            ours.copy_(other)
        # Theirs divides by the norm of the symbols, and multiplies with a scale to be learned.
        theirs.alpha.fill_(float(torch.fft.rfft2(conv.weight, (6, 6)).norm()))
    model, _ = attached(Cayley(), conv, (3, 6, 6))
    x = torch.randn(2, 3, 6, 6).double()
    torch.testing.assert_close(model(x), theirs(x), rtol=1e-4, atol=1e-5)


@needs_package
@pytest.mark.parametrize("groups", [1, 2])
def test_aol_of_the_package(groups: int) -> None:
    """It scales the outputs of a kernel: those of the transposed one are the inputs."""
    weight = torch.randn(4, 4 // groups, 3, 3)
    turned = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(-1, -2)
    with torch.no_grad():
        scaled = AOLReparametrizer(4, groups)(turned)
    expected = scaled.flip(-1, -2).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=groups)
    with torch.no_grad():
        conv.weight.copy_(weight)
    model, attachment = attached(AOL(), conv, (4, 6, 6))
    attachment.remove()
    torch.testing.assert_close(model[0].weight.float().detach(), expected, rtol=1e-4, atol=1e-6)


def test_cayley_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("spectralclip.methods.baselines.cayley.import_module", nothing)
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(ImportError, match=r'pip install "spectralclip\[orthogonal\]"'):
        attach(model, None, torch.zeros(1, 3), method=Cayley())
    assert "forward" not in vars(model[0])


# --- What is known to fail -------------------------------------------------------------------


def test_few_iterations_of_lot_leave_small_values_small() -> None:
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1.0, 0.5, 0.1, 0.004])))
    for iterations in (1, 2, 3, 5, 10, 15):
        model, _ = attached(LOT(iterations), copy.deepcopy(layer), (4,))
        values = singular_values(model, (4,))
        assert values[0] <= 1 + 1e-12
        if iterations == 10:
            assert values[2] > 0.99
            assert values[3] < 0.3
    assert values[3] > 0.9


def test_eco_as_published_is_not_orthogonal_where_the_kernel_does_not_divide_the_side() -> None:
    """Dilation ceil(n / k), on the image as it is: ours takes another size of kernel instead."""
    conv = circular(2)
    model, attachment = attached(ECO(), copy.deepcopy(conv), (2, 9, 9))
    attachment.remove()
    values = singular_values(model, (2, 8, 8))
    assert values[0] > 1.05
    model, attachment = attached(ECO(), conv, (2, 8, 8))
    attachment.remove()
    assert model[0].dilation == (2, 2)
    assert model[0].kernel_size == (5, 5)  # four taps, and one of zeros in order to have a middle
    values = singular_values(model, (2, 8, 8))
    np.testing.assert_allclose(values, 1, atol=1e-9)


def test_half_of_the_parameters_of_soc_have_no_influence() -> None:
    layer = nn.Linear(4, 4, bias=False).double()
    model, _ = attached(SOC(), layer, (4,))
    before = dense_matrix(model, (4,))
    with torch.no_grad():
        change = torch.randn(4, 4).double()
        layer.weight.add_(change + change.T)
    np.testing.assert_allclose(dense_matrix(model, (4,)), before, atol=1e-12)


def test_aol_is_loose_for_random_kernels() -> None:
    model, _ = attached(AOL(), nn.Conv2d(16, 16, 3, padding=1), (16, 8, 8))
    assert 0.1 < dense_norm(model, (16, 8, 8)) < 0.5


# --- AOL -------------------------------------------------------------------------------------

AOL_LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{key: made for key, made in LAYERS.items() if key != "reflect"},
    "valid": (lambda: nn.Conv2d(2, 3, 3), (2, 7, 5)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    "circular dilated": (
        lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2, padding_mode="circular"),
        (2, 5, 6),
    ),
    "odd stride": (lambda: nn.Conv2d(2, 3, 5, padding=2, stride=3), (2, 7, 8)),
}


@pytest.mark.parametrize("kind", AOL_LAYERS)
def test_aol_is_within_its_bound(kind: str) -> None:
    make, in_shape = AOL_LAYERS[kind]
    layer = make().double()
    estimate = AOL.estimate(layer, in_shape)
    assert dense_norm(layer, in_shape) <= estimate * (1 + 1e-12)
    geometry = repr(layer)
    model, attachment = attached(AOL(), layer, in_shape, max_norm=0.8)
    swapped = dense_matrix(model, in_shape)
    assert np.linalg.norm(swapped, 2) <= 0.8 * (1 + 1e-12)
    attachment.remove()
    assert repr(model[0]) == geometry
    np.testing.assert_allclose(dense_matrix(model, in_shape), swapped, rtol=0, atol=1e-14)


def test_aol_holds_at_every_size() -> None:
    model, _ = attached(AOL(), nn.Conv2d(1, 1, 3, padding=1, bias=False), (1, 4, 4))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    norms = [dense_norm(model, (1, n, n)) for n in (4, 8, 20)]
    assert norms == sorted(norms)
    assert 0.95 < norms[-1] <= 1


def test_aol_leaves_orthogonal_layers_alone() -> None:
    layer = nn.Linear(4, 4, bias=False).double()
    nn.init.orthogonal_(layer.weight)
    mixed = dense_matrix(layer, (4,))
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4)[[2, 0, 3, 1]])
    before = dense_matrix(layer, (4,))
    assert AOL.estimate(layer, (4,)) == pytest.approx(1)
    model, _ = attached(AOL(), layer, (4,))
    np.testing.assert_allclose(dense_matrix(model, (4,)), before)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(mixed))
    np.testing.assert_allclose(dense_matrix(model, (4,)), mixed, atol=1e-12)


def test_channels_that_are_zero_have_finite_gradients() -> None:
    for method in (AOL(), LOT(), SOC(), ECO()):
        conv = nn.Conv2d(3, 3, 3, padding=1)
        with torch.no_grad():
            conv.weight[:, 1] = 0
        model, _ = attached(method, conv, (3, 6, 6))
        model(torch.randn(2, 3, 6, 6).double()).square().sum().backward()
        assert bool(torch.isfinite(conv.weight.grad).all()), method


def test_a_layer_of_zeros() -> None:
    for method in (AOL(), LOT()):
        conv = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        nn.init.zeros_(conv.weight)
        model, _ = attached(method, conv, (2, 4, 4))
        y = model(torch.randn(1, 2, 4, 4).double())
        assert not bool(y.any())
        y.sum().backward()
        assert bool(torch.isfinite(conv.weight.grad).all()), method


# --- What they refuse ------------------------------------------------------------------------


class TwoUses(nn.Module):
    """One convolution at two sizes, and one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)
        self.right.weight = self.left.weight

    def forward(self, x: Tensor) -> Tensor:
        small = self.conv(self.conv(x)[..., ::2, ::2])
        y: Tensor = self.right(self.left(small.mean((-1, -2))))
        return y


def why_not(method: SwapMethod, layer: nn.Module, *in_shape: int) -> str:
    return method.why_not(FoundLayer("", (layer,), (in_shape,), (), 1), in_shape)


@over_methods
def test_refused(name: str) -> None:
    method = method_of(name)
    assert "7 becomes 4 with stride 2" in why_not(
        method, nn.Conv2d(2, 2, 3, stride=2, padding=1), 2, 7, 7
    )
    assert "8 becomes 6" in why_not(method, nn.Conv2d(2, 2, 3), 2, 8, 8)
    assert "not ConvTranspose2d" in why_not(method, nn.ConvTranspose2d(2, 2, 3), 2, 8, 8)
    assert "not BatchNorm2d" in why_not(method, nn.BatchNorm2d(2), 2, 8, 8)
    layers = find_layers(TwoUses(), torch.zeros(1, 2, 8, 8), False)
    assert "one size of image, not for 2" in method.why_not(
        layers["conv"], *layers["conv"].in_shapes
    )
    assert "shared with right" in method.why_not(layers["left"], *layers["left"].in_shapes)
    with pytest.raises(ValueError, match="found no layer to take care of"):
        attach(TwoUses(), None, torch.zeros(1, 2, 8, 8), method=method)


def test_aol_refuses_borders_that_repeat_pixels() -> None:
    for mode in ("reflect", "replicate"):
        conv = nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode)
        assert not AOL().takes(FoundLayer("", (conv,), ((2, 6, 6),), (), 1))
        with pytest.raises(OutsideDomain, match=f"AOL is not defined for Conv2d.*{mode}"):
            AOL.estimate(conv, (2, 6, 6))


def test_aol_refuses_borders_that_repeat_outputs() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular")
    assert not AOL().takes(FoundLayer("", (conv,), ((2, 5, 5),), (), 1))
    with pytest.raises(OutsideDomain, match=r"circular padding of \(2, 2\).*repeats outputs"):
        AOL.estimate(conv, (2, 5, 5))
    with pytest.raises(ValueError, match="AOL found no layer"):
        attach(nn.Sequential(conv), None, torch.zeros(1, 2, 5, 5), method=AOL())
    same = nn.Conv2d(2, 3, 4, padding="same", dilation=3, padding_mode="circular")
    assert AOL().takes(FoundLayer("", (same,), ((2, 12, 12),), (), 1))


def test_aol_has_no_estimate_of_weights_that_are_not_finite() -> None:
    layer = nn.Linear(3, 3)
    layer.weight.data[1, 1] = math.nan
    with pytest.raises(ValueError, match="AOL has no estimate of the norm of Linear"):
        AOL.estimate(layer, (3,))


def test_why_aol_refuses_them() -> None:
    """A shift by one pixel reads the first one twice."""
    norms = {}
    for mode, width in (("zeros", 2), ("circular", 1), ("circular", 2), ("replicate", 1)):
        conv = nn.Conv1d(1, 1, 3, padding=width, padding_mode=mode, bias=False).double()
        with torch.no_grad():
            conv.weight.copy_(torch.tensor([1.0, 0, 0]))
        norms[f"{mode} {width}"] = dense_norm([conv], (1, 8))
    twice = math.sqrt(2)
    expected = {"zeros 2": 1, "circular 1": 1, "circular 2": twice, "replicate 1": twice}
    assert norms == pytest.approx(expected)


def test_who_has_an_estimate() -> None:
    assert [kind.estimate for kind in (SOC, Cayley, LOT, ECO)] == [None] * 4
    assert AOL.estimate(nn.Linear(3, 3), (3,)) > 0


def test_what_is_outside_the_domain_is_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1))
    attachment = attach(model, None, torch.zeros(1, 1, 6, 6), method=SOC())
    assert list(attachment.layers) == ["2"]
    assert "forward" not in vars(model[0])


# --- As methods ------------------------------------------------------------------------------


@over_all
def test_keys_parameters_and_hooks_stay(name: str) -> None:
    model = small_network()
    seen: list[tuple[int, ...]] = []
    model[6].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    before, parameters = snapshot(model), list(model.parameters())
    attachment = attach(model, sgd(model), EXAMPLE, method=method_of(name))
    assert_identical(snapshot(model), before)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    seen.clear()
    model(EXAMPLE)
    assert seen == [(2, 6, 5, 5)]
    attachment.remove()
    attachment.remove()
    assert list(model.state_dict()) == list(before)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


@over_all
def test_goes_on_exactly(name: str) -> None:
    def begin() -> tuple[Any, Any, Any]:
        model = small_network()
        optimizer = sgd(model)
        schedule = lambda step: 0.9**step  # noqa: E731
        return (
            model,
            optimizer,
            attach(model, optimizer, EXAMPLE, method=method_of(name), schedule=schedule),
        )

    first = begin()
    train(first[0], first[1], 2)
    assert set(first[2].norms().values()) == {0.9**2}
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    train(first[0], first[1], 2, first=2)
    second = begin()
    file.seek(0)
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    assert second[2].norms() == pytest.approx({key: 0.9**2 for key in second[2].layers})
    train(second[0], second[1], 2, first=2)
    for ours, theirs in zip(first, second, strict=True):
        assert_identical(ours.state_dict(), theirs.state_dict())


def test_aol_goes_on_training_after_it_was_removed() -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=AOL(), max_norm=0.5)
    assert list(attachment.layers) == ["0", "6", "9"]
    train(model, optimizer, 2)
    results = attachment.finalize(certify=True)
    assert max(results[key].norm_after for key in ("0", "6", "9")) <= 0.5
    assert max(true_norms(attachment).values()) <= 0.5
    train(model, optimizer, 2)


@over_all
def test_copies_are_apart_and_can_be_pickled(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1))
    attach(model, None, torch.zeros(1, 2, 6, 6), method=method_of(name), max_norm=0.5)
    x = torch.randn(1, 2, 6, 6)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
        with torch.no_grad():
            twin[0].weight.copy_(torch.randn(2, 2, 3, 3))
        assert not torch.allclose(twin(x), model(x))


@over_all
def test_half_precision_and_autocast(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1))
    attach(model, None, torch.zeros(1, 2, 6, 6), method=method_of(name))
    x = torch.randn(1, 2, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model(x), model(x.float()))
    low = copy.deepcopy(model).bfloat16()
    assert low(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(low(x.bfloat16()).float(), model(x), rtol=0.1, atol=0.1)


@over_methods
def test_single_inputs_without_a_batch(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1))
    attach(model, None, torch.zeros(1, 2, 6, 6), method=method_of(name))
    x = torch.randn(2, 6, 6)
    torch.testing.assert_close(model(x), model(x[None])[0])


def test_frozen_layers_are_left_alone() -> None:
    model = small_network()
    model[6].weight.requires_grad_(False)
    attachment = attach(model, sgd(model), EXAMPLE, method=SOC())
    assert "forward" not in vars(model[6])
    attachment.finalize()


@over_all
def test_layers_that_are_freed_are_exchanged_after_their_first_step(name: str) -> None:
    def begin() -> tuple[Any, Any, Any]:
        model = small_network()
        model[6].weight.requires_grad_(False)
        optimizer = sgd(model)
        attachment = attach(model, optimizer, EXAMPLE, method=method_of(name), max_norm=0.8)
        return model, optimizer, attachment

    first = begin()
    model, optimizer, attachment = first
    train(model, optimizer, 1)
    assert "6" not in attachment.norms()
    model[6].weight.requires_grad_(True)
    train(model, optimizer, 1, first=1)
    assert attachment.norms()["6"] == 0.8
    assert "forward" in vars(model[6])
    states = copy.deepcopy([part.state_dict() for part in first])
    train(model, optimizer, 2, first=2)
    # A run that goes on from there begins with the layer in its place.
    second = begin()
    second[0][6].weight.requires_grad_(True)
    for part, state in zip(second, states, strict=True):
        part.load_state_dict(state)
    train(second[0], second[1], 2, first=2)
    assert_identical([part.state_dict() for part in first], [p.state_dict() for p in second])
    attachment.remove()
    assert dense_norm([model[6]], (6, 5, 5)) <= 0.8 * (1 + 1e-5)


@over_all
def test_weights_that_are_not_finite_are_reported_once_and_it_goes_on(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1))
    attachment = attach(model, None, torch.zeros(1, 2, 6, 6), method=method_of(name), max_norm=0.5)
    for broken in (math.nan, math.inf):
        attachment.step()
        assert attachment.norms() == {"0": 0.5, "1": 0.5}
        kept = model[1].weight.detach().clone()
        model[1].weight.data[0, 0, 0, 0] = broken
        with pytest.warns(
            NormWarning, match=" on layer '1': its weights or statistics are NaN"
        ) as said:
            for _ in range(3):
                attachment.step()
                assert attachment.norms()["0"] == 0.5
                assert math.isnan(attachment.norms()["1"])
        assert len(said) == 1
        model[1].weight.data.copy_(kept)
    attachment.step()
    assert attachment.norms() == {"0": 0.5, "1": 0.5}


@over_methods
def test_another_size_of_image_is_refused(name: str) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 1))
    attachment = attach(model, None, torch.zeros(1, 2, 6, 9), method=method_of(name))
    for shape in ((1, 2, 6, 6), (1, 2, 12, 9), (2, 9, 6)):
        expected = r"Layer '1' .* images of \(6, 9\), and got .*attach it with example inputs"
        with pytest.raises(ValueError, match=expected):
            model(torch.zeros(shape))
    model(torch.zeros(2, 6, 9))
    attachment.remove()
    model(torch.zeros(1, 2, 6, 9))


@over_methods
def test_how_to_load_what_is_left(name: str) -> None:
    """The kernel does not fit the model as it was built, but one that is built as it is now."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2))
    attach(model, None, torch.zeros(1, 2, 8, 8), method=method_of(name)).remove()
    left = model[0]
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        nn.Conv2d(2, 4, 3, padding=1, groups=2).load_state_dict(left.state_dict())
    again = nn.Conv2d(
        left.in_channels,
        left.out_channels,
        left.kernel_size,
        left.stride,
        left.padding,
        left.dilation,
        left.groups,
        padding_mode=left.padding_mode,
    )
    again.load_state_dict(left.state_dict())
    x = torch.randn(3, 2, 8, 8)
    assert torch.equal(again(x), left(x))


def test_settings() -> None:
    with pytest.raises(ValueError, match="iterations must be at least 1"):
        LOT(iterations=0)


@over_methods
def test_the_optimizer_forgets_what_does_not_fit(name: str) -> None:
    """And that alone: layers that keep their shape keep what is remembered of them."""
    model = small_network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    attachment = attach(model, optimizer, EXAMPLE, method=method_of(name))
    train(model, optimizer, 2)
    bare = small_network()
    attachment.remove()
    train(model, optimizer, 1, first=2)
    steps = {key: float(optimizer.state[p]["step"]) for key, p in model.named_parameters()}
    old = dict(bare.named_parameters())
    grown = {key for key, p in model.named_parameters() if p.shape != old[key].shape}
    assert "0.weight" in grown and "9.weight" not in grown
    assert steps == {key: 1 if key in grown else 3 for key in steps}


def test_a_grown_kernel_is_trained_on_by_a_new_optimizer() -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=SOC())
    train(model, optimizer, 1)
    weight = model[0].weight
    attachment.remove()
    assert model[0].weight is weight
    assert weight.shape == (4, 1, 11, 11)
    assert weight.grad is None
    assert model[9].weight.grad is not None  # a dense layer keeps its shape, and all else
    before = weight.detach().clone()
    train(model, sgd(model), 1)
    assert not torch.equal(weight, before)
