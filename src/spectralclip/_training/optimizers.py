"""The optimizers that move a model, and the weights that each of them holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from spectralclip._common import in_short
from spectralclip._training.momentum import Momentum, has_unknown_momentum, momentum_of


def checked_optimizers(given: Optimizer | Sequence[Optimizer] | None) -> Optimizers:
    """What the user gave as optimizers.

    Raises:
        TypeError: It is something else.
        ValueError: One is there twice, or does not say when it has stepped.
    """
    several = [] if given is None else [given] if isinstance(given, Optimizer) else given
    if not isinstance(several, (list, tuple)) or not all(
        isinstance(optimizer, Optimizer) for optimizer in several
    ):
        raise TypeError(
            f"optimizer must be a torch optimizer, a list of them, or None, got {in_short(given)}."
        )
    bare = [_without_accelerate(optimizer) for optimizer in several]
    if given is not None and len({id(optimizer) for optimizer in bare}) != max(1, len(several)):
        raise ValueError(
            f"optimizer must be one or more different optimizers, got {in_short(given)}."
        )
    for optimizer in bare:
        if not hasattr(optimizer, "_optimizer_step_post_hooks"):
            name = type(optimizer).__name__
            raise ValueError(
                f"{name} does not run the hooks of a torch optimizer, so its steps would not be "
                f"seen. Give optimizer=None, and call .step() of the attachment after {name} has "
                "stepped."
            )
    return Optimizers(bare)


def evaluates_other_weights(optimizer: Optimizer) -> bool:
    """Whether the weights of training and of evaluation differ, and it switches between them.

    Schedule-free optimizers do, and all of them have these two methods, which torch's lack.
    """
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


def _without_accelerate(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside Accelerate's wrapper, which is one by its type, but runs no hooks."""
    while type(optimizer).__module__.partition(".")[0] == "accelerate":
        optimizer = optimizer.optimizer  # type: ignore[attr-defined]
    return optimizer


@final
class Optimizers:
    """The optimizers `given` by the user; none where the loop moves the weights itself."""

    def __init__(self, given: Sequence[Optimizer]) -> None:
        self.given = tuple(given)
        self._families = [_family(optimizer) for optimizer in self.given]

    @property
    def names(self) -> str:
        """Their classes, for messages."""
        return " and ".join(type(optimizer).__name__ for optimizer in self.given)

    def family(self, index: int) -> tuple[Optimizer, ...]:
        """One of those given, and the optimizers inside it, as those of SAM and Lookahead."""
        return self._families[index]

    def held(self, index: int | None = None) -> set[int] | None:
        """The ids of the parameters that they move, or a given one; None for all there are."""
        if not self.given:
            return None
        chosen = self.given if index is None else (self.given[index],)
        return set[int]().union(*map(_parameters, chosen))

    def overlap(self, other: Optimizers) -> bool:
        """Whether one optimizer is among both."""
        return any(one is another for one in self._all() for another in other._all())

    def momentum_of(self, parameter: Tensor) -> Momentum | None:
        """The momentum of a parameter, where there is one that may be changed."""
        for optimizer in self._all():
            momentum = momentum_of(optimizer, parameter)
            if momentum is not None:
                return momentum
        return None

    def forget(self, parameter: Tensor) -> None:
        """Drop all that is remembered of a parameter, whose shape has changed."""
        for optimizer in self._all():
            optimizer.state.pop(parameter, None)

    @property
    def infer_curvature(self) -> bool:
        """Whether one of them is LBFGS, which has to `restart` after others moved the weights."""
        return any(type(optimizer) is LBFGS for optimizer in self._all())

    def restart(self) -> None:
        """Have LBFGS begin anew after weights were moved from outside.

        It infers curvature from the gradients along its own path. Across a jump they say nothing,
        and its next step may be infinite.
        """
        for optimizer in self._all():
            for state in optimizer.state.values() if type(optimizer) is LBFGS else ():
                state["n_iter"] = 0

    def with_unknown_momentum(self) -> list[str]:
        """The classes whose momentum is left alone."""
        # What steps is the innermost one; what is around it keeps no momentum of its own.
        innermost = (family[-1] for family in self._families)
        return sorted({type(one).__name__ for one in innermost if has_unknown_momentum(one)})

    def _all(self) -> Iterable[Optimizer]:
        return (optimizer for family in self._families for optimizer in family)


def _family(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """An optimizer and those inside it that move the same weights, from the outside in."""
    found, own = [optimizer], _parameters(optimizer)
    for member in found:
        for inner in vars(member).values():
            is_new = isinstance(inner, Optimizer) and all(inner is not one for one in found)
            if is_new and own & _parameters(inner):
                found.append(inner)
    return tuple(found)


def _parameters(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}
