"""`attach`: keep a model's norms in check while it trains, one line beside the optimizer."""

from __future__ import annotations

import gc
from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from torch import nn
from torch.optim import Optimizer

from spectralclip._clipping import LEAVING_OUT, Targets, check_bounds, layer_targets
from spectralclip._common import checked_seed, some_of
from spectralclip._models import (
    ExampleInputs,
    FoundLayer,
    Pairs,
    find_layers,
    products_of_heads,
    unwrapped,
)
from spectralclip._operators import plain_numerics
from spectralclip._training.allocation import EVERY, Allocation
from spectralclip._training.attachment import LIVE, Attachment, Schedule
from spectralclip._training.biases import Biases
from spectralclip._training.distributed.sharing import is_trained
from spectralclip._training.method import Method, warn
from spectralclip._training.optimizers import (
    Optimizers,
    checked_optimizers,
    evaluates_other_weights,
)
from spectralclip._training.report import SMALLEST_SPREAD
from spectralclip._training.spectral_clip import SpectralClip


@plain_numerics()
def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None,
    example_inputs: ExampleInputs,
    *,
    method: Method | None = None,
    max_norm: Targets | None = None,
    max_lipschitz: float | None = None,
    proportions: Targets = 1.0,
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
        model: The model, plain, compiled, or wrapped by `DistributedDataParallel`, or sharded
            by `fully_shard`.
        optimizer: The one that trains the model, or several, each for weights of its own. Layers
            without a weight of theirs are left alone, with a warning, as are frozen ones:
            `Attachment.uncovered` lists both. None for a loop that calls `.step()` itself.
        example_inputs: What the model is called with, as for `find_layers`.
        method: One of `spectralclip.methods`, or your own; by default `SpectralClip()`.
        max_norm: One bound for all, 1 if none is given; or a bound for some layers by name, as
            `find_layers` names them; or a function of a layer's name and `FoundLayer`, which may
            return None for one that is to be left alone.
        max_lipschitz: In place of `max_norm`, a bound for the network as a whole, from its input
            to its output, as `lipschitz_bounds` has it. Each layer gets a part of it, and parts
            move slowly from layers that do not need theirs to those that press against theirs.
            `SpectralClip` and `Parametrize` hold it while training, up to 2 %; after
            `.finalize(certify=True)` it is proved, whatever the method. Batch norms are held as
            layers of their own, where the method does so, and the bias `b_hn` of a GRU is kept
            within the bound of its matrix `W_hn`. Layers that are frozen or left out count at
            their norms.
        proportions: With `max_lipschitz`, those of the layers' bounds at first, in the same form
            as `max_norm`; equal by default.
        schedule: A function of the number of steps done that the bounds are multiplied with. With
            `max_lipschitz`, by at most 1.
        pairs: Layers and the batch norms behind them, as for `find_layers`, where a method bounds
            both together.
        seed: For the random vectors of the method.

    Returns:
        An `Attachment`.

    Raises:
        ValueError: There is no layer for the method, or a bound is not positive; the network has
            no bound, or cannot be held at `max_lipschitz`; another
            attachment has a layer, and one of the two methods reparametrizes it; or the optimizer
            evaluates other weights than it trains, as schedule-free ones do.

    Example:
        >>> import torch
        >>> from spectralclip import attach
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> attachment = attach(model, optimizer, torch.zeros(1, 8), max_norm=0.5)
        >>> model(torch.randn(32, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> bool(torch.linalg.matrix_norm(model[0].weight, 2) <= 0.5001)
        True
    """
    _check_arguments(model, method, max_norm, max_lipschitz, proportions, schedule)
    seed, method = checked_seed(seed), SpectralClip() if method is None else method
    if max_lipschitz is not None:
        method = method.for_network()
    bare, optimizers = unwrapped(model), checked_optimizers(optimizer)
    _refuse_evaluated_elsewhere(method, optimizers)
    found = _found_layers(bare, example_inputs, method, pairs)
    wanted = {name: layer for name, layer in found.items() if method.takes(layer)}
    _refuse_left_alone(method, "max_norm", max_norm, found, wanted)
    _refuse_left_alone(method, "proportions", proportions, found, wanted)
    if max_lipschitz is None:
        bounds = layer_targets(wanted, 1.0 if max_norm is None else max_norm)
    else:
        bounds = layer_targets(wanted, proportions, "proportions")
    if not bounds:
        argument = "max_norm" if max_lipschitz is None else "proportions"
        _refuse_none(method, found, wanted, argument)
    layers = {name: wanted[name] for name in bounds}
    _refuse_others(method, layers)
    held = optimizers.held()
    _refuse_untrained(bare, layers, held)
    _warn_of_another(layers, optimizers)
    allocation = None
    if max_lipschitz is not None:
        covered = [name for name, one in layers.items() if is_trained(one, one.weights(), held)]
        biases = Biases(bare, layers, optimizers)
        allocation = Allocation(
            bare, example_inputs, max_lipschitz, layers, bounds, covered, biases
        )
        bounds = allocation.bounds
        _warn_of_loose(allocation.loose())
        _warn_of_decisions(allocation.decisions)
    attachment = Attachment(
        method, bare, layers, optimizers, bounds, schedule, seed, example_inputs, allocation
    )
    _warn_of_uncovered(attachment)
    _warn_of_contraction(attachment)
    return attachment


def _check_arguments(
    model: object,
    method: object,
    max_norm: Targets | None,
    max_lipschitz: float | None,
    proportions: Targets,
    schedule: object,
) -> None:
    """Raise for what is of the wrong type, or does not go together."""
    if schedule is not None and not callable(schedule):
        raise TypeError(f"schedule must be a function of the number of steps, got {schedule!r}.")
    if not isinstance(model, nn.Module):
        raise TypeError(
            "attach takes (model, optimizer, example_inputs, method=...): the model must be an "
            f"nn.Module, got {model!r}."
        )
    if method is not None and not isinstance(method, Method):
        raise TypeError(
            f"method must be a Method such as SpectralClip(), or methods.get('gouk')() by its "
            f"name, got {method!r}."
        )
    check_bounds(max_norm, max_lipschitz, proportions)


def _found_layers(
    model: nn.Module, example_inputs: ExampleInputs, method: Method, pairs: Pairs
) -> dict[str, FoundLayer]:
    """The layers of a model as a method composes them."""
    if method.compose != "heads":
        return find_layers(model, example_inputs, method.compose, pairs=pairs)
    if pairs:
        raise ValueError(
            'pairs are of layers and their batch norms, and compose="heads" takes none: leave '
            "pairs out."
        )
    found, frozen = products_of_heads(model, example_inputs)
    if frozen:
        warn(
            f"The products {frozen} are not held: a factor of each is frozen, and both would "
            "have to give way. The other factors are layers of their own."
        )
    return found


def _refuse_evaluated_elsewhere(method: Method, optimizers: Optimizers) -> None:
    for optimizer in optimizers.given if method.moves_weights else ():
        if evaluates_other_weights(optimizer):
            name = type(optimizer).__name__
            raise ValueError(
                f"{name} evaluates other weights than those it trains: its eval() extrapolates "
                f"them, beyond any bound that {type(method).__name__} keeps while training. Use "
                "methods.Parametrize(), which bounds whatever weights the model computes with; or "
                f"train without a bound, call eval() of {name} and then clip_model_()."
            )


def _warn_of_another(layers: Mapping[str, FoundLayer], optimizers: Optimizers) -> None:
    """Say that a layer is constrained twice: most often a line that was run again."""
    for other in LIVE:
        for name, layer in layers.items():
            held = other.layers.get(name)
            same = held is not None and _parameters(held) == _parameters(layer)
            if same and optimizers.overlap(other.optimizers):
                warn(
                    f"Layer {name!r} is held by {other!r} already, at the same optimizer: both "
                    "will work on it after each step. Call .remove() on the first if it was to be "
                    "replaced."
                )
                return


def _parameters(layer: FoundLayer) -> list[int]:
    return [id(parameter) for part in layer.modules for parameter in part.parameters()]


def _warn_of_uncovered(attachment: Attachment) -> None:
    """Name the layers that train and are not held; what is frozen does not move."""
    left = {n: why for n, why in attachment.uncovered.items() if why != "frozen"}
    if left:
        warn(
            f"The layers {list(left)} are not held: their weights are {next(iter(left.values()))}. "
            "Give every optimizer that trains the model, as in attach(..., [first, second], ...), "
            f"or leave them out. {LEAVING_OUT}"
        )


def _warn_of_loose(names: Sequence[str]) -> None:
    """Name what trains outside of layers, as in `F.linear(x, weight)`, and statistics that move."""
    if names:
        remedy = (
            " Batch norms are held by SpectralClip where their factors train; CenterNorm, put in "
            "by replace_batch_norms_(), has nothing to hold."
        )
        warn(
            f"{some_of(names)} change as the network trains, and are not held: max_lipschitz "
            f"counts them as they are, and looks again after 1, 2, 4, ... and every {EVERY} steps. "
            "In between the network may exceed it."
            + (remedy if any(name.endswith("running_var") for name in names) else "")
        )


def _warn_of_decisions(places: Sequence[str]) -> None:
    """Name what has several ways for its input: the bound is that of one of them."""
    if places:
        warn(
            f"The way through {some_of(places)} depends on the input. The network's bound is that "
            "of the way which the example inputs take, and finalize(certify=True) will refuse to "
            "prove it: let all inputs take the same way."
        )


def _warn_of_contraction(attachment: Attachment) -> None:
    """Say that the network will hardly tell its inputs apart, before anyone trains it in vain."""
    spread = attachment.foreseen_spread()
    if spread is not None and spread < SMALLEST_SPREAD:
        warn(
            f"Within these bounds the outputs of this network differ by {spread:.1e} from one "
            "standard normal input to another: most losses have no gradient to speak of there, and "
            "training may stay where it is. Begin with init_at_bound_(), raise the bounds or "
            "max_lipschitz, or multiply the outputs by a constant. The page 'My network does not "
            "learn under the bound' of the documentation goes through the remedies."
        )


def _refuse_none(
    method: Method, found: Mapping[str, FoundLayer], wanted: Collection[str], argument: str
) -> NoReturn:
    """Say why no layer is left."""
    _refuse_others(method, found)
    if wanted:
        raise ValueError(
            f"No layer is left to constrain: of {list(wanted)}, {argument} names none."
        )
    raise ValueError(
        f"{type(method).__name__} found no layer to constrain among {list(found)}: "
        "skipped_layers says what else there is in the model, and why it is left out."
    )


def _refuse_untrained(
    model: nn.Module, layers: Collection[str], held: Collection[int] | None
) -> None:
    """Raise if the optimizer has nothing of the model."""
    if held is not None and not any(id(parameter) in held for parameter in model.parameters()):
        raise ValueError(
            f"The optimizer has no parameter of the model with the layers {list(layers)}: "
            "nothing would be done. Give the one that trains this model, made from the "
            "parameters that it has now."
        )


def _refuse_left_alone(
    method: Method,
    argument: str,
    given: object,
    found: Mapping[str, FoundLayer],
    wanted: Collection[str],
) -> None:
    """Raise if an argument gives numbers by name to layers that a method is not for."""
    names = [name for name in given if name in found] if isinstance(given, Mapping) else []
    others = [name for name in names if name not in wanted]
    if others:
        raise ValueError(
            f"{argument} names {others}, which {type(method).__name__} leaves alone: of this model "
            f"it holds {list(wanted)}. Leave them out, or use a method that holds them, as "
            "SpectralClip()."
        )


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
            f"attachment that is there, or leave the layer out. {LEAVING_OUT}"
        )


def _other_holder(method: Method, layers: Mapping[str, FoundLayer]) -> tuple[str, Method] | None:
    """The first layer that is not free, and the method that has it."""
    for held in LIVE:
        if method.reparametrizes or held.method.reparametrizes:
            taken = {id(part) for layer in held.found.values() for part in layer.modules}
            for name, layer in layers.items():
                if any(id(part) in taken for part in layer.modules):
                    return name, held.method
    return None
