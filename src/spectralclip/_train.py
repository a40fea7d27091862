"""`attach`: keep a model's norms in check while it trains, one line beside the optimizer."""

from __future__ import annotations

import gc
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spectralclip._affine import plain_numerics
from spectralclip._clip import ClipResult
from spectralclip._clip_model import Targets, clip_found_layers_, layer_targets
from spectralclip._distributed import sharing_of
from spectralclip._forward_pass import unwrapped
from spectralclip._layers import ExampleInputs, FoundLayer, Pairs, find_layers
from spectralclip._sharing import Sharing

Schedule = Callable[[int], float]


class NormWarning(UserWarning):
    """The norms of a layer could not be followed, or not be kept."""


class Keeper(ABC):
    """A method at work on the layers of one model.

    A method may do one or several of three things: move weights after each step of the
    optimizer, add a penalty to the loss, or reparametrize layers until it is stopped. What it
    does not do, it inherits from here.
    """

    @abstractmethod
    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        """Do what is due after a step of the optimizer.

        Args:
            step: The number of steps that the optimizer has done since the start, from one.
            bounds: The bound of each layer now. Layers that are not in it stay as they are.
        """

    @abstractmethod
    def norms(self) -> dict[str, float]:
        """The latest norms that the method knows of, by layer. They are estimates."""

    def penalty(self) -> Tensor:
        """What to add to the loss, with gradients in the weights; zero by default."""
        return torch.zeros(())

    def layer_states(self) -> dict[str, Any]:
        """By layer, what has to be remembered for a run to go on exactly: tensors and numbers."""
        return {}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:  # noqa: B027
        """Go on from such states. Those of unknown layers are left aside."""

    def stop(self) -> None:  # noqa: B027
        """Leave plain layers behind: undo reparametrizations, keeping the weights they made.

        It may be called more than once.
        """


class Method(ABC):
    """A way to keep norms in check, with its settings; one may be attached to many models."""

    @property
    def composes(self) -> bool:
        """Whether a convolution and the batch norm behind it count as one layer."""
        return False

    @property
    def reparametrizes(self) -> bool:
        """Whether layers compute with something else than their weights while it is attached."""
        return False

    @property
    def divides(self) -> bool:
        """Whether processes that train together may each take care of some of the layers."""
        return True

    def takes(self, layer: FoundLayer) -> bool:
        """Whether it is for this layer; by default for all but batch norms and embeddings."""
        others = (nn.modules.batchnorm._BatchNorm, nn.Embedding, nn.EmbeddingBag)
        return not isinstance(layer.modules[0], others)

    @abstractmethod
    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> Keeper:
        """Begin to work on the layers `sharing.mine()`; weights stay as they are until a step.

        Args:
            sharing: Whose layers these are, and what the optimizer remembers of them.
            bounds: The bound of each layer at the start.
            seed: For the random vectors.
        """


@final
class Attachment:
    """A method attached to a model and its optimizer; made by `attach`.

    It works after every step of the optimizer. As a context manager it is removed at the end.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        layers: Mapping[str, FoundLayer],
        optimizer: Optimizer | None,
        bounds: Mapping[str, float],
        schedule: Schedule | None,
        seed: int,
    ) -> None:
        self._method, self._optimizer, self._schedule = method, optimizer, schedule
        self._layers, self._bounds = dict(layers), dict(bounds)
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._steps, self._norms = 0, dict[str, float]()
        self._sharing = _sharing(method, model, layers, optimizer, bounds, seed)
        bounds = self.max_norms  # where the schedule begins
        mine = {name: bounds[name] for name in self._sharing.mine()}
        try:
            self._keeper: Keeper | None = method.start(self._sharing, mine, seed)
        except ValueError as error:
            _name_what_is_not_finite(method, self._sharing.mine(), error)
            raise
        self._hook = None
        if optimizer is not None:
            self._hook = optimizer.register_step_post_hook(self._after_optimizer)
        _LIVE.add(self)

    @property
    def layers(self) -> dict[str, FoundLayer]:
        """The layers that are taken care of, by name."""
        return dict(self._layers)

    @property
    def steps(self) -> int:
        """How many steps it has followed."""
        return self._steps

    @property
    def is_removed(self) -> bool:
        """Whether it has been removed, or finalized."""
        return self._keeper is None

    @property
    def applications(self) -> float:
        """Vectors sent through layers by this process so far, for methods that count them."""
        return float(getattr(self._running(), "applications", 0.0))

    @property
    def max_norms(self) -> dict[str, float]:
        """The bound of each layer at the latest step."""
        factor = 1.0 if self._schedule is None else float(self._schedule(self._steps))
        if not 0 < factor < float("inf"):
            raise ValueError(f"schedule({self._steps}) must be a positive number, got {factor!r}.")
        return {name: factor * bound for name, bound in self._bounds.items()}

    @plain_numerics()
    def step(self) -> None:
        """Do what is due after a step, for loops whose optimizer is not a torch one.

        With a torch optimizer it comes by itself.
        """
        keeper = self._running()
        self._steps += 1
        bounds = {n: c for n, c in self.max_norms.items() if self._sharing.moves(n)}
        mine = {name: bounds[name] for name in self._sharing.mine() if name in bounds}

        def work() -> dict[str, float]:
            keeper.after_step(self._steps, mine)
            return keeper.norms()

        found = self._sharing.carry_out(work, f"step {self._steps}")
        self._norms = {name: found[name] for name in self._layers if name in found}

    @plain_numerics()
    def penalty(self) -> Tensor:
        """What to add to the loss before `backward`; zero for methods without a penalty."""
        return self._running().penalty().to(self._device)

    def norms(self) -> dict[str, float]:
        """The latest tracked norm of each layer: estimates from below, in general.

        Layers that have not been looked at yet are missing.
        """
        return dict(self._norms)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on exactly: numbers, strings and tensors.

        Among several processes, all have to call it, and all get the same.
        """
        states = self._sharing.merged(self._running().layer_states())
        return {
            "method": type(self._method).__name__,
            "steps": self._steps,
            "norms": dict(self._norms),
            "layers": states,
        }

    @plain_numerics()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, for the same method on the same model."""
        keeper = self._running()
        method = type(self._method).__name__
        if state.get("method") != method:
            raise ValueError(
                f"This state is of {state.get('method')!r}, and cannot be loaded into {method!r}."
            )
        missing = [key for key in ("steps", "norms", "layers") if key not in state]
        if missing:
            raise ValueError(f"The state lacks {missing}: it is not from Attachment.state_dict().")
        unknown = [name for name in state["layers"] if name not in self._layers]
        if unknown:
            raise ValueError(
                f"The state speaks of the layers {unknown}, which this model does not have; it has "
                f"{list(self._layers)}."
            )
        keeper.load_layer_states(state["layers"])
        self._steps, self._norms = int(state["steps"]), dict(state["norms"])

    @plain_numerics()
    def finalize(
        self, *, certify: bool | Literal["deterministic"] = False, tol: float = 1e-3
    ) -> dict[str, ClipResult]:
        """End the method with a full `clip_` of each layer that it kept, and remove it.

        Args:
            certify: As for `clip_`.
            tol: As for `clip_`.

        Returns:
            A `ClipResult` for each layer. What is within its bound stays bit for bit.
        """
        self._running().stop()
        bounds = {n: c for n, c in self.max_norms.items() if self._sharing.moves(n)}

        def work() -> dict[str, ClipResult]:
            mine = self._sharing.mine()
            targets = {name: bounds[name] for name in mine if name in bounds}
            return clip_found_layers_(mine, targets, tol=tol, certify=certify)

        results = self._sharing.carry_out(work, "finalize()")
        self._norms |= {name: result.norm_after for name, result in results.items()}
        self.remove()
        return results

    @plain_numerics()
    def remove(self) -> None:
        """Detach from the optimizer, leaving plain layers with the weights they have now."""
        if self._keeper is not None:
            self._keeper.stop()
        self._keeper = None
        _LIVE.discard(self)
        if self._hook is not None:
            self._hook.remove()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "removed" if self._keeper is None else f"{self._steps} steps"
        return f"<Attachment of {self._method!r} to {len(self._layers)} layers: {state}>"

    def _running(self) -> Keeper:
        if self._keeper is None:
            raise RuntimeError(
                "This attachment has been removed: attach the method again to go on."
            )
        return self._keeper

    def _after_optimizer(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        # Fused optimizers are called even where a GradScaler found infinite gradients, and skip
        # the step themselves.
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is None or not bool(skipped):
            self.step()


_LIVE: weakref.WeakSet[Attachment] = weakref.WeakSet()
"""What is attached to some model, and has not been removed."""


@plain_numerics()
def attach(
    method: Method,
    model: nn.Module,
    example_inputs: ExampleInputs,
    optimizer: Optimizer | None = None,
    *,
    max_norm: Targets = 1.0,
    schedule: Schedule | None = None,
    pairs: Pairs = (),
    seed: int = 0,
) -> Attachment:
    """Keep the norms of a model's layers in check while it trains.

    The model is not wrapped: its modules, hooks and `state_dict` keys stay as they are, and
    whatever the method remembers belongs to the `Attachment`. It works after each
    `optimizer.step()`, so that gradient accumulation and clipping, mixed precision and compiled
    models need nothing special; steps that a `GradScaler` skips are skipped here too.

    Args:
        method: One of `spectralclip.methods`, or your own.
        model: The model, plain, compiled, or wrapped by `DistributedDataParallel`, or sharded
            by `fully_shard`.
        example_inputs: What the model is called with, as for `find_layers`.
        optimizer: Layers without a weight of this optimizer are left alone, as are frozen ones.
            None for a loop that calls `.step()` itself.
        max_norm: One bound for all; or a bound for some layers by name, as `find_layers` names
            them; or a function of a layer's name and `FoundLayer`, which may return None for
            one that is to be left alone.
        schedule: A function of the number of steps done that the bounds are multiplied with.
        pairs: Layers and the batch norms behind them, as for `find_layers`, where a method bounds
            both together.
        seed: For the random vectors of the method.

    Returns:
        An `Attachment`.

    Raises:
        ValueError: There is no layer for the method, or a bound is not positive; or another
            attachment has a layer, and one of the two methods reparametrizes it.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> attachment = attach(
        ...     methods.SpectralClip(), model, torch.zeros(1, 8), optimizer, max_norm=0.5
        ... )
        >>> model(torch.randn(32, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> bool(torch.linalg.matrix_norm(model[0].weight, 2) <= 0.5001)
        True
    """
    if schedule is not None and not callable(schedule):
        raise TypeError(f"schedule must be a function of the number of steps, got {schedule!r}.")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch optimizer or None, got {optimizer!r}.")
    if not isinstance(method, Method):
        raise TypeError(f"method must be a Method such as SpectralClip(), got {method!r}.")
    bare, optimizer = unwrapped(model), bare_optimizer(optimizer)
    found = find_layers(bare, example_inputs, method.composes, pairs=pairs)
    wanted = {name: layer for name, layer in found.items() if method.takes(layer)}
    bounds = layer_targets(wanted, max_norm)
    if not bounds:
        _refuse_others(method, found)
        raise ValueError(
            f"{type(method).__name__} found no layer to take care of among {list(found)}: "
            "skipped_layers says what else there is in the model, and why it is left out."
        )
    for name, bound in bounds.items():
        if not isinstance(bound, (int, float)) or not 0 < bound < float("inf"):
            raise ValueError(
                f"max_norm of layer {name!r} must be a positive number, got {bound!r}."
            )
    layers = {name: wanted[name] for name in bounds}
    _refuse_others(method, layers)
    if optimizer is not None:
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(parameter) in own for parameter in bare.parameters()):
            raise ValueError(
                f"The optimizer has no parameter of the model with the layers {list(layers)}: "
                "nothing would be done. Give the one that trains this model, made from the "
                "parameters that it has now."
            )
    return Attachment(method, bare, layers, optimizer, bounds, schedule, seed)


def bare_optimizer(optimizer: Optimizer | None) -> Optimizer | None:
    """The optimizer inside Accelerate's wrapper, which is one by its type, but runs no hooks."""
    while optimizer is not None and not hasattr(optimizer, "_optimizer_step_post_hooks"):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    return optimizer


def _refuse_others(method: Method, layers: Mapping[str, FoundLayer]) -> None:
    """Raise if another method has one of the layers, and one of both reparametrizes it."""
    if _other_holder(method, layers) is not None:
        gc.collect()  # an attachment and its optimizer, both forgotten, still hold each other
    other = _other_holder(method, layers)
    if other is not None:
        name, held = other
        first, second = type(held).__name__, type(method).__name__
        culprit = first if held.reparametrizes else second
        raise ValueError(
            f"Layer {name!r} is held by {first}, and {second} cannot be attached to it as well: "
            f"{culprit} makes it compute with something else than its weight. Remove the "
            "attachment that is there, or leave the layer out by max_norm."
        )


def _other_holder(method: Method, layers: Mapping[str, FoundLayer]) -> tuple[str, Method] | None:
    """The first layer that is not free, and the method that has it."""
    for held in _LIVE:
        if method.reparametrizes or held._method.reparametrizes:
            taken = {id(part) for layer in held._layers.values() for part in layer.modules}
            for name, layer in layers.items():
                if any(id(part) in taken for part in layer.modules):
                    return name, held._method
    return None


def _name_what_is_not_finite(
    method: Method, layers: Mapping[str, FoundLayer], error: ValueError
) -> None:
    """Say by its name which layer a method could not start on; methods know the module alone."""
    for name, layer in layers.items():
        for module in layer.modules:
            for own, tensor in (*module.named_parameters(), *module.named_buffers()):
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise ValueError(
                        f"{type(method).__name__} cannot start on layer {name!r}: its {own!r} "
                        "holds NaN or infinite values. Restore finite ones, or leave the layer "
                        "out by max_norm."
                    ) from error


def _sharing(
    method: Method,
    model: nn.Module,
    layers: Mapping[str, FoundLayer],
    optimizer: Optimizer | None,
    bounds: Mapping[str, float],
    seed: int,
) -> Sharing:
    claims = {
        "method": [type(method).__qualname__, getattr(method, "__dict__", {})],
        "seed": seed,
        **{f"bound of layer {name!r}": bound for name, bound in bounds.items()},
    }
    return sharing_of(model, layers, optimizer, divides=method.divides, claims=claims)


def warn(message: str) -> None:
    """Say something about a layer's norm to the user, with the user's line."""
    warnings.warn(message, NormWarning, stacklevel=2)
