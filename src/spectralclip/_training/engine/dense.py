"""Keeping dense layers, and others whose windows do not overlap, within their bounds exactly."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from spectralclip._linalg import decomposable, tall_qr
from spectralclip._training.engine.constrained_layer import SPIKE, Slot
from spectralclip._training.engine.cut_step import DenseCuts, Stripping, strip_
from spectralclip._training.engine.norm_check import Aim, Movement

# The momentum is stripped along so many of the values that were clipped, the largest.
MOST_STRIPPED = 8
SLACK = 0.995
# A norm below the bound is followed by power steps on a few vectors, beyond this size.
POWER_STEPS, WIDTH, SMALL = 2, 4, 64


@final
class DenseKeeper:
    """A layer that is one matrix for each group: its singular values can be set one by one.

    Attributes:
        slot: The layer.
        norm: As it is after the latest step.
        is_exact: Whether it is from a decomposition of the weight, and not from power steps.
    """

    def __init__(self, slot: Slot, strip: Stripping, generator: torch.Generator) -> None:
        self.slot, self._stripping = slot, strip
        self.norm, self.is_exact = math.nan, False
        self.movement = Movement([slot.weight])
        weight = self._matrices()
        side = min(weight.shape[1:])
        shape = (len(weight), side, min(WIDTH, side))
        self.vectors = torch.randn(shape, generator=generator, device="cpu").to(weight)

    @torch.no_grad()
    def step(self, bound: float) -> bool:
        """Clip the singular values above the bound; whether the weights are finite."""
        is_finite = self._step(bound)
        self.movement.leave([self.slot.weight])
        return is_finite

    def _step(self, bound: float) -> bool:
        self.is_exact, aim = False, Aim(bound, bound, self.movement.stride([self.slot.weight]))
        self.slot.tame_(bound)
        weight = self._matrices()
        wide = weight.shape[1] <= weight.shape[2]
        gram = _gram(weight, wide)
        if not bool(torch.isfinite(gram).all()):
            return False
        if self._is_within(gram, bound):
            self._follow(gram)
            return True
        squares, vectors = _eigh(gram)
        top = float(squares.amax()) ** 0.5
        if top > SPIKE * bound:
            weight = weight * (SPIKE * bound / top)
            squares, vectors = _eigh(_gram(weight, wide))
        values, self.is_exact = squares.clamp_min(0).sqrt(), True
        self.vectors = vectors[:, :, -self.vectors.shape[2] :].clone()
        # A little below, so that it is not above again at each step: the gate is cheap.
        target = aim.slack(1 - SLACK) * bound
        self.norm = min(float(values.amax()), target)
        most = int((values > target).sum(1).amax())
        if most == 0:
            return True
        top, chosen = values[:, -most:], vectors[:, :, -most:]
        share = (1 - target / top).clamp_min(0)
        other = chosen.mT @ weight if wide else weight @ chosen
        change = (chosen * share[:, None]) @ other if wide else (other * share[:, None]) @ chosen.mT
        self.slot.write((weight - change).reshape(self.slot.kernels().shape))
        self._strip(top, chosen, other, wide, target)
        return True

    def _matrices(self) -> Tensor:
        return self.slot.kernels().flatten(2)

    @staticmethod
    def _is_within(gram: Tensor, bound: float) -> bool:
        """Whether no value is above, which a Cholesky factor tells at a tenth of the price."""
        identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        eps = torch.finfo(gram.dtype).eps
        factor = torch.linalg.cholesky_ex(decomposable(bound**2 * (1 - 4 * eps) * identity - gram))
        return not bool(factor.info.any())

    def _follow(self, gram: Tensor) -> None:
        """Keep track of a norm that is below its bound: exactly, or by a few power steps."""
        if gram.shape[-1] <= SMALL or math.isnan(self.norm):
            self.norm = float(torch.linalg.eigvalsh(decomposable(gram)).amax().clamp_min(0)) ** 0.5
            self.is_exact = True
            return
        for _ in range(POWER_STEPS):
            self.vectors = tall_qr(gram @ self.vectors)[0]
        small = self.vectors.mT @ (gram @ self.vectors)
        self.norm = float(torch.linalg.eigvalsh(decomposable(small)).amax().clamp_min(0)) ** 0.5

    def _strip(self, top: Tensor, chosen: Tensor, other: Tensor, wide: bool, bound: float) -> None:
        """Along the rank-one gradients of what was clipped."""
        values, where = top.flatten().topk(min(MOST_STRIPPED, top.numel()))
        where = where[values > bound]
        kernel, column = where // top.shape[1], where % top.shape[1]
        near = chosen[kernel, :, column]
        far = other[kernel, column] if wide else other[kernel, :, column]
        far = far / far.norm(dim=1, keepdim=True).clamp_min(torch.finfo(far.dtype).tiny)
        left, right = (near, far) if wide else (far, near)
        each = left[:, :, None] * right[:, None]
        rows = each.new_zeros(len(each), self.slot.groups, *each.shape[1:])
        rows[torch.arange(len(each), device=rows.device), kernel] = each
        cuts = DenseCuts(rows.flatten(1))
        self._stripping(self.slot.weight, lambda momentum: strip_(momentum, cuts))


def _gram(weight: Tensor, wide: bool) -> Tensor:
    return weight @ weight.mT if wide else weight.mT @ weight


def _eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(decomposable(gram))
    return values.to(gram.device), vectors.to(gram.device)
