"""What the library says where oneDNN fails, and that it does not multiply in bfloat16 itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import spectralclip as sc
from spectralclip import methods
from spectralclip._common.amx import REMEDY, FaultyProcessorError

SHAPE = (3, 6, 6)
FAULT = "could not create a primitive"
PRODUCTS = (
    *("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm", "mv", "dot"),
    *("linear", "matmul", "einsum", "_convolution", "mkldnn_convolution", "addmv", "vdot"),
)


class Products(TorchDispatchMode):
    """Calls a function with the dtypes of the factors before each product."""

    def __init__(self, meet: Callable[[str, set[torch.dtype]], None]) -> None:
        super().__init__()
        self._meet = meet
        self.count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would load its compiler, which takes seconds, to keep it off this mode."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in PRODUCTS:
            self.count += 1
            tensors = tree_leaves((args, kwargs or {}))
            self._meet(name, {one.dtype for one in tensors if isinstance(one, Tensor)})
        return func(*args, **(kwargs or {}))


def failing(message: str = FAULT) -> Products:
    """A process in which oneDNN has failed once: no convolution works any more."""

    def fail(name: str, dtypes: set[torch.dtype]) -> None:
        if "convolution" in name:
            raise RuntimeError(message)

    return Products(fail)


def conv(dtype: torch.dtype = torch.float32) -> nn.Conv2d:
    # Reflected: no explicit form does without the layer's own products.
    return nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", dtype=dtype)


def net() -> nn.Module:
    return nn.Sequential(conv(), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(32, 2))


def step_(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


ENTRIES: dict[str, Callable[[], Any]] = {
    "as_operator": lambda: sc.as_operator(conv(), SHAPE),
    "check_affine": lambda: sc.check_affine(conv(), SHAPE),
    "svds": lambda: sc.svds(conv(), SHAPE, 2),
    "spectral_norm": lambda: sc.spectral_norm(conv(), SHAPE),
    "singular_values": lambda: sc.singular_values(conv(), SHAPE),
    "norm_bounds": lambda: sc.norm_bounds(conv(), SHAPE),
    "clip_": lambda: sc.clip_(conv(), SHAPE, 0.1),
    "clip_model_": lambda: sc.clip_model_(net(), torch.randn(2, *SHAPE), 0.1),
    "init_at_bound_": lambda: sc.init_at_bound_(net(), torch.randn(2, *SHAPE)),
    "find_layers": lambda: sc.find_layers(net(), torch.randn(2, *SHAPE)),
    "audit": lambda: sc.audit(net(), torch.randn(2, *SHAPE)),
    "lipschitz_bounds": lambda: sc.lipschitz_bounds(net(), torch.randn(2, *SHAPE)),
    "jacobian_operator": lambda: sc.jacobian_operator(net(), torch.randn(1, *SHAPE)),
    "attach": lambda: sc.attach(net(), None, torch.randn(2, *SHAPE), method=methods.SpectralClip()),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_user_is_told_the_remedy(entry: str) -> None:
    with failing(), pytest.raises(FaultyProcessorError) as told:
        ENTRIES[entry]()
    (setting,) = (f"{name}={value}" for name, value in REMEDY.items())
    assert setting in str(told.value)
    assert "before torch is imported" in str(told.value)
    causes = []
    error: BaseException | None = told.value
    while error is not None:
        causes.append(type(error))
        error = error.__cause__
    assert RuntimeError in causes  # oneDNN's own is shown too


def test_products_that_fail_later_are_told_too() -> None:
    """The operator was made while all was well."""
    op = sc.as_operator(conv(), SHAPE)
    x = torch.randn(2, *SHAPE)
    y = op.matvec(x)
    for call in (lambda: op.matvec(x), lambda: op.rmatvec(y), lambda: op.gram(x)):
        with failing(), pytest.raises(FaultyProcessorError):
            call()


def test_steps_that_fail_are_told_too() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = sc.attach(model, optimizer, torch.randn(2, *SHAPE), method=methods.SpectralClip())
    with failing(), pytest.raises(FaultyProcessorError):
        step_(optimizer)
    with failing(), pytest.raises(FaultyProcessorError):
        held.finalize()


def test_layers_of_an_audit_are_not_passed_over() -> None:
    """A layer that cannot be examined is, which is not the fault of one layer."""

    def fail(name: str, dtypes: set[torch.dtype]) -> None:
        if "convolution" in name and torch.float64 in dtypes:
            raise RuntimeError(FAULT)

    with Products(fail), pytest.raises(FaultyProcessorError):
        sc.audit(net(), torch.randn(2, *SHAPE))


def test_the_lower_end_of_a_network_is_not_passed_over() -> None:
    def fail(name: str, dtypes: set[torch.dtype]) -> None:
        if name == "convolution_backward":
            raise RuntimeError(FAULT)

    with Products(fail), pytest.raises(FaultyProcessorError):
        sc.lipschitz_bounds(net(), torch.randn(2, *SHAPE))


@pytest.mark.parametrize("message", ["could not create a primitive descriptor for a pool", "no"])
def test_other_errors_stay_what_they_are(message: str) -> None:
    with failing(message), pytest.raises(ValueError, match=message):
        sc.as_operator(conv(), SHAPE)


# --- Half precision ------------------------------------------------------------------------

HALF: dict[str, Callable[[nn.Module], Any]] = {
    "svds": lambda layer: sc.svds(layer, SHAPE, 2),
    "spectral_norm": lambda layer: sc.spectral_norm(layer, SHAPE, differentiable=True),
    "norm_bounds": lambda layer: sc.norm_bounds(layer, SHAPE),
    "clip_": lambda layer: sc.clip_(layer, SHAPE, 0.1),
    "set_spectrum_": lambda layer: sc.set_spectrum_(
        layer, SHAPE, sc.svds(layer, SHAPE, 2), lambda s: s / 2
    ),
}
LAYERS = {
    "convolution": conv,
    "dense": lambda dtype: nn.Sequential(nn.Flatten(), nn.Linear(108, 9, dtype=dtype)),
}


def no_half(name: str, dtypes: set[torch.dtype]) -> None:
    assert not dtypes & {torch.bfloat16, torch.float16}, name


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("entry", HALF)
def test_the_library_does_not_multiply_in_half_precision(entry: str, layer: str) -> None:
    made = LAYERS[layer](torch.bfloat16)
    with Products(no_half) as products:
        HALF[entry](made)
    assert products.count > 0


@pytest.mark.parametrize("name", ["SpectralClip", "FastClip", "Gouk"])
def test_training_adds_no_product_in_half_precision(name: str) -> None:
    model = conv(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, *SHAPE, dtype=torch.bfloat16)
    held = sc.attach(model, optimizer, x, method=getattr(methods, name)())  # runs the model once
    with Products(no_half) as products:
        for _ in range(2):
            step_(optimizer)
        held.finalize()
    assert products.count > 0
