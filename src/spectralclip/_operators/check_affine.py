"""Is a layer affine? If not, which of its parts is to blame?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spectralclip._operators.affine import AffineFunction, Layer, NotAffineError
from spectralclip._operators.contexts import plain_numerics, unchanged_rng
from spectralclip._operators.module_types import describe


def check_affine(
    layer: Layer,
    in_shape: Sequence[int] | int | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> None:
    """Raise `NotAffineError`, naming the culprit, unless the layer is affine in its input.

    The layer is evaluated at a few random points of very different sizes, where an affine
    function has to satisfy `f(x + y) + f(0) = f(x) + f(y)` and the like. The first submodule
    in order of execution whose output breaks such a relation is named.

    Args:
        layer: A module, an affine callable, or a sequence of them.
        in_shape: Shape of one input, as for `svds`.
        dtype: For layers without parameters: the precision to test in.
        device: For layers without parameters: where to test.

    Raises:
        NotAffineError: The layer is not affine, mixes the entries of a batch, or is random.

    Example:
        >>> import torch
        >>> from spectralclip import check_affine
        >>> check_affine(torch.nn.Conv2d(3, 8, 3), (3, 8, 8))
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        >>> check_affine(net, (4,))
        Traceback (most recent call last):
        ...
        spectralclip.NotAffineError: ReLU() (submodule '1') is not affine: ...
    """
    with plain_numerics():
        require_affine(AffineFunction(layer, in_shape, dtype=dtype, device=device))


def require_affine(function: AffineFunction) -> None:
    """Raise unless the function passes the affine relations at random points."""
    points = _probe_points(function)
    with torch.no_grad(), unchanged_rng(function.device):
        outputs = function(points.clone())  # a layer may work in place
        alone = function(points[1:2].clone())
    if outputs.shape[0] != points.shape[0]:
        raise NotAffineError(f"{function.name} does not keep the batch dimension.")
    if not bool(torch.isfinite(outputs).all()):
        raise ValueError(f"{function.name} makes NaN or infinite values from finite inputs.")
    if _defect(outputs) > _tolerance(function.dtype):
        raise NotAffineError(_blame(function, points))
    scale = outputs[1].abs().max() + outputs[0].abs().max()
    if (outputs[1] - alone[0]).abs().max() > _tolerance(function.dtype) * scale:
        raise NotAffineError(
            f"{function.name} gives another output for an input alone than within a batch: it "
            "mixes the entries of a batch, or is random. If it calls batch norm or dropout, pass "
            "the modules themselves, or put them in evaluation mode first."
        )


def is_linear_in(
    function: AffineFunction, names: Sequence[str], *, homogeneous: bool = False
) -> bool:
    """Whether `M(W)` is affine in these parameters together; zero at zero where `homogeneous`."""
    generator = torch.Generator("cpu").manual_seed(0)

    def random(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        return drawn.to(function.dtype).to(function.device)

    x, old = random(1, *function.in_shape), {name: function.values[name] for name in names}
    sizes = [value.square().mean().sqrt().clamp_min(1e-30) for value in old.values()]
    one, other = (
        [size * random(*value.shape) for size, value in zip(sizes, old.values(), strict=True)]
        for _ in range(2)
    )

    def image(share: float, of_one: float, of_other: float) -> Tensor:
        parts = zip(old.items(), one, other, strict=True)
        moved = {n: share * w + of_one * a + of_other * b for (n, w), a, b in parts}
        return function.linear_part(x, moved)

    with torch.no_grad(), unchanged_rng(function.device):
        here, there, elsewhere = image(1, 0, 0), image(1, 1, 0), image(1, 0, 1)
        both, twice, origin = image(1, 1, 1), image(2, 0, 0), image(0, 0, 0)
    scale = float((there - here).norm() + (elsewhere - here).norm() + here.norm())
    defects = [both - there - elsewhere + here, twice - 2 * here + origin]
    defects += [origin] if homogeneous else []
    # NaN, as from a division by a norm of zero, is no less of a defect.
    return all(float(d.norm()) <= _tolerance(function.dtype) * scale for d in defects)


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-6 if dtype == torch.float64 else 2e-3


# An affine f has f(x + y) = f(x) + f(y) - f(0) and f(s x) = f(0) + s (f(x) - f(0)).
_LARGE, _SMALL = 1e3, 1e-2


def _probe_points(function: AffineFunction) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    x, y = torch.randn(
        2, *function.in_shape, generator=generator, dtype=torch.float64, device="cpu"
    )
    points = torch.stack([torch.zeros_like(x), x, y, x + y, -x, _LARGE * x, _SMALL * x])
    return points.to(function.device, function.dtype)


def _defect(values: Tensor) -> float:
    """How far values at the probe points are from those of an affine function."""
    values = values.detach().cpu()  # not every device has float64
    offset = values[0]
    x, y, both, negative, large, small = (values[1:] - offset).double()
    size = x.norm() + y.norm()
    # Each output is rounded where f(0) is added to its sum, on some machines at every term of it:
    # what f(0) hides is held against nobody.
    hidden = 100 * torch.finfo(values.dtype).eps * offset.norm().double()
    room = hidden / _tolerance(values.dtype)
    defects = [
        (both - x - y).norm() / (size + room).clamp_min(1e-300),
        (negative + x).norm() / (size + room).clamp_min(1e-300),
        (large - _LARGE * x).norm() / (_LARGE * (size + room)).clamp_min(1e-300),
        (small - _SMALL * x).norm() / (_SMALL * size + room).clamp_min(1e-300),
    ]
    return max(float(defect) for defect in defects)


def _blame(function: AffineFunction, points: Tensor) -> str:
    """Name the first submodule that makes an output which is not affine from inputs that are."""
    found: list[str] = []

    def bends(value: Any) -> bool:
        probed = isinstance(value, Tensor) and value.shape[:1] == points.shape[:1]
        return probed and _defect(value) > _tolerance(value.dtype)

    def watch(name: str, module: nn.Module) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not found and bends(output) and not any(map(bends, inputs)):
                found.append(describe(module) + (f" (submodule {name!r})" if name else ""))

        return module.register_forward_hook(hook)

    hooks = [
        watch(".".join(filter(None, (stage.name, name))), module)
        for stage in function.stages
        if isinstance(stage.layer, nn.Module)
        for name, module in stage.layer.named_modules()
    ]
    try:
        with torch.no_grad(), unchanged_rng(function.device):
            function(points.clone())
    finally:
        for handle in hooks:
            handle.remove()
    return (
        f"{found[0] if found else function.name} is not affine: f(x + y) differs from "
        "f(x) + f(y) - f(0). Leave it out."
    )
