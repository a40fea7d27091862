"""`set_spectrum_`: give a layer other singular values, as nearly as its form allows.

With `E = sum (s'_i - s_i) u_i v_i^T` and the linear map A from a change of the weight to the change
of the operator, the nearest W' in the Frobenius norm is `W + D^-1 A* E`, with `D = A* A`; `A* E` is
one batched weight gradient. The paper (Appendix B.1) descends to the same W' stochastically.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spectralclip._clipping.free_weights import acting_names
from spectralclip._clipping.metric import PROBING, parameter_metric
from spectralclip._linalg import sent
from spectralclip._operators import (
    Layer,
    LinearOperator,
    as_operator,
    in_float64,
    plain_numerics,
    unchanged_rng,
)
from spectralclip._spectrum import Spectrum


@plain_numerics()
def set_spectrum_(
    layer: Layer,
    in_shape: Sequence[int] | int | None,
    spectrum: Spectrum,
    new_values: Tensor | Sequence[float] | Callable[[Tensor], Tensor],
) -> float:
    """Move a layer, in place, to the nearest one with other singular values.

    The target is `M + sum (s'_i - s_i) u_i v_i^T` over the triplets of `spectrum`: their values are
    replaced and all others stay. A dense layer on plain vectors reaches it exactly. Others get the
    weight whose operator is nearest to it in the Frobenius norm, which may be far off.

    One weight moves. Batch norms stay as they are where something else can move; two layers at
    once, weight norm or a product of weights are refused, since their operator is not affine in
    what would move. A closed form of D is used for dense layers, embeddings, convolutions and
    transposed ones, also with batch norms before or after them, and for batch norm alone. Any
    other layer with up to 4096 inputs is solved by conjugate gradients.

    Args:
        layer: A module, or a sequence of modules (their composition).
        in_shape: Shape of one input, without the batch dimension; None where the layer knows it.
        spectrum: Triplets of this layer as `svds` found them, all or some.
        new_values: The new singular values in the order of `spectrum.S`, none negative; or a
            function that makes them from `spectrum.S`.

    Returns:
        The part of the change that is not reached, `||M(W') - (M(W) + E)||_F / ||E||_F`, for the
        weight as it is stored, rounding included. 0 is all, 1 is nothing; 0 where nothing was
        asked for.

    Raises:
        ValueError: The arguments do not fit the layer or each other, or no single weight can
            move; nothing has been changed.

    Example:
        >>> import torch
        >>> from spectralclip import set_spectrum_, singular_values, svds
        >>> layer = torch.nn.Linear(8, 3)
        >>> unmet = set_spectrum_(
        ...     layer, (8,), svds(layer, (8,), k=3), torch.tensor([3.0, 2.0, 1.0])
        ... )
        >>> unmet < 1e-5, [round(value, 4) for value in singular_values(layer, (8,)).tolist()]
        (True, [3.0, 2.0, 1.0])
        >>> conv = torch.nn.Conv2d(2, 2, 3, padding=1)
        >>> halved = set_spectrum_(conv, (2, 6, 6), svds(conv, (2, 6, 6), k=4), lambda S: S / 2)
        >>> 0 < halved < 1
        True
    """
    # In float64 where the layer can be evaluated so: the unmet part is a small difference.
    op = in_float64(as_operator(layer, in_shape), layer)
    with unchanged_rng(op.device):
        _check_spectrum(op, spectrum)
        change = _checked_values(op, spectrum, new_values) - sent(spectrum.S, op.device, op.dtype)
        name = _moving_parameter(op)
        metric = parameter_metric(op.function, name)
        peak = change.abs().max()
        if not bool(peak > 0):
            return 0.0
        gradient = _pulled_back(op, name, spectrum, change / peak)
        parameter, old = op.parameters[name], op.function.values[name]
        new = (old + peak * metric.solve(gradient)).to(parameter.dtype)
        if not bool(torch.isfinite(new).all()):
            raise ValueError(
                f"The new values make {name!r} of {op.name} overflow in {parameter.dtype}: give "
                "smaller ones."
            )
        moved = (new.to(op.dtype) - old) / peak
        asked = _squared_norm(op, spectrum, change / peak)
        met = 2 * torch.sum(gradient * moved) - torch.sum(moved * metric.apply(moved))
        with torch.no_grad():
            parameter.copy_(new)
    return math.sqrt(max(0.0, asked - float(met)) / asked)


def _check_spectrum(op: LinearOperator, spectrum: Spectrum) -> None:
    if not isinstance(spectrum, Spectrum):
        raise TypeError(
            f"spectrum must be a Spectrum as svds makes it, got {type(spectrum).__name__}."
        )
    k = spectrum.S.numel()
    shapes = {"S": (k,), "U": (k, *op.out_shape), "V": (k, *op.in_shape), "residuals": (k,)}
    for name, shape in shapes.items():
        tensor: Tensor = getattr(spectrum, name)
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"spectrum.{name} has shape {tuple(tensor.shape)}, expected {shape} for {op.name}: "
                "take the spectrum of this layer, with this in_shape."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"spectrum.{name} holds NaN or infinite values: call svds again.")
    S, residuals = (sent(t, op.device, op.dtype) for t in (spectrum.S, spectrum.residuals))
    for rows in _row_slices(op, k):
        U = sent(spectrum.U[rows], op.device, op.dtype).reshape(-1, op.shape[0])
        defects = op.matvec(spectrum.V[rows]).reshape(U.shape) - S[rows, None] * U
        if bool((defects.norm(dim=1) > 2 * residuals[rows] + 1e-3 * S.max()).any()):
            raise ValueError(
                f"spectrum is not that of {op.name} as it is now: M v differs from s u by "
                f"{float(defects.norm(dim=1).max()):.2g}. Call svds again after each change of "
                "the weights."
            )


def _checked_values(
    op: LinearOperator,
    spectrum: Spectrum,
    new_values: Tensor | Sequence[float] | Callable[[Tensor], Tensor],
) -> Tensor:
    given = new_values(spectrum.S.clone()) if callable(new_values) else new_values
    values = torch.as_tensor(given).detach()
    if values.shape != spectrum.S.shape:
        raise ValueError(
            f"new_values must have one entry for each of the {spectrum.S.numel()} triplets, of "
            f"shape {tuple(spectrum.S.shape)}, got {tuple(values.shape)}."
        )
    if values.is_complex() or not bool((torch.isfinite(values) & (values >= 0)).all()):
        raise ValueError(
            f"new_values must be finite real numbers, none negative, got {values.tolist()}."
        )
    return sent(values, op.device, op.dtype)


def _moving_parameter(op: LinearOperator) -> str:
    """The one parameter that is to move: not a batch norm's where there is another."""
    own, norms = acting_names(op)
    moving = own or norms
    if len(moving) != 1:
        raise ValueError(
            f"The operator of {op.name} depends on {', '.join(map(repr, moving))}, "
            "expected one parameter that can move alone. Pass one layer at a time, and remove "
            "parametrizations first."
        )
    return moving[0]


def _row_slices(op: LinearOperator, count: int) -> list[slice]:
    """Batches of rows that fit into memory together with what autograd keeps."""
    step = max(1, PROBING.numbers_at_once // max(op.shape))
    return [slice(start, start + step) for start in range(0, count, step)]


def _pulled_back(op: LinearOperator, name: str, spectrum: Spectrum, change: Tensor) -> Tensor:
    """`A* E`."""
    total = torch.zeros_like(op.function.values[name])
    for rows in _row_slices(op, change.numel()):
        U = sent(spectrum.U[rows], op.device, op.dtype)
        scaled = U * change[rows].reshape(-1, *[1] * (U.ndim - 1))
        total += op.pullback(scaled, spectrum.V[rows])[name]
    return total


def _squared_norm(op: LinearOperator, spectrum: Spectrum, change: Tensor) -> float:
    """`||E||_F^2`, without taking it for granted that the vectors are orthonormal."""
    U, V = (sent(t, op.device, op.dtype).flatten(1) for t in (spectrum.U, spectrum.V))
    return float(change @ ((U @ U.T) * (V @ V.T)) @ change)
