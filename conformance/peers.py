"""The functions that the documentation holds against the suite, each as its package has it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm as parametrized

import spectralclip as sc

Shape = tuple[int, ...]
Estimate = Callable[[nn.Module, Shape], Any]
ITERATIONS = 3  # of Gram iterations: kernels double with each, and its cost by a factor of 16


def torch_sees(module: nn.Module, in_shape: Shape) -> float:
    """What torch's parametrization divides a weight by: the norm of the kernel as a matrix."""
    weight: Any = module.weight.detach().clone()
    divided = parametrized(module).weight.detach()
    return float(weight.double().norm() / divided.double().norm())


def of_orthogonium(module: nn.Module, in_shape: Shape) -> Any:
    from orthogonium.layers.conv.singular_values import get_conv_sv

    found = get_conv_sv(module, ITERATIONS, return_stab_rank=False, imsize=in_shape[-1])
    return found.squeeze() if isinstance(found, torch.Tensor) else found


def of_torchlip(module: nn.Module, in_shape: Shape) -> float:
    """What its layers divide a weight by: the norm of the kernel, and a factor for the windows."""
    from deel.torchlip.normalizers import spectral_normalization
    from deel.torchlip.utils.lconv_norm import compute_lconv_coef, compute_lconv_coef_1d

    weight: Any = module.weight.detach()
    _, _, sigma = spectral_normalization(weight.flatten(1))
    if isinstance(module, nn.Linear):
        return float(sigma)
    if isinstance(module, nn.Conv2d):
        return float(sigma) / compute_lconv_coef(module.kernel_size, None, module.stride)
    if isinstance(module, nn.Conv1d):
        return float(sigma) / compute_lconv_coef_1d(module.kernel_size, None, module.stride)
    raise NotImplementedError(f"deel-torchlip has no {type(module).__name__}")


def by_noise(module: nn.Module, in_shape: Shape) -> float:
    """The steepest of a few random steps."""
    from deel.torchlip.utils.evaluate_lip_const import evaluate_lip_const

    return evaluate_lip_const(module, torch.zeros(1, *in_shape), evaluation_type="noise_norm")


def kernel_options(module: Any) -> dict[str, Any]:
    """A module's options as `kernel_norm` takes them; for transposed ones, those of the other."""
    if isinstance(module, nn.Linear):
        return {}
    return {
        name: getattr(module, name)
        for name in ("stride", "padding", "padding_mode", "dilation", "groups")
    }


def by_kernel(module: Any, in_shape: Shape, layout: str = "OIHW") -> float:
    """`kernel_norm` on the weight as a NumPy array."""
    kernel = module.weight.detach().numpy()
    if layout == "HWIO":
        kernel = np.moveaxis(kernel, (0, 1), (-1, -2))
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        in_shape = tuple(module(torch.zeros(1, *in_shape)).shape[1:])
    return sc.kernel_norm(kernel, in_shape, layout=layout, **kernel_options(module))


def ours() -> dict[str, Estimate]:
    return {
        "`spectral_norm(tol=1e-6)`": partial(sc.spectral_norm, tol=1e-6),
        "`spectral_norm`": sc.spectral_norm,
        "`norm_bounds`": sc.norm_bounds,
        "`norm_bounds(deterministic=True)`": partial(sc.norm_bounds, deterministic=True),
        "`kernel_norm`": by_kernel,
        '`kernel_norm(layout="HWIO")`': partial(by_kernel, layout="HWIO"),
    }


def published() -> dict[str, Estimate]:
    """The estimates of the methods of the literature, as this package has them."""
    found = sc.methods.estimators()
    found.pop("farnia")  # the same function as that of gouk
    return {f"`methods.{name}`": estimate for name, estimate in found.items()}


def others() -> dict[str, Estimate]:
    """Other packages, as far as they are installed."""
    found: dict[str, Estimate] = {f"torch {torch.__version__.split('+')[0]}": torch_sees}
    if importlib.util.find_spec("orthogonium") is not None:
        found[f"orthogonium {version('orthogonium')}"] = of_orthogonium
    if importlib.util.find_spec("deel") is not None:
        number = version("deel-torchlip")
        found[f"deel-torchlip {number}, layers"] = of_torchlip
        found[f"deel-torchlip {number}, by noise"] = by_noise
    return found
