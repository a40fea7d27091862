"""`Survey`: what one forward pass shows of a model, made once for each public call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spectralclip._common import Shape
from spectralclip._models.call_graph import Call, chains, direct_readers, distinct_shapes, follows
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
from spectralclip._models.example_inputs import ExampleInputs, call_arguments
from spectralclip._models.forward_pass import in_evaluation, unwrapped, watch
from spectralclip._models.fsdp import unhooked
from spectralclip._models.parts import parts_of, weights_left
from spectralclip._operators import KNOWN_AFFINE, Rows, describe, is_plain, plain_numerics

Compose: TypeAlias = Literal["none", "conv_bn", "chains"]
"""Which layers count as one: see `find_layers`."""
Pairs: TypeAlias = Iterable[tuple[str, str]]


@final
@dataclass(frozen=True)
class FoundLayer:
    """An affine layer of a model, or layers that directly follow each other, as one.

    Attributes:
        name: The module's name in the model; the names joined by "+" for a composition; for a
            matrix inside a module the parameter's name, and in brackets which of its rows.
        modules: The module, or the modules of the composition in the order of their use; for a
            matrix inside a module a dense layer that refers to the rows of the parameter.
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

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of its modules, each once."""
        return list(dict.fromkeys(p for module in self.modules for p in module.parameters()))

    def weights(self) -> list[Tensor]:
        """Its parameters, apart from its offset."""
        return [weight for module in self.modules for weight in weights_of(module)]


def weights_of(module: nn.Module) -> list[Tensor]:
    """Its parameters, apart from offsets."""
    return [p for name, p in module.named_parameters() if not name.endswith("bias")]


class Survey(NamedTuple):
    """What a forward pass showed of a model."""

    model: nn.Module  # the bare model
    names: dict[nn.Module, str]  # the names of candidates and connectors
    calls: dict[nn.Module, list[Call]]  # their calls, in the order of the first ones
    reasons: dict[nn.Module, str]  # why a candidate is no layer; empty for layers
    parts: dict[nn.Module, dict[str, Rows]]  # matrices inside a module, where it was called

    @classmethod
    @plain_numerics()
    def of(cls, model: nn.Module, example_inputs: ExampleInputs) -> Survey:
        """Run a model as in evaluation, and note how its modules are used."""
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
        with torch.no_grad(), in_evaluation(model):
            seen = watch(model, args, kwargs, whole, containers)
            reasons = {
                module: reason(module, seen.calls.get(module, []), seen.read_outside, sure)
                for module, sure in known.items()
            }
        inside = {module: parts_of(unhooked(module)) for module in seen.calls if module in possible}
        parts = {module: own for module, own in inside.items() if own}
        return cls(model, {**possible, **between}, seen.calls, reasons, parts)

    def layers(self, compose: Compose, pairs: Pairs = ()) -> dict[str, FoundLayer]:
        """The layers and compositions by name, in the order of their first use."""
        by_first = {chain[0]: chain for chain in self._compositions(compose, pairs)}
        others = {module for chain in by_first.values() for module in chain[1:]}
        owners = _weight_owners(self.model)
        found = {}
        for module, calls in self.calls.items():
            for layer in self._parts_as_layers(module, owners):
                found[layer.name] = layer
            parts = by_first.get(module, (module,))
            if module in others or not any(self.reasons.get(part) == "" for part in parts):
                continue
            own = [self.names[part] for part in parts]
            holders = (owners.get(id(p), []) for part in parts for p in part.parameters())
            names = dict.fromkeys(other for held in holders for other in held)
            shared = tuple(other for other in names if set(own).isdisjoint(_around(other)))
            name = "+".join(own)
            found[name] = FoundLayer(name, parts, distinct_shapes(calls), shared, len(calls))
        return found

    def _parts_as_layers(
        self, module: nn.Module, owners: Mapping[int, list[str]]
    ) -> Iterator[FoundLayer]:
        """The matrices inside a module, each as a dense layer on vectors."""
        own, uses = self.names.get(module, ""), len(self.calls[module])
        for label, part in self.parts.get(module, {}).items():
            name, shape = f"{own}.{label}" if own else label, (part.in_features,)
            others = [
                other for other in owners.get(id(part.whole), []) if own not in _around(other)
            ]
            yield FoundLayer(name, (part,), (shape,), tuple(dict.fromkeys(others)), uses)

    def skipped(self) -> dict[str, str]:
        """The candidates that are no layers, and in no composition, by name; and why."""
        composed = {part for chain in self._compositions("conv_bn", ()) for part in chain}
        reasons, held = dict(self.reasons), set[nn.Module]()
        for owner, parts in self.parts.items():
            held.update(part for part in owner.modules() if not weights_left(part, parts))
            computed = ", ".join(weights_left(owner, parts))
            reasons[owner] = (
                f"what it computes with is made from {computed}, as by a parametrization or "
                "pruning; its other matrices are layers"
            )
        return {
            self.names[module]: why
            for module, why in reasons.items()
            if why and module not in composed and module not in held
        }

    def _compositions(self, compose: Compose, pairs: Pairs) -> list[tuple[nn.Module, ...]]:
        """The modules of each composition, in order."""
        links = self._links(pairs)
        for first, second in direct_readers(self.calls).items() if compose != "none" else ():
            normed = isinstance(first, BEFORE_A_NORM) and isinstance(second, BATCH_NORM)
            affine = all(self._is_affine(part) for part in (first, second))
            if affine and (compose == "chains" or normed):
                links[first] = second
        found = []
        for chain in chains(links):
            # From the first layer or batch norm to the last: what leads there bounds nothing.
            inner = [index for index, module in enumerate(chain) if module in self.reasons]
            if len(inner) > 1:
                found.append(chain[inner[0] : inner[-1] + 1])
        return found

    def _is_affine(self, module: nn.Module) -> bool:
        return self.reasons.get(module, NO_PARAMETERS) in ("", NO_PARAMETERS)

    def _links(self, pairs: Pairs) -> dict[nn.Module, nn.Module]:
        """The pairs that the user has named, where they stand up to the forward pass."""
        links: dict[nn.Module, nn.Module] = {}
        modules = dict(bare_modules(self.model, remove_duplicate=False))
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or [type(name) for name in pair] != [str, str]:
                raise TypeError(f"pairs must hold tuples of two names of modules, got {pair!r}.")
            for name in pair:
                if name not in modules:
                    raise ValueError(f"pairs has {tuple(pair)}, but there is no module {name!r}.")
                why = self.reasons.get(modules[name], "it is no batch norm and has no parameters")
                if why not in ("", NO_PARAMETERS):
                    raise ValueError(f"pairs has {tuple(pair)}, but {name!r} is no layer: {why}.")
            first, second = (modules[name] for name in pair)
            made, read = self.calls[first], self.calls[second]
            if not follows(read, made):
                times = sum(call.source in made for call in read)
                raise ValueError(
                    f"pairs has {tuple(pair)}, but {pair[1]!r} does not follow {pair[0]!r}: inputs "
                    f"read: {len(read)}, of which outputs of {pair[0]!r}, untouched: {times}, of "
                    f"{len(made)} that it made. It has to read each of them once, and nothing else."
                )
            if links.setdefault(first, second) is not second:
                raise ValueError(f"pairs has two layers after {pair[0]!r}: leave one of them out.")
        return links


def check_compose(compose: object, known: Sequence[str] = get_args(Compose)) -> None:
    """Raise unless `compose` is one of the words for which layers count as one."""
    if compose not in known:
        *words, last = map(repr, known)
        raise ValueError(f"compose must be {', '.join(words)} or {last}, got {compose!r}.")


def _require_sizes(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"{name!r} of {describe(model)} has no size yet: run the model once on an example "
                "input."
            )


def _around(name: str) -> set[str]:
    """The name of a module, and of all that it is in."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(len(parts) + 1)}


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
