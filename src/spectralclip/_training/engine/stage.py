"""One clipping step of groups that have no weight in common: a fixed sequence of operations.

The step is a function of tensors. It branches on nothing that they hold and reads nothing back, so
that it runs on the meta device, compiles as one graph, and never makes a host wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import final

import torch
from torch import Tensor

from spectralclip._linalg import decomposable, has_float64
from spectralclip._training.engine.factors import Factors
from spectralclip._training.engine.group import CutGroup, Group, Move, largest
from spectralclip._training.engine.matrices import Matrices, inverse_roots
from spectralclip._training.engine.modes import Modes, Torus
from spectralclip._training.engine.small import (
    TINY,
    as_complex,
    leading,
    multipliers,
    quarter_turns,
    surplus,
)
from spectralclip._training.engine.tuning import TUNING
from spectralclip._training.engine.vectors import Vectors

NEAR = 1.03  # times the bound: what is further above is scaled before it is cut
CLIPPED = 1.8  # the same of matrices, whose values are clipped whatever they are
SMALLEST = 1e-6  # times the bound: values that never make a cut
TAMED = 16.0  # times the bound: entries up to which squares are precise in float32


@final
class Stage:
    """Groups that step together, and what is known of all their kernels.

    The kernels of all groups stand one behind another in each of the tensors, those that are
    followed by cuts first.

    Attributes:
        bounds: Of each kernel.
        state: By kernel, `growth`: how much more than expected the norm has grown, lately; `lag`:
            the norm over its estimate, as the last check has shown it; `norm`: the estimate after
            the last step, over the bound; `target`: of the last step, over the bound.
        rounds: How often it is to be run after each step of the optimizer.
        is_active: Kernels that may be moved.
        is_sound: Kernels of which everything was finite at the last step.
        is_touched: Kernels that the last step has changed.
    """

    def __init__(self, groups: Sequence[Group], headroom: float) -> None:
        cut = [group for group in groups if isinstance(group, CutGroup)]
        self.groups: list[Group] = [*cut]
        self._cut, self._matrices = cut, [g for g in groups if isinstance(g, Matrices)]
        self._factors = [g for g in groups if isinstance(g, Factors)]
        self.groups += [*self._matrices, *self._factors]
        self.headroom = headroom
        ends = list(accumulate(group.count for group in self.groups))
        self.slices = [slice(e - g.count, e) for e, g in zip(ends, self.groups, strict=True)]
        self._first_matrix = sum(group.count for group in cut)
        like = next(iter(groups[0].state.values())).new_zeros(ends[-1])
        self.bounds = like + 1
        self.state = {
            "growth": torch.full_like(like, headroom),
            "lag": like + 1,
            "norm": like.clone(),
            "target": like + 1,
        }
        # What lacks float64 lacks most of linear algebra, but for products.
        self._by_products = not has_float64(like.device)
        self.is_active, self.is_sound = like == 0, like == 0
        self.is_touched = like > 0
        for key in {group.key for group in cut if isinstance(group, Modes)}:
            family = [group for group in cut if isinstance(group, Modes) and group.key == key]
            family[0].torus.share_out(family)
            for group in family:
                group.torus = family[0].torus
        # Full vectors are few, so that others come up as soon as these are cut.
        self.rounds = 3 if any(isinstance(group, Vectors) for group in cut) else 1
        self._turns = {g.width: quarter_turns(2 * g.width, like) for g in cut}

    def warm_up(self, rounds: int) -> None:
        """Look for the leading vectors of the weights as they are, and move nothing."""
        for _ in range(rounds):
            self._look()
            for group in self.groups:
                group.settle()
        first = self._first_matrix
        if self._cut:
            self.state["norm"][:first] = torch.cat([values.amax(1) for values in self._values])
        if self._matrices:
            self.state["norm"][first : first + len(self.grams)] = self._matrix_norms()

    def run(self, *, far: bool = False) -> list[Tensor]:
        """One step: the parameters as they are to be, in the order of `parameters()`.

        Args:
            far: Cut even what is far above its bound, which takes more than one step.
        """
        is_huge = self._look()
        state, touched = self.state, self.is_touched
        allowed = 1 - state["growth"].clamp(self.headroom, max(TUNING.most, self.headroom))
        target = allowed / state["lag"]
        sizes = [sum(g.count for g in own) for own in (self._cut, self._matrices, self._factors)]
        targets, norms = target.split(sizes), state["norm"].clamp_min(TINY).split(sizes)
        parts = []
        if self._cut:
            parts.append(self._find_cuts(targets[0], norms[0], far))
        if self._matrices:
            parts.append(self._clip_matrices(targets[1], norms[1]))
        if self._factors:
            found = torch.cat([group.peak for group in self._factors]) / self.bounds[-sizes[2] :]
            parts.append((torch.ones_like(found), found, torch.zeros_like(found), found > 1))
        scale, seen, grown, is_above = (torch.cat(part) for part in zip(*parts, strict=True))
        is_above = is_above | (scale < 1) | is_huge
        torch.logical_and(is_above & self.is_active, self.is_sound, out=touched)
        grown = torch.maximum(TUNING.calm * state["growth"], grown)
        state["growth"].copy_(torch.where(self.is_sound, grown, state["growth"]))
        seen = torch.where(touched, torch.minimum(seen, target), seen)
        state["norm"].copy_(torch.where(self.is_sound, seen, state["norm"]))
        state["target"].copy_(target)
        return self._move(scale)

    def _move(self, scale: Tensor) -> list[Tensor]:
        touched, first, self._scale = self.is_touched, self._first_matrix, scale
        whole = torch.where(touched, scale * self._unit * self.bounds, 1)
        scale, new = torch.where(touched, scale, 1), []
        multipliers = planes = above = scale
        if self._cut:
            multipliers = torch.where(touched[:first, None], self._multipliers, 0)
            times = (multipliers * self.bounds[:first, None])[..., None]
            planes = times.expand(-1, -1, 2).flatten(1)[..., None]
        if self._matrices:
            above = torch.where(
                touched[first : first + len(self._above), None, None], self._above, 0
            )
        for group, own in zip(self.groups, self.slices, strict=True):
            factors = multipliers[own]
            if isinstance(group, Matrices):
                factors = above[own.start - first : own.stop - first]
            new += group.move(Move(scale[own], whole[own], factors, planes[own], touched[own]))
        return new

    def _find_cuts(self, target: Tensor, norm: Tensor, far: bool) -> tuple[Tensor, ...]:
        """The nearest point at which none of the leading values is above its target.

        Where more values are above the bound than there are cuts, the layer is scaled first.
        """
        chosen = [largest(values, TUNING.cuts) for values in self._values]
        products = torch.cat([g.cuts(at, v) for g, (v, at) in zip(self._cut, chosen, strict=True)])
        values = torch.cat([values for values, _ in chosen])
        top, last = values[:, 0].clamp_min(TINY), values[:, -1].clamp_min(TINY)
        grown = top / norm - 1
        scale = torch.minimum(1 / last, _limit(grown, 2.0 if far else NEAR) / top).clamp(max=1.0)
        excess = values * scale[:, None] - target[:, None]
        inverse = torch.where(values > SMALLEST, 1 / values, 0)
        products = products * (inverse[:, :, None] * inverse[:, None])
        factors = multipliers(products, excess, TUNING.rounds)
        self._multipliers = factors * inverse
        return scale, values[:, 0] * scale, grown, factors.amax(1) > 0

    def _clip_matrices(self, target: Tensor, norm: Tensor) -> tuple[Tensor, ...]:
        """What is above the target within the blocks."""
        top = self._matrix_norms()
        grown = top / norm - 1
        scale = (_limit(grown, CLIPPED) / top.clamp_min(TINY)).clamp(max=1.0)
        above = surplus(self.grams * (scale / target).square()[:, None, None])
        self._above = above * scale[:, None, None]
        # What is clipped exactly leaves nothing unseen.
        return scale, top * scale, 0 * grown, torch.linalg.vector_norm(above, dim=(1, 2)) > 0

    def _matrix_norms(self) -> Tensor:
        """Norms of matrices from above: by at most 11 %, if all values of a block are equal."""
        size = torch.linalg.vector_norm(self.grams, dim=(1, 2)).clamp_min(TINY)
        power = self.grams / size[:, None, None]
        for _ in range(3):
            power = power @ power
        top: Tensor = torch.linalg.vector_norm(power, dim=(1, 2)) ** (1 / 16)
        whole: Tensor = top * size.sqrt()
        return whole

    def _look(self) -> Tensor:
        """Refresh all vectors; which weights are too large to be squared."""
        peak = torch.cat([group.read() for group in self.groups])
        self.is_sound.copy_(torch.isfinite(peak))
        most, least = 1 / self.bounds, TAMED / peak.clamp_min(TINY)
        unit = self._unit = torch.where(self.is_sound, torch.minimum(most, least), 1)
        for group, own in zip(self.groups, self.slices, strict=True):
            group.normalize(unit[own], self.bounds[own], self.is_sound[own])
        found: dict[int, Tensor] = {}
        for width, turns in self._turns.items():
            found |= self._refresh([g for g in self._cut if g.width == width], turns)
        self._values = [found[id(group)] for group in self._cut]
        if self._matrices:
            grams = torch.cat([group.look() for group in self._matrices])
            roots = inverse_roots(grams, self._by_products)
            parts = roots.split([group.count for group in self._matrices])
            pairs = zip(self._matrices, parts, strict=True)
            self.grams = torch.cat([group.orthonormalize(part) for group, part in pairs])
        return least < most

    def _refresh(self, groups: Sequence[CutGroup], turns: Tensor) -> dict[int, Tensor]:
        """One step of block Lanczos for groups of equally many vectors; their values."""
        modes = [group for group in groups if isinstance(group, Modes)]
        grams = []
        if modes:
            sent = [group.send(tables) for group, tables in self._tables(modes)]
            shares = as_complex(torch.cat(sent), turns).split([len(one) for one in sent])
            grams = [group.look(own) for group, own in zip(modes, shares, strict=True)]
            self._climb(modes)
        grams += [group.look() for group in groups if isinstance(group, Vectors)]
        bases, images = (torch.cat(parts) for parts in zip(*grams, strict=True))
        mix, values = leading(bases, images, turns, by_products=self._by_products)
        sizes = [len(basis) for basis, _ in grams]
        for group, own, worth in zip(groups, mix.split(sizes), values.split(sizes), strict=True):
            group.keep(own, worth)
        parts = zip(groups, values.split(sizes), strict=True)
        return {id(group): own.reshape(group.count, -1) for group, own in parts}

    def _tables(self, modes: Sequence[Modes]) -> list[tuple[Modes, tuple[Tensor, ...]]]:
        found: dict[int, tuple[Tensor, ...]] = {}
        for torus, groups in self._families(modes):
            unit = torch.cat([group.unit for group in groups])
            sizes = [group.count for group in groups]
            split = [table.split(sizes) for table in torus.tables(unit)]
            found |= {id(g): own for g, own in zip(groups, zip(*split, strict=True), strict=True)}
        return [(group, found[id(group)]) for group in modes]

    def _climb(self, modes: Sequence[Modes]) -> None:
        for torus, groups in self._families(modes):
            if torus.climbs:
                torus.climb(torch.cat([group.slopes() for group in groups]))

    def _families(self, modes: Sequence[Modes]) -> list[tuple[Torus, list[Modes]]]:
        """Those that have taps and frequencies in common."""
        found: dict[int, tuple[Torus, list[Modes]]] = {}
        for group in modes:
            found.setdefault(id(group.torus), (group.torus, []))[1].append(group)
        return list(found.values())

    @torch.no_grad()
    def norms(self) -> Tensor:
        """The norm of each kernel after the last step; of matrices, from their Gram matrices."""
        norms, first = self.state["norm"].clone(), self._first_matrix
        if self._matrices:
            own = slice(first, first + len(self.grams))
            values = torch.linalg.eigvalsh(decomposable(self.grams))[:, -1]
            top = values.clamp_min(0).sqrt().to(norms.device)
            kept = torch.minimum(top * self._scale[own], self.state["target"][own])
            norms[own] = torch.where(self.is_touched[own], kept, top)
        return norms * self.bounds

    def parameters(self) -> list[list[Tensor]]:
        """What `run` gives new values for, by group and parameter, of each layer."""
        return [tensors for group in self.groups for tensors in group.parameters()]

    def directions(self, new: Sequence[Tensor]) -> list[Tensor]:
        """Along what a step has moved the parameters inward."""
        return [o - n for o, n in zip((o for g in self.groups for o in g.old()), new, strict=True)]


def _limit(grown: Tensor, near: float) -> Tensor:
    """Times the bound, what is scaled down before it is cut.

    Of weights that have been replaced, one step does not show all: the more a norm has grown in
    one step, the lower.
    """
    return near - (near - 1 + TUNING.unseen) * grown.clamp(0.0, 1.0)
