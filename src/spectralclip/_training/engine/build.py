"""Which way suits a layer best, and layers of equal shape put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._bounds import embedding_sides
from spectralclip._clipping import LEAVING_OUT, moving_names
from spectralclip._linalg import has_float64
from spectralclip._models import FoundLayer
from spectralclip._operators import (
    TRANSPOSED,
    AffineFunction,
    ConvMap,
    Factor,
    Place,
    Rows,
    as_operator,
    operator_at,
)
from spectralclip._training.engine.constrained_layer import BatchNorm, ConstrainedLayer
from spectralclip._training.engine.cuts import Cuts, Follower
from spectralclip._training.engine.factors import Clamps, Factors
from spectralclip._training.engine.frequencies import Frequencies, Taps
from spectralclip._training.engine.group import Group, Kind
from spectralclip._training.engine.matrices import FollowedBlocks, Matrices
from spectralclip._training.engine.modes import Modes, Torus, modes_key
from spectralclip._training.engine.products import Pair, Products, WholeBlocks
from spectralclip._training.engine.stage import Stage
from spectralclip._training.engine.vectors import Vectors, reduced
from spectralclip._training.method import seeded

# As many vectors as at a frequency, where there is one frequency or none: of reflect and replicate
# padding norms reached 1.07 times the bound with as many, of 1x1 convolutions with batch norm 1.02.
WIDER = 4


@final
@dataclass(frozen=True)
class Member:
    """A layer in one of the ways in which it is followed.

    Attributes:
        key: What members must have in common to be one group.
        moving: The parameters that move, or the rows of them that do.
        part: What a group is made of.
        make: Makes a group of such parts.
    """

    key: Any
    moving: tuple[Tensor, ...]
    part: Any
    make: Callable[[list[Any]], Group]


def stages_of(
    layers: Mapping[str, FoundLayer], headroom: float, vectors: int, seed: int
) -> list[Stage]:
    """What holds the layers within their bounds: stages of groups, to be run one after another.

    A weight is in one group of a stage at most: what it is followed by in another way, or in
    another layer that shares it, comes later.

    Args:
        layers: With plain weights.
        headroom: By which share a target is below its bound, at least.
        vectors: At each frequency, or of a layer that is followed by full vectors.
        seed: For the random vectors.
    """
    stages: list[dict[Any, list[Member]]] = []
    taken: list[list[Place]] = []
    for name, found in layers.items():
        for member in _members(found, vectors, f"{seed}, {name}"):
            own = [Place.of(parameter) for parameter in member.moving]
            at = max((n + 1 for n, all_ in enumerate(taken) if _overlap(own, all_)), default=0)
            if at == len(stages):
                stages.append({})
                taken.append([])
            stages[at].setdefault(member.key, []).append(member)
            taken[at] += own
    made = [
        [_grouped(own) for own in members]
        for stage in stages
        for members in _computed_alike(stage.values())
    ]
    return [Stage(kinds_of(groups), headroom) for groups in made]


def _computed_alike(members: Iterable[list[Member]]) -> Iterable[list[list[Member]]]:
    """By device and precision: tensors of others cannot stand one behind another."""
    found: dict[Any, list[list[Member]]] = {}
    for own in members:
        like = own[0].moving[0]
        found.setdefault((like.device, like.dtype == torch.float64), []).append(own)
    return found.values()


def _grouped(members: Sequence[Member]) -> Group:
    make = members[0].make
    group = make([member.part for member in members])

    def alone(index: int) -> Group:
        single, k = make([members[index].part]), group.kernels
        own = slice(k * index, k * (index + 1))
        single.state = {key: tensor[own] for key, tensor in group.state.items()}
        return single

    group.alone = alone
    group.at_start = lambda index: make([members[index].part]).state
    return group


def _overlap(own: Sequence[Place], others: Sequence[Place]) -> bool:
    return any(one.meets(other) for other in others for one in own)


def kinds_of(groups: Sequence[Group]) -> list[Kind]:
    """Groups that are followed in the same way, put together."""
    # What lacks float64 lacks most of linear algebra, but for products.
    by_products = not has_float64(groups[0].parameters()[0][0].device)
    tori: dict[Any, list[Modes]] = {}
    for group in groups:
        if isinstance(group, Modes):
            tori.setdefault(group.key, []).append(group)
    followers: list[Follower] = [Torus(own) for own in tori.values()]
    followers += [group for group in groups if isinstance(group, Vectors)]
    matrices = [group for group in groups if isinstance(group, Matrices)]
    factors = [group for group in groups if isinstance(group, Factors)]
    kinds: list[Kind] = [Cuts(followers, by_products)] if followers else []
    products = [group for group in groups if isinstance(group, Products)]
    kinds += [FollowedBlocks(matrices, by_products)] if matrices else []
    kinds += [WholeBlocks(products, by_products)] if products else []
    return kinds + ([Clamps(factors)] if factors else [])


def _members(found: FoundLayer, vectors: int, origin: str) -> list[Member]:
    """The ways in which a layer is followed, in their order."""
    layer, first = ConstrainedLayer.of(found, origin), found.modules[0]
    if isinstance(first, Factor):
        second = found.modules[1]
        assert isinstance(second, Factor)
        pair = Pair(found.name, second, first)
        return [Member((Products, pair.kind), tuple(pair.views), pair, Products)]
    if isinstance(first, BatchNorm) and len(found.modules) == 1:
        weight = first._parameters["weight"]
        assert weight is not None
        key = (Factors, weight.shape, weight.dtype, weight.device, first.eps)
        return [Member(key, (weight,), (found.name, first), lambda norms: Factors(dict(norms)))]
    if layer is None:
        return _by_vectors(found, layer, vectors, origin)
    convs = [as_operator(layer.module, shape).convolution for shape in layer.in_shapes]
    at_all = [conv for conv in convs if conv is not None]
    if not at_all and not isinstance(layer.module, (nn.Linear, Rows)):
        return _by_vectors(found, layer, vectors, origin)
    if layer.norm is None and all(conv.has_separate_windows for conv in at_all):
        return [Member((Matrices, layer.kind), (layer.weight,), layer, Matrices)]
    taps, frequencies = _places(at_all)
    width = WIDER * vectors if len(frequencies.centers) == 1 else vectors
    modes = Member(
        (Modes, layer.kind, modes_key(taps, frequencies)),
        (layer.moving,),
        layer,
        lambda own: Modes(own, taps, frequencies, width),
    )
    if all(_is_on_modes(conv) for conv in at_all):
        return [modes]
    # Inside an image any convolution acts on Fourier modes: these go first, so that full vectors
    # have to deal with the borders only.
    others = _by_vectors(found, layer, vectors, origin)
    return others if isinstance(layer.module, TRANSPOSED) else [modes, *others]


def _is_on_modes(conv: ConvMap) -> bool:
    """Whether Fourier modes are all there is to know of a convolution."""
    geometry = conv.geometry
    uneven = any(n % s for n, s in zip(conv.source.shape[1:], geometry.stride, strict=True))
    # The windows do not close around a torus that is no multiple of the stride.
    return geometry.mode == "zeros" or (geometry.mode == "circular" and not uneven)


def _places(convs: Sequence[ConvMap]) -> tuple[Taps, Frequencies]:
    """Where the modes of a layer are: on the grid of its own torus where that is small.

    Args:
        convs: The layer at each of its input shapes; none for a dense one.
    """
    if not convs:
        return Taps.of((1,), (1,), (1,)), Frequencies.on_grid((1,))
    conv = convs[0]
    geometry, kernel = conv.geometry, tuple(conv.weight.shape[2:])
    taps = Taps.of(kernel, geometry.stride, geometry.dilation)
    everywhere = Frequencies.everywhere(taps)
    if len(convs) > 1 or not _is_on_modes(conv):
        return taps, everywhere
    # With zero padding the layer is a part of a circular one: never above that, and nearer to it
    # than to the same kernel on an endless image.
    sides = conv.source.shape[1:] if geometry.mode == "circular" else embedding_sides(conv)
    steps = zip(sides, geometry.stride, strict=True)
    grid = Frequencies.on_grid(tuple(side // step for side, step in steps))
    return taps, min(grid, everywhere, key=lambda one: len(one.centers))


def _by_vectors(
    found: FoundLayer, layer: ConstrainedLayer | None, vectors: int, origin: str
) -> list[Member]:
    made = []
    for shape in found.in_shapes:
        is_conv = layer is not None and not isinstance(layer.module, (nn.Linear, Rows))
        smaller = reduced(layer.module, shape) if layer is not None and is_conv else shape
        function = AffineFunction(list(found.modules), smaller)
        moving = _moving(function, layer)
        degree = _degree(found.name, function, moving)
        stages = tuple((stage.name, repr(stage.layer)) for stage in function.stages)
        shapes = tuple((n, v.shape, v.dtype) for n, v in function.values.items())
        # Modules of one's own may differ in what does not show: each is a group of its own.
        alone = found.name if layer is None else ""
        key = (Vectors, alone, smaller, stages, shapes, tuple(moving), function.device)
        part = (found.name, function, seeded(f"{origin}, {shape}"))

        def make(parts: list[Any], moving: Sequence[str] = moving, degree: float = degree) -> Group:
            names, functions, generators = zip(*parts, strict=True)
            return Vectors(names, functions, moving, degree, WIDER * vectors, generators)

        parameters = tuple(function.parameters[own] for own in moving)
        made.append(Member(key, parameters, part, make))
    return made


def _moving(function: AffineFunction, layer: ConstrainedLayer | None) -> list[str]:
    if layer is None:
        return moving_names(operator_at(function), "first", in_training=True)
    return [name for name, own in function.parameters.items() if own is layer.moving]


def _degree(name: str, function: AffineFunction, moving: list[str]) -> float:
    """By which power the layer grows if what moves, which may be zero now, is multiplied."""
    generator = seeded("degree")

    def drawn(shape: Sequence[int]) -> Tensor:
        made = torch.randn(tuple(shape), generator=generator, device="cpu")
        return made.to(function.device, function.dtype)

    x, once = drawn((1, *function.in_shape)), {n: drawn(function.values[n].shape) for n in moving}
    twice = {name: 2 * value for name, value in once.items()}
    with torch.no_grad():
        before, after = (function.linear_part(x, own).norm() for own in (once, twice))
    ratio = float(after / before)
    if ratio <= 1.1:
        raise ValueError(
            f"Layer {name!r} cannot be held: its norm does not follow the scale of its parameters, "
            "as with an orthogonal or spectrally normalized parametrization. Remove the "
            "parametrization (torch.nn.utils.parametrize.remove_parametrizations), or leave the "
            f"layer out. {LEAVING_OUT}"
        )
    return math.log2(ratio) if ratio < math.inf else 1.0
