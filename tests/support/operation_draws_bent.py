"""Draws of operations that are not affine."""

from __future__ import annotations

import math
from typing import Any

import torch
from operation_draws import Build, Draw, Shape, draws, fixed
from torch import Tensor


@draws(
    *("relu", "tanh", "abs", "sin", "cos", "atan", "asinh", "softsign", "tanhshrink"),
    *("log_sigmoid_forward", "silu", "mish", "sigmoid", "hardswish", "hardsigmoid", "erf", "erfc"),
)
def _plain(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed()


@draws("hardtanh", "threshold")
def _two_numbers(d: Draw, name: str) -> tuple[Shape, Build]:
    first = d.real()
    return d.sizes(), fixed(first, first if name == "threshold" and d.flag() else d.real())


@draws("softshrink")
def _softshrink(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed(abs(d.real()))


@draws("nan_to_num")
def _nan_to_num(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed(d.real(), d.one(None, 0.0), d.one(None, 0.0))


@draws("leaky_relu")
def _leaky(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed(d.real())


@draws("elu")
def _elu(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed(d.real(), d.real(), d.one(1.0, d.real()))


@draws("celu")
def _celu(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed(d.one(1.0, -1.0, 0.05, 3.0))


@draws("gelu")
def _gelu(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed(approximate=d.one("none", "tanh"))


@draws("softplus")
def _softplus(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed(d.one(1.0, 5.0, 0.05, -1.0), d.one(20, 20, 30, 5, -1))


@draws("_prelu_kernel")
def _prelu(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(d.tensor(*d.broadcast(shape)))


@draws("rrelu_with_noise")
def _rrelu(d: Draw) -> tuple[Shape, Build]:
    training, lower, upper = d.rng.random() < 0.2, d.one(-9.0, 0.1), d.one(8.0, 0.3)
    upper = max(lower, upper)
    return d.sizes(), lambda x: ((x, torch.zeros_like(x), lower, upper, training), {})


@draws("pow")
def _pow(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(d.one(1, 1.0, 2.0, torch.ones(d.broadcast(shape))))


@draws("native_dropout")
def _dropout(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed(d.one(0.5, 0.9), d.one(False, False, True, None))


# --- Along axes -------------------------------------------------------------------------------


@draws("max", "min", "median", "nanmedian")
def _largest(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, d.one(fixed(), fixed(d.dim(shape), d.flag()))


@draws("amax", "amin", "logsumexp")
def _over_axes(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(d.dims(shape), d.flag())


@draws("aminmax")
def _aminmax(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(dim=d.one(None, d.dim(shape)), keepdim=d.flag())


@draws("sort")
def _sort(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    dim, descending = d.dim(shape), d.flag()
    stable = fixed(stable=d.flag(), dim=dim, descending=descending)
    return shape, d.one(fixed(dim, descending), stable)


@draws("topk")
def _topk(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    dim = d.dim(shape)
    return shape, fixed(d.whole(0, shape[dim]), dim, d.flag(), d.flag())


@draws("kthvalue")
def _kthvalue(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    dim = d.dim(shape)
    return shape, fixed(d.whole(1, shape[dim]), dim, d.flag())


@draws("cummax", "cummin", "logcumsumexp")
def _running(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(top=5)
    return shape, fixed(d.dim(shape))


@draws("_softmax", "_log_softmax")
def _softmax(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(top=5)
    return shape, fixed(d.dim(shape), False)


@draws("_safe_softmax")
def _safe_softmax(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(top=5)
    return shape, fixed(d.dim(shape), d.one(None, torch.float64))


@draws("linalg_vector_norm")
def _norm(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(top=4)
    order = d.one(2, 1, 1.5, 3, 0.5, 0, math.inf, -math.inf, -1)
    return shape, fixed(order, d.one(None, d.dims(shape)), d.flag(), dtype=None)


@draws("std")
def _std(d: Draw) -> tuple[Shape, Build]:
    shape = (d.whole(2, 4), d.whole(2, 4))
    dim = d.one(None, [0], [1], [0, 1])
    return shape, fixed(dim, correction=d.one(None, 0, 1, -2, 1.5), keepdim=d.flag())


@draws("normalize")
def _normalize(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(top=4)
    return shape, fixed(p=d.one(2.0, 2, 2.0, 1.0), dim=d.dim(shape), eps=d.one(0.1, 1e-3))


def _window(d: Draw) -> tuple[Any, ...]:
    kernel = d.whole(1, 3)
    stride, dilation = d.one([], [d.whole(1, 3)]), [d.whole(1, 2)]
    return [kernel], stride, [kernel // 2 if d.flag() else 0], dilation, d.flag()


@draws("max_pool2d_with_indices")
def _max_pool2d(d: Draw) -> tuple[Shape, Build]:
    return (1, 1, 5, 5), fixed(*_window(d))


@draws("max_pool3d_with_indices")
def _max_pool3d(d: Draw) -> tuple[Shape, Build]:
    kernel = d.whole(1, 2)
    return (1, 1, 3, 3, 3), fixed([kernel], d.one([], [1]), [kernel // 2], [1], d.flag())


@draws("adaptive_max_pool2d")
def _adaptive_max2d(d: Draw) -> tuple[Shape, Build]:
    return (1, 4, 5), fixed([d.whole(1, 6), d.whole(1, 6)])


@draws("adaptive_max_pool3d")
def _adaptive_max3d(d: Draw) -> tuple[Shape, Build]:
    return (1, 3, 3, 2), fixed([d.whole(1, 4) for _ in range(3)])


# --- Normalizations ---------------------------------------------------------------------------


def _weight(d: Draw, count: int) -> Tensor | None:
    return d.one(None, d.tensor(count))


@draws("native_batch_norm", "_native_batch_norm_legit")
def _batch_norm(d: Draw) -> tuple[Shape, Build]:
    training, weight = d.flag(), _weight(d, 2)
    mean, variance = d.tensor(2), d.tensor(2).abs() + 0.05
    return (3, 2, 2), lambda x: (
        (x, weight, None, mean.clone(), variance.clone(), training, 0.1, 0.01),
        {},
    )


@draws("_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_no_update")
def _fixed_batch_norm(d: Draw) -> tuple[Shape, Build]:
    mean, variance, weight = d.tensor(2), d.tensor(2).abs() + 0.05, _weight(d, 2)
    return (3, 2, 2), lambda x: (
        (x, weight, None, mean.clone(), variance.clone(), 0.1, 0.01),
        {},
    )


@draws("native_layer_norm")
def _layer_norm(d: Draw) -> tuple[Shape, Build]:
    return (2, 4), fixed([4], _weight(d, 4), _weight(d, 4), d.one(0.01, 1.0))


@draws("rms_norm")
def _rms_norm(d: Draw) -> tuple[Shape, Build]:
    return (2, 4), fixed((4,), _weight(d, 4), d.one(0.01, 1.0))


@draws("native_group_norm")
def _group_norm(d: Draw) -> tuple[Shape, Build]:
    return (1, 4, 3), fixed(_weight(d, 4), _weight(d, 4), 1, 4, 3, d.one(1, 2, 4), 0.01)
