"""Dense layers, and others whose windows do not overlap, held within their bounds exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._linalg import GramSVD, decomposable, smaller_gram, tall_qr
from spectralclip._training.engine.constrained_layer import ConstrainedLayer
from spectralclip._training.engine.constraints import LayerConstraint, Turn
from spectralclip._training.engine.cut_step import DenseCuts, MomentumProjection, project_momentum_
from spectralclip._training.engine.norm_check import Movement, Target
from spectralclip._training.engine.tuning import DENSE, LAYER
from spectralclip._training.method import seeded


@final
class ExactConstraint(LayerConstraint):
    """A layer that is one matrix for each group: its singular values can be set one by one."""

    def __init__(
        self, layer: ConstrainedLayer, project_momentum: MomentumProjection, origin: str
    ) -> None:
        self.names, self._layer, self._project_momentum = (layer.name,), layer, project_momentum
        # Exact norms are from a decomposition of the weight, and not from power steps.
        self._norm, self._is_exact, self._exact_at = math.nan, False, 0
        self._movement = Movement([layer.weight])
        weight = self._matrices()
        side = min(weight.shape[1:])
        shape = (len(weight), side, min(DENSE.width, side))
        self._vectors = torch.randn(shape, generator=seeded(origin), device="cpu").to(weight)

    @torch.no_grad()
    def step(self, turn: Turn) -> Sequence[str]:
        is_finite = self._clip(turn.bounds[self.names[0]])
        self._movement.leave([self._layer.weight])
        self._exact_at = turn.number if self._is_exact else 0
        return () if is_finite else self.names

    def checked(self) -> dict[str, int]:
        return {self.names[0]: self._exact_at} if self._exact_at else {}

    def norms(self) -> dict[str, float]:
        return {} if math.isnan(self._norm) else {self.names[0]: self._norm}

    def states(self) -> dict[str, Any]:
        own = {"vectors": self._vectors.clone(), "norm": self._norm}
        return {self.names[0]: {**own, "movement": self._movement.state()}}

    def load_states(self, states: Mapping[str, Any]) -> None:
        for state in states.values():
            self._vectors = state["vectors"].to(self._vectors, copy=True)
            self._norm = float(state["norm"])
            self._movement.load_state(state["movement"])

    def _clip(self, bound: float) -> bool:
        """Clip the singular values above the bound; whether the weights are finite."""
        self._is_exact = False
        stride = self._movement.stride([self._layer.weight])
        self._layer.tame_(bound)
        weight = self._matrices()
        gram = smaller_gram(weight)
        if not bool(torch.isfinite(gram).all()):
            return False
        if self._is_within(gram, bound):
            self._follow(gram)
            return True
        found, self._is_exact = GramSVD(weight, gram=gram), True
        if found.norm > LAYER.spike * bound:
            weight = weight * (LAYER.spike * bound / found.norm)
            found = GramSVD(weight)
        self._vectors = found.vectors[:, :, -self._vectors.shape[2] :].clone()
        # A little below, so that it is not above again at each step: the gate is cheap.
        target = Target(bound, bound, stride).margin(1 - DENSE.margin) * bound
        self._norm = min(found.norm, target)
        if found.norm > target:
            self._project_along(found, weight, target)
            self._layer.write((weight - found.excess(target)).reshape(self._layer.kernels().shape))
        return True

    def _matrices(self) -> Tensor:
        return self._layer.kernels().flatten(2)

    @staticmethod
    def _is_within(gram: Tensor, bound: float) -> bool:
        """Whether no value is above, which a Cholesky factor tells at a tenth of the price."""
        identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        eps = torch.finfo(gram.dtype).eps
        factor = torch.linalg.cholesky_ex(decomposable(bound**2 * (1 - 4 * eps) * identity - gram))
        return not bool(factor.info.any())

    def _follow(self, gram: Tensor) -> None:
        """Keep track of a norm that is below its bound: exactly, or by a few power steps."""
        if gram.shape[-1] <= DENSE.small or math.isnan(self._norm):
            self._norm = float(torch.linalg.eigvalsh(decomposable(gram)).amax().clamp_min(0)) ** 0.5
            self._is_exact = True
            return
        for _ in range(DENSE.power_steps):
            self._vectors = tall_qr(gram @ self._vectors)[0]
        small = self._vectors.mT @ (gram @ self._vectors)
        self._norm = float(torch.linalg.eigvalsh(decomposable(small)).amax().clamp_min(0)) ** 0.5

    def _project_along(self, found: GramSVD, weight: Tensor, bound: float) -> None:
        """Project the momentum along the rank-one gradients of what was clipped."""
        top, side = found.values, found.values.shape[1]
        values, where = top.flatten().topk(min(DENSE.most_projected, top.numel()))
        where = where[values > bound]
        kernel, column = where // side, where % side
        near, chosen = found.vectors[kernel, :, column], weight[kernel]
        if found.is_wide:
            chosen = chosen.mT
        far = (chosen @ near[:, :, None])[:, :, 0]
        far = far / far.norm(dim=1, keepdim=True).clamp_min(torch.finfo(far.dtype).tiny)
        left, right = (near, far) if found.is_wide else (far, near)
        each = left[:, :, None] * right[:, None]
        rows = each.new_zeros(len(each), self._layer.groups, *each.shape[1:])
        rows[torch.arange(len(each), device=rows.device), kernel] = each
        cuts = DenseCuts(rows.flatten(1))
        self._project_momentum(
            self._layer.weight, lambda momentum: project_momentum_(momentum, cuts)
        )
