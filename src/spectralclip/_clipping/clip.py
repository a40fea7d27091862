"""`clip_`: the nearest layer of the same form whose norm is at most c."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from spectralclip._bounds import View, norm_bounds, torus_norm
from spectralclip._clipping.cutting_planes import CUTS, EXACT_CUTS
from spectralclip._clipping.free_weights import Move, free_weights
from spectralclip._clipping.newton import Projected
from spectralclip._clipping.project import nearest
from spectralclip._common import checked_generator, positive_number
from spectralclip._operators import (
    HALF_PRECISION,
    Layer,
    LinearOperator,
    input_shape,
    plain_numerics,
)
from spectralclip._spectrum import fresh_ritz, most_work, svds

Certify: TypeAlias = bool | Literal["deterministic"]
"""Whether to prove the norm reached, and if so, without a failure probability."""


class ClipSettings(NamedTuple):
    """How the result is settled on the weights as they are stored."""

    # Lanczos steps of the last search, from a new random vector. Without it a norm of 1.003 c was
    # left; with it 1.0002 c at worst.
    final_steps: int = 60
    short_steps: int = 12  # where the norm is known already, as a guard against rounding
    settled: float = 1e-5  # what may be left above the bound, relatively
    rounds: int = 20  # searches at most; one or two are the rule
    # How often the move may be lengthened before the weights are scaled, which always helps but
    # costs more distance.
    further_rounds: int = 3
    certified_rounds: int = 8  # how often the layer may be lowered for the sake of its bounds
    # Times the bound: where the norm is larger, what is left of the layer is computed in float64.
    far: float = 100.0
    excess_share: float = 0.2  # of the allowed gap, what a smaller image may cost


SETTINGS = ClipSettings()


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
        num_matvecs: Vectors sent through `M`, `M^T` or the pullback, one each.
        rounds: Steps taken.
        converged: Whether the projection was carried through. If not, the layer is within the
            bound all the same, by a final scale, but farther away than need be.
        flops: Floating-point operations spent outside of matvecs.
    """

    norm_before: float
    norm_after: float
    distance: float
    distance_lower_bound: float | None
    num_matvecs: int
    rounds: int
    converged: bool
    flops: float = 0.0


@plain_numerics()
def clip_(
    layer: Layer,
    in_shape: Sequence[int] | int | None = None,
    max_norm: float = 1.0,
    *,
    tol: float = 1e-3,
    exact: bool = False,
    certify: Certify = False,
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
        in_shape: Shape of one input, as for `svds`.
        max_norm: The bound c.
        tol: The norm reached is at most `(1 + tol) * max_norm`, and usually much closer.
        exact: Carry the projection on until its distance is within half a percent of the
            smallest possible one, by cutting planes; for dense layers, convolutions and batch
            norm, alone or with batch norms beside them.
        certify: The upper end of `norm_bounds` is at most `max_norm`; "deterministic" for a bound
            without a failure probability.
        move: In a composition, which parameters move: "first", those of its first layer
            (batch norms give way to what they normalize), or "all".
        generator: Source of random vectors; by default the same for each call.

    Raises:
        ValueError: The arguments do not fit the layer, or nothing in it can be clipped; the
            layer is as it was.

    Example:
        >>> import torch
        >>> from spectralclip import clip_, spectral_norm
        >>> conv = torch.nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        >>> result = clip_(conv, (8, 12, 12), 0.5)
        >>> result.converged, bool(spectral_norm(conv, (8, 12, 12)) < 0.5005)
        (True, True)
    """
    max_norm = _checked_request(layer, max_norm, tol, certify, move)
    in_shape = input_shape(layer, in_shape)
    generator = checked_generator(generator)
    job = _Clipping(layer, in_shape, max_norm, tol, exact, certify, move, generator)
    job.require_clippable()
    norm = job.norm_at_start()
    job.lengthen(norm)
    allowed = max_norm * (1 + (0 if certify else tol / 2))
    upper = job.certified_norm() if certify and norm <= allowed else norm
    if upper <= allowed:
        return ClipResult(norm, upper, 0.0, 0.0, job.num_matvecs, 0, True)
    found = Projected(job.movable.start, norm, 0, 0, True, 0.0)
    if norm > allowed:
        found = job.project(max_norm, norm)
    point, after = job.settled(found.point, max_norm, norm)
    with restored_on_failure(job.moving):
        job.write(point)
        if certify:
            point, after = job.certified(point, norm)
        if not 0.5 * max_norm <= after <= max_norm * (1 + (0 if certify else tol)):
            raise ValueError(
                f"{job.op.name} cannot be brought to {max_norm:g}: its norm came out as {after:g}, "
                "and does not follow the scale of its parameters. It is left as it was."
            )
        distance, bound = job.movable.distance(point), found.lower_bound
        if job.movable.matrices is not None:
            # What was found is the projection itself; certifying or rounding may have gone beyond.
            bound = distance if point is found.point else job.movable.distance(found.point)
    unit = job.movable.unit
    bound = None if bound is None else unit * bound
    spent = job.num_matvecs, found.rounds, found.converged, found.flops
    return ClipResult(norm, after, unit * distance, bound, *spent)


@final
class _Clipping:
    """One layer on its way to the bound."""

    def __init__(
        self,
        layer: Layer,
        in_shape: Sequence[int],
        max_norm: float,
        tol: float,
        exact: bool,
        certify: Certify,
        move: Move,
        generator: torch.Generator,
    ) -> None:
        self._layer, self._in_shape, self._tol = layer, in_shape, min(tol, 1e-3)
        self._max_norm, self._exact, self._certify = max_norm, exact, certify
        self._generator, self._move, self.num_matvecs = generator, move, 0
        self._view = View(layer, in_shape)
        self._take(self._view.op)

    def _take(self, op: LinearOperator) -> None:
        self.op, self._unit = op, 2.0 ** round(math.log2(self._max_norm))
        self.movable = free_weights(op, self._move, self._unit)

    @property
    def _is_estimated(self) -> bool:
        return self.movable.matrices is None

    @property
    def moving(self) -> list[Tensor]:
        return [self.op.parameters[name] for name in self.movable.names]

    @torch.no_grad()
    def write(self, point: Tensor) -> None:
        """Store the parameters that a point stands for."""
        for name, value in self.movable.parameters(point).items():
            self.op.parameters[name].copy_(value)

    def lengthen(self, norm: float) -> None:
        """Compute in float64 where little of the layer will be left, or its scale is extreme.

        Merged forms are in units of the bound; others see their own scale inside.
        """
        extreme = not self.movable.knows_distance and not 1e-6 < self._max_norm < 1e6
        if norm > SETTINGS.far * self._max_norm or extreme:
            self._take(self._view.double)

    def require_clippable(self) -> None:
        """Raise where there is no way to the bound, or none that `exact` could measure."""
        movable, exact = self.movable, self._exact
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
        sizes = []
        for share in (1.0, 0.01):
            # In units of a tiny bound the squares of singular values would overflow.
            op, factor = movable.operator(share * movable.start).balanced()
            sizes.append(float(fresh_ritz(op, 10, 1, generator).S[0]) / factor)
        if sizes[1] > 0.9 * sizes[0]:
            raise ValueError(
                f"The norm of {self.op.name} does not follow the scale of its parameters, as with "
                "an orthogonal or spectrally normalized parametrization: it cannot be clipped. "
                "Remove the parametrization first "
                "(torch.nn.utils.parametrize.remove_parametrizations)."
            )

    def norm_at_start(self) -> float:
        if self.movable.matrices is not None:
            return self._unit * self.movable.matrices.norm
        norm = self._symbol_norm(self.movable.start)
        if norm is not None:
            return norm
        found = svds(self.op, self._in_shape, 1, tol=self._tol, generator=self._generator)
        self.num_matvecs += found.num_matvecs
        return float(found.S[0])

    def _symbol_norm(self, point: Tensor) -> float | None:
        """The norm of a convolution on a large image, from above, by its symbol; else None."""
        conv, excess = self.movable.conv, self._tol / 8
        if conv is None or not self._is_estimated or not self.movable.is_stored_in_full:
            return None
        # Together with what the search may leave open, less than what is left alone.
        if not self._view.is_large(self._tol / 4):
            return None
        if most_work(conv, excess) > SETTINGS.final_steps * conv.work:
            return None
        norm = torus_norm(conv.with_weight(point), excess)
        return None if norm is None else self._unit * norm

    def project(self, max_norm: float, norm: float) -> Projected:
        """The nearest point, by what suits the layer, whose norm is given."""
        unit, movable = self._unit, self.movable
        # What a smaller image falls short of is made good on the layer itself, by going on in
        # the direction of the move.
        gap = (EXACT_CUTS if self._exact else CUTS).gap
        excess = min(SETTINGS.excess_share * gap * (norm / max_norm - 1), 0.01)
        is_cuttable = movable.conv is not None and self._is_estimated
        small = self._view.cropped(excess) if is_cuttable else None
        if small is not None:
            op = small.op if self.op is self._view.op else small.double
            movable = free_weights(op, self._move, unit, movable.metric)
        found = nearest(movable, max_norm / unit, norm / unit, self._exact, self._generator)
        self.num_matvecs += found.num_matvecs
        return found

    def settled(self, point: Tensor, max_norm: float, start_norm: float) -> tuple[Tensor, float]:
        """Search once more, with nothing known before, for the norm of what will be stored.

        Where a little is missing, going on in the direction of the move costs least distance;
        the scale of the weights is what always helps.
        """
        start, norm = self.movable.start, math.inf
        # Where nothing was estimated, a short search only guards against rounding.
        steps = SETTINGS.final_steps if self._is_estimated else SETTINGS.short_steps
        for attempt in range(SETTINGS.rounds):
            norm = self._norm_at(point, steps)
            if norm <= max_norm * (1 + SETTINGS.settled):
                break
            missing = 1.5 * (norm - max_norm) / max(start_norm - norm, 1e-300)
            if attempt < SETTINGS.further_rounds and missing < 0.05:
                point = point + missing * (point - start)
            else:
                point = self.movable.scaled(point, max_norm / norm)
        return point, norm

    def _norm_at(self, point: Tensor, steps: int) -> float:
        norm = self._symbol_norm(point)
        if norm is None:
            op = self.movable.stored_operator(point)
            found = fresh_ritz(op, steps, 1, self._generator)
            self.num_matvecs += found.num_matvecs
            norm = self._unit * float(found.S[0])
        return norm

    def certified_norm(self) -> float:
        """The upper end of the bounds on the layer as it is, as a user would ask for them."""
        deterministic = self._certify == "deterministic"
        bounds = norm_bounds(self._layer, self._in_shape, deterministic=deterministic)
        self.num_matvecs += bounds.num_matvecs
        return bounds.upper

    def certified(self, point: Tensor, norm: float) -> tuple[Tensor, float]:
        """Lower the layer, as it is written, until the upper end is within the bound."""
        max_norm = target = self._max_norm
        upper = self.certified_norm()
        is_half = any(parameter.dtype in HALF_PRECISION for parameter in self.moving)
        for attempt in range(SETTINGS.certified_rounds):
            if upper <= max_norm:
                break
            # Rounding to half precision may undo a small step.
            factor = max_norm / upper * (1 - (4e-3 * attempt if is_half else 1e-6))
            target *= factor
            if self.movable.knows_distance:
                point = self.movable.scaled(point, factor)
            else:
                # The norm need not follow the scale: lower the target from the start.
                point, _ = self.settled(self.project(target, norm).point, target, norm)
            self.write(point)
            upper = self.certified_norm()
        return point, upper


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
def restored_on_failure(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Put parameters back should anything go wrong before the end of the block."""
    saved = [(parameter, parameter.detach().clone()) for parameter in parameters]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for parameter, value in saved:
                parameter.copy_(value)
        raise
