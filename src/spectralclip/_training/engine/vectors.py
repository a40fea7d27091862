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
from spectralclip._training.engine.cuts import Follower, of_unit_size
from spectralclip._training.engine.group import Group, finite, scaled
from spectralclip._training.engine.small import TINY

WINDOWS = 12  # along a side, in which vectors that cling to a border are seen in full


@final
class Vectors(Group, Follower):
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
    rounds = 3  # there are few vectors, so that others come up as soon as these are cut

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
        self.degree, self.groups = degree, [self]
        function = functions[0]
        _ = function.gain  # found out now, and not within a step
        size = math.prod(function.in_shape)
        # With as many new ones, they have to fit into the space.
        self.width = max(1, min(vectors, size // 2, math.prod(function.out_shape)))
        draws = [torch.randn(size, self.width, generator=g, device="cpu") for g in generators]
        self._shapes = [function.values[name].shape for name in moving]
        start = torch.linalg.qr(torch.stack(draws))[0].mT.contiguous()
        self.state = {"vectors": start.to(function.device, function.dtype)}

    def parameters(self) -> list[list[Tensor]]:
        tensors = [function.tensors() for function in self._functions]
        return [[own[name] for own in tensors] for name in self._moving]

    def read(self) -> Tensor:
        tensors = [function.tensors() for function in self._functions]
        dtype = self._functions[0].dtype
        values = {name: torch.stack([own[name].detach() for own in tensors]) for name in tensors[0]}
        self._values = {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in values.items()
        }
        image = self._apply(self.state["vectors"][:, :1])
        self._stored = self._flat([self._values[name] for name in self._moving])
        self._values = {
            name: finite(value) if value.is_floating_point() else value
            for name, value in self._values.items()
        }
        return image

    def normalize(self, unit: Tensor, bound: Tensor, is_finite: bool) -> None:
        self._bound = bound[:, None]
        # What moves is made `s^(1 / degree)` times as large for a layer s times as large.
        moving = self._split(finite(self._stored) * unit[:, None] ** (1 / self.degree))
        self._values |= dict(zip(self._moving, moving, strict=True))

    def refresh(self) -> list[tuple[Tensor, Tensor]]:
        known = self.state["vectors"]
        images = self._apply(known)
        back = self._adjoint(images)
        # Of unit length: beside the offset of a layer, short vectors would lose their digits.
        back = back / torch.linalg.vector_norm(back, dim=2, keepdim=True).clamp_min(TINY)
        self._basis = torch.cat((known, back), 1)
        self._images = torch.cat((images, self._apply(back)), 1)
        basis, images = (_planes(t @ t.mT) for t in (self._basis, self._images))
        return [(basis, images)]

    def keep(self, mix: Tensor) -> None:
        mix = mix[:, ::2, ::2]  # all is real
        self._images = mix @ self._images
        torch.bmm(mix, self._basis, out=self.state["vectors"])

    def cuts(self, places: Tensor, values: Tensor) -> Tensor:
        at = places[..., None]
        left, right = (
            t.gather(1, at.expand(-1, -1, t.shape[2]))
            for t in (self._images, self.state["vectors"])
        )
        self._cuts, self._size = of_unit_size(self._gradients(left, right))
        return torch.bmm(self._cuts, self._cuts.mT)

    def moved(self, scale: Tensor, cuts: Tensor) -> list[Tensor]:
        scale = scale ** (1 / self.degree)
        times = self._bound ** (1 / self.degree - 1) / self._size
        along = torch.bmm((cuts * times)[:, None], self._cuts)[:, 0]
        return self._split(scaled(self._stored, scale, along))

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

    def _apply(self, rows: Tensor) -> Tensor:
        return _each(self._map(), self._values, rows)

    def _adjoint(self, images: Tensor) -> Tensor:
        apply = self._map()

        def back(values: dict[str, Tensor], images: Tensor) -> Tensor:
            zeros = images.new_zeros(images.shape[0], self.state["vectors"].shape[2])
            result: Tensor = vjp(lambda rows: apply(values, rows), zeros)[1](images)[0]
            return result

        return _each(back, self._values, images)

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

        return _each(of_layer, self._values, (left, right))


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
