"""`--fail-above`: what of an audit is not certified to be within a limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum

from spectralclip._audit import NETWORK, Audit, LayerAudit, at_least_zero
from spectralclip._common import shown_name, shown_reason
from spectralclip.cli._problems import listed

MOST = 5  # lines on what could not be certified


class FailOn(str, Enum):
    """What is held against the limit."""

    layers = "layers"
    chains = "chains"
    network = "network"


def verdict(audit: Audit, limit: float, what: Sequence[FailOn]) -> tuple[list[str], list[str]]:
    """What keeps a model from passing, and what to know besides, in lines.

    To pass, all that is looked at has to be certified: what could not be bounded counts as what
    is above.
    """
    complaints, remarks = [], []
    too_large, unknown = above(audit, limit, what), uncertified(audit, what)
    if too_large:
        complaints.append(f"above {limit:g}: {listed(too_large)}.")
    complaints += [f"not certified: {one}" for one in unknown[:MOST]]
    if len(unknown) > MOST:
        complaints.append(f"not certified: {len(unknown) - MOST} more.")
    others = [shown_name(name) for name in audit.skipped if name not in audit.uncertified]
    if others and FailOn.network not in what:
        remarks.append(
            f"note: no affine layers, so that only --fail-on network covers them: {listed(others)}."
        )
    return complaints, remarks


def above(audit: Audit, limit: float, what: Sequence[FailOn]) -> list[str]:
    """What may be above the limit, in words: an upper end that is not within it counts.

    A norm whose interval holds the limit is not known to be above, nor known to be within; to
    pass, it has to be certified.
    """
    names = set(_looked_at(audit, what))
    rows = {row.name: row for row in audit.layers if row.name in names}
    found = [_words(row, limit) for row in rows.values() if not row.norm.upper <= limit]
    bound = audit.lipschitz
    if FailOn.network in what and bound is not None and limit < bound.upper < math.inf:
        found.append(f"the network ({at_least_zero(bound.lower):.4g} .. {bound.upper:.4g})")
    return found


def uncertified(audit: Audit, what: Sequence[FailOn]) -> list[str]:
    """What is looked at and has no bound that could be held against a limit, and why."""
    names, failed = list(_looked_at(audit, what)), audit.uncertified
    found = [f"{shown_name(n)}: {shown_reason(failed[n])}" for n in names if n in failed]
    if set(what) - {FailOn.network} and audit.parameters and not names:
        found.append("no affine layer was found, so that nothing was looked at.")
    if FailOn.network in what:
        found += [f"the network: {why}" for why in _network(audit)]
    return found


def _network(audit: Audit) -> Iterator[str]:
    """Why the network has no finite bound, if it has none."""
    bound = audit.lipschitz
    if bound is None:
        yield shown_reason(audit.uncertified.get(NETWORK, "its bound was not asked for."))
    elif not bound.upper < math.inf:
        places = [f"{shown_name(one.where)}: {shown_reason(one.reason)}" for one in bound.unbounded]
        yield f"it has no upper bound: {listed(places, 1)}"
    elif bound.decisions:
        places = [shown_name(where) for where in bound.decisions]
        yield (
            "its bound holds for the way that the examples take, and it decides by its input at "
            f"{listed(places)}"
        )


def _looked_at(audit: Audit, what: Sequence[FailOn]) -> Iterator[str]:
    """The names of layers, or of chains and the layers that are in none, bounded or not."""
    rows = {row.name: row for row in audit.layers}
    failed = [name for name in audit.uncertified if name != NETWORK]
    # A module may have a plus in its name, too.
    known = rows.keys() | audit.skipped.keys()
    chains = {name: row.parts for name, row in rows.items() if row.role == "chain"}
    chains |= {
        name: tuple(name.split("+"))
        for name in failed
        if "+" in name and name.partition("+")[0] in known
    }
    chained = {part for parts in chains.values() for part in parts}
    for name in dict.fromkeys((*rows, *failed)):
        alone = name not in chains
        apart = not alone or name not in chained
        if (FailOn.layers in what and alone) or (FailOn.chains in what and apart):
            yield name


def _words(row: LayerAudit, limit: float) -> str:
    undecided = ", undecided" if row.norm.lower <= limit else ""
    lower = at_least_zero(row.norm.lower)
    return f"{shown_name(row.name)} ({lower:.4g} .. {row.norm.upper:.4g}{undecided})"
