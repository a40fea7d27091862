"""`clip_`: the nearest layer of the same form whose norm is at most c."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from spectralclip._bounds import View, norm_bounds
from spectralclip._clipping.free_weights import (
    ConvWeight,
    DirectWeight,
    GenericWeights,
    Movable,
    Steerable,
    movable_weight,
    stored_operator,
    stores_in_full,
)
from spectralclip._clipping.plan import Move
from spectralclip._clipping.project import EXACT_GAP, GAP, Projected, nearest
from spectralclip._common import positive_number
from spectralclip._operators import (
    HALF_PRECISION,
    AffineFunction,
    Layer,
    LinearOperator,
    input_shape,
    plain_numerics,
)
from spectralclip._spectrum import fresh_ritz, svds

FINAL_STEPS, SHORT_STEPS, SETTLING_ROUNDS, FURTHER_ROUNDS, SETTLED = 60, 12, 20, 3, 1e-5
CERTIFIED_ROUNDS = 8  # how often the layer may be lowered for the bounds' sake


@final
@dataclass(frozen=True)
class ClipResult:
    """What clipping did to a layer.

    Attributes:
        norm_before: The layer's norm before, to the tolerance.
        norm_after: The largest norm seen after; for convolutions on large images one that the
            norm does not exceed, from their symbol; with `certify` the upper end of its bounds.
        distance: `||M(W') - M(W)||_F`: how far the layer has moved as an operator.
        distance_lower_bound: No layer of this form within the bound is nearer; None where no
            such bound is known.
        applications: Vectors sent through `M`, `M^T` or the pullback, one each.
        rounds: Steps taken.
        converged: Whether the projection was carried through. If not, the layer is within the
            bound all the same, by a final scale, but farther away than need be.
        flops: Floating-point operations spent outside of applications.
    """

    norm_before: float
    norm_after: float
    distance: float
    distance_lower_bound: float | None
    applications: int
    rounds: int
    converged: bool
    flops: float = 0.0


@plain_numerics()
def clip_(
    layer: Layer,
    max_norm: float,
    in_shape: Sequence[int] | int | None = None,
    *,
    tol: float = 1e-3,
    exact: bool = False,
    certify: bool | Literal["deterministic"] = False,
    move: Move = "first",
    generator: torch.Generator | None = None,
) -> ClipResult:
    """Move a layer, in place, to the nearest one of its form whose norm is at most `max_norm`.

    A layer that is within the bound stays as it is, bit for bit. No learning rate is involved.
    Dense layers, 1x1 convolutions, others whose windows do not overlap, and batch norm are
    clipped exactly. Convolutions with zero or circular padding are clipped frequency by
    frequency and finished on the layer itself; others by cutting planes.

    Args:
        layer: A module, a sequence of modules (their composition), or an affine callable
            object with parameters.
        max_norm: The bound c.
        in_shape: Shape of one input, without the batch dimension; may be left out where the
            layer knows it: `nn.Linear`, and compositions that begin with one.
        tol: The norm reached is at most `(1 + tol) * max_norm`, and usually much closer.
        exact: Carry the projection on until its distance is within half a percent of the
            smallest possible one, by cutting planes; for dense layers, convolutions and batch
            norm, alone or with batch norms beside them.
        certify: The upper end of `norm_bounds` is at most `max_norm`; "deterministic" for a bound
            without a failure probability.
        move: In a composition, which parameters move: "first", those of its first layer
            (batch norms give way to what they normalize), or "all".
        generator: Source of random vectors; by default the same for each call.

    Returns:
        A `ClipResult`.

    Raises:
        ValueError: The arguments do not fit the layer, or nothing in it can be clipped; the
            layer is as it was.

    Example:
        >>> import torch
        >>> from spectralclip import clip_, spectral_norm
        >>> conv = torch.nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        >>> result = clip_(conv, 0.5, (8, 12, 12))
        >>> result.converged, bool(spectral_norm(conv, (8, 12, 12)) < 0.5005)
        (True, True)
    """
    max_norm = _checked_request(layer, max_norm, tol, certify, move)
    in_shape = input_shape(layer, in_shape)
    generator = torch.Generator("cpu").manual_seed(0) if generator is None else generator
    job = _Clipping(layer, in_shape, max_norm, tol, certify, move, generator)
    job.require_clippable(exact)
    norm = job.norm_at_start()
    job.lengthen(norm, max_norm)
    seems_within = norm <= max_norm * (1 + (0 if certify else tol / 2))
    upper = job.certified_norm() if certify and seems_within else norm
    if seems_within and upper <= max_norm * (1 + (0 if certify else tol / 2)):
        return ClipResult(norm, upper, 0.0, 0.0, job.applications, 0, True)
    found = Projected(job.movable.start, norm, 0, 0, True, 0.0)
    if not seems_within:
        found = job.project(max_norm, norm, exact)
    point, after = job.settled(found.point, max_norm, norm)
    with _written(job.function, job.movable.parameters(point)) as write:
        if certify:
            point, after = job.certified(point, max_norm, norm, exact, write)
        if not 0.5 * max_norm <= after <= max_norm * (1 + (0 if certify else tol)):
            raise ValueError(
                f"{job.op.name} cannot be brought to {max_norm:g}: its norm came out as {after:g}, "
                "and does not follow the scale of its parameters. It is left as it was."
            )
        unit, bound = job.movable.unit, found.lower_bound
        distance = unit * job.movable.distance(point)
        if isinstance(job.movable, DirectWeight):
            # What was found is the projection itself; certifying or rounding may have gone beyond.
            bound = distance / unit if point is found.point else job.movable.distance(found.point)
    return ClipResult(
        norm,
        after,
        distance,
        None if bound is None else unit * bound,
        job.applications,
        found.rounds,
        found.converged,
        found.flops,
    )


@final
class _Clipping:
    """One layer on its way to the bound; nothing is written into it here."""

    def __init__(
        self,
        layer: Layer,
        in_shape: Sequence[int],
        max_norm: float,
        tol: float,
        certify: bool | Literal["deterministic"],
        move: Move,
        generator: torch.Generator,
    ) -> None:
        self._layer, self._in_shape, self._tol = layer, in_shape, min(tol, 1e-3)
        self._certify, self._generator = certify, generator
        self._unit, self._move = 2.0 ** round(math.log2(max_norm)), move
        self.applications = 0
        self._view = View(layer, in_shape)
        self._take(self._view.op)

    def _take(self, op: LinearOperator) -> None:
        self.op, self.function = op, op.function
        self.movable = movable_weight(op, self._move, self._unit)

    def lengthen(self, norm: float, max_norm: float) -> None:
        """Compute in float64 where little of the layer will be left, or its scale is extreme.

        Explicit forms are in units of the bound; others see their own scale inside.
        """
        extreme = isinstance(self.movable, GenericWeights) and not 1e-6 < max_norm < 1e6
        if (norm <= 100 * max_norm and not extreme) or self.op.dtype == torch.float64:
            return
        self._take(self._view.double)

    def require_clippable(self, exact: bool) -> None:
        """Raise where there is no way to the bound, or none that `exact` could measure."""
        movable = self.movable
        if not isinstance(movable, Steerable):
            return
        if exact and not movable.is_linear:
            raise ValueError(
                f"exact=True needs a layer that is linear in the parameters that move; "
                f"{self.op.name} is not: several of them multiply each other, or a "
                "parametrization is not linear."
            )
        if exact and not movable.knows_distance:
            raise ValueError(
                f"exact=True needs a plain dense layer, convolution or batch norm, alone or with "
                f"batch norms beside it: for {self.op.name} no distance bound is known."
            )
        if movable.is_linear:
            return
        generator = torch.Generator("cpu").manual_seed(0)
        sizes = [
            float(fresh_ritz(movable.operator(share * movable.start), 10, 1, generator).S[0])
            for share in (1.0, 0.01)
        ]
        if sizes[1] > 0.9 * sizes[0]:
            raise ValueError(
                f"The norm of {self.op.name} does not follow the scale of its parameters, as with "
                "an orthogonal or spectrally normalized parametrization: it cannot be clipped. "
                "Remove the parametrization first "
                "(torch.nn.utils.parametrize.remove_parametrizations)."
            )

    def norm_at_start(self) -> float:
        """The layer's norm as it is."""
        if isinstance(self.movable, DirectWeight):
            return self.movable.unit * self.movable.norm
        norm = self._symbol_norm(self.movable.start)
        if norm is not None:
            return norm
        found = svds(self.op, self._in_shape, 1, tol=self._tol, generator=self._generator)
        self.applications += found.applications
        return float(found.S[0])

    def _symbol_norm(self, point: Tensor) -> float | None:
        """The norm of a convolution on a large image, from above, by its symbol; else None."""
        movable = self.movable
        # Together with what the search may leave open, less than what is left alone.
        if not isinstance(movable, ConvWeight) or not self._view.is_large(self._tol / 4):
            return None
        if not stores_in_full(self.function, movable, point):
            return None
        norm = movable.symbol_norm(point, self._tol / 8, FINAL_STEPS)
        return None if norm is None else movable.unit * norm

    def project(self, max_norm: float, norm: float, exact: bool) -> Projected:
        """The nearest point, by what suits the layer, whose norm is given."""
        unit = self.movable.unit
        # What a smaller image falls short of is made good on the layer itself, by going on in
        # the direction of the move: a fifth of the gap that is allowed anyway.
        excess = 0.2 * (EXACT_GAP if exact else GAP) * (norm / max_norm - 1)
        movable = self._on_smaller_image(min(excess, 0.01))
        found = nearest(movable, max_norm / unit, norm / unit, exact, self._generator)
        self.applications += found.applications
        return found

    def _on_smaller_image(self, excess: float) -> Movable:
        """What moves in a convolution on a smaller image, with the distances of the layer."""
        small = self._view.cropped(excess) if isinstance(self.movable, ConvWeight) else None
        if small is None or not isinstance(self.movable, ConvWeight):
            return self.movable
        op = small.op if self.op is self._view.op else small.double
        return movable_weight(op, self._move, self._unit, self.movable.metric)

    def settled(self, point: Tensor, max_norm: float, start_norm: float) -> tuple[Tensor, float]:
        """Look once more, with nothing known before, at the weights as they will be stored.

        Where a little is missing, going on in the direction of the move costs least distance;
        the scale of the weights is what always helps.
        """
        start, norm = self.movable.start, math.inf
        # Where nothing was estimated, a short look only guards against rounding.
        steps = SHORT_STEPS if isinstance(self.movable, DirectWeight) else FINAL_STEPS
        for attempt in range(SETTLING_ROUNDS):
            norm = self._norm_at(point, steps)
            if norm <= max_norm * (1 + SETTLED):
                break
            missing = 1.5 * (norm - max_norm) / max(start_norm - norm, 1e-300)
            if attempt < FURTHER_ROUNDS and missing < 0.05:
                point = point + missing * (point - start)
            else:
                point = self.movable.scaled(point, max_norm / norm)
        return point, norm

    def _norm_at(self, point: Tensor, steps: int) -> float:
        norm = self._symbol_norm(point)
        if norm is None:
            op = stored_operator(self.function, self.movable, point)
            look = fresh_ritz(op, steps, 1, self._generator)
            self.applications += look.applications
            norm = self.movable.unit * float(look.S[0])
        return norm

    def certified_norm(self) -> float:
        """The upper end of the bounds on the layer as it is, as a user would ask for them."""
        deterministic = self._certify == "deterministic"
        bounds = norm_bounds(self._layer, self._in_shape, deterministic=deterministic)
        self.applications += bounds.applications
        return bounds.upper

    def certified(
        self,
        point: Tensor,
        max_norm: float,
        norm: float,
        exact: bool,
        write: Callable[[dict[str, Tensor]], None],
    ) -> tuple[Tensor, float]:
        """Lower the layer, as it is written, until the upper end is within the bound."""
        movable, aim, upper = self.movable, max_norm, self.certified_norm()
        for attempt in range(CERTIFIED_ROUNDS):
            if upper <= max_norm:
                break
            # Rounding to half precision may undo a small step.
            margin = 1e-6 if self._is_stored_in_full() else 4e-3 * attempt
            factor = max_norm / upper * (1 - margin)
            aim *= factor
            if isinstance(movable, GenericWeights):
                # The norm need not follow the scale: aim lower from the start.
                found = self.project(aim, norm, exact)
                point, _ = self.settled(found.point, aim, norm)
            else:
                point = movable.scaled(point, factor)
            write(movable.parameters(point))
            upper = self.certified_norm()
        return point, upper

    def _is_stored_in_full(self) -> bool:
        return all(p.dtype not in HALF_PRECISION for p in self.function.parameters.values())


def _checked_request(
    layer: object, max_norm: object, tol: float, certify: object, move: str
) -> float:
    """The bound as a number, where the request makes sense."""
    if isinstance(layer, LinearOperator):
        raise TypeError("clip_ changes a layer's parameters: give the layer, not its operator.")
    bound = positive_number(max_norm, "max_norm")
    if not isinstance(tol, (int, float)) or not 0 < tol <= 0.1:
        raise ValueError(f"tol must be a number between 0 and 0.1, got {tol!r}.")
    if certify not in (False, True, "deterministic"):
        raise ValueError(f'certify must be False, True or "deterministic", got {certify!r}.')
    if move not in ("first", "all"):
        raise ValueError(f'move must be "first" or "all", got {move!r}.')
    return bound


@contextmanager
def _written(
    function: AffineFunction, values: dict[str, Tensor]
) -> Iterator[Callable[[dict[str, Tensor]], None]]:
    """Write parameters, and put the old ones back should anything go wrong before the end."""
    saved = {name: function.parameters[name].detach().clone() for name in values}

    def write(new: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in new.items():
                function.parameters[name].copy_(value)

    try:
        write(values)
        yield write
    except BaseException:
        write(saved)
        raise
