"""The solvers that are compared, all on the same operator and all counted in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor, nn
from torch._lobpcg import _lobpcg
from torch._lowrank import _svd_lowrank

from spectralclip import Lanczos, LinearOperator, as_operator, svds

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """What a solver returned, and what it took."""

    values: np.ndarray = field(default_factory=lambda: np.empty(0))  # descending
    pairs: float = math.nan
    stopped: bool = True  # by its own test, and not at a limit or by an error
    note: str = ""


@dataclass
class Count:
    """Vectors sent through `M` or `M^T`."""

    num_matvecs: int = 0

    @property
    def pairs(self) -> float:
        return self.num_matvecs / 2


@contextmanager
def applications_counted() -> Iterator[Count]:
    """Count what goes through any operator, from outside: nobody counts for himself."""
    count = Count()
    originals = {}
    for name, cost in (("forward_rows", 1), ("adjoint_rows", 1), ("gram_rows", 2)):
        original = originals[name] = getattr(LinearOperator, name)

        def counting(
            op: LinearOperator,
            rows: Tensor,
            original: Callable[[LinearOperator, Tensor], Tensor] = original,
            cost: int = cost,
        ) -> Tensor:
            count.num_matvecs += cost * rows.shape[0]
            return original(op, rows)

        setattr(LinearOperator, name, counting)
    try:
        yield count
    finally:
        for name, original in originals.items():
            setattr(LinearOperator, name, original)


def ours(module: nn.Module, in_shape: Shape, k: int, tol: float) -> Outcome:
    """`svds` as a user calls it."""
    with applications_counted() as count:
        found = svds(module, in_shape, k, tol=tol)
    return Outcome(found.S.double().numpy(), count.pairs, found.converged, found.advice)


def ours_by_lanczos(module: nn.Module, in_shape: Shape, k: int, tol: float) -> Outcome:
    """`svds` without its exact shortcuts."""
    with applications_counted() as count:
        found = svds(module, in_shape, k, tol=tol, solver=Lanczos())
    return Outcome(found.S.double().numpy(), count.pairs, found.converged, found.advice)


def arpack(module: nn.Module, in_shape: Shape, k: int, tol: float) -> Outcome:
    """`scipy.sparse.linalg.svds(solver="arpack", tol=tol)` as a user calls it.

    SciPy hands `tol^2` on to ARPACK, whose test is on the residual: the answer is far more
    accurate than was asked for.
    """
    operator = as_operator(module, in_shape).to_scipy()
    start = np.random.default_rng(0).standard_normal(min(operator.shape)).astype(operator.dtype)
    with applications_counted() as count:
        try:
            _, values, _ = scipy.sparse.linalg.svds(
                operator, k, tol=tol, v0=start, solver="arpack", maxiter=100
            )
        except scipy.sparse.linalg.ArpackError as error:
            return Outcome(pairs=count.pairs, stopped=False, note=_short(error))
    return Outcome(np.sort(values)[::-1], count.pairs)


def arpack_matched(module: nn.Module, in_shape: Shape, k: int, tol: float) -> Outcome:
    """The same with the loosest tolerance that still bounds the error of sigma by `tol`.

    A residual of `2 tol theta` in an eigenvalue theta = sigma^2 of the Gram matrix is a
    relative error of at most `tol` in sigma; SciPy squares what it is given.
    """
    return arpack(module, in_shape, k, math.sqrt(2 * tol))


def lobpcg(module: nn.Module, in_shape: Shape, k: int, tol: float) -> Outcome:
    """`torch.lobpcg` on the Gram matrix of the smaller side, at most 200 iterations.

    It stops at `||r|| <= tol (theta + a)` with a <= theta an estimate of the Gram matrix's
    norm from its random start, which bounds the relative error of sigma by `tol`.
    """
    op = _smaller_side(as_operator(module, in_shape))
    side = op.shape[1]

    def gram(columns: Tensor) -> Tensor:
        return op.gram_rows(columns.T).T

    iterations = []
    with applications_counted() as count, _seeded():
        try:
            values, _ = torch.lobpcg(
                MatrixView.of((side, side), gram, gram),
                k=k,
                niter=200,
                tol=tol,
                tracker=lambda worker: iterations.append(worker.ivars["converged_count"]),
            )
        except (AssertionError, RuntimeError, ValueError) as error:
            return Outcome(pairs=count.pairs, stopped=False, note=_short(error))
    stopped = iterations[-1] >= k
    note = "" if stopped else "200 iterations"
    return Outcome(values.clamp_min(0).sqrt().double().numpy(), count.pairs, stopped, note)


def svd_lowrank(module: nn.Module, in_shape: Shape, k: int, tol: float) -> Outcome:
    """`torch.svd_lowrank` with q = k + 6 and its default of two iterations; it has no stop."""
    op = as_operator(module, in_shape)
    view = MatrixView.of(
        op.shape, lambda x: op.forward_rows(x.T).T, lambda y: op.adjoint_rows(y.T).T
    )
    with applications_counted() as count, _seeded():
        _, values, _ = torch.svd_lowrank(view, q=k + 6, niter=2)
    return Outcome(values[:k].double().numpy(), count.pairs, False, "no stop")


Method = Callable[[nn.Module, Shape, int, float], Outcome]

METHODS: dict[str, Method] = {
    "svds": ours,
    "svds Lanczos": ours_by_lanczos,
    "ARPACK": arpack,
    "ARPACK matched": arpack_matched,
    "lobpcg": lobpcg,
    "svd_lowrank": svd_lowrank,
}


class MatrixView(torch.Tensor):
    """An operator that torch's own solvers take for a matrix.

    It has a matrix's shape but no entries; products with it, and its transpose, are the
    operator's. So `torch.lobpcg` and `torch.svd_lowrank` run as they are.
    """

    _product: Callable[[Tensor], Tensor]
    _transposed_product: Callable[[Tensor], Tensor]

    @classmethod
    def of(
        cls,
        shape: tuple[int, int],
        product: Callable[[Tensor], Tensor],
        transposed_product: Callable[[Tensor], Tensor],
    ) -> MatrixView:
        view = torch.Tensor._make_subclass(cls, torch.zeros(()).expand(shape))
        view._product, view._transposed_product = product, transposed_product
        return view

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.matmul:
            left, right = args
            if isinstance(left, MatrixView):
                return left._product(right)
            return right._transposed_product(left.mT).mT
        if getattr(func, "__self__", None) is torch.Tensor.mH:
            (view,) = args
            return cls.of((view.shape[1], view.shape[0]), view._transposed_product, view._product)
        # What torch runs for plain tensors, past the dispatch that led here.
        if func is torch.lobpcg:
            return _lobpcg(*args, **kwargs)
        if func is torch.svd_lowrank:
            return _svd_lowrank(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs or {})


def _smaller_side(op: LinearOperator) -> LinearOperator:
    return op if op.shape[1] <= op.shape[0] else op.adjoint()


@contextmanager
def _seeded() -> Iterator[None]:
    """Torch's solvers draw from the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
