"""Products inside the library are at full precision, whatever torch's settings, which come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from devices_sim import tf32_products
from torch import nn

import spectralclip as sc
from oracle import dense_matrix, singular_values
from spectralclip._linalg.precision import full_precision

NEW_SETTINGS = hasattr(torch.backends, "fp32_precision")
needs_new_settings = pytest.mark.skipif(not NEW_SETTINGS, reason="torch has no fp32_precision")
PLACES = [("generic", "all")] + [
    (backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")
]


def settings() -> dict[str, Any]:
    """All settings that shorten products, as they are now."""
    matmul: Any = torch.backends.cuda.matmul
    found: dict[str, Any] = {}
    for name, read in {
        "matmul": torch.get_float32_matmul_precision,
        "cudnn": lambda: torch.backends.cudnn.allow_tf32,
        "onednn": lambda: getattr(torch.backends.mkldnn, "allow_tf32", None),
        "fp16 sums": lambda: matmul.allow_fp16_reduced_precision_reduction,
        "bf16 sums": lambda: matmul.allow_bf16_reduced_precision_reduction,
    }.items():
        try:
            found[name] = read()
        except RuntimeError:  # the newer settings contradict it
            found[name] = "mixed"
    if NEW_SETTINGS:
        found |= {place: torch._C._get_fp32_precision_getter(*place) for place in PLACES}
    return found


def is_full() -> bool:
    now = settings()
    older = now["matmul"] in ("highest", "mixed") and now["cudnn"] in (False, "mixed")
    return older and all(now.get(place, "none") in ("none", "ieee") for place in PLACES)


@pytest.fixture(autouse=True)
def reduced() -> Iterator[dict[str, Any]]:
    """TF32 for everything, as users switch it on; put back afterwards."""
    before = settings()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    yield settings()
    if NEW_SETTINGS:
        torch.backends.fp32_precision = "none"
        torch._C._set_fp32_precision_setter("cuda", "all", "none")
        torch._C._set_fp32_precision_setter("mkldnn", "all", "none")
        torch._C._set_fp32_precision_setter("mkldnn", "conv", "none")
    torch.set_float32_matmul_precision(before["matmul"])
    torch.backends.cudnn.allow_tf32 = before["cudnn"]
    for place in PLACES if NEW_SETTINGS else ():
        torch._C._set_fp32_precision_setter(*place, before[place])
    assert settings() == before


# --- The simulation itself ------------------------------------------------------------------


def test_products_are_shortened_where_the_settings_allow_it() -> None:
    x, w = torch.randn(4, 3, 8, 8), torch.randn(5, 3, 3, 3)
    products: list[Callable[[], torch.Tensor]] = [
        lambda: nn.functional.conv2d(x, w),
        lambda: x.flatten(1) @ x.flatten(1).T,
    ]
    exact = [product() for product in products]
    with tf32_products() as mode:
        short = [product() for product in products]
        assert mode.shortened == 2
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        again = [product() for product in products]
        assert mode.shortened == 2
    for one, other, third in zip(exact, short, again, strict=True):
        assert 1e-5 < float((one - other).abs().max() / one.abs().max()) < 1e-2
        assert torch.equal(one, third)


# --- The settings ---------------------------------------------------------------------------


def test_settings_come_back(reduced: dict[str, Any]) -> None:
    with full_precision():
        assert is_full()
        with full_precision():
            assert is_full()
        assert is_full()
    assert settings() == reduced


def test_settings_come_back_after_an_error(reduced: dict[str, Any]) -> None:
    with pytest.raises(sc.NotAffineError):
        sc.svds(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (3,), 1)
    with pytest.raises(ZeroDivisionError), full_precision():
        raise ZeroDivisionError
    assert settings() == reduced


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_matrix_products_of_the_cpu_too(precision: str) -> None:
    """On CPUs "medium" stands for bfloat16."""
    torch.set_float32_matmul_precision(precision)
    before = settings()
    with full_precision():
        assert is_full()
    assert settings() == before


@needs_new_settings
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("older", [True, False])
def test_the_newer_settings_come_back_one_by_one(place: tuple[str, str], older: bool) -> None:
    """Some of these contradict the older ones, which torch then refuses to read."""
    torch.backends.cudnn.allow_tf32 = older
    torch.set_float32_matmul_precision("high" if older else "highest")
    torch._C._set_fp32_precision_setter(*place, "tf32" if place[0] != "mkldnn" else "bf16")
    before = settings()
    with full_precision():
        assert is_full()
    assert settings() == before
    # What inherits still does.
    if place == ("generic", "all"):
        torch.backends.fp32_precision = "ieee"
        assert torch._C._get_fp32_precision_getter("mkldnn", "conv") == "ieee"


def test_an_open_block_keeps_its_precision_when_another_thread_ends(
    reduced: dict[str, Any],
) -> None:
    entered, ended = threading.Event(), threading.Event()

    def other() -> None:
        with full_precision():
            entered.set()
            assert ended.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(30)
    with full_precision():
        ended.set()
        thread.join()
        assert is_full()
    assert settings() == reduced


def test_a_layer_may_use_the_settings_itself(reduced: dict[str, Any]) -> None:
    """Torch refuses to read the older settings where they contradict the newer ones."""

    def layer(x: torch.Tensor) -> torch.Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return 2 * x

    assert float(sc.spectral_norm(layer, (4,))) == pytest.approx(2)
    assert settings() == reduced


# --- What the library offers ----------------------------------------------------------------

SHAPE = (2, 9, 9)


def reflect(channels: int = 3) -> nn.Module:
    return nn.Conv2d(2, channels, 3, padding=1, padding_mode="reflect")


def network() -> nn.Sequential:
    return nn.Sequential(
        reflect(), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1, stride=2),
        nn.ReLU(), nn.Flatten(), nn.Linear(50, 4),
    ).eval()  # fmt: skip


def example() -> torch.Tensor:
    return torch.randn(1, *SHAPE)


def attached(method: sc.Method) -> None:
    """Only the library's own part; the model's passes are the user's."""
    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attachment = sc.attach(model, optimizer, example(), method=method, max_norm=0.3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    attachment.penalty()
    attachment.load_state_dict(attachment.state_dict())
    attachment.finalize(certify=True)


def scipy_product() -> None:
    op = sc.as_operator(reflect(), SHAPE).to_scipy()
    op.matvec(np.ones(op.shape[1]))
    op.rmatvec(np.ones(op.shape[0]))


def rows() -> None:
    op = sc.as_operator(reflect(), SHAPE)
    x = torch.ones(1, op.shape[1])
    op.adjoint_rows(op.forward_rows(op.gram_rows(x)))
    op.pullback(op.matvec(torch.ones(SHAPE)), torch.ones(SHAPE))
    op.to_dense()


def jacobian() -> None:
    op = sc.jacobian_operator(network(), example())
    op.gram(op.rmatvec(op.matvec(torch.ones(SHAPE))))
    sc.svds(op, SHAPE, 1)


def new_spectrum() -> None:
    layer = reflect()
    sc.set_spectrum_(layer, SHAPE, sc.svds(layer, SHAPE, 2), lambda S: S / 2)


ENTRIES: dict[str, Callable[[], object]] = {
    "svds": lambda: sc.svds(reflect(), SHAPE, 2),
    "PowerQR": lambda: sc.svds(reflect(), SHAPE, 2, solver=sc.PowerQR()),
    "Exact": lambda: sc.svds(reflect(), SHAPE, 2, solver=sc.Exact()),
    "spectral_norm": lambda: sc.spectral_norm(reflect(), SHAPE),
    "backward": lambda: sc.spectral_norm(reflect(), SHAPE, differentiable=True).backward(),
    "singular_values": lambda: sc.singular_values(reflect(), SHAPE),
    "norm_bounds": lambda: sc.norm_bounds(reflect(), SHAPE),
    "every size": lambda: sc.norm_bounds_all_sizes(nn.Conv2d(2, 3, 3, padding=1)),
    "clip_": lambda: sc.clip_(reflect(), SHAPE, 0.4, certify=True),
    "clip_ on a torus": lambda: sc.clip_(nn.Conv2d(2, 3, 3, padding=1), SHAPE, 0.2),
    "exact": lambda: sc.clip_(reflect(), SHAPE, 0.8, exact=True),
    "clip_model_": lambda: sc.clip_model_(network(), example(), 0.3),
    "set_spectrum_": new_spectrum,
    "find_layers": lambda: sc.find_layers(network(), example()),
    "skipped_layers": lambda: sc.skipped_layers(network(), example()),
    "check_affine": lambda: sc.check_affine(reflect(), SHAPE),
    "rows": rows,
    "to_scipy": scipy_product,
    "jacobian_operator": jacobian,
    "lipschitz_bounds": lambda: sc.lipschitz_bounds(network(), example()),
    "audit": lambda: sc.audit(network(), example()),
    "paper_clip_": lambda: sc.methods.paper_clip_(reflect(), SHAPE, 0.4),
    "attach": lambda: attached(sc.methods.SpectralClip()),
}


# The others, which go the same ways, run with the slow tests.
QUICK = (
    "svds",
    "backward",
    "norm_bounds",
    "rows",
    "to_scipy",
    "jacobian_operator",
    "attach",
)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ENTRIES]
)
def test_no_product_is_shortened(name: str, reduced: dict[str, Any]) -> None:
    with tf32_products() as mode:
        ENTRIES[name]()
    assert mode.shortened == 0
    assert settings() == reduced


@pytest.mark.slow
@pytest.mark.parametrize("name", sc.methods.available())
@pytest.mark.filterwarnings("ignore::spectralclip.NormWarning")
def test_no_method_shortens_products(name: str, reduced: dict[str, Any]) -> None:
    with tf32_products() as mode:
        attached(sc.methods.get(name)())
    assert mode.shortened == 0
    assert settings() == reduced


def test_probabilistic_bounds_are_above_the_norm(reduced: dict[str, Any]) -> None:
    """With products in TF32 the upper end, which allows for float32, was below it for some."""
    for seed in range(4):
        torch.manual_seed(seed)
        layer = nn.Sequential(reflect(4), nn.Conv2d(4, 2, 3, padding=1, padding_mode="replicate"))
        true = singular_values(layer.double(), SHAPE)[0]
        op = sc.as_operator(layer.float(), SHAPE)  # so that float32 is all there is
        with tf32_products():
            interval = sc.norm_bounds(op, SHAPE, tol=1e-4)
        assert interval.kind == "probabilistic"
        assert true in interval, seed
    assert settings() == reduced


def test_gradients_are_not_those_of_shortened_products() -> None:
    torch.manual_seed(1)
    layer, twin = reflect(), reflect().double()
    twin.load_state_dict(layer.state_dict())
    matrix = torch.from_numpy(dense_matrix(twin, SHAPE))
    U, _, Vh = torch.linalg.svd(matrix)
    y = twin(Vh[0].reshape(1, *SHAPE)) - twin(torch.zeros(1, *SHAPE, dtype=torch.float64))
    (true,) = torch.autograd.grad((y.flatten() * U[:, 0]).sum(), [twin.weight])
    with tf32_products():
        sc.spectral_norm(layer, SHAPE, tol=1e-7, differentiable=True).backward()
    assert layer.weight.grad is not None
    np.testing.assert_allclose(layer.weight.grad.numpy(), true.numpy(), atol=2e-5)
