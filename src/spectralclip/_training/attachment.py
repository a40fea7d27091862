"""A method attached to a model and its optimizers: what `attach` returns."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spectralclip._clipping import Certify, ClipResult, clip_found_layers_
from spectralclip._lipschitz import NetworkBound
from spectralclip._models import ExampleInputs, FoundLayer, is_sharded_tensor, spread_and_gain
from spectralclip._operators import plain_numerics
from spectralclip._training.allocation import EVERY, Allocation
from spectralclip._training.distributed.sharing import held_of, why_left
from spectralclip._training.distributed.training import sharing_of
from spectralclip._training.method import Method, MethodState, name_non_finite, warn
from spectralclip._training.norm_estimate import NormEstimate
from spectralclip._training.optimizers import Optimizers
from spectralclip._training.pressure import Pressure
from spectralclip._training.report import (
    LayerReport,
    TrainingReport,
    bound_by_rules,
    foreseen_spread,
)
from spectralclip._training.state import load_whole, require_state
from spectralclip._training.weight_watch import WeightWatch, versions

Schedule: TypeAlias = Callable[[int], float]


@final
class Attachment:
    """A method attached to a model and its optimizer; made by `attach`.

    It works after every step of the optimizer. As a context manager it is removed at the end.

    Attributes:
        method: The method.
        optimizers: What it is attached to.
        found: All layers that the method is for, those that are left alone now included.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        layers: Mapping[str, FoundLayer],
        optimizers: Optimizers,
        bounds: Mapping[str, float],
        schedule: Schedule | None,
        seed: int,
        example_inputs: ExampleInputs,
        allocation: Allocation | None = None,
    ) -> None:
        self.method, self.optimizers, self.found = method, optimizers, dict(layers)
        self._schedule, self._bounds = schedule, dict(bounds)
        self._allocation = allocation
        self._network_bound: NetworkBound | None = None
        self._model, self._example_inputs = model, example_inputs
        self._pressure = Pressure()
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        # By optimizer: its steps, and which of its family was the last to step.
        self._counts = [0] * max(1, len(optimizers.given))
        self._latest = [0] * len(optimizers.given)
        self._norms = dict[str, NormEstimate]()
        self._worked: dict[str, int] = {}  # the last step of each layer
        claims = {
            "method": [type(method).__qualname__, getattr(method, "__dict__", {})],
            "seed": seed,
            **{f"bound of layer {name!r}": bound for name, bound in bounds.items()},
        }
        divides = method.divides
        self._sharing = sharing_of(model, layers, optimizers, divides=divides, claims=claims)
        bounds = self._bounds_at(0)
        mine = {name: bounds[name] for name in self._sharing.mine()}
        try:
            self._state: MethodState | None = method.start(self._sharing, mine, seed)
        except ValueError as error:
            name_non_finite(method, self._sharing.mine(), error)
            raise
        self._hooks = [
            member.register_step_post_hook(partial(self._after_optimizer, index, depth))
            for index in range(len(optimizers.given))
            for depth, member in enumerate(optimizers.family(index))
        ]
        self._watch = WeightWatch(self._sharing)
        LIVE.add(self)

    @property
    def layers(self) -> dict[str, FoundLayer]:
        """The layers that are constrained now, by name."""
        return {name: self.found[name] for name in self._sharing.moving()}

    @property
    def uncovered(self) -> dict[str, str]:
        """The layers that the method is for and that are left alone now, each with the reason.

        A layer is covered from the step at which it is unfrozen, or added to the optimizer.
        """
        moving, reasons = set(self._sharing.moving()), {}
        for name, weights in self._sharing.weights().items():
            if name not in moving:
                reasons[name] = why_left(self.found[name], weights, self.optimizers)
        return reasons

    @property
    def steps(self) -> int:
        """How many steps it has followed; with several optimizers, of the one with the most."""
        return max(self._counts)

    @property
    def is_removed(self) -> bool:
        """Whether it has been removed, or finalized."""
        return self._state is None

    @property
    def num_matvecs(self) -> float:
        """Vectors sent through layers by this process so far, for methods that count them."""
        return float(getattr(self._running(), "num_matvecs", 0.0))

    @property
    def max_norms(self) -> dict[str, float]:
        """The bound of each layer that is constrained, at the latest step."""
        bounds = self._bounds_at(self.steps)
        return {name: bounds[name] for name in self._sharing.moving()}

    @property
    def max_lipschitz(self) -> float | None:
        """The bound of the network as a whole, where there is one."""
        return None if self._allocation is None else self._allocation.max_lipschitz

    @property
    def network_bound(self) -> NetworkBound | None:
        """The proof that `finalize(certify=True)` has left, with `max_lipschitz`."""
        return self._network_bound

    def step(self) -> None:
        """Do what is due after a step, for loops whose optimizer is not a torch one.

        With a torch optimizer it comes by itself.
        """
        self._running()
        self._counts = [count + 1 for count in self._counts]
        self._work(self._sharing.moving(), self.steps)

    @plain_numerics()
    def penalty(self) -> Tensor:
        """What to add to the loss before `backward`; zero for methods without a penalty."""
        return self._running().penalty().to(self._device)

    def norms(self) -> dict[str, NormEstimate]:
        """The latest norm of each layer that is known: estimates from below, in general.

        Each is a number that says whether it was tracked or checked, and after which step.
        Layers that have not been measured yet are missing; NaN stands for weights that are not
        finite.
        """
        self._read_norms()
        return dict(self._norms)

    def pressures(self) -> dict[str, float]:
        """The share of one of the latest steps that clipping has undone, by layer, where known."""
        return self._pressure.read()

    @plain_numerics()
    def report(self, inputs: ExampleInputs) -> TrainingReport:
        """How the run is going: norms and pressures of layers, and what becomes of these inputs.

        Args:
            inputs: A batch of two or more, as the model is called with; best of the data that it is
                trained on. It runs as in evaluation.
        """
        spread, gain = spread_and_gain(self._model, inputs)
        norms, pressures = {**self._norms_at_start(), **self.norms()}, self.pressures()
        layers = {
            name: LayerReport(norms.get(name), bound, pressures.get(name))
            for name, bound in self.max_norms.items()
        }
        bound = None
        if norms.keys() >= layers.keys():
            bound = bound_by_rules(self._model, self._example_inputs, self.layers, norms)
        return TrainingReport(self.steps, layers, bound, self.max_lipschitz, spread, gain)

    @plain_numerics()
    def foreseen_spread(self) -> float | None:
        """How much outputs will differ over standard normal inputs; None where it is not known."""
        own, norms = self._sharing.weights(), self._norms_at_start()
        if not self._sharing.is_alone or not all(map(self._is_watched, own.values())):
            return None
        bounds = self._bounds_at(0)
        known = {name: norm for name, norm in norms.items() if own[name]}
        scales = [(id(own[name][0]), bounds[name] / norm) for name, norm in known.items()]
        return foreseen_spread(self._model, self._example_inputs, scales)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on exactly: numbers, strings and tensors.

        Among several processes, all have to call it, and all get the same.
        """
        states = self._sharing.merged(self._running().layer_states())
        self._read_norms()
        return {
            "method": type(self.method).__name__,
            "steps": list(self._counts),
            "norms": {n: [float(x), x.is_checked, x.step] for n, x in self._norms.items()},
            "layers": states,
            "pressures": self.pressures(),
            "allocation": None if self._allocation is None else self._allocation.state(),
        }

    @plain_numerics()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, for the same method on the same model.

        The model's own state is to be loaded before.

        Raises:
            TypeError: It is something else.
            ValueError: It is damaged, or of another method, model or number of optimizers, or of
                bounds of layers where the network's is held or the other way round. Nothing has
                changed then. With another `max_lipschitz`, or other layers that are frozen, bounds
                are found anew in the proportions of the state.
        """
        running = self._running()
        require_state(
            state,
            type(self.method).__name__,
            self.found,
            len(self._counts),
            for_network=self._allocation is not None,
        )
        load_whole(state["layers"], running.layer_states(), running.load_layer_states)
        if self._allocation is not None:
            self._allocation.load_state(state["allocation"])
            self._bounds = dict(self._allocation.bounds)
        self._counts = [int(count) for count in state["steps"]]
        self._norms = {
            name: NormEstimate(value, is_checked=bool(is_checked), step=int(step))
            for name, (value, is_checked, step) in state["norms"].items()
        }
        own = self._sharing.weights()
        watched = {n: held_of(self.found[n]) for n in self.layers if self._is_watched(own[n])}
        self._pressure.go_on(state["pressures"], self.steps, watched)

    @plain_numerics()
    def finalize(self, *, certify: Certify = False, tol: float = 1e-3) -> dict[str, ClipResult]:
        """End the method with a full `clip_` of each layer that it kept, and remove it.

        Layers that are `uncovered` stay as they are. With `max_lipschitz`, the layers' bounds are
        found once more, for what the network is now.

        Args:
            certify: As for `clip_`; with `max_lipschitz`, also prove the bound of the network:
                `network_bound` is the proof.
            tol: As for `clip_`.

        Returns:
            A `ClipResult` for each layer. What is within its bound stays bit for bit.

        Raises:
            ValueError: `certify` is something else; or the network's bound cannot be met, or not be
                proved, which leaves the attachment at work where it is known beforehand.
        """
        running, has_changed = self._running(), self._watch.have_changed()
        if certify not in (False, True, "deterministic"):  # before anything is ended
            raise ValueError(f'certify must be False, True or "deterministic", got {certify!r}.')
        moving = self._sharing.moving()
        if self._allocation is not None:
            self._allocation.require_end(moving, certify=certify)
        running.stop()
        if self.optimizers.given and not self.steps and has_changed:
            warn(
                f"The weights have changed, but no step of {self.optimizers.names} was seen before "
                "finalize(): if the model was trained, it was by another optimizer, and nothing "
                "was held meanwhile. Attach to the one that steps."
            )
        results = dict[str, ClipResult]()

        def clip(bounds: Mapping[str, float]) -> None:
            def work() -> dict[str, ClipResult]:
                mine = self._sharing.mine()
                targets = {name: bounds[name] for name in mine if name in moving}
                return clip_found_layers_(mine, targets, tol=tol, certify=certify)

            results.update(self._sharing.carry_out(work, "finalize()"))

        try:
            if self._allocation is None:
                clip(self._bounds_at(self.steps))
            else:
                self._network_bound = self._allocation.end(clip, moving, certify=certify)
                self._bounds = dict(self._allocation.bounds)
        finally:
            self.remove()  # what the method did ends with stop(), whatever becomes of the clip
        self._take_norms(
            {
                name: NormEstimate(result.norm_after, is_checked=True, step=self.steps)
                for name, result in results.items()
            }
        )
        return results

    @plain_numerics()
    def remove(self) -> None:
        """Detach from the optimizer, leaving plain layers with the weights they have now."""
        if self._state is not None:
            self._read_norms()
            self._state.stop()
        self._state = None
        LIVE.discard(self)
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __reduce__(self) -> str:
        """Refuse to be copied or pickled: a copy would hold nothing.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "An Attachment belongs to one model and its optimizer, and cannot be copied or "
            "pickled: attach the method to the copies, and load_state_dict() what state_dict() of "
            "this one returns."
        )

    def __repr__(self) -> str:
        state = "removed" if self._state is None else f"{self.steps} steps"
        layers, left = len(self.layers), len(self.uncovered)
        others = f", {left} uncovered" if left else ""
        return f"<Attachment of {self.method!r} to {layers} layers{others}: {state}>"

    def _is_watched(self, weights: Iterable[Tensor]) -> bool:
        """Whether what the method undoes can be seen in these: whole weights, which it moves."""
        return self.method.moves_weights and not any(map(is_sharded_tensor, weights))

    def _running(self) -> MethodState:
        if self._state is None:
            raise RuntimeError(
                "This attachment has been removed: attach the method again to go on."
            )
        return self._state

    def _bounds_at(self, step: int) -> dict[str, float]:
        given = 1.0 if self._schedule is None else self._schedule(step)
        factor = float(given) if isinstance(given, (int, float)) else math.nan
        most = float("inf") if self._allocation is None else 1.0
        if not 0 < factor < float("inf") or factor > most:
            limit = "" if most > 1 else " of at most 1, with max_lipschitz"
            raise ValueError(f"schedule({step}) must be a positive number{limit}, got {given!r}.")
        return {name: factor * bound for name, bound in self._bounds.items()}

    @plain_numerics()
    def _work(self, names: Sequence[str], step: int) -> None:
        """Do what is due for some of the layers."""
        allocation = self._allocation
        if allocation is not None and not allocation.is_for(self._sharing.moving()):
            allocation.cover(self._sharing.moving())
            self._bounds = dict(allocation.bounds)
        running, bounds = self._running(), self._bounds_at(step)
        mine = {name: bounds[name] for name in names if name in self._sharing.mine()}
        self._worked |= dict.fromkeys(mine, step)

        def work() -> dict[str, NormEstimate]:
            try:
                running.after_step(step, mine)
            except RuntimeError as error:
                self._watch.refuse_converted(error)
                raise
            return {} if self._sharing.is_alone else self._known(running.known_norms(), mine)

        own = self._sharing.weights()
        weights = [weight for name in names for weight in own[name]]
        before = versions(weights)
        due = names if self._pressure.is_due(step) else ()
        watched = {n: held_of(self.found[n]) for n in due if self._is_watched(own[n])}
        self._pressure.before(watched)
        found = self._sharing.carry_out(work, f"step {step}")
        self._pressure.after(step, watched)
        if versions(weights) != before:
            self.optimizers.restart()
        self._take_norms(found)
        if allocation is not None:
            allocation.hold_biases_()
            if step % EVERY == 0:
                allocation.reallocate(bounds, self.norms(), self.pressures())
            elif allocation.is_due(step):
                allocation.cover(self._sharing.moving())
            self._bounds = dict(allocation.bounds)

    def _known(self, norms: dict[str, float], names: Iterable[str]) -> dict[str, NormEstimate]:
        """The norms of some layers, with what is known of them."""
        checked = self._running().checked()
        found = {}
        for name in names:
            if name in norms:
                step = checked.get(name, self._worked[name])
                found[name] = NormEstimate(norms[name], is_checked=name in checked, step=step)
        return found

    def _norms_at_start(self) -> dict[str, float]:
        """What the method has measured of layers, stepped or not; nothing where it is not alone."""
        if self._state is None or not self._sharing.is_alone:
            return {}
        return {name: norm for name, norm in self._state.norms().items() if norm > 0}

    @plain_numerics()
    def _read_norms(self) -> None:
        """Read them back from the method, which may have them on a device, where it is alone."""
        if self._state is not None and self._sharing.is_alone:
            self._take_norms(self._known(self._state.norms(), self._worked))

    def _take_norms(self, found: Mapping[str, NormEstimate]) -> None:
        self._norms |= found
        self._norms = {name: self._norms[name] for name in self.found if name in self._norms}

    def _after_optimizer(
        self, index: int, depth: int, optimizer: Optimizer, args: object, kwargs: object
    ) -> None:
        # Fused optimizers are called even where a GradScaler found infinite gradients, and skip
        # the step themselves.
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is not None and bool(skipped):
            return
        # What ends around an inner optimizer's step belongs to that step. It is worked on again
        # all the same: Lookahead moves the weights after it.
        if depth >= self._latest[index]:
            self._counts[index] += 1
        self._latest[index] = depth
        self._work(self._sharing.moving(index), self._counts[index])


LIVE: weakref.WeakSet[Attachment] = weakref.WeakSet()
"""What is attached to some model, and has not been removed."""
