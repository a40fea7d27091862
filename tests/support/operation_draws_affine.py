"""Draws of operations that are affine in the input."""

from __future__ import annotations

import math
from typing import Any

import torch
from operation_draws import Build, Draw, Shape, draws, fixed, halves

# --- Views and rearrangements -----------------------------------------------------------------


@draws("view", "_unsafe_view")
def _view(d: Draw) -> tuple[Shape, Build]:
    return (2, 6), fixed(d.one([12], [3, 4], [-1, 2], [2, 1, 6], [1, 12]))


@draws("alias", "detach", "lift_fresh", "neg")
def _same(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed()


@draws("t")
def _t(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(1, 2), fixed()


@draws("transpose")
def _transpose(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(2)
    return shape, fixed(d.dim(shape), d.dim(shape))


@draws("permute")
def _permute(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(d.order(len(shape)))


@draws("flip")
def _flip(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(d.dims(shape))


@draws("squeeze")
def _squeeze(d: Draw) -> tuple[Shape, Build]:
    return (1, 3, 1), d.one(fixed(), fixed(0), fixed(-1), fixed([0, 2]), fixed(1))


@draws("unsqueeze")
def _unsqueeze(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(d.whole(-len(shape) - 1, len(shape)))


@draws("clone")
def _clone(d: Draw) -> tuple[Shape, Build]:
    return (1, 2, 2, 3), fixed(memory_format=d.one(None, torch.channels_last))


@draws("_to_copy")
def _to_copy(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(), fixed(dtype=d.one(None, torch.float64, torch.float32), non_blocking=d.flag())


@draws("roll")
def _roll(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    if d.flag():
        return shape, fixed([d.whole(-4, 4)])
    dims = d.dims(shape)
    return shape, fixed([d.whole(-4, 4) for _ in dims], dims)


@draws("rot90")
def _rot90(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(2)
    return shape, fixed(d.whole(-3, 3), d.order(len(shape))[:2])


@draws("pixel_shuffle")
def _pixel_shuffle(d: Draw) -> tuple[Shape, Build]:
    return (4, 2, 2), fixed(2)


@draws("pixel_unshuffle")
def _pixel_unshuffle(d: Draw) -> tuple[Shape, Build]:
    return (1, 4, 4), fixed(2)


@draws("channel_shuffle")
def _channel_shuffle(d: Draw) -> tuple[Shape, Build]:
    return (1, 4, 2, 2), fixed(d.one(1, 2, 4))


@draws("select")
def _select(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    dim = d.dim(shape)
    return shape, fixed(dim, d.whole(-shape[dim], shape[dim] - 1))


@draws("slice")
def _slice(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(top=5)
    return shape, fixed(d.dim(shape), d.whole(-3, 2), d.one(None, 4, -1, 100), d.whole(1, 3))


@draws("split", "unsafe_split")
def _split(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(top=5)
    return shape, fixed(d.whole(1, 3), d.dim(shape))


@draws("split_with_sizes", "unsafe_split_with_sizes")
def _split_with_sizes(d: Draw) -> tuple[Shape, Build]:
    return (2, 5), fixed(d.one([1, 4], [2, 3], [0, 5], [1, 1, 3]), 1)


@draws("unbind")
def _unbind(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(d.dim(shape))


@draws("diagonal")
def _diagonal(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(2)
    first, second = d.order(len(shape))[:2]
    return shape, fixed(d.whole(-2, 2), first, second)


@draws("diag_embed")
def _diag_embed(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(1, 2), fixed(d.whole(-2, 2), *d.one((-2, -1), (0, 1), (-1, 0)))


@draws("tril", "triu")
def _triangle(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(2), fixed(d.whole(-2, 2))


@draws("constant_pad_nd")
def _constant_pad(d: Draw) -> tuple[Shape, Build]:
    return (3, 4), fixed([d.whole(-1, 2) for _ in range(d.one(2, 4))], d.real())


# --- Copies -----------------------------------------------------------------------------------


@draws("expand")
def _expand(d: Draw) -> tuple[Shape, Build]:
    return (1, 3, 1), fixed(d.one([4, 3, 2], [-1, -1, 5], [2, 1, 3, 1]), implicit=d.flag())


@draws("repeat")
def _repeat(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(1, 2)
    return shape, fixed(
        [d.whole(0 if d.flag() else 1, 3) for _ in range(len(shape) + d.whole(0, 1))]
    )


@draws("index")
def _index(d: Draw) -> tuple[Shape, Build]:
    rows, columns = d.index(3, 5), d.index(4, 5)
    options = [[rows], [None, columns], [rows, columns], [d.index(3, 2, 1), d.index(4, 4)]]
    return (3, 4), fixed(d.one(*options, [d.mask(3, 4)], [d.mask(3)], [rows - 3]))


@draws("index_select")
def _index_select(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    dim = d.dim(shape)
    return shape, fixed(dim, d.index(shape[dim], 5))


@draws("gather")
def _gather(d: Draw) -> tuple[Shape, Build]:
    dim = d.one(0, 1)
    shape = (5, 4) if dim == 0 else (3, 6)
    return (3, 4), fixed(dim, d.index((3, 4)[dim], *shape), sparse_grad=d.flag())


@draws("take")
def _take(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(d.index(math.prod(shape), *d.sizes(1, 2, top=4)) - d.one(0, 1))


@draws("embedding")
def _embedding(d: Draw) -> tuple[Shape, Build]:
    return (4, 2), fixed(d.index(4, *d.sizes(1, 2, top=6)), d.whole(-1, 3), d.flag(), False)


@draws("unfold")
def _unfold(d: Draw) -> tuple[Shape, Build]:
    return (2, 6), fixed(d.one(1, -1), d.whole(1, 4), d.whole(1, 3))


@draws("im2col")
def _im2col(d: Draw) -> tuple[Shape, Build]:
    kernel, stride = [d.whole(1, 3), 2], [d.whole(1, 2), 1]
    return (1, 1, 5, 4), fixed(kernel, [d.whole(1, 2), 1], [d.whole(0, 1)] * 2, stride)


@draws("reflection_pad1d", "replication_pad1d")
def _pad1d(d: Draw) -> tuple[Shape, Build]:
    return (2, 4), fixed([d.whole(0, 3), d.whole(-1, 3)])


@draws("reflection_pad2d", "replication_pad2d")
def _pad2d(d: Draw) -> tuple[Shape, Build]:
    return (1, 3, 4), fixed([d.whole(0, 3), d.whole(-1, 3), d.whole(0, 2), d.whole(-1, 2)])


@draws("reflection_pad3d", "replication_pad3d")
def _pad3d(d: Draw) -> tuple[Shape, Build]:
    return (1, 2, 3, 3), fixed([d.whole(0, 2), d.whole(0, 2), *[d.whole(0, 1) for _ in range(4)]])


@draws("pad")
def _pad(d: Draw) -> tuple[Shape, Build]:
    mode = d.one("constant", "reflect", "replicate", "circular")
    sizes = [d.whole(0, 2) for _ in range(4)]
    value = d.real() if mode == "constant" else None
    return (1, 1, 3, 3), fixed(sizes, mode=mode, value=value)


@draws("masked_fill")
def _masked_fill(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    if d.flag():
        return shape, fixed(d.mask(*d.broadcast(shape)), d.one(0.0, -9.0, math.inf, -math.inf))
    constant, mask = d.tensor(4, 3), d.mask(3)
    return (), lambda x: ((constant, mask, x), {})


@draws("masked_select")
def _masked_select(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    return shape, fixed(d.mask(*d.broadcast(shape)))


@draws("copy")
def _copy(d: Draw) -> tuple[Shape, Build]:
    old, kwargs = d.tensor(4, 1, 3), {"non_blocking": d.flag()}
    return d.one((3,), (1,), (1, 3), (4, 1, 1)), lambda x: ((old, x), kwargs)


@draws("fill")
def _fill(d: Draw) -> tuple[Shape, Build]:
    old = d.tensor(*d.sizes())
    return (), lambda x: ((old, x), {})


@draws("upsample_nearest1d", "_upsample_nearest_exact1d")
def _nearest1d(d: Draw) -> tuple[Shape, Build]:
    return (1, 2, 4), fixed([d.whole(1, 7)], d.one(None, 0.5, 2.0, 1.7))


@draws("upsample_nearest2d", "_upsample_nearest_exact2d")
def _nearest2d(d: Draw) -> tuple[Shape, Build]:
    scale = d.one(None, 0.6, 2.0)
    return (1, 1, 3, 4), fixed([d.whole(1, 6), d.whole(1, 6)], scale, d.one(None, scale))


@draws("upsample_nearest3d", "_upsample_nearest_exact3d")
def _nearest3d(d: Draw) -> tuple[Shape, Build]:
    return (1, 1, 2, 3, 2), fixed([d.whole(1, 4) for _ in range(3)])


# --- Linear ones ------------------------------------------------------------------------------


@draws("mean", "sum")
def _mean(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes()
    dtype = d.one(None, torch.float64)
    return shape, d.one(fixed(dtype=dtype), fixed(d.dims(shape), d.flag(), dtype=dtype))


@draws("cumsum")
def _cumsum(d: Draw) -> tuple[Shape, Build]:
    shape = d.sizes(top=5)
    return shape, fixed(d.dim(shape))


@draws("trace")
def _trace(d: Draw) -> tuple[Shape, Build]:
    return d.sizes(2, 2), fixed()


@draws("lerp")
def _lerp(d: Draw) -> tuple[Shape, Build]:
    weight: Any = d.one(d.real(), d.tensor(3), d.tensor(2, 1))
    constant = d.tensor(2, 3)
    if d.flag():
        return (9,), lambda x: ((*_two(x, (2, 3), (3,)), weight), {})
    return (2, 3), d.one(fixed(constant, weight), lambda x: ((constant, x, weight), {}))


def _two(x: torch.Tensor, first: Shape, second: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    one, rest = halves(x, first)
    return one, rest.reshape(second)


@draws("col2im")
def _col2im(d: Draw) -> tuple[Shape, Build]:
    return (1, 4, 4), fixed([3, 3], [2, 2], [1, 1], [0, 0], [1, 1])


@draws("index_add")
def _index_add(d: Draw) -> tuple[Shape, Build]:
    index, alpha = d.index(3, 4), d.real()
    return (3 * 2 + 4 * 2,), lambda x: (
        (_two(x, (3, 2), (4, 2))[0], 0, index, _two(x, (3, 2), (4, 2))[1]),
        {"alpha": alpha},
    )


@draws("slice_scatter")
def _slice_scatter(d: Draw) -> tuple[Shape, Build]:
    return (10,), lambda x: ((*_two(x, (2, 4), (2, 1)), 1, 1, 4, 3), {})


@draws("select_scatter")
def _select_scatter(d: Draw) -> tuple[Shape, Build]:
    place = d.whole(-4, 3)
    return (10,), lambda x: ((*_two(x, (2, 4), (2,)), 1, place), {})


@draws("diagonal_scatter")
def _diagonal_scatter(d: Draw) -> tuple[Shape, Build]:
    offset = d.one(-1, 1)
    return (11,), lambda x: ((*_two(x, (3, 3), (2,)), offset), {})


@draws("scatter_add")
def _scatter_add(d: Draw) -> tuple[Shape, Build]:
    index = d.index(3, 4, 2)
    return (6 + 8,), lambda x: (
        (_two(x, (3, 2), (4, 2))[0], 0, index, _two(x, (3, 2), (4, 2))[1]),
        {},
    )


@draws("masked_scatter")
def _masked_scatter(d: Draw) -> tuple[Shape, Build]:
    mask = d.mask(*d.one((2, 3), (3,)))

    def build(x: torch.Tensor) -> Any:
        target, source = _two(x, (2, 3), (6,))
        return (target, mask, source), {}

    return (12,), build


@draws("index_put")
def _index_put(d: Draw) -> tuple[Shape, Build]:
    apart = torch.tensor(d.order(4)[:3])
    indices = d.one([apart], [d.index(4, 3)], [apart - 4], [apart, torch.tensor([0, 0, 1])])
    values = (3,) if len(indices) == 2 else d.one((3, 2), (2,), ())
    accumulate = d.flag()

    def build(x: torch.Tensor) -> Any:
        target, rest = halves(x, (4, 2))
        return (target, indices, rest.reshape(values), accumulate), {}

    return (8 + math.prod(values),), build


@draws("index_copy")
def _index_copy(d: Draw) -> tuple[Shape, Build]:
    index = d.one(torch.tensor(d.order(4)[:3]), d.index(4, 3))
    return (14,), lambda x: (
        (_two(x, (4, 2), (3, 2))[0], 0, index, _two(x, (4, 2), (3, 2))[1]),
        {},
    )


@draws("scatter")
def _scatter(d: Draw) -> tuple[Shape, Build]:
    index = d.one(torch.tensor([d.order(4)[:3], d.order(4)[:3]]), d.index(4, 2, 3))
    if d.flag():
        return (2, 4), fixed(1, index, d.real())
    more = {"reduce": "multiply"} if d.rng.random() < 0.1 else {}
    return (14,), lambda x: (
        (_two(x, (2, 4), (2, 3))[0], 1, index, _two(x, (2, 4), (2, 3))[1]),
        more,
    )


@draws("avg_pool2d")
def _avg_pool2d(d: Draw) -> tuple[Shape, Build]:
    kernel, divisor = d.whole(1, 3), d.one(None, 1, -3, 2)
    return (1, 1, 5, 4), fixed(
        [kernel, 2], [d.whole(1, 3), 1], [kernel // 2, 1], d.flag(), d.flag(), divisor
    )


@draws("avg_pool3d")
def _avg_pool3d(d: Draw) -> tuple[Shape, Build]:
    return (1, 1, 3, 3, 2), fixed([2], [1], [d.one(0, 1)], d.flag(), d.flag(), d.one(None, 1, -3))


@draws("_adaptive_avg_pool2d")
def _adaptive2d(d: Draw) -> tuple[Shape, Build]:
    return (1, 4, 5), fixed([d.whole(1, 6), d.whole(1, 6)])


@draws("_adaptive_avg_pool3d")
def _adaptive3d(d: Draw) -> tuple[Shape, Build]:
    return (1, 3, 3, 2), fixed([d.whole(1, 4) for _ in range(3)])


@draws("upsample_linear1d")
def _linear1d(d: Draw) -> tuple[Shape, Build]:
    return (1, 2, 4), fixed([d.whole(1, 7)], d.flag(), d.one(None, 0.5, 2.0))


@draws(
    *("upsample_bilinear2d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
def _bilinear2d(d: Draw) -> tuple[Shape, Build]:
    scale = d.one(None, 0.5, 1.5)
    return (1, 1, 3, 4), fixed([d.whole(1, 6), d.whole(1, 6)], d.flag(), scale, None)


@draws("upsample_trilinear3d")
def _trilinear3d(d: Draw) -> tuple[Shape, Build]:
    return (1, 1, 2, 3, 2), fixed([d.whole(1, 4) for _ in range(3)], d.flag())
