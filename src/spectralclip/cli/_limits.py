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
    rows = {row.name: row for one in _parts(what) for row in _rows(audit, one)}
    found = [_words(row, limit) for row in rows.values() if not row.norm.upper <= limit]
    bound = audit.lipschitz
    if FailOn.network in what and bound is not None and limit < bound.upper < math.inf:
        found.append(f"the network ({at_least_zero(bound.lower):.4g} .. {bound.upper:.4g})")
    return found


def uncertified(audit: Audit, what: Sequence[FailOn]) -> list[str]:
    """What is looked at and has no bound that could be held against a limit, and why."""
    failed = audit.uncertified
    names = dict.fromkeys(name for one in _parts(what) for name in _failures(audit, one))
    found = [f"{shown_name(name)}: {shown_reason(failed[name])}" for name in names]
    rows = [row for one in _parts(what) for row in _rows(audit, one)]
    if _parts(what) and audit.parameters and not (rows or names):
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


def _parts(what: Sequence[FailOn]) -> list[FailOn]:
    return [one for one in what if one is not FailOn.network]


def _rows(audit: Audit, what: FailOn) -> Iterator[LayerAudit]:
    chained = _chained(audit)
    for row in audit.layers:
        alone = row.role == "layer"
        if alone if what is FailOn.layers else not alone or row.name not in chained:
            yield row


def _failures(audit: Audit, what: FailOn) -> Iterator[str]:
    """The names of layers or chains that should be rows, and are not."""
    chained = _chained(audit)
    for name in audit.uncertified:
        alone = not _is_chain(audit, name)
        wanted = alone if what is FailOn.layers else not alone or name not in chained
        if wanted and name != NETWORK:
            yield name


def _chained(audit: Audit) -> set[str]:
    """The names of the layers that are parts of a chain, bounded or not."""
    failed = [name.split("+") for name in audit.uncertified if _is_chain(audit, name)]
    rows = [row.parts for row in audit.layers if row.role == "chain"]
    return {part for parts in (*failed, *rows) for part in parts}


def _is_chain(audit: Audit, name: str) -> bool:
    """Whether a name is that of a chain, rather than of a module with a plus in its name."""
    known = {row.name for row in audit.layers} | audit.skipped.keys()
    return "+" in name and name.partition("+")[0] in known


def _words(row: LayerAudit, limit: float) -> str:
    undecided = ", undecided" if row.norm.lower <= limit else ""
    lower = at_least_zero(row.norm.lower)
    return f"{shown_name(row.name)} ({lower:.4g} .. {row.norm.upper:.4g}{undecided})"
