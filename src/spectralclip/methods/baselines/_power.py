"""The power method on a layer and its transpose: to measure, to deflate, and to divide by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._clipping import clamp_batch_norm_
from spectralclip._common import Shape, checked_generator
from spectralclip._operators import Layer, LinearOperator, as_operator, plain_numerics
from spectralclip._spectrum import ROUNDING, Spectrum, left_vectors, random_rows, warned
from spectralclip._training import MethodState, Sharing, saved_vectors
from spectralclip.methods._domain import (
    DomainMethod,
    affine_only,
    check_count,
    check_positive,
    is_batch_norm,
)

# A vector that moves by no more than this in an iteration has a residual of about as much,
# relative to its eigenvalue, and half of that on the scale of singular values.
SETTLED = 1e-4
# Where the leading values lie close together the vector never settles, but their norm has.
MOST_ITERATIONS = 2000
# Of `virmaux_svds`.
ITERATIONS, TOL = 500, 1e-6


def power_method(
    gram: Callable[[Tensor], Tensor], start: Tensor, iterations: int, tol: float = 0.0
) -> tuple[Tensor, int]:
    """Iterate `x <- M^T M x / ||M^T M x||`: the unit vector, and how many iterations there were.

    It ends once a step moves the vector by no more than `tol`, if that is not zero. A vector that
    the layer takes to zero stays as it is.
    """
    x = start / torch.linalg.vector_norm(start)
    for done in range(1, iterations + 1):
        image = gram(x)
        size = torch.linalg.vector_norm(image)
        before, x = x, torch.where(size == 0, x, image / size)
        if tol > 0 and float(torch.linalg.vector_norm(x - before)) <= tol:
            return x, done
    return x, iterations


def power_norm(
    layer: Layer,
    in_shape: Shape,
    generator: torch.Generator | None,
    power_iterations: int | None = None,
) -> float:
    """The norm of a layer from a random start; by default as many iterations as it takes."""
    if power_iterations is not None:
        check_count(1, power_iterations=power_iterations)
    op, most = as_operator(layer, in_shape), power_iterations or MOST_ITERATIONS
    tol = SETTLED if power_iterations is None else 0.0
    x, _ = power_method(op.gram, random_start(op, generator), most, tol)
    return float(torch.linalg.vector_norm(op.matvec(x)))


def random_start(op: LinearOperator, generator: torch.Generator | None) -> Tensor:
    return random_rows(op, 1, checked_generator(generator)).reshape(1, *op.in_shape)


class PowerState(MethodState):
    """Layers whose norms are measured by the power method, from a vector for each input shape.

    The latest vectors of each layer are kept where the start is warm.
    """

    def __init__(self, method: DomainMethod, sharing: Sharing, seed: int) -> None:
        super().__init__(method, sharing, seed)
        self.vectors: dict[str, list[Tensor]] = {}
        self.num_matvecs = 0

    def measured(
        self, name: str, ops: list[LinearOperator], iterations: int, tol: float, *, warm: bool
    ) -> float:
        """The largest norm over the input shapes of a layer; NaN where one is not finite."""
        starts, found, norms = self.vectors.get(name, []), [], []
        for index, op in enumerate(ops):
            start = random_start(op, self.generator(name, index))
            start = starts[index].to(start) if starts else start
            x, done = power_method(op.gram, start, iterations, tol)
            found.append(x)
            norms.append(float(torch.linalg.vector_norm(op.matvec(x))))
            self.num_matvecs += 2 * done + 1
        if not all(map(math.isfinite, norms)):
            return math.nan
        if warm and all(norms):
            self.vectors[name] = found
        return max(norms)

    def layer_states(self) -> dict[str, Any]:
        return {name: [v.clone() for v in vectors] for name, vectors in self.vectors.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        known = {name: states[name] for name in self.layers if name in states}
        for name, saved in known.items():
            shapes = self.layers[name].in_shapes
            if len(saved) != len(shapes):
                raise ValueError(
                    f"The state of layer {name!r} is for {len(saved)} input shapes, expected "
                    f"{len(shapes)}. Attach with the same example inputs."
                )
            pairs = zip(saved, shapes, strict=True)
            known[name] = [saved_vectors(vector, shape).clone() for vector, shape in pairs]
        self.vectors |= known


@final
class PowerScaler(PowerState):
    """Divides each weight by what its layer's norm is above the bound; clamps batch norms."""

    def __init__(
        self, method: DomainMethod, sharing: Sharing, seed: int, iterations: int, *, warm: bool
    ) -> None:
        super().__init__(method, sharing, seed)
        self._iterations, self._warm = iterations, warm
        for name, layer in self.layers.items():
            if not is_batch_norm(layer):
                self.operators(name)  # which refuses weights that are not finite

    @torch.no_grad()
    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            module: Any = self.layers[name].modules[0]
            if is_batch_norm(module):
                self.record(name, clamp_batch_norm_(module, bound))
                continue
            ops = self.operators(name)
            norm = self.measured(name, ops, self._iterations, 0.0, warm=self._warm)
            if norm > bound:
                module.weight.mul_(bound / norm)
            self.record(name, min(norm, bound) if math.isfinite(norm) else norm)


@plain_numerics()
def virmaux_svds(
    layer: Layer,
    in_shape: Shape,
    k: int = 1,
    *,
    power_iterations: int = ITERATIONS,
    tol: float = TOL,
    generator: torch.Generator | None = None,
) -> Spectrum:
    """The k largest singular values by k runs of the power method, each deflated by those before.

    A `Spectrum`, as from `svds`.

    Args:
        layer: A module, an affine callable, or a sequence of them.
        in_shape: Shape of one input.
        k: How many.
        power_iterations: At most, for each.
        tol: A run ends once an iteration moves the unit vector by no more than this.
        generator: Source of the starts; by default the same for each call.

    Warns:
        ConvergenceWarning: Not all vectors have settled.

    Raises:
        OutsideDomain: The layer is not affine.
        ValueError: There are not k singular values.

    Example:
        >>> import torch
        >>> from spectralclip.methods import virmaux_svds
        >>> layer = torch.nn.Linear(3, 3)
        >>> _ = layer.weight.data.copy_(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
        >>> virmaux_svds(layer, (3,), 2)
        Spectrum(S=[3, 2], ... matvecs, converged)
    """
    check_count(1, k=k, power_iterations=power_iterations)
    check_positive(tol=tol)
    with affine_only("Virmaux", layer):
        op = as_operator(layer, in_shape, explicit=False)
    if k > min(op.shape):
        raise ValueError(f"{op.name} has {min(op.shape)} singular values, got k = {k}.")
    generator = checked_generator(generator)
    found, num_matvecs = torch.zeros(0, *op.in_shape, dtype=op.dtype, device=op.device), 0
    for _ in range(k):
        start = _without(random_start(op, generator), found)
        v, iterations = power_method(_deflated(op, found), start, power_iterations, tol)
        found, num_matvecs = torch.cat([found, v]), num_matvecs + 2 * iterations
    return warned(op, _spectrum(op, found, num_matvecs))


def _without(x: Tensor, found: Tensor) -> Tensor:
    """A batch of one, orthogonal to orthonormal vectors."""
    rows = found.flatten(1)
    return x - ((x.flatten(1) @ rows.T) @ rows).reshape(x.shape)


def _deflated(op: LinearOperator, found: Tensor) -> Callable[[Tensor], Tensor]:
    """`M^T M` on what is orthogonal to the vectors found."""

    def gram(x: Tensor) -> Tensor:
        image = op.gram(_without(x, found))
        # Twice: where little is left, the first time leaves noise along what was found.
        return _without(_without(image, found), found)

    return gram


def _spectrum(op: LinearOperator, found: Tensor, num_matvecs: int) -> Spectrum:
    """What the vectors found are worth."""
    rows = op.input_rows(found)
    images = op.forward_rows(rows)
    S, order = images.norm(dim=1).sort(descending=True)
    U, residuals = left_vectors(op, images[order], S, rows[order])
    # What is not to be told from zero is as accurate as it gets.
    zero = (residuals >= S) & (residuals <= ROUNDING * torch.finfo(S.dtype).eps * S[0])
    converged = bool(((residuals <= SETTLED * S) | zero).all())
    advice = "" if converged else "Take more power_iterations, or use svds."
    total = num_matvecs + 2 * len(S)
    left = op.output_tensor(U)
    return Spectrum(S, left, found[order], residuals, residuals, converged, total, advice)
