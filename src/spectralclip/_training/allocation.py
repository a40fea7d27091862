"""`Allocation`: a bound for each layer, such that the network as a whole is within one number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, final

from torch import Tensor, nn

from spectralclip._clipping import Certify
from spectralclip._common import positive_number, shown_name, some_of
from spectralclip._lipschitz import (
    HeldBiases,
    NetworkBound,
    NetworkRules,
    NotFiniteError,
    UnboundedNetworkError,
    lipschitz_bounds,
)
from spectralclip._models import ExampleInputs, FoundLayer, sharded_modules
from spectralclip._training.biases import Biases

EVERY = 100  # steps from one reallocation of the bounds to the next
# Shares of its bound: from which on a layer presses against it, and at which SpectralClip leaves
# one. What grows fast is left at 0.96 or above, and is to be expected at the second later on; only
# weights that a step replaces are left further below.
_PRESSES, _AT_REST = 0.95, 0.99
# By which share of its bound a layer counts as lower each time, if it was seen higher before.
_FORGET = 0.005
_MOVE = 1.05  # by which a layer's part of the network's bound changes at a time
_FAILURE = 1e-6  # the probability that a certificate of `clip_` is wrong, at most
_PACKAGE = __name__.partition(".")[0]
_MOST_ROUNDS = 8  # of clipping at the end: one or two are needed, for what intervals leave open


@final
class Allocation:
    """The bound of a network, shared out among its layers in proportions that follow the need.

    Layers that press against their bounds get a larger part, those that do not give some of
    theirs, and what all of them get together is such that the network's bound is met: by the rules
    of `lipschitz_bounds`, with the share of its bound that each layer has been seen to reach. So
    room is reserved for layers that exceed theirs, and room that is never used is not lost.
    The biases that count, those of GRUs, are held as `Biases` says.

    Attributes:
        max_lipschitz: The bound of the network.
        bounds: The bound of each layer now.
        covered: The layers that are held now.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: ExampleInputs,
        max_lipschitz: float,
        layers: Mapping[str, FoundLayer],
        proportions: Mapping[str, float],
        covered: Iterable[str],
        biases: Biases,
    ) -> None:
        """Find bounds in the given proportions, for the layers that are held now.

        Raises:
            ValueError: The network has a place without a bound, or cannot be held at this one.
        """
        self.max_lipschitz = positive_number(max_lipschitz, "max_lipschitz")
        self._model, self._example_inputs = model, example_inputs
        self._layers, self._parts = dict(layers), dict(proportions)
        self._reach = dict.fromkeys(proportions, 1.0)
        self._biases = biases
        self._held: HeldBiases = {}
        self._follow(covered)
        self.bounds = self._solved(self.max_lipschitz)

    @property
    def decisions(self) -> tuple[str, ...]:
        """The modules through which the way depends on the input."""
        return tuple(map(shown_name, self._rules.decisions))

    def is_for(self, names: Iterable[str]) -> bool:
        """Whether it was made for these layers being held, and for what else trains."""
        return self.covered == set(names) and self._held == self._biases.held(self.covered)

    def cover(self, names: Iterable[str]) -> None:
        """Find bounds for the network as it is now, of which these layers are held.

        All others count as they are. Where weights are not finite, bounds stay as they are.

        Raises:
            ValueError: What is not held has changed such that the network's bound cannot be met.
        """
        if not self.is_for(names) or self._others():
            try:
                self._follow(names)
            except NotFiniteError:  # of which the method warns
                return
        self.bounds = self._solved(self.max_lipschitz)

    def is_due(self, step: int) -> bool:
        """Whether to look again at what is not held: statistics settle in the first steps."""
        return step < EVERY and step & (step - 1) == 0 and bool(self._others())

    def loose(self) -> list[str]:
        """What training changes, though nothing holds it: parameters and variances, by name."""
        layers = {id(p) for layer in self._layers.values() for p in layer.parameters()}

        def is_loose(name: str, tensor: Tensor) -> bool:
            if isinstance(tensor, nn.Parameter):
                # Of recurrent layers, whose biases have longer names, `Biases` holds what counts.
                return id(tensor) not in layers and ".bias_" not in f".{name}"
            return name.endswith("running_var") and self._owner(name).training

        return [name for name, tensor in self._others().items() if is_loose(name, tensor)]

    def hold_biases_(self) -> None:
        """Bring the biases that count within what they count at."""
        self._biases.clamp_({n: self.bounds[n] * self._reach[n] for n in self.covered})

    def reallocate(
        self,
        bounds: Mapping[str, float],
        norms: Mapping[str, float],
        pressures: Mapping[str, float],
    ) -> None:
        """Move bounds towards the layers that press against theirs.

        Args:
            bounds: What the layers were held at, which a schedule may have lowered.
            norms: The norms of layers, where they are known; those that are not finite say nothing.
            pressures: The shares of a step that clipping has undone, where they are known. A layer
                may be held below its bound, as a convolution on small images is by `SpectralClip`:
                then it presses without ever reaching it.
        """
        for name in self.covered:
            if 0 < (norm := norms.get(name, 0.0)) < float("inf"):
                share, is_held = norm / bounds[name], pressures.get(name, 0.0) > 0
                presses = is_held or share >= _PRESSES
                self._parts[name] *= _MOVE if presses else 1 / _MOVE
                floor = share if is_held else _AT_REST
                self._reach[name] = max(share, self._reach[name] - _FORGET, floor)
        self.cover(self.covered)

    def require_end(self, covered: Collection[str], *, certify: Certify) -> None:
        """Raise where it is known beforehand that `end` would fail.

        Raises:
            ValueError: The network's bound cannot be met, or not be proved.
        """
        self._follow(covered)
        self._solved(self.max_lipschitz)
        if certify and self.decisions:
            raise ValueError(
                f"max_lipschitz={self.max_lipschitz:g} cannot be proved: the way through "
                f"{some_of(self.decisions)} depends on the input, and the bound is that of the way "
                "which the example inputs take. Let all inputs take the same way, or call "
                "finalize() without certify."
            )

    def end(
        self,
        clip: Callable[[Mapping[str, float]], None],
        covered: Collection[str],
        *,
        certify: Certify,
    ) -> NetworkBound | None:
        """Clip to bounds that meet the network's, until that is proved.

        Args:
            clip: Clips all layers to given bounds.
            covered: The layers that it clips.
            certify: Whether to prove it, or "deterministic"; otherwise layers are clipped once.

        Returns:
            The proof, if it was asked for.

        Raises:
            ValueError: What is not held is such that the network's bound cannot be met.
        """
        self._follow(covered)
        self._reach = dict.fromkeys(self._parts, 1.0)
        target, proof = self.max_lipschitz, None
        for _ in range(_MOST_ROUNDS):
            self.bounds = self._solved(target)
            clip(self.bounds)
            self.hold_biases_()
            if not certify:
                return None
            proof = self._proof(deterministic=certify == "deterministic")
            if proof.upper <= self.max_lipschitz:
                return proof
            if proof.unbounded:
                break
            target *= self.max_lipschitz / proof.upper
        wanted = f"max_lipschitz={self.max_lipschitz:g}"
        raise ValueError(f"The layers are clipped, and {wanted} is not proved: {proof}")

    def _proof(self, *, deterministic: bool) -> NetworkBound:
        """What is proved of the network, the layers having been clipped with certificates."""
        if not sharded_modules(self._model):
            return lipschitz_bounds(
                self._model, self._example_inputs, local=False, deterministic=deterministic
            )
        # No process has a whole layer to measure again: each is within its bound.
        upper = self._rules.of(self.bounds)
        failure = 0.0 if deterministic else _FAILURE * len(self.covered)
        return NetworkBound(lower=0.0, upper=upper, failure=failure, product=upper)

    def state(self) -> dict[str, Any]:
        """What has to be remembered for a run to go on exactly."""
        return {
            "parts": dict(self._parts),
            "reach": dict(self._reach),
            "bounds": self.bounds,
            **self._made_for(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there; where another bound or other layers are held, in its proportions."""
        self._parts |= state["parts"]
        self._reach |= state["reach"]
        made_for = self._made_for()
        if all(state.get(key) == value for key, value in made_for.items()):
            self.bounds = {**self.bounds, **state["bounds"]}
        else:
            self.bounds = self._solved(self.max_lipschitz)

    def _made_for(self) -> dict[str, Any]:
        """What bounds depend on besides the proportions."""
        return {"max_lipschitz": self.max_lipschitz, "covered": sorted(self.covered)}

    def _follow(self, names: Iterable[str]) -> None:
        """Follow the network as it is now, with the norms of these layers as unknowns."""
        covered = frozenset(names)
        biases = self._biases.held(covered)
        layers = {name: layer for name, layer in self._layers.items() if name in covered}
        try:
            self._rules = NetworkRules(self._model, self._example_inputs, layers, biases)
        except UnboundedNetworkError as error:
            raise ValueError(
                f"max_lipschitz needs a bound for every operation of the network. There is none "
                f"at {error}. Replace this by something that has a bound (the page on Lipschitz "
                "bounds lists what has), or bound the layers one by one with max_norm."
            ) from error
        self.covered, self._held = covered, biases

    def _solved(self, target: float) -> dict[str, float]:
        if not self.covered:  # as long as nothing is held, no bound is asked for
            return dict(self._parts)
        parts = {name: self._parts[name] * self._reach[name] for name in self.covered}
        try:
            scale = self._rules.scale_for(parts, target)
        except ValueError as error:
            loose = self.loose()
            why = f" While training, nothing holds {some_of(loose)}." if loose else ""
            raise ValueError(f"{error}{why}") from error
        return {name: scale * part for name, part in self._parts.items()}

    def _others(self) -> dict[str, Tensor]:
        """What counts as it is, and may be another by now: it trains, or may be a statistic."""
        modules = [part for name in self.covered for part in self._layers[name].modules]
        held = {id(own) for part in modules for own in (*part.parameters(), *part.buffers())}
        weights = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        changing = {**weights, **dict(self._model.named_buffers())}
        return {
            name: tensor
            for name, tensor in changing.items()
            if id(tensor) not in held and not self._is_shift(name)
        }

    def _is_shift(self, name: str) -> bool:
        """Whether no norm depends on it: a bias, but not what a module of one's own calls so.

        Nor one that makes a factor, as the bias of a layer in `x * layer(constant)`.
        """
        known = ("bias", "running_mean", "num_batches_tracked")
        if name.rpartition(".")[2] not in known or name in self._rules.factors:
            return False
        where = type(self._owner(name)).__module__
        return where.startswith(("torch.nn.", f"{_PACKAGE}.nn."))

    def _owner(self, name: str) -> nn.Module:
        return self._model.get_submodule(name.rpartition(".")[0])
