"""In which precision things are computed: the one place that knows what devices can do.

Not every device has float64 (Apple's MPS has none), and those that lack it also lack much of the
dense algebra. Where float64 is needed, a tensor is widened where it lies if that can be done, and
on the CPU otherwise; `.double()` on a device's tensor would fail there, and so does one call that
moves and widens at once, since the device converts before it copies.

Float32 is not always float32 either. By torch's default, convolutions on CUDA round their inputs to
TF32, with ten bits in place of 23, and settings do the same for matrix products, on CPUs down to
bfloat16. A bound whose margin is a few roundings of float32 would not hold: inside `full_precision`
products are what their dtype says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor


@cache
def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64: tried once, since torch keeps no list of them."""
    if device.type in ("cpu", "cuda"):
        return True
    try:
        # Some devices hold float64 and fail when they have to add it.
        two = torch.ones(2, dtype=torch.float64, device=device).sum()
        return float(two) == 2.0
    except (TypeError, RuntimeError):
        return False


def on_host(x: Tensor) -> Tensor:
    """A tensor in float64, or complex128, on the CPU."""
    # Torch knows no common type of float64 and those of one byte.
    return x.detach().cpu().to(torch.complex128 if x.is_complex() else torch.float64)


def wide(x: Tensor) -> Tensor:
    """A tensor in float64, or complex128: where it lies if its device has that, else on the CPU."""
    if not has_float64(x.device):
        return on_host(x)
    return x.detach().to(torch.promote_types(x.dtype, torch.float64))


def testable(x: Tensor) -> Tensor:
    """A tensor that can be asked for NaN and infinities: torch has no such test of eight bits."""
    return x.detach().float() if x.element_size() < 2 else x.detach()


def sent(x: Tensor, device: torch.device, dtype: torch.dtype, *, copy: bool = False) -> Tensor:
    """A tensor in another place and precision, converted on the side that has both precisions."""
    if has_float64(x.device):
        return x.to(device, dtype, copy=copy)  # torch converts, then copies
    return x.to(device, copy=copy).to(dtype)


def decomposable(x: Tensor) -> Tensor:
    """A tensor where dense algebra can be had: devices without float64 lack much of it."""
    return x if has_float64(x.device) else x.cpu()


class full_precision(ContextDecorator):
    """Products at the precision of their dtype, whatever torch's global settings, which come back.

    The settings are those of the process. So the first of all blocks that are open, in whatever
    thread, changes them and the last one puts them back: none of them ends another's early.
    """

    _lock = threading.Lock()
    _open = 0
    _restore: Callable[[], None]

    def __enter__(self) -> None:
        cls = full_precision
        with cls._lock:
            if cls._open == 0:
                cls._restore = staticmethod(_switched_off())
            cls._open += 1

    def __exit__(self, *error: object) -> None:
        cls = full_precision
        with cls._lock:
            cls._open -= 1
            if cls._open == 0:
                cls._restore()


# The settings `torch.backends.<backend>.<operation>.fp32_precision`, parents before children: what
# is "none" inherits. Torch before 2.9 does not have them.
_PRECISIONS = (
    *(("generic", "all"), ("cuda", "all"), ("mkldnn", "all")),
    *((name, op) for name in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn")),
)
# Of layers that convert to half precision themselves.
_HALF_SUMS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)


def _switched_off() -> Callable[[], None]:
    """Switch off what shortens factors or sums; returns what puts the settings back.

    The older settings are read first, since torch refuses to read them once the newer ones
    contradict them, and written after those, so that a layer that reads them finds both agree.
    """
    matmul: Any = torch.backends.cuda.matmul
    convolutions: list[Any] = [torch.backends.cudnn, torch.backends.mkldnn]
    products = _readable(torch.get_float32_matmul_precision)
    short = [m for m in convolutions if _readable(partial(getattr, m, "allow_tf32", None))]
    new = hasattr(torch.backends, "fp32_precision")
    own = {place: _own_precision(*place) for place in _PRECISIONS} if new else {}
    products = products or _readable(torch.get_float32_matmul_precision) or "highest"
    if products != "highest":
        torch.set_float32_matmul_precision("highest")
    for module in short:
        module.allow_tf32 = False
    sums = [name for name in _HALF_SUMS if getattr(matmul, name, False)]
    # Newer versions have a second part, which a single value would reset.
    split = {name: getattr(matmul, f"{name}_split_k", None) for name in sums}
    for name in sums:
        setattr(matmul, name, False if split[name] is None else (False, split[name]))

    def restore() -> None:
        for name in sums:
            setattr(matmul, name, True if split[name] is None else (True, split[name]))
        for module in short:
            module.allow_tf32 = True
        if products != "highest":
            torch.set_float32_matmul_precision(products)
        for place, precision in own.items():
            torch._C._set_fp32_precision_setter(*place, precision)

    return restore


def _readable(read: Callable[[], Any]) -> Any:
    """What a setting says; None where the newer ones say what it has no word for."""
    try:
        return read()
    except RuntimeError:
        return None


def _own_precision(backend: str, operation: str) -> str:
    """A setting's own value, which is "none" from now on, as its parents' are already."""
    own: str = torch._C._get_fp32_precision_getter(backend, operation)
    if own != "none":
        torch._C._set_fp32_precision_setter(backend, operation, "none")
    return own
