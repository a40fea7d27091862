"""Carry a Lipschitz bound along a flow, from the input to the output.

Affine nodes are not bounded one by one. Each knows its *base*, the last node before it at which
the bound had to be settled; only when something bends the value, or parts with different bases
meet, the norm of all that lies between is taken, as one operator. Beside it runs the bound with
each operation apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

from spectralclip._lipschitz.chain_norms import NoBoundError, Norms
from spectralclip._lipschitz.flow import ROOT, Flow, Node, operations
from spectralclip._lipschitz.operations import rule_of
from spectralclip._lipschitz.result import Step, Unbounded
from spectralclip._lipschitz.rules import Rule, times


@final
class Propagation:
    """The bounds of all nodes that the output depends on, by their rules."""

    def __init__(self, flow: Flow, norms: Norms, rules: Mapping[int, Rule]) -> None:
        self.steps: list[Step] = []  # the rules that were used, in order
        self.unbounded: list[Unbounded] = []  # the places without a bound
        self._flow, self._norms, self._rules = flow, norms, rules
        self._base = {ROOT: ROOT}
        self._bound = {ROOT: 1.0}  # from the input, where it is settled
        self._since = {ROOT: 1.0}  # from the base, each operation apart
        self._apart = {ROOT: 1.0}  # from the input, each operation apart
        for index, rule in rules.items():
            self._visit(flow.nodes[index], rule)
        self.upper = self._settled(len(flow.nodes) - 1)
        self.product = self._apart[len(flow.nodes) - 1]

    def _visit(self, node: Node, rule: Rule) -> None:
        if rule.reason:
            self._start_anew(node, math.inf, math.inf)
            self.unbounded.append(Unbounded(node.where, _name(node), rule.reason))
            self.steps.append(Step(node.where, _name(node), math.inf, math.inf, rule.reason))
            return
        apart = rule.combined(self._apart.__getitem__)
        bases = {self._base[source] for source, _ in rule.factors}
        if rule.affine and len(bases) == 1:
            self._base[node.index] = bases.pop()
            self._since[node.index] = rule.combined(self._since.__getitem__)
            self._apart[node.index] = apart
            return
        bound = rule.combined(self._settled)
        self._start_anew(node, bound, apart)
        if rule.factors:
            factor = max(factor for _, factor in rule.factors)
            self.steps.append(Step(node.where, _name(node), factor, bound, _note(rule)))

    def _start_anew(self, node: Node, bound: float, apart: float) -> None:
        """Let a node be the base of what follows."""
        self._base[node.index] = node.index
        self._bound[node.index] = bound
        self._since[node.index] = 1.0
        self._apart[node.index] = apart

    def _settled(self, index: int) -> float:
        """The bound of a node, all affine parts since its base taken as one operator."""
        if index not in self._bound:
            base = self._base[index]
            every = self._flow.between(base, index)
            nodes = self._trimmed(every)
            factor, note = self._chain_factor(index, every, nodes)
            bound = times(factor, self._bound[base])
            if nodes or factor != 1:
                told = nodes or [
                    node for node in every if self._rules[node.index].factors[0][1] != 1
                ]
                where = "+".join(dict.fromkeys(node.where for node in told if node.where))
                self.steps.append(Step(where, " + ".join(operations(told)), factor, bound, note))
            self._bound[index] = bound
        return self._bound[index]

    def _trimmed(self, nodes: Sequence[Node]) -> list[Node]:
        """Without what only rearranges, as far as it stands before or after the rest."""
        if any(len(node.inputs) > 1 for node in nodes):
            return list(nodes)
        inner = [place for place, node in enumerate(nodes) if not self._rules[node.index].plain]
        return list(nodes[inner[0] : inner[-1] + 1]) if inner else []

    def _chain_factor(
        self, index: int, every: Sequence[Node], nodes: Sequence[Node]
    ) -> tuple[float, str]:
        """The norm from a node's base to the node itself, and what to say of it."""
        apart = self._since[index]
        is_path = all(len(node.inputs) == 1 for node in nodes)
        if is_path and sum(not self._rules[node.index].plain for node in nodes) < 2:
            return apart, ""
        base = nodes[0].inputs[0] if is_path else self._base[index]
        # What was trimmed away scales the whole.
        left = [node for node in every if node not in nodes]
        scale = math.prod(self._rules[node.index].factors[0][1] for node in left)
        try:
            interval = self._norms.of_chain(base, nodes)
        except NoBoundError as error:
            return apart, f"each apart, since as one: {error}"
        together = times(scale, interval.upper)
        if together >= apart:
            return apart, ""
        return together, f"as one operator; each apart: {apart:.6g}"


def rules_of(flow: Flow, norms: Norms, known: Mapping[int, Rule] | None = None) -> dict[int, Rule]:
    """The rules of all nodes that the output depends on, in order; some may be `known`."""
    given = known or {}
    return {
        index: given[index] if index in given else rule_of(flow.nodes[index], flow, norms)
        for index in sorted(flow.needed() - {ROOT})
    }


def _name(node: Node) -> str:
    return next(operations([node]))


def _note(rule: Rule) -> str:
    if rule.note or len(rule.factors) < 2:
        return rule.note
    return f"{len(rule.factors)} parts, {'side by side' if rule.joint else 'added up'}"
