"""Keeping any affine layer within its bound by singular vectors that are images.

What plane waves do for zero and circular padding, these do for all other layers: reflected and
replicated borders amplify waves that stay near them, and a layer of one's own may do anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._clipping import GenericWeights, moving_names
from spectralclip._common import Shape
from spectralclip._operators import AffineFunction, LinearOperator
from spectralclip._spectrum import RitzTracker, Triplets, random_rows
from spectralclip._training.engine.constrained_layer import SPIKE, Slot
from spectralclip._training.engine.cut_step import DenseCuts, Stripping, project_, strip_
from spectralclip._training.engine.norm_check import Aim, LostLayer, Unrest, live_operator
from spectralclip._training.state import saved_vectors

WIDTH, NEAR, ROUNDS, WARM_UP = 4, 0.997, 4, 4
RISE, ALMOST = 1.0, 1.004
# Cuts that are remembered, and for how many numbers at most; for how long one may be idle.
BANK, BANK_NUMBERS, PATIENCE = 32, 2**24, 30
# Waves that cling to a border need no more than so many windows to be seen in full.
WINDOWS = 12


@final
class ImageKeeper:
    """One layer at one input shape."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        slot: Slot | None,
        in_shape: Shape,
        strip: Stripping,
        generator: torch.Generator,
    ) -> None:
        self._modules, self._slot, self._stripping = list(modules), slot, strip
        smaller = _reduced(slot, in_shape)
        self._function = AffineFunction(self._modules, smaller)
        self.share = math.prod(smaller) / math.prod(in_shape)
        self._generator = generator
        self.tracker = RitzTracker(WIDTH)
        self.norm, self.applications = math.nan, 0
        self.bank: Tensor | None = None
        self.idle: list[int] = []
        self.unrest = Unrest()

    def state(self) -> dict[str, Any]:
        """What is remembered."""
        return {
            "vectors": self.tracker.vectors,
            "changes": self.tracker.changes,
            "norm": self.norm,
            "bank": self.bank,
            "idle": list(self.idle),
            "unrest": self.unrest.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        here = {"device": self._function.device, "dtype": self._function.dtype}
        if state["vectors"] is not None:
            saved_vectors(state["vectors"], (math.prod(self._function.in_shape),))
        vectors, changes, bank = (
            None if state[key] is None else state[key].to(**here, copy=True)
            for key in ("vectors", "changes", "bank")
        )
        self.tracker = RitzTracker(WIDTH if vectors is None else len(vectors))
        self.tracker.vectors, self.tracker.changes, self.bank = vectors, changes, bank
        self.unrest.load_state(state["unrest"])
        self.norm, self.idle = float(state["norm"]), list(state["idle"])

    @torch.no_grad()
    def step(self, aim: Aim) -> bool:
        """Look, and clip what is above; whether the weights are finite."""
        try:
            return self._step(aim)
        except (LostLayer, OverflowError):
            return False

    def _step(self, aim: Aim) -> bool:
        self._tame(aim.bound)
        looks, bound = 1, self.unrest.lowered(aim)
        if self.tracker.vectors is None:
            op = self._operator()
            width = min(WIDTH, *op.shape)
            self.tracker = RitzTracker(width)
            self.tracker.start(random_rows(op, width, self._generator))
            looks += WARM_UP
        for left in reversed(range(ROUNDS)):
            op = self._operator()
            for _ in range(looks):
                seen = self.tracker.refresh(op)
                self.applications += seen.applications
                if not bool(torch.isfinite(seen.S).all()):
                    return False
                self.tracker.keep()
            looks = 1
            top = float(seen.S[0])
            self.norm = min(top, bound)
            if left == ROUNDS - 1:
                self.unrest.note(top, self.norm)
            if top > bound and not left:
                self.shrink(bound / top)
            elif top > bound or self.bank is not None:
                self._clip(op, seen, bound, first=left == ROUNDS - 1)
            if max(top, top + RISE * self.tracker.gain) <= ALMOST * bound:
                break
        return True

    def _tame(self, bound: float) -> None:
        """Scale down what is so large that it cannot be projected, or not even squared."""
        if self._slot is not None:
            self._slot.tame_(bound)
            return
        op = self._operator()
        vectors = self.tracker.vectors
        if vectors is None:
            vectors = random_rows(op, 1, self._generator)
        peak = float(op.forward_rows(vectors[:1] / vectors[:1].norm()).abs().amax())
        if SPIKE * bound < peak < math.inf:
            self.shrink(bound / peak)

    def _operator(self) -> LinearOperator:
        return live_operator(self._modules, self._function)

    @cached_property
    def _names(self) -> list[str]:
        """The parameters that move, where the layer has no plainer form."""
        op = self._operator()
        return moving_names(op, op.function, "first")

    def _clip(self, op: LinearOperator, seen: Triplets, bound: float, *, first: bool) -> None:
        near = NEAR * bound < seen.S
        values = seen.S[near].to(seen.U)
        parameters, rows = self._gradients(op, seen, near)
        point = torch.cat([p.detach().flatten() for p in parameters]).to(rows.dtype)
        count = len(rows)
        if self._is_linear() and self.bank is not None:
            # A cut is true of any weight: what has been found before costs nothing now.
            rows = torch.cat([rows, self.bank])
            values = torch.cat([values, self.bank @ point])
        moved = point.clone()
        active = (
            project_(moved, DenseCuts(rows), (values - bound).cpu().double().numpy())
            if len(rows)
            else None
        )
        if self._is_linear():
            self._remember(rows, count, active)
        if active is None:
            return
        sizes = [p.numel() for p in parameters]
        for parameter, part in zip(parameters, moved.split(sizes), strict=True):
            parameter.copy_(part.reshape(parameter.shape))
        if first:
            for parameter, part in zip(parameters, active.rows().split(sizes, 1), strict=True):
                self._strip(parameter, DenseCuts(part))

    def _strip(self, parameter: Tensor, cuts: DenseCuts) -> None:
        self._stripping(parameter, lambda momentum: strip_(momentum, cuts))

    def _is_linear(self) -> bool:
        return self._slot is not None and self._slot.norm is None

    def _remember(self, rows: Tensor, fresh: int, active: Any) -> None:
        """Keep the cuts that have been of use lately."""
        used = set() if active is None else {tuple(r[:4].tolist()) for r in active.rows()}
        idle = [0] * fresh + [age + 1 for age in self.idle]
        for index, row in enumerate(rows):
            if tuple(row[:4].tolist()) in used:
                idle[index] = 0
        order = sorted(range(len(idle)), key=lambda i: idle[i])
        most = max(1, min(BANK, BANK_NUMBERS // max(1, rows.shape[1])))
        kept = [i for i in order[:most] if idle[i] <= PATIENCE]
        self.idle = [idle[i] for i in kept]
        self.bank = rows[kept].clone() if kept else None

    def _gradients(
        self, op: LinearOperator, seen: Triplets, near: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """The parameters that move, and the gradients of the values in them, as flat rows."""
        U, V, S = seen.U[near], seen.V[near], seen.S[near]
        slot = self._slot
        if slot is not None and slot.gamma is not None:
            gamma = slot.gamma
            channels = op.maps[-1].target.to_tensor(U).square().flatten(2).sum(2)
            shares = channels * S.to(channels)[:, None]
            factor = gamma.detach().to(shares.dtype)
            return [gamma], torch.where(factor == 0, 0, shares / factor)
        if slot is not None and slot.norm is None and len(op.maps) == 1:
            map_ = op.maps[0]
            if map_.convolution is not None and not len(S):
                return [slot.weight], U.new_zeros(0, slot.weight.numel())
            if map_.convolution is not None:
                return [slot.weight], map_.weight_gradients(U, V).flatten(1)
        names = self._names
        rows = []
        outputs, inputs = op.output_tensor(U), op.input_tensor(V)
        for u, v in zip(outputs, inputs, strict=True):
            gradient = op.pullback(u, v)
            rows.append(torch.cat([gradient[name].flatten() for name in names]))
        width = sum(op.function.parameters[name].numel() for name in names)
        found = torch.stack(rows) if rows else U.new_zeros(0, width)
        return [op.function.parameters[name] for name in names], found

    @torch.no_grad()
    def shrink(self, factor: float) -> None:
        """Scale the layer, in the parameters that move."""
        self.norm *= factor
        self.unrest.norm *= factor
        if self._slot is not None:
            self._slot.moving.mul_(factor)
            return
        op = self._operator()
        movable = GenericWeights(op.function, self._names, 1.0)
        for name, value in movable.parameters(movable.scaled(movable.start, factor)).items():
            op.function.parameters[name].copy_(value)


def _reduced(slot: Slot | None, in_shape: Shape) -> Shape:
    """A smaller image on which a convolution has nearly the same norm."""
    if slot is None or isinstance(slot.module, nn.Linear):
        return in_shape
    module: Any = slot.module
    sides = []
    for size, kernel, stride, dilation in zip(
        in_shape[1:], module.kernel_size, module.stride, module.dilation, strict=True
    ):
        reach = dilation * (kernel - 1) + 1
        enough = max(WINDOWS * stride, 4 * reach)
        # The border at the far end has to fall on the same pixel of a window.
        sides.append(size if size <= enough else enough + (size - enough) % stride)
    return (in_shape[0], *sides)
