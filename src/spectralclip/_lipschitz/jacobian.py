"""`jacobian_operator`: a network's linearization at an input, and the local norms that it gives.

The norm of the Jacobian at any point where there is one is a lower bound on the Lipschitz
constant.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten

from spectralclip._bounds import rounding_margin
from spectralclip._common import Shape, explained
from spectralclip._linalg import pulled_back, wide
from spectralclip._models import ExampleInputs, call_arguments, in_evaluation, tensors_in, unwrapped
from spectralclip._operators import (
    HALF_PRECISION,
    AffineFunction,
    Layout,
    LinearMap,
    LinearOperator,
    describe,
    plain_numerics,
)
from spectralclip._spectrum import Exact, Lanczos, Solver, leading_spectrum

# A Ritz value is a lower bound however few the products. For one percent, the Jacobians of
# ResNet-18 and of three convolutions take about 30.
_MAX_MATVECS = 80
_DENSE_SIDE = 64  # of the Jacobian, up to which it is formed by as many products
_NOISE = 0.05  # of inner products, in the lowest precision
# Relative to the size of the input: enough to leave the kinks of piecewise linear functions,
# where what automatic differentiation gives need not be the derivative of anything.
_NUDGE = 1e-4


@plain_numerics()
def jacobian_operator(model: nn.Module, x: ExampleInputs) -> LinearOperator:
    """The linearization of a model at an input, as an operator that is never formed.

    Args:
        model: Any module; it is evaluated as in evaluation mode and left as it was. The operator
            evaluates it again with each application: it is for the weights of now.
        x: One input, with a batch dimension of one entry; or several, as a tuple of arguments or a
            dictionary of keyword arguments, which then count as one flat vector. Integer inputs
            are held fixed.

    Returns:
        The operator from the input to the output, both without the batch dimension; several
        outputs, too, count as one flat vector.

    Raises:
        ValueError: There is more than one example, or nothing to differentiate.

    Example:
        >>> import torch
        >>> from spectralclip import jacobian_operator, svds
        >>> model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh())
        >>> op = jacobian_operator(model, torch.zeros(1, 6))
        >>> op.shape, svds(op, (6,), k=2).S.shape
        ((5, 6), torch.Size([2]))
    """
    args, kwargs = call_arguments(model, x)
    sizes = {tensor.shape[:1] for tensor in tensors_in((args, kwargs))}
    if sizes != {(1,)}:
        raise ValueError(
            "jacobian_operator needs one example with its batch dimension, such as x[:1] of shape "
            f"(1, 3, 32, 32), got inputs with leading sizes {sorted(sizes)}."
        )
    return linearized(unwrapped(model), args, kwargs, single=True)


def linearized(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    single: bool = False,
    nudge: int | None = None,
) -> LinearOperator:
    """The operator at some arguments, as they are or a little beside, by a seed."""
    map_ = _JacobianMap(model, args, kwargs, single, nudge)
    dtype = torch.float32 if map_.dtype in HALF_PRECISION else map_.dtype

    def apply(rows: Tensor) -> Tensor:
        images = map_.forward(rows.reshape(rows.shape[0], -1))
        return map_.target.to_tensor(images)

    apply.__name__ = f"linearization of {describe(model)}"
    function = AffineFunction(apply, map_.source.shape, dtype=dtype, device=map_.device)
    return LinearOperator(function, [map_], transposed=False)


def local_norms(
    model: nn.Module,
    examples: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    tol: float,
    seed: int,
) -> tuple[list[float], str]:
    """The norm of the Jacobian near each example, from below; else, why there is none."""
    found = []
    for args, kwargs in examples:
        try:
            norm = _norm(linearized(model, args, kwargs, nudge=seed), tol, seed)
        except NothingToDifferentiateError as error:
            return [], str(error)
        except Exception as error:  # of any kind: the upper end does not depend on this one
            if explained(error) is not None:
                raise
            return [], f"the model cannot be differentiated: {error}"
        if not math.isfinite(norm):
            return [], "the model's derivatives are not finite here"
        found.append(norm)
    return found, ""


def _norm(op: LinearOperator, tol: float, seed: int) -> float:
    small = min(op.shape) <= _DENSE_SIDE
    solver: Solver = Exact() if small else Lanczos(max_matvecs=_MAX_MATVECS)
    generator = torch.Generator("cpu").manual_seed(seed)
    spectrum = leading_spectrum(op, 1, tol=tol, solver=solver, generator=generator)
    return float(spectrum.S[0]) * (1 - rounding_margin(op.dtype))


class NothingToDifferentiateError(ValueError):
    """No input or no output has floating-point numbers, or they are not finite."""


@final
class _JacobianMap(LinearMap):
    """What small moves of a model's input do to its output, at some arguments."""

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        single: bool,
        nudge: int | None,
    ) -> None:
        self._model = model
        leaves, self._structure = tree_flatten((list(args), dict(kwargs)))
        self._leaves = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
        tensors = [(at, x) for at, x in enumerate(leaves) if isinstance(x, Tensor)]
        self._places = [at for at, x in tensors if x.is_floating_point()]
        if not self._places:
            raise NothingToDifferentiateError(
                f"{describe(model)} has no input of floating-point numbers: there is no Jacobian, "
                "and no lower bound from it."
            )
        if nudge is not None:
            generator = torch.Generator("cpu").manual_seed(nudge)
            for place in self._places:
                self._leaves[place] = nudged(self._leaves[place], _NUDGE, generator)
        self.inputs: list[Tensor] = [self._leaves[place] for place in self._places]
        self.dtype, self.device = self.inputs[0].dtype, self.inputs[0].device
        self._differentiable_twice = True  # until it turns out that it is not
        with torch.no_grad(), self._running():
            outputs = self._smooth(self.inputs)
        if not outputs or not all(bool(torch.isfinite(y).all()) for y in outputs):
            raise NothingToDifferentiateError(
                f"{describe(model)} has no output of finite floating-point numbers here: there is "
                "no Jacobian, and no lower bound from it."
            )
        self.source, self.target = (Layout(_shape(ends, single)) for ends in (self.inputs, outputs))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([self._pushed(row) for row in rows])

    def adjoint(self, rows: Tensor) -> Tensor:
        return torch.stack([self._pulled(row) for row in rows])

    def _pushed(self, row: Tensor) -> Tensor:
        """`J v` for a flat vector.

        `J^T u` is linear in u, and its transpose is `J`: backward twice. Only where an operation
        has no second derivative, forward mode is tried, for which torch loads its compiler.
        """
        if self._differentiable_twice:
            try:
                return self._backward_twice(row)
            except RuntimeError:
                self._differentiable_twice = False
        with warnings.catch_warnings(), torch.no_grad(), self._running(), forward_ad.dual_level():
            # About torch's own parts, which it loads here.
            warnings.simplefilter("ignore", DeprecationWarning)
            moves = self._pieces(row)
            duals = [forward_ad.make_dual(x, v) for x, v in zip(self.inputs, moves, strict=True)]
            images = []
            for y in self._smooth(duals):
                primal, tangent = forward_ad.unpack_dual(y)
                images.append(torch.zeros_like(primal) if tangent is None else tangent.detach())
        return _flat(images).to(row)

    def _backward_twice(self, row: Tensor) -> Tensor:
        _, output = self._recorded
        if not output.requires_grad:
            return torch.zeros_like(output).to(row)
        u, back = self._twice
        (image,) = pulled_back(back, [u], row.to(back))
        return image.to(row)

    @functools.cached_property
    def _twice(self) -> tuple[Tensor, Tensor]:
        """How `J^T u` depends on u: zeros for u, and what comes of it."""
        inputs, output = self._recorded
        with torch.enable_grad():
            u = torch.zeros_like(output, requires_grad=True)
            back = _flat(list(pulled_back(output, inputs, u, create=True)))
        self._require_transpose(u, back)
        return u, back

    def _require_transpose(self, u: Tensor, back: Tensor) -> None:
        """Raise unless the second derivative is there; one that is cut off counts as zero."""
        generator = torch.Generator("cpu").manual_seed(0)
        y, x = (torch.randn(t.shape, generator=generator, device="cpu").to(t) for t in (u, back))
        (image,) = pulled_back(back, [u], x)
        pulled = self._pulled(y)
        size = image.norm() * y.norm() + pulled.norm() * x.norm()
        if bool((torch.dot(image, y) - torch.dot(pulled, x)).abs() > _NOISE * size):
            raise RuntimeError("an operation of the model cannot be differentiated twice")

    def _pulled(self, row: Tensor) -> Tensor:
        """`J^T u` for a flat vector."""
        inputs, output = self._recorded
        if not output.requires_grad:
            return torch.zeros_like(_flat(inputs)).to(row)
        gradients = pulled_back(output, inputs, row.to(output))
        return _flat(list(gradients)).to(row)

    @functools.cached_property
    def _recorded(self) -> tuple[list[Tensor], Tensor]:
        """The inputs and the output with the graph between them."""
        with torch.enable_grad(), self._running():
            inputs = [x.detach().clone().requires_grad_() for x in self.inputs]
            return inputs, _flat(self._smooth(inputs))

    def _smooth(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The floating-point outputs at other inputs."""
        leaves = list(self._leaves)
        for place, x in zip(self._places, inputs, strict=True):
            leaves[place] = x
        # A model may work in place.
        leaves = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        args, kwargs = tree_unflatten(leaves, self._structure)
        return [y for y in tensors_in(self._model(*args, **kwargs)) if y.is_floating_point()]

    def _pieces(self, row: Tensor) -> list[Tensor]:
        sizes = [x.numel() for x in self.inputs]
        parts = zip(row.split(sizes), self.inputs, strict=True)
        return [part.to(x).reshape(x.shape) for part, x in parts]

    @contextmanager
    def _running(self) -> Iterator[None]:
        """As in evaluation, drawing the same random numbers each time, and leaving no trace."""
        # The only kind of attention that can be differentiated twice.
        with in_evaluation(self._model), sdpa_kernel(SDPBackend.MATH):
            torch.manual_seed(0)  # what is drawn here is put back by `left_as_it_was`
            yield


def _shape(tensors: Sequence[Tensor], single: bool) -> Shape:
    """Of inputs or outputs as one vector."""
    if len(tensors) > 1 or tensors[0].ndim == 0:
        return (sum(tensor.numel() for tensor in tensors),)
    whole = tuple(tensors[0].shape)
    return whole[1:] or (1,) if single and whole[0] == 1 else whole


def nudged(x: Tensor, by: float, generator: torch.Generator) -> Tensor:
    """The tensor, each number moved at random, relative to how large they are."""
    size = float(wide(x).square().mean().sqrt()) if x.numel() else 0.0
    noise = torch.randn(x.shape, generator=generator, device="cpu").to(x)
    return x.detach() + by * (size or 1.0) * noise


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])
