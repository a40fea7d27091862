"""`find_layers`: the affine layers of a model, with the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._affine import Shape, describe, evaluation_mode, plain_numerics
from spectralclip._check import check_affine
from spectralclip._explicit import KNOWN_AFFINE, is_plain
from spectralclip._forward_pass import Use, left_as_it_was, watch

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_BEFORE_A_NORM = (nn.Linear, nn.modules.conv._ConvNd)
_LAYER_TYPES = (*_BEFORE_A_NORM, _BATCH_NORM, nn.Embedding)
_NO_PARAMETERS = "has no parameters"


@final
@dataclass(frozen=True)
class FoundLayer:
    """An affine layer of a model, or a layer together with the batch norm behind it.

    Attributes:
        name: The module's name in the model; the names joined by "+" for a composition.
        modules: The module, or the modules of the composition in the order of their use.
        in_shapes: The distinct shapes of its inputs, without the batch dimension, in the order
            of their appearance: as `svds` and the others want them.
        shared: Other names in the model under which a weight of the layer is found: those of
            other modules with the same parameter, and other names of the same module.
        uses: How often it is called in one forward pass.
    """

    name: str
    modules: tuple[nn.Module, ...]
    in_shapes: tuple[Shape, ...]
    shared: tuple[str, ...]
    uses: int


def find_layers(
    model: nn.Module, example_inputs: Tensor | Sequence[Tensor], compose: bool = True
) -> dict[str, FoundLayer]:
    """The affine layers of a model and the shapes of their inputs, from one forward pass.

    A layer is a module that has parameters of its own, is called in the forward pass, and is
    affine: dense layers, convolutions, transposed ones, batch norms with running statistics and
    embeddings by their type, any other by evaluating it at a few random points. The model runs as
    in evaluation and is left as it was. `skipped_layers` says what is not among them, and why.

    Args:
        model: Any module.
        example_inputs: What the model is called with, a tensor or a tuple of tensors, with the
            batch dimension.
        compose: Report a dense layer or convolution and the batch norm that directly follows it
            in an `nn.Sequential` as one layer, where the norm reads what the layer makes, and
            nothing else, at each use.

    Returns:
        The layers by name, in the order of their first use.

    Raises:
        ValueError: A lazy module has no parameters yet.

    Example:
        >>> import torch
        >>> from spectralclip import find_layers
        >>> block = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        >>> model = torch.nn.Sequential(
        ...     block, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
        ... )
        >>> for name, layer in find_layers(model, torch.zeros(1, 3, 8, 8)).items():
        ...     print(name, layer.in_shapes)
        0.0+0.1 ((3, 8, 8),)
        3 ((288,),)
    """
    return _survey(model, example_inputs, compose)[0]


def skipped_layers(model: nn.Module, example_inputs: Tensor | Sequence[Tensor]) -> dict[str, str]:
    """The modules with parameters of their own that `find_layers` leaves out, and why.

    Args:
        model: Any module.
        example_inputs: What the model is called with, as for `find_layers`.

    Returns:
        The reason by the name of the module.

    Example:
        >>> import torch
        >>> from spectralclip import skipped_layers
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
        >>> print(skipped_layers(model, torch.zeros(1, 4))["1"])
        LayerNorm((4,)...) is not affine: ...
    """
    return _survey(model, example_inputs, True)[1]


@plain_numerics()
def _survey(
    model: nn.Module, example_inputs: Tensor | Sequence[Tensor], compose: bool
) -> tuple[dict[str, FoundLayer], dict[str, str]]:
    """What is found, and what is skipped and why."""
    inputs = _checked_inputs(model, example_inputs)
    candidates = dict(_candidates(model))
    names = {module: name for name, module in candidates.items()}
    norms = {a: b for a, b in _neighbours(model).items() if a in names and b in names}
    # A module that carries hooks is not taken at its word, and ours are hooks too.
    known = {name: is_plain(module, *KNOWN_AFFINE) for name, module in candidates.items()}
    with torch.no_grad(), left_as_it_was(model), evaluation_mode([model]):
        uses = watch(model, inputs, candidates.values(), norms)
        reasons = {
            name: _reason(module, uses.get(module), known[name])
            for name, module in candidates.items()
        }
    pairs = {
        layer: norm
        for layer, norm in norms.items()
        if compose
        and not reasons[names[layer]]
        and reasons[names[norm]] in ("", _NO_PARAMETERS)
        and uses[layer].always_read_by(uses.get(norm))
    }
    found, owners = {}, _weight_owners(model)
    for module, use in uses.items():  # in the order of their first use
        if reasons[names[module]] or module in pairs.values():
            continue
        parts = (module, pairs[module]) if module in pairs else (module,)
        own = [names[part] for part in parts]
        name = "+".join(own)
        holders = (owners.get(id(p), []) for part in parts for p in part.parameters())
        shared = dict.fromkeys(other for held in holders for other in held)
        for inside in [other for other in shared if any(_within(other, one) for one in own)]:
            del shared[inside]
        found[name] = FoundLayer(name, parts, use.distinct, tuple(shared), len(use.shapes))
    together = {names[norm] for norm in pairs.values()}
    return found, {n: why for n, why in reasons.items() if why and n not in together}


def _checked_inputs(
    model: nn.Module, example_inputs: Tensor | Sequence[Tensor]
) -> tuple[Tensor, ...]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}.")
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    if not isinstance(inputs, Sequence) or not all(isinstance(x, Tensor) for x in inputs):
        raise TypeError(
            "example_inputs must be a tensor or a tuple of tensors, with the batch dimension, got "
            f"{type(example_inputs).__name__}."
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"{name!r} of {describe(model)} has no size yet: run the model once on an example "
                "input."
            )
    return tuple(x.detach().clone() for x in inputs)  # a model may work in place


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Layers of a known type, and all else that has parameters of its own, each once."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        whole = isinstance(module, (*_LAYER_TYPES, torch.jit.ScriptModule))
        if whole or is_parametrized(module) or any(True for _ in module.parameters(recurse=False)):
            yield name, module
        if whole:
            inside.update(module.modules())
        elif is_parametrized(module):
            inside.update(module.parametrizations.modules())


def _neighbours(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """For layers in an `nn.Sequential`, the batch norm that directly follows.

    Whether it reads what the layer makes, the forward pass will show.
    """
    return {
        first: second
        for sequence in model.modules()
        if isinstance(sequence, nn.Sequential)
        for first, second in pairwise(sequence)
        if isinstance(first, _BEFORE_A_NORM) and isinstance(second, _BATCH_NORM)
    }


def _reason(module: nn.Module, use: Use | None, known: bool) -> str:
    """Why a module is left out; empty if it is not."""
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted, so that its parameters are out of reach"
    if use is None:
        return "not used in the forward pass"
    if isinstance(module, _BATCH_NORM) and module.running_mean is None:
        return "without running statistics it depends on the batch"
    if not any(True for _ in module.parameters()):
        return _NO_PARAMETERS
    children = {name for name, _ in module.named_children()} - {"parametrizations"}
    if children and not isinstance(module, _LAYER_TYPES):
        return "has parameters beside submodules, and these are looked at one by one"
    if None in use.shapes:
        return "not called with a single tensor"
    try:
        for shape in () if known else use.distinct:
            check_affine(module, shape)
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error)
    return ""


def _within(name: str, layer: str) -> bool:
    return name == layer or not layer or name.startswith(f"{layer}.")


def _weight_owners(model: nn.Module) -> dict[int, list[str]]:
    """For each weight, by identity, all names of modules that hold it."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        # A parametrized layer keeps its weight in a submodule.
        layer = f".{name}".partition(".parametrizations.")[0][1:]
        for own, parameter in module.named_parameters(recurse=False):
            if own != "bias":
                owners.setdefault(id(parameter), []).append(layer)
    return owners
