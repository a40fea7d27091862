"""A parametrization that divides a weight by what its layer's norm is above a bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.utils import parametrize

from spectralclip._common import Shape
from spectralclip._operators import (
    AffineFunction,
    LinearOperator,
    check_affine,
    evaluation_mode,
    is_linear_in,
    operator_at,
    plain_numerics,
)
from spectralclip._spectrum import RitzTracker, Triplets, fresh_ritz, leading_spectrum
from spectralclip._training import seeded
from spectralclip.methods._domain import OutsideDomain

# Vectors that are followed: a value that overtakes the first one has been the second before.
WIDTH = 3
# Refreshing ends when a round has found no more than this share.
SETTLED = 1e-3
# Steps of the search from a random vector at each refreshing. Without it a value far away from the
# followed ones, such as that of another frequency, overtakes them unseen.
PROBE_STEPS = 6
NOT_LINEAR = "it is not linear in this weight alone: other parameters have a part in its norm"


@final
class TrueNorm(nn.Module):
    """`W * min(1, c / sigma)`, with the norm sigma of the layer that W is the weight of.

    For a layer that is linear in W, `sigma = <u, M(W) v> = <G, W>` with the leading singular
    vectors u and v and `G = A*(u v^T)`, which is also the gradient of sigma. The vectors, which are
    kept warm, and G are refreshed once the weight has changed: in training by the next forward
    pass, and by a call of `eval()`. In evaluation nothing is, and sigma is one inner product.
    """

    direction: Tensor  # the matrix G
    draws: Tensor  # how many random vectors have been drawn
    sums: Tensor  # what the weight that the vectors are of is told by

    def __init__(
        self, module: nn.Module, in_shapes: Sequence[Shape], max_norm: float, seed: int, rounds: int
    ) -> None:
        super().__init__()
        self._layer = BareLayer(module)  # which is no module, so as not to hold one
        self._shapes, self._seed = tuple(in_shapes), seed
        self.max_norm, self.iterations, self.num_matvecs = max_norm, rounds, 0
        self._seen = 0, 0
        weight = self._layer.weight.detach()
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.register_buffer("direction", torch.zeros_like(weight, dtype=wide))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64, device=weight.device))
        self.register_buffer("sums", torch.zeros(2, dtype=wide, device=weight.device))
        for place, shape in enumerate(self._shapes):
            check_affine(module, shape)
            op = self._layer.operator(shape)
            width = min(WIDTH, *op.shape)
            nothing = torch.zeros(width, *op.in_shape, dtype=op.dtype, device=op.device)
            self.register_buffer(f"vectors_{place}", nothing)
            self.register_buffer(f"changes_{place}", nothing.clone())
        norm = self.search()
        if abs(float(self._inner(self.direction, weight)) - norm) > 1e-2 * norm:
            raise OutsideDomain("Parametrize", module, NOT_LINEAR)

    def forward(self, weight: Tensor) -> Tensor:
        if self._layer.is_bare:
            return weight
        if self.training:
            self.refresh()
        # A copy, since the next refreshing may come before the backward pass.
        sigma = self._inner(self.direction.clone(), weight)
        # Exactly one where the layer is within its bound.
        return weight * (sigma / self.max_norm).clamp_min(1).reciprocal().to(weight.dtype)

    def train(self, mode: bool = True) -> TrueNorm:
        """Set the mode; evaluation begins with fresh vectors."""
        if self.training and not mode:
            self.refresh()
        return super().train(mode)

    def norm(self) -> float:
        """The norm that the layer has with this parametrization, as far as it is known."""
        norm = float(self._inner(self.direction, self._layer.weight.detach()))
        return min(norm, self.max_norm) if math.isfinite(norm) else math.nan

    @plain_numerics()
    def search(self) -> float:
        """Search for the leading vectors anew, to 1e-3; the norm of the bare layer."""
        self._has_changed()
        best, direction = -1.0, self.direction
        for place, shape in enumerate(self._shapes):
            op, count = self._layer.operator(shape), len(self._state(place)[0])
            found = leading_spectrum(op, count, tol=1e-3, generator=self._generator())
            self.num_matvecs += found.num_matvecs
            self._remember(place, found.V, torch.zeros_like(found.V))
            if float(found.S[0]) > best:
                best = float(found.S[0])
                direction = self._layer.pullback(op, found.U[:1], found.V[:1])
        self.direction.copy_(direction)
        return best

    def remove_(self, *, search: bool) -> None:
        """Leave a plain layer, after a last search for its norm."""
        if self._layer.is_parametrized:
            if search:
                self.search()
            make_plain_(self._layer.module, self._layer.order)

    @_disable_dynamo  # torch.compiler.disable would import the whole compiler right here
    @plain_numerics()
    @torch.no_grad()
    def refresh(self) -> None:
        """Follow the vectors, if the weight has changed since the last time."""
        if not self._has_changed():
            return
        best = -1.0
        for place, shape in enumerate(self._shapes):
            op = self._layer.operator(shape)
            found = self._followed(op, place)
            if float(found.S[0]) > best:
                best = float(found.S[0])
                u, v = op.output_tensor(found.U[:1]), op.input_tensor(found.V[:1])
                self.direction.copy_(self._layer.pullback(op, u, v))

    def _followed(self, op: LinearOperator, place: int) -> Triplets:
        """The leading triplets, from the known ones and what a short search adds to them."""
        tracker = RitzTracker(len(self._state(place)[0]))
        tracker.start(*(op.input_rows(rows.to(op.dtype)) for rows in self._state(place)))
        probe = fresh_ritz(op, PROBE_STEPS, 1, self._generator())
        found = tracker.refresh(op, probe.V)
        self.num_matvecs += probe.num_matvecs + found.num_matvecs
        for _ in range(self.iterations - 1):
            if not tracker.gain > SETTLED * float(found.S[0]):
                break
            tracker.keep()
            found = tracker.refresh(op)
            self.num_matvecs += found.num_matvecs
        tracker.keep()
        assert tracker.vectors is not None and tracker.changes is not None
        self._remember(place, *map(op.input_tensor, (tracker.vectors, tracker.changes)))
        return found

    def _generator(self) -> torch.Generator:
        """Of a seed that goes on from one draw to the next, and with a checkpoint."""
        self.draws += 1
        return seeded(f"{self._seed}, {int(self.draws)}")

    def _has_changed(self) -> bool:
        """Whether the weight is finite, and not the one that the vectors are of; from now on it is.

        Sums tell it apart, so that a checkpoint knows as well; a counter does where none is due.
        """
        weight = self._layer.weight.detach()
        seen = weight.data_ptr(), weight._version
        if seen == self._seen:
            return False
        wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
        sums = torch.stack([wide.sum(), wide.square().sum()])
        if not bool(torch.isfinite(sums).all()):
            return False
        self._seen, is_same = seen, torch.equal(sums, self.sums.to(sums))
        self.sums.copy_(sums)
        return not is_same

    def _state(self, place: int) -> tuple[Tensor, Tensor]:
        return getattr(self, f"vectors_{place}"), getattr(self, f"changes_{place}")

    def _remember(self, place: int, vectors: Tensor, changes: Tensor) -> None:
        for buffer, rows in zip(self._state(place), (vectors, changes), strict=True):
            buffer.zero_()  # a layer of low rank gives fewer
            buffer[: len(rows)].copy_(rows)

    def _inner(self, direction: Tensor, weight: Tensor) -> Tensor:
        wide = torch.promote_types(weight.dtype, torch.float32)
        return torch.sum(direction.to(wide) * weight.to(wide))

    def __getstate__(self) -> dict[str, Any]:
        """Without what is true of this very layer's memory."""
        return {**self.__dict__, "_seen": (0, 0)}


_SLOTS = ("__dict__", "__weakref__")


def make_plain_(module: nn.Module, order: Sequence[str]) -> None:
    """Leave the weight that a parametrization makes, with parameters in the order of before."""
    kind = type(module)
    # Copies of the module share the class that torch made of it, and would lose their weight
    # along with it.
    own = {key: value for key, value in vars(kind).items() if key not in _SLOTS}
    module.__class__ = type(kind.__name__, kind.__bases__, own)
    with evaluation_mode([module]):
        parametrize.remove_parametrizations(module, "weight")
    # In the order of before, since optimizers number parameters by it.
    table = module._parameters
    for key in [*order, *(key for key in list(table) if key not in order)]:
        if key in table:
            table[key] = table.pop(key)


def scales_with_weight(module: nn.Module, in_shape: Shape) -> bool:
    """Whether the layer is linear in its weight: twice the weight is twice the layer.

    True as well of a layer that cannot be evaluated, as with NaN among its weights: who goes on to
    use it will say so better.
    """
    try:
        function = AffineFunction([module], in_shape)
    except ValueError:
        return True
    return is_linear_in(function, [function.stages[0].parameters["weight"]], homogeneous=True)


@final
class BareLayer:
    """The layer `M(W)` for a weight W that the module itself no longer uses as it is.

    While it `is_bare`, the parametrization hands the weight on unchanged.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.is_bare = module, False
        self.order = list(module._parameters)
        self._functions: dict[object, AffineFunction] = {}

    @property
    def weight(self) -> Tensor:
        module: Any = self.module
        if self.is_parametrized:
            weight: Tensor = module.parametrizations["weight"].original
            return weight
        return module._parameters["weight"]  # type: ignore[no-any-return]

    def operator(self, shape: Shape) -> LinearOperator:
        """The layer as it is now; of a plain one only the weight is read again."""
        weight = self.weight
        key = shape, weight.dtype, weight.device, self.is_parametrized
        with self._bare(), evaluation_mode([self.module]):
            if key not in self._functions:
                self._functions[key] = AffineFunction([self.module], shape)
            return operator_at(self._functions[key])

    def pullback(self, op: LinearOperator, u: Tensor, v: Tensor) -> Tensor:
        weight = self.weight
        names = [name for name, one in op.function.parameters.items() if one is weight]
        with self._bare():
            return op.pullback(u, v)[names[0]]

    @property
    def is_parametrized(self) -> bool:
        return parametrize.is_parametrized(self.module, "weight")

    @contextmanager
    def _bare(self) -> Iterator[None]:
        before, self.is_bare = self.is_bare, True
        try:
            yield
        finally:
            self.is_bare = before
