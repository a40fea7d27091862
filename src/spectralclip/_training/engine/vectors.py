"""Any affine layer, followed by full singular vectors through its own forward pass.

What Fourier modes do for zero and circular padding, these do for all other layers: reflected and
replicated borders amplify what stays near them, and a layer of one's own may do anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from spectralclip._common import Shape
from spectralclip._operators import AffineFunction
from spectralclip._training.engine.group import CutGroup, Move, of_unit_size
from spectralclip._training.engine.small import SHORTEST, TINY
from spectralclip._training.engine.tuning import TUNING

WINDOWS = 12  # along a side, in which vectors that cling to a border are seen in full


@final
class Vectors(CutGroup):
    """Equal layers at one input shape, by k vectors each, and the parameters of them that move.

    A refresh is a step of block Lanczos, as for Fourier modes.

    Args:
        names: The layers.
        functions: Of equal stages and shapes.
        moving: The names of the parameters that move.
        degree: Of the layer in those: it is multiplied with `s^degree` where they are with s.
        vectors: How many.
        generators: For the start of each layer.
    """

    kernels = 1

    def __init__(
        self,
        names: Sequence[str],
        functions: Sequence[AffineFunction],
        moving: Sequence[str],
        degree: float,
        vectors: int,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.names, self._functions, self._moving = tuple(names), list(functions), list(moving)
        self.degree = degree
        function = functions[0]
        _ = function.gain  # found out now, and not within a step
        size = math.prod(function.in_shape)
        # With as many new ones, they have to fit into the space.
        self.width = max(1, min(vectors, size // 2, math.prod(function.out_shape)))
        draws = [torch.randn(size, self.width, generator=g, device="cpu") for g in generators]
        like = torch.empty(0, dtype=function.dtype, device=function.device)
        self._shapes = [function.values[name].shape for name in moving]
        total = sum(shape.numel() for shape in self._shapes)
        self.state = {
            "vectors": torch.linalg.qr(torch.stack(draws))[0].mT.contiguous().to(like),
            "weights": like.new_zeros(self.count, total),
        }

    def parameters(self) -> list[list[Tensor]]:
        tensors = [function.tensors() for function in self._functions]
        return [[own[name] for own in tensors] for name in self._moving]

    def read(self) -> Tensor:
        tensors = [function.tensors() for function in self._functions]
        dtype = self._functions[0].dtype
        self._values = {
            name: torch.stack([own[name].detach() for own in tensors]) for name in tensors[0]
        }
        self._values = {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in self._values.items()
        }
        self._stored = self._flat([self._values[name] for name in self._moving])
        probe = self._apply(self._values, self.state["vectors"][:, :1])
        return probe.flatten(1).abs().amax(1)

    def normalize(self, unit: Tensor, bound: Tensor, is_sound: Tensor) -> None:
        last, sound = self.state["weights"], is_sound[:, None]
        self._bound, self._is_sound = bound, is_sound[:, None, None]
        self._tamed = (unit * bound) ** (1 / self.degree)
        self._weights = torch.where(sound, self._stored * self._tamed[:, None], last)
        finite = {
            name: torch.where(is_sound.view(-1, *[1] * (value.ndim - 1)), value, 0)
            for name, value in self._values.items()
            if name not in self._moving and value.is_floating_point()
        }
        self._values = self._values | finite
        self._here = self._with(self._weights)
        self._ahead = self._with(torch.lerp(last, self._weights, 1 + TUNING.ahead))

    def look(self) -> tuple[Tensor, Tensor]:
        known = self.state["vectors"]
        images = self._apply(self._here, known)
        back = self._adjoint(self._ahead, images) / self._bound[:, None, None] ** 2
        fresh = back - (back @ known.mT) @ known
        # Of unit length: beside the offset of a layer, short vectors would lose their digits.
        whole, rest = (torch.linalg.vector_norm(t, dim=2, keepdim=True) for t in (back, fresh))
        shortest = SHORTEST * whole.amax(1, keepdim=True)
        fresh = fresh / rest.maximum(shortest).clamp_min(TINY)
        self._basis = torch.cat((known, fresh), 1)
        self._images = torch.cat((images, self._apply(self._here, fresh)), 1)
        # In units of the bound, so that squares stay in range.
        self._images = self._images / self._bound[:, None, None]
        return tuple(_planes(t @ t.mT) for t in (self._basis, self._images))  # type: ignore[return-value]

    def keep(self, mix: Tensor, values: Tensor) -> None:
        mix = mix[:, ::2, ::2]  # all is real
        self._right, self._left = mix @ self._basis, mix @ self._images
        known = self.state["vectors"]
        known.copy_(torch.where(self._is_sound, self._right, known))

    def cuts(self, places: Tensor, values: Tensor) -> Tensor:
        at = places[..., None]
        left, right = (
            t.gather(1, at.expand(-1, -1, t.shape[2])) for t in (self._left, self._right)
        )
        self._cuts, self._size = of_unit_size(self._gradients(left, right))
        return torch.bmm(self._cuts, self._cuts.mT)

    def move(self, step: Move) -> list[Tensor]:
        change = torch.bmm(step.multipliers[:, None], self._cuts)[:, 0]
        change = change * (self._bound[:, None] / self._size)
        scaled = self._weights * step.scale[:, None] ** (1 / self.degree)
        touched = step.is_touched[:, None]
        self.state["weights"].copy_(torch.where(touched, scaled - change, self._weights))
        new = torch.where(touched, self.state["weights"], self._stored)
        return self._split(new)

    def old(self) -> list[Tensor]:
        return self._split(self._stored)

    def _with(self, weights: Tensor) -> dict[str, Tensor]:
        return self._values | dict(zip(self._moving, self._split(weights), strict=True))

    def _flat(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.flatten(1) for part in parts], 1)

    def _split(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([shape.numel() for shape in self._shapes], 1)
        return [p.reshape(len(p), *s) for p, s in zip(parts, self._shapes, strict=True)]

    def _map(self) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
        """`M x` of one layer on rows, from its values."""
        function = self._functions[0]

        def apply(values: dict[str, Tensor], rows: Tensor) -> Tensor:
            x = rows.reshape(-1, *function.in_shape)
            return function.bare_linear_part(x, values).flatten(1)

        return apply

    def _apply(self, values: dict[str, Tensor], rows: Tensor) -> Tensor:
        return _each(self._map(), values, rows)

    def _adjoint(self, values: dict[str, Tensor], images: Tensor) -> Tensor:
        apply = self._map()

        def back(values: dict[str, Tensor], images: Tensor) -> Tensor:
            zeros = images.new_zeros(images.shape[0], self.state["vectors"].shape[2])
            result: Tensor = vjp(lambda rows: apply(values, rows), zeros)[1](images)[0]
            return result

        return _each(back, values, images)

    def _gradients(self, left: Tensor, right: Tensor) -> Tensor:
        """Of `<u, M v>` in what moves, for each pair of each layer: `(B, k, all that moves)`."""
        apply, moving = self._map(), set(self._moving)

        def value(own: dict[str, Tensor], rest: dict[str, Tensor], u: Tensor, v: Tensor) -> Tensor:
            return (apply(rest | own, v[None])[0] * u).sum()

        def of_layer(values: dict[str, Tensor], both: tuple[Tensor, Tensor]) -> Tensor:
            own = {name: values[name] for name in self._moving}
            rest = {name: value for name, value in values.items() if name not in moving}
            slopes = vmap(grad(value), (None, None, 0, 0))(own, rest, *both)
            return self._flat([slopes[name] for name in self._moving])

        return _each(of_layer, self._here, (left, right))


def _each(function: Callable[..., Tensor], values: dict[str, Tensor], given: Any) -> Tensor:
    """A function of one layer on each of the layers."""
    if len(next(iter(values.values()))) == 1:
        one = {name: value[0] for name, value in values.items()}
        own = tuple(g[0] for g in given) if isinstance(given, tuple) else given[0]
        return function(one, own)[None]
    return vmap(function)(values, given)


def _planes(gram: Tensor) -> Tensor:
    """The Gram matrix of real vectors as one of complex ones without imaginary parts."""
    n = gram.shape[-1]
    both = torch.stack((gram, torch.zeros_like(gram)), -1).flatten(-2)
    return torch.stack((both, torch.zeros_like(both)), -2).reshape(-1, 2 * n, 2 * n)


def reduced(module: Any, in_shape: Shape) -> Shape:
    """A smaller image on which a convolution has nearly the same norm."""
    sides = []
    for size, kernel, stride, dilation in zip(
        in_shape[1:], module.kernel_size, module.stride, module.dilation, strict=True
    ):
        enough = max(WINDOWS * stride, 4 * (dilation * (kernel - 1) + 1))
        # The border at the far end has to fall on the same pixel of a window.
        sides.append(size if size <= enough else enough + (size - enough) % stride)
    return (in_shape[0], *sides)
