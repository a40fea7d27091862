"""The layers that are made by formula: grids of geometries, odd shapes, spectra made to order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from conformance.layer import Layer

SIDES = {1: (24,), 2: (9, 8), 3: (6, 5, 5)}
MODES = ("zeros", "circular", "reflect", "replicate")


def normal(rng: np.random.Generator, *shape: int) -> Any:
    """Weights as they are initialized: normal, with a norm of the order of one."""
    return rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))


def convolution(
    name: str,
    kind: str,
    weight: Any,
    sides: tuple[int, ...],
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    mode: str = "zeros",
    output_padding: int | None = None,
) -> Layer:
    """A layer with single numbers spread over its axes; "same" as torch has it, for stride 1."""
    axes = len(sides)
    weight = np.asarray(weight)

    def spread(sizes: int | tuple[int, ...]) -> tuple[int, ...]:
        return (sizes,) * axes if isinstance(sizes, int) else sizes

    if isinstance(padding, str):
        assert padding == "same"
        reach = [d * (k - 1) for d, k in zip(spread(dilation), weight.shape[2:], strict=True)]
        pads = tuple((size // 2, size - size // 2) for size in reach)
    else:
        pads = tuple((size, size) for size in spread(padding))
    channels = weight.shape[0] if output_padding is not None else weight.shape[1] * groups
    return Layer(
        name,
        kind,
        weight,
        (channels, *sides),
        spread(stride),
        pads,
        spread(dilation),
        groups,
        mode,
        None if output_padding is None else spread(output_padding),
    )


def grid(rng: np.random.Generator) -> Iterator[Layer]:
    """Every padding, stride, dilation and grouping, in one to three dimensions: 96 layers."""
    widths = ((4, 6), (6, 4), (4, 4))
    combinations = product((1, 2, 3), MODES, (1, 2), (1, 2), (1, 2))
    for counter, (axes, mode, stride, dilation, groups) in enumerate(combinations):
        inputs, outputs = widths[counter % 3]
        size = 2 if counter % 7 == 6 else 3
        # Zeros come as none, half of the reach, and all of it.
        reach = dilation * (size - 1)
        pads = (0, reach // 2, reach)[(counter + 1) % 3] if mode == "zeros" else max(1, reach // 2)
        weight = normal(rng, outputs, inputs // groups, *(size,) * axes)
        name = f"conv{axes}d-{mode}-s{stride}-d{dilation}-g{groups}"
        yield convolution(
            name, "grid", weight, SIDES[axes], stride=stride, padding=pads, dilation=dilation,
            groups=groups, mode=mode,
        )  # fmt: skip


def transposed(rng: np.random.Generator) -> Iterator[Layer]:
    """Transposed convolutions, half of them with an output padding: 24 layers."""
    sides = {1: (13,), 2: (6, 5), 3: (4, 3, 4)}
    combinations = product((1, 2, 3), (1, 2), (1, 2), (1, 2))
    for counter, (axes, stride, dilation, groups) in enumerate(combinations):
        extra = stride - 1 if counter % 2 else 0
        size = 3 + (counter % 3 == 2)
        weight = normal(rng, 6, 4 // groups, *(size,) * axes)
        name = f"transposed{axes}d-s{stride}-d{dilation}-g{groups}-o{extra}"
        yield convolution(
            name, "transposed", weight, sides[axes], stride=stride, padding=counter % 2,
            dilation=dilation, groups=groups, output_padding=extra,
        )  # fmt: skip


def shapes(rng: np.random.Generator) -> Iterator[Layer]:
    """Kernels, sides and paddings at the edge of what there is: 20 layers."""

    def one(name: str, size: tuple[int, ...], sides: tuple[int, ...], **options: Any) -> Layer:
        return convolution(name, "shapes", normal(rng, *size), sides, **options)

    yield one("same-even-2d", (5, 4, 4, 4), (9, 8), padding="same")
    yield one("same-even-1d-circular", (4, 4, 4), (20,), padding="same", mode="circular")
    yield one("same-even-3d", (3, 2, 2, 2, 2), (5, 5, 4), padding="same")
    yield one("same-even-2d-reflect", (4, 4, 2, 4), (8, 8), padding="same", mode="reflect")
    yield one("pointwise", (12, 16, 1, 1), (8, 8))
    yield one("depthwise", (12, 1, 3, 3), (8, 8), padding=1, groups=12)
    yield one("depthwise-twice-strided", (12, 1, 3, 3), (9, 9), stride=2, padding=1, groups=6)
    yield one("patches", (16, 3, 4, 4), (16, 16), stride=4)
    yield one("stride-beyond-kernel", (6, 5, 2, 2), (10, 11), stride=3)
    yield one("flat-kernel", (6, 6, 1, 5), (7, 12), padding=(0, 2))
    yield one("uneven-steps", (6, 4, 3, 2), (9, 10), stride=(2, 1), padding=1, dilation=(1, 2))
    yield one("kernel-is-the-image", (10, 3, 6, 6), (6, 6))
    yield one("padding-beyond-kernel", (4, 4, 3, 3), (5, 5), padding=4)
    yield one("one-pixel", (6, 8, 3, 3), (1, 1), padding=1)
    yield one("one-channel", (1, 1, 7, 7), (12, 12), padding=3)
    yield one("many-to-one", (1, 32, 3, 3), (8, 8), padding=1)
    yield one("one-to-many", (32, 1, 3, 3), (8, 8), padding=1)
    yield one("one-row", (6, 6, 1, 3), (1, 64), padding=(0, 1))
    yield one("circular-uneven", (4, 4, 3, 3), (7, 7), stride=2, padding=1, mode="circular")
    yield one("circular-half-padded", (4, 4, 5, 5), (9, 9), padding=1, mode="circular")


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> Any:
    """A matrix whose singular values are all one."""
    q, _ = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    return q if rows >= columns else q.T


def with_values(rng: np.random.Generator, values: Any) -> Any:
    """A square matrix with such singular values."""
    size = len(values)
    return (orthogonal(rng, size, size) * values) @ orthogonal(rng, size, size)


def dense(rng: np.random.Generator) -> Iterator[Layer]:
    """Matrices: 16 layers."""
    steps = np.arange(64)
    matrices = {
        "normal": normal(rng, 64, 64),
        "wide": normal(rng, 10, 200),
        "tall": normal(rng, 200, 10),
        "uniform-positive": rng.random((40, 60)),
        "orthogonal": orthogonal(rng, 48, 48),
        "orthogonal-wide": orthogonal(rng, 24, 64),
        "rank-one": np.outer(rng.standard_normal(30), rng.standard_normal(50)),
        "pair": with_values(rng, np.r_[1.0, 1 - 1e-6, np.linspace(0.9, 0.1, 62)]),
        "cluster": with_values(rng, 1 - 1e-4 * steps),
        "geometric": with_values(rng, 0.7**steps),
        "slow-decay": with_values(rng, 1 / (1 + steps)),
        "two-plateaus": with_values(rng, np.r_[np.ones(32), 0.5 * np.ones(32)]),
        "spike": normal(rng, 64, 64) + 5 * np.outer(np.eye(64)[3], np.eye(64)[17]),
        "hilbert": 1 / (1 + steps[:32, None] + steps[None, :32]),
        "sparse": np.diag(np.r_[np.zeros(62), 2.0, -3.0])[::-1],
        "single-number": np.array([[-0.25]]),
    }
    for name, weight in matrices.items():
        yield Layer(f"dense-{name}", "dense", weight, (weight.shape[1],))


def repeated(rng: np.random.Generator) -> Iterator[Layer]:
    """Values that repeat or lie close together, and vectors that bad starts miss: 16 layers."""

    def one(name: str, weight: Any, sides: tuple[int, ...], **options: Any) -> Layer:
        return convolution(name, "repeated", weight, sides, **options)

    delta = np.zeros((6, 6, 3, 3))
    delta[:, :, 1, 1] = np.eye(6)
    shift = np.zeros((4, 4, 3, 3))
    shift[:, :, 0, 2] = orthogonal(rng, 4, 4)
    edges = np.array([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])[None, None]
    checkers = np.array([[1.0, -1, 1], [-1, 1, -1], [1, -1, 1]])[None, None] / 9
    laplace = np.array([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]])[None, None]
    twins = np.zeros((2, 2, 3, 3))
    twins[0, 0] = normal(rng, 1, 1, 3, 3)[0, 0]
    twins[1, 1] = twins[0, 0] * (1 - 1e-6)
    patches = orthogonal(rng, 16, 48).reshape(16, 3, 4, 4)
    hidden = np.zeros((3, 3, 3, 3))  # its leading vector sums to zero over the channels
    hidden[:, :, 1, 1] = 2 * (np.eye(3) - 1 / 3) + 0.5 / 3
    dots = orthogonal(rng, 16, 16).reshape(16, 16, 1, 1)
    haar = np.array([[[1.0, 1.0]], [[1.0, -1.0]]]) / math.sqrt(2)
    yield one("identity", delta, (8, 8), padding=1)
    yield one("identity-circular", delta, (8, 8), padding=1, mode="circular")
    yield one("orthogonal-pointwise", dots, (6, 6))
    yield one("orthogonal-shift-circular", shift, (7, 7), padding=1, mode="circular")
    yield one("orthogonal-patches", patches, (16, 16), stride=4)
    yield one("haar", haar, (32,), stride=2)
    yield one("blur", np.full((1, 1, 3, 3), 1 / 9), (20, 20), padding=1)
    yield one("blur-circular", np.full((1, 1, 3, 3), 1 / 9), (16, 16), padding=1, mode="circular")
    yield one("edges-circular", edges, (16, 16), padding=1, mode="circular")
    yield one("edges", edges, (16, 16), padding=1)
    yield one("laplace", laplace, (18, 18), padding=1)
    yield one("checkers-circular", checkers, (16, 16), padding=1, mode="circular")
    yield one("differences", np.array([[[-1.0, 1.0]]]), (200,))
    yield one("twins", twins, (12, 12), padding=1)
    yield one("hidden-from-constants", hidden, (6, 6), padding=1)
    yield one("zero", np.zeros((3, 3, 3, 3)), (6, 6), padding=1)


def scales(rng: np.random.Generator) -> Iterator[Layer]:
    """Weights whose squares leave the range of float32: 12 layers."""
    for scale, word in ((1e-20, "tiny"), (1e20, "huge")):

        def one(
            name: str, size: tuple[int, ...], sides: tuple[int, ...],
            scale: float = scale, word: str = word, **options: Any,
        ) -> Layer:  # fmt: skip
            weight = scale * normal(rng, *size)
            return convolution(f"{word}-{name}", "scales", weight, sides, **options)

        matrix = scale * normal(rng, 40, 50)
        yield Layer(f"{word}-dense", "scales", matrix, (50,))
        yield one("conv1d", (6, 4, 3), (30,), padding=1, mode="circular")
        yield one("conv2d", (6, 4, 3, 3), (9, 9), padding=1)
        yield one("conv3d", (4, 2, 3, 3, 3), (6, 5, 5), padding=1, mode="reflect")
        yield one("transposed", (6, 4, 3, 3), (6, 6), stride=2, padding=1, output_padding=1)
    mixed = 10.0 ** np.linspace(-10, 10, 8)
    yield convolution(
        "mixed-channels", "scales", normal(rng, 8, 4, 3, 3) * mixed[:, None, None, None], (8, 8),
        padding=1,
    )  # fmt: skip
    yield Layer("mixed-columns", "scales", normal(rng, 30, 8) * mixed, (8,))


def large(rng: np.random.Generator) -> Iterator[Layer]:
    """Layers whose matrix is too large to be decomposed: 4 layers."""

    def one(name: str, size: tuple[int, ...], sides: tuple[int, ...], **options: Any) -> Layer:
        return convolution(name, "large", normal(rng, *size), sides, **options)

    yield one("large-1d", (12, 12, 5), (300,), padding=2)
    yield one("large-2d", (8, 8, 3, 3), (16, 16), padding=1)
    yield one("large-2d-circular", (24, 24, 3, 3), (20, 20), padding=1, mode="circular")
    yield one("large-2d-reflect", (12, 8, 5, 5), (30, 22), stride=2, padding=2, mode="reflect")


def formulas(seed: int) -> list[Layer]:
    """All layers of this file; each part has random numbers of its own."""
    parts = (grid, transposed, shapes, dense, repeated, scales, large)
    return [
        layer
        for index, part in enumerate(parts)
        for layer in part(np.random.default_rng([seed, index]))
    ]
