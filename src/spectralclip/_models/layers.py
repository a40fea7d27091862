"""`find_layers`: the affine layers of a model, with the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spectralclip._common import Shape
from spectralclip._models.call_graph import (
    Call,
    chains,
    direct_readers,
    distinct_shapes,
    follows,
    tensors_in,
)
from spectralclip._models.candidates import (
    BATCH_NORM,
    BEFORE_A_NORM,
    NO_PARAMETERS,
    bare_modules,
    candidates,
    connectors,
    is_container,
    reason,
)
from spectralclip._models.forward_pass import left_as_it_was, unwrapped, watch
from spectralclip._models.fsdp import unhooked
from spectralclip._operators import (
    KNOWN_AFFINE,
    describe,
    evaluation_mode,
    is_plain,
    plain_numerics,
)

ExampleInputs: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: a tensor, positional arguments, or keyword arguments."""


@final
class Inputs(NamedTuple):
    """Positional and keyword arguments of one call; among `ExampleInputs`, a sequence."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def with_kwargs(
    example_inputs: ExampleInputs, example_kwargs: Mapping[str, Any] | None
) -> ExampleInputs:
    """Example inputs with keyword arguments besides, if there are any.

    Raises:
        TypeError: The keyword arguments are no dictionary, or are given twice.
    """
    if example_kwargs is None:
        return example_inputs
    if not isinstance(example_kwargs, Mapping):
        raise TypeError(
            "example_kwargs must be a dictionary of keyword arguments, got "
            f"{type(example_kwargs).__name__}. Give positional ones as a tuple before it."
        )
    if isinstance(example_inputs, Mapping):
        raise TypeError(
            "Keyword arguments were given twice: with example_kwargs, example_inputs must be a "
            "tensor or a tuple of positional arguments, got a dictionary."
        )
    one = isinstance(example_inputs, Tensor) or not isinstance(example_inputs, Sequence)
    args = (example_inputs,) if one else tuple(example_inputs)
    return Inputs(args, dict(example_kwargs))


Compose: TypeAlias = bool | Literal["chains"]
Pairs: TypeAlias = Iterable[tuple[str, str]]


@final
@dataclass(frozen=True)
class FoundLayer:
    """An affine layer of a model, or layers that directly follow each other, as one.

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
    model: nn.Module,
    example_inputs: ExampleInputs,
    compose: Compose = True,
    *,
    pairs: Pairs = (),
) -> dict[str, FoundLayer]:
    """The affine layers of a model and the shapes of their inputs, from one forward pass.

    A layer is a module that has parameters of its own, is called in the forward pass, and is
    affine: dense layers, convolutions, transposed ones, batch norms with running statistics and
    embeddings by their type, any other by evaluating it at a few random points. The model runs as
    in evaluation and is left as it was. `skipped_layers` says what is not among them, and why.

    Two layers follow each other directly where, at each use, the second reads the very tensor
    that the first made, and nothing else reads that one: no operation, no other module, and not
    the caller of the model. Every operation of the pass is seen, so that this holds for any model
    that runs, whether or not it can be traced; it says nothing of paths not taken.

    Args:
        model: Any module. Names are those of the bare model inside a compiled or parallel one.
        example_inputs: What the model is called with, with the batch dimension: a tensor, a tuple
            of positional arguments, or a dictionary of keyword arguments.
        compose: Report as one layer a dense layer or convolution and the batch norm that directly
            follows it (True); all layers that directly follow each other ("chains"), along with
            what is affine between them and has no parameters, as average pooling; or none
            (False).
        pairs: Names of modules of which the second follows the first, to be reported as one
            even if something else reads what the first makes; pairs that overlap make a chain.

    Returns:
        The layers by name, in the order of their first use.

    Raises:
        ValueError: A lazy module has no parameters yet; or the modules of a pair do not follow
            each other.

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
    if compose not in (True, False, "chains"):
        raise ValueError(f"compose must be True, False or 'chains', got {compose!r}.")
    survey = _survey(model, example_inputs)
    return dict(_found(survey, _compositions(survey, compose, pairs)))


def skipped_layers(model: nn.Module, example_inputs: ExampleInputs) -> dict[str, str]:
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
    survey = _survey(model, example_inputs)
    composed = {part for chain in _compositions(survey, True, ()) for part in chain}
    return {
        survey.names[module]: why
        for module, why in survey.reasons.items()
        if why and module not in composed
    }


@final
@dataclass(frozen=True)
class _Survey:
    """What a forward pass showed.

    Attributes:
        model: The bare model.
        names: The names of candidates and connectors.
        calls: Their calls, in the order of the first ones.
        reasons: Why a candidate is no layer; empty for layers.
    """

    model: nn.Module
    names: dict[nn.Module, str]
    calls: dict[nn.Module, list[Call]]
    reasons: dict[nn.Module, str]

    def is_layer(self, module: nn.Module) -> bool:
        return self.reasons.get(module) == ""

    def is_part(self, module: nn.Module) -> bool:
        """Whether it may be in a composition: a layer, or affine without parameters."""
        return self.reasons.get(module, NO_PARAMETERS) in ("", NO_PARAMETERS)


@plain_numerics()
def _survey(model: nn.Module, example_inputs: ExampleInputs) -> _Survey:
    args, kwargs = call_arguments(model, example_inputs)
    model = unwrapped(model)
    _require_sizes(model)
    possible = {module: name for name, module in candidates(model)}
    between = {module: name for name, module in connectors(model) if module not in possible}
    # A module that carries hooks is not taken at its word, and ours are hooks too.
    known = {module: is_plain(unhooked(module), *KNOWN_AFFINE) for module in possible}
    open_ = [m for m in possible if not isinstance(m, torch.jit.ScriptModule)]
    containers = [module for module in open_ if is_container(module)]
    whole = [module for module in (*open_, *between) if not is_container(module)]
    with torch.no_grad(), evaluation_mode([model]):
        seen = watch(model, args, kwargs, whole, containers)
        with left_as_it_was(model):
            reasons = {
                module: reason(module, seen.calls.get(module, []), seen.read_outside, sure)
                for module, sure in known.items()
            }
    return _Survey(model, {**possible, **between}, seen.calls, reasons)


def call_arguments(
    model: nn.Module, example_inputs: ExampleInputs
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and keyword arguments."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}.")
    if isinstance(example_inputs, Tensor):
        return [example_inputs], {}
    if isinstance(example_inputs, Inputs) and any(True for _ in tensors_in(example_inputs)):
        return example_inputs.args, example_inputs.kwargs
    container = isinstance(example_inputs, (Sequence, Mapping))
    if not container or not any(True for _ in tensors_in(example_inputs)):
        raise TypeError(
            "example_inputs must be a tensor, a tuple of arguments or a dictionary of keyword "
            "arguments with tensors among them, with the batch dimension, got "
            f"{type(example_inputs).__name__}."
        )
    return ([], example_inputs) if isinstance(example_inputs, Mapping) else (example_inputs, {})


def _require_sizes(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"{name!r} of {describe(model)} has no size yet: run the model once on an example "
                "input."
            )


def _compositions(survey: _Survey, compose: Compose, pairs: Pairs) -> list[tuple[nn.Module, ...]]:
    """The modules of each composition, in order."""
    links = _wished(survey, pairs)
    for first, second in direct_readers(survey.calls).items() if compose else ():
        normed = isinstance(first, BEFORE_A_NORM) and isinstance(second, BATCH_NORM)
        if survey.is_part(first) and survey.is_part(second) and (compose == "chains" or normed):
            links[first] = second
    trimmed = [_trimmed(survey, chain) for chain in chains(links)]
    return [chain for chain in trimmed if len(chain) > 1]


def _trimmed(survey: _Survey, chain: tuple[nn.Module, ...]) -> tuple[nn.Module, ...]:
    """From the first layer or batch norm to the last: what leads there bounds nothing."""
    inner = [index for index, module in enumerate(chain) if module in survey.reasons]
    return chain[inner[0] : inner[-1] + 1] if inner else ()


def _wished(survey: _Survey, pairs: Pairs) -> dict[nn.Module, nn.Module]:
    """The pairs that the user has named, where they stand up to the forward pass."""
    links: dict[nn.Module, nn.Module] = {}
    modules = dict(bare_modules(survey.model, remove_duplicate=False))
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or [type(name) for name in pair] != [str, str]:
            raise TypeError(f"pairs must hold tuples of two names of modules, got {pair!r}.")
        for name in pair:
            if name not in modules:
                raise ValueError(f"pairs has {tuple(pair)}, but there is no module {name!r}.")
            why = survey.reasons.get(modules[name], "it is no batch norm and has no parameters")
            if why not in ("", NO_PARAMETERS):
                raise ValueError(f"pairs has {tuple(pair)}, but {name!r} is no layer: {why}.")
        first, second = (modules[name] for name in pair)
        made, read = survey.calls[first], survey.calls[second]
        if not follows(read, made):
            times = sum(call.source in made for call in read)
            raise ValueError(
                f"pairs has {tuple(pair)}, but {pair[1]!r} does not follow {pair[0]!r}: inputs "
                f"read: {len(read)}, of which outputs of {pair[0]!r}, untouched: {times}, of "
                f"{len(made)} that it made. It has to read each of them once, and nothing else."
            )
        if links.setdefault(first, second) is not second:
            raise ValueError(f"pairs has two layers behind {pair[0]!r}: leave one of them out.")
    return links


def _found(
    survey: _Survey, compositions: Iterable[tuple[nn.Module, ...]]
) -> Iterator[tuple[str, FoundLayer]]:
    """The layers by name, in the order of their first use."""
    by_first = {chain[0]: chain for chain in compositions}
    others = {module for chain in by_first.values() for module in chain[1:]}
    owners = _weight_owners(survey.model)
    for module, calls in survey.calls.items():
        parts = by_first.get(module, (module,))
        if module in others or not any(map(survey.is_layer, parts)):
            continue
        own = [survey.names[part] for part in parts]
        holders = (owners.get(id(p), []) for part in parts for p in part.parameters())
        names = dict.fromkeys(other for held in holders for other in held)
        shared = [other for other in names if set(own).isdisjoint(_around(other))]
        name = "+".join(own)
        yield name, FoundLayer(name, parts, distinct_shapes(calls), tuple(shared), len(calls))


def _around(name: str) -> Iterator[str]:
    """The name of a module, and of all that it is in."""
    yield name
    while name:
        name = name.rpartition(".")[0]
        yield name


def _weight_owners(model: nn.Module) -> dict[int, list[str]]:
    """For each weight, by identity, all names of modules that hold it."""
    owners: dict[int, list[str]] = {}
    for name, module in bare_modules(model, remove_duplicate=False):
        # A parametrized layer keeps its weight in a submodule.
        layer = f".{name}".partition(".parametrizations.")[0][1:]
        for own, parameter in module.named_parameters(recurse=False):
            if own != "bias":
                owners.setdefault(id(parameter), []).append(layer)
    return owners
