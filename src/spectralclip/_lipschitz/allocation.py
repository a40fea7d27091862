"""A network's bound as a function of the bounds of its layers, and layer bounds that meet one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias, final

from torch import Tensor, nn

from spectralclip._lipschitz.bounds import require_weights, without_bound
from spectralclip._lipschitz.chain_norms import Norms, standard_intervals
from spectralclip._lipschitz.examples import examples_of, first_run
from spectralclip._lipschitz.flow import Flow, Node, leaves
from spectralclip._lipschitz.following import NotFollowedError, taken_as_one, ways
from spectralclip._lipschitz.propagation import Propagation, rules_of
from spectralclip._lipschitz.recording import same_place
from spectralclip._lipschitz.recurrent import RECURRENT_LAYERS, largest_bias, rule_of_layer
from spectralclip._lipschitz.result import Unbounded
from spectralclip._lipschitz.rules import only
from spectralclip._models import (
    ExampleInputs,
    FoundLayer,
    Inputs,
    Survey,
    call_arguments,
    parts_of,
    unwrapped,
)
from spectralclip._operators import Rows, is_plain, plain_numerics

_DOUBLINGS = 200  # from a scale of 1: more than any product of layer norms needs
_HALVINGS = 40  # of an interval of a factor of two: what is left is below 1e-12
_ELSEWHERE = (
    "it reads {!r} outside of the layer {!r}, whose norm alone is held; use the layer itself, or "
    "leave it out"
)
# Whatever they add, join or compare an input with, it grows no more.
_SHIFTS = ("add", "sub", "rsub", "cat", "stack", "maximum", "minimum")

HeldBiases: TypeAlias = Mapping[tuple[nn.Module, str], str]
"""Biases by module and name, each with the layer whose norm none of its entries exceeds."""


class UnboundedNetworkError(ValueError):
    """A network has no bound, whatever the norms of its layers."""


@final
class NetworkRules:
    """The bound of a network as a function of the norms of some of its layers.

    These layers are the unknowns: whatever their weights, as long as their norms are what `of` is
    told, the network's constant is at most what it returns. All else counts as it is now: what
    lies between two of these layers as one operator, activations and pools by their rules.

    Attributes:
        layers: The layers whose norms are unknowns, by name.
        decisions: The modules that decide by their input, "" for the model itself: the bound is
            that of the way which the examples take.
        factors: The parameters and buffers that are more, outside of their modules, than something
            to be added.
    """

    @plain_numerics()
    def __init__(
        self,
        model: nn.Module,
        example_inputs: ExampleInputs,
        layers: Mapping[str, FoundLayer],
        biases: HeldBiases | None = None,
    ) -> None:
        """Follow the model once; as for `lipschitz_bounds`, with the accuracy of its defaults.

        Args:
            model: The network.
            example_inputs: As for `lipschitz_bounds`.
            layers: Those whose norms are unknowns.
            biases: Of `state_biases`, those that are held together with a layer. Others count as
                they are.

        Raises:
            UnboundedNetworkError: There is a place without a bound.
        """
        self.layers = dict(layers)
        whole = call_arguments(model, example_inputs)
        model = unwrapped(model)
        require_weights(model)
        together, changed = first_run(model, whole)
        if changed:
            raise UnboundedNetworkError(f"its forward pass changes its own weights: {changed}")
        examples, parts = examples_of(model, whole, together)
        survey = Survey.of(model, Inputs(tuple(examples[0][0]), examples[0][1]))
        as_one = {**taken_as_one(survey), **{m: "" for one in layers.values() for m in one.modules}}
        try:
            flows = ways(model, examples, parts, as_one)
        except NotFollowedError as error:
            raise UnboundedNetworkError(f"the model does not run while followed: {error}") from None
        interval_of = standard_intervals(tol=0.01, failure=1e-6, deterministic=False, seed=0)
        norms = [Norms(flow, interval_of, interval_of) for flow in flows]
        names = {id(weight): name for name, weight in model.named_parameters()}
        held = _Held(layers, biases or {}, names)
        self._ways = [_Way(flow, own, held) for flow, own in zip(flows, norms, strict=True)]
        self.decisions = tuple(dict.fromkeys(where for flow in flows for where in flow.decisions))
        self.factors = frozenset(name for way in self._ways for name in way.factors)
        places = [str(place) for way in self._ways for place in way.unbounded]
        if places:
            raise UnboundedNetworkError("; ".join(dict.fromkeys(places)))

    def of(self, norms: Mapping[str, float]) -> float:
        """The bound of the network where the layers have these norms."""
        return max(way.upper(norms) for way in self._ways)

    def scale_for(self, proportions: Mapping[str, float], max_lipschitz: float) -> float:
        """The factor by which norms in these proportions are multiplied to meet a network's bound.

        Raises:
            ValueError: There is none.
        """

        def bound(scale: float) -> float:
            return self.of({name: scale * part for name, part in proportions.items()})

        smallest = bound(0.0)
        if smallest >= max_lipschitz:
            raise ValueError(
                f"The network cannot be held at max_lipschitz={max_lipschitz:g}: even if the "
                f"layers that are held were zero, its bound would be {smallest:.6g}, by what goes "
                "around them (a shortcut without a layer, or layers that are frozen or left out). "
                "Give a larger max_lipschitz, or let more layers be held."
            )
        within = 1.0
        for _ in range(_DOUBLINGS):
            if bound(within) <= max_lipschitz:
                break
            within /= 2
        above = 2 * within
        for _ in range(_DOUBLINGS):
            if bound(above) > max_lipschitz:
                break
            within, above = above, 2 * above
        else:
            raise ValueError(
                "No layer that is held lies between the network's input and its output: "
                f"its bound is {smallest:.6g}, whatever max_lipschitz says."
            )
        for _ in range(_HALVINGS):
            middle = math.sqrt(within * above)
            within, above = (middle, above) if bound(middle) <= max_lipschitz else (within, middle)
        return within


@final
class _Held:
    """The layers whose norms are unknowns, and what belongs to them."""

    def __init__(
        self, layers: Mapping[str, FoundLayer], biases: HeldBiases, names: Mapping[int, str]
    ) -> None:
        """Of a model whose parameters have these names, by their identity."""
        self.layers, self.biases = layers, biases

        def named(found: Iterable[Tensor]) -> set[str]:
            return {names[id(one)] for one in found if id(one) in names}

        self._weights = named(weight for layer in layers.values() for weight in layer.weights())
        self.owners = {
            own: name for name, layer in layers.items() for own in named(layer.parameters())
        }

    def read_by(self, node: Node) -> dict[str, str]:
        """What an operation reads of these layers by itself, each with its layer.

        A bias that is but added to something does not count.
        """
        names = node.weights & self.owners.keys()
        names = names & self._weights if node.operation in _SHIFTS else names
        return {name: self.owners[name] for name in sorted(names)}

    def applied_by(self, node: Node) -> str | None:
        """The dense layer whose matrix, or its transpose, an operation multiplies by."""
        read = self.read_by(node)
        if node.operation not in ("mm", "addmm") or len(read) != 1:
            return None
        (name,) = read.values()
        module, *others = self.layers[name].modules
        if others or not (isinstance(module, nn.Linear) and is_plain(module, nn.Linear)):
            return None
        # The same numbers in memory: neither a part of them, nor a function of them.
        given = [leaf for leaf in leaves((node.args, node.kwargs)) if isinstance(leaf, Tensor)]
        weight = module.weight.detach()
        is_same = any(same_place(tensor, own) for tensor in given for own in (weight, weight.t()))
        return name if is_same and node.argument("alpha", 1) == 1 else None


@final
class _Way:
    """One way through the network: its rules, with places for the norms of layers."""

    def __init__(self, flow: Flow, norms: Norms, held: _Held) -> None:
        self._flow, self._norms, self._biases = flow, norms, held.biases
        layers = held.layers
        first = {layer.modules[0]: name for name, layer in layers.items()}
        rest = {part for layer in layers.values() for part in layer.modules[1:]}
        within = [node for node in flow.nodes if len(node.inputs) == 1]
        # A layer's norm stands at its first module, and all that belongs to it adds nothing.
        places = {node.index: first[node.module] for node in within if node.module in first}
        # So it does where the matrix of a dense layer is used without the layer, as in a decoder
        # that is the transpose of an encoder.
        places |= {node.index: name for node in within if (name := held.applied_by(node))}
        after = [node.index for node in within if node.module in rest]
        known = {index: only(flow.nodes[index], 1.0) for index in (*places, *after)}
        self._rules = rules_of(flow, norms, known=known)
        self._places = {index: name for index, name in places.items() if index in self._rules}
        # Matrices inside recurrent layers, whose rules are functions of all of their norms.
        parts = ((name, layer.modules[0]) for name, layer in layers.items())
        self._inside = {_key(part): name for name, part in parts if isinstance(part, Rows)}
        self._recurrent = [
            (node, own)
            for index in self._rules
            for node in [flow.nodes[index]]
            if isinstance(node.module, RECURRENT_LAYERS)
            for own in [parts_of(node.module)]
            if any(_key(part) in self._inside for part in own.values())
        ]
        found = Propagation(flow, norms, self._rules)
        self.unbounded = [
            *found.unbounded,
            *without_bound(flow),
            *self._read_inside(layers),
            *self._read_elsewhere(held),
        ]
        read = [
            (node.where, name)
            for index in self._rules
            for node in [flow.nodes[index]]
            if node.operation not in _SHIFTS
            for name in node.weights
        ]
        read += flow.numbers
        self.factors = {name for where, name in read if name.rpartition(".")[0] != where}

    def upper(self, layer_norms: Mapping[str, float]) -> float:
        """The bound of the last node, with a layer's norm at each of its uses."""
        nodes = self._flow.nodes
        own = {place: only(nodes[place], layer_norms[name]) for place, name in self._places.items()}

        def norm_of(part: Rows) -> float:
            name = self._inside.get(_key(part))
            return self._norms.of_rows(part).upper if name is None else layer_norms[name]

        def bias_of(module: nn.Module, bias: str) -> float:
            name = self._biases.get((module, bias))
            return largest_bias(module, bias) if name is None else layer_norms[name]

        for node, parts in self._recurrent:
            own[node.index] = rule_of_layer(node, self._flow, parts, norm_of, bias_of)
        return Propagation(self._flow, self._norms, {**self._rules, **own}).upper

    def _read_inside(self, layers: Mapping[str, FoundLayer]) -> list[Unbounded]:
        """Compositions of which something else reads a part, whose norm is not held by itself."""
        after = {
            part: following
            for layer in layers.values()
            for part, following in pairwise(layer.modules)
        }
        return [
            Unbounded(node.where, "composition", "something else reads what is inside it")
            for index in self._rules
            for node in [self._flow.nodes[index]]
            for source in map(self._flow.nodes.__getitem__, node.inputs)
            if source.module in after and node.module is not after[source.module]
        ]

    def _read_elsewhere(self, held: _Held) -> list[Unbounded]:
        """Operations that read a weight whose numbers are unknown, in another way than its layer.

        What they do cannot be said from the layer's norm.
        """
        followed = [
            Unbounded(node.where, node.operation, _ELSEWHERE.format(weight, layer))
            for index in self._rules
            for node in [self._flow.nodes[index]]
            if index not in self._places
            for weight, layer in held.read_by(node).items()
        ]
        numbers = [
            Unbounded(where, "item", _ELSEWHERE.format(name, held.owners[name]))
            for where, name in self._flow.numbers
            if name in held.owners
        ]
        return [*followed, *numbers]


def _key(part: Rows) -> tuple[int, int, int]:
    """What tells a matrix inside a module from others, whoever made the layer."""
    return id(part.whole), part.rows.start, part.rows.stop
