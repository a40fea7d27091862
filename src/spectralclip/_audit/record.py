"""What an audit found, in plain values, and the forms that it and a comparison can take."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from torch import Tensor

from spectralclip._audit import table as tables
from spectralclip._audit.heads import HeadAudit, heads_text
from spectralclip._audit.json import audit_fields, document_of, read_document, to_text
from spectralclip._audit.layer import Change, LayerAudit, change_of
from spectralclip._audit.left_out import NETWORK, uncertified
from spectralclip._audit.scores import Scores
from spectralclip._audit.table import Sheet
from spectralclip._common import shown_name, shown_reason, write_text
from spectralclip._lipschitz import NetworkBound, certified_radius
from spectralclip.report import AUDIT, COMPARISON, VERSION, render, render_fragment

if TYPE_CHECKING:
    from rich.table import Table

PathLike = str | os.PathLike[str]


class _Record(ABC):
    """The forms that an audit and a comparison can take."""

    def table(self) -> Table:
        """A table for `rich.print`, a line for each layer."""
        return tables.rich_table(self._sheet())

    def __str__(self) -> str:
        return tables.plain_table(self._sheet())

    @abstractmethod
    def _sheet(self) -> Sheet: ...

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...

    def to_json(self, path: PathLike | None = None) -> str:
        """JSON text (`docs/audit-schema.md`), also written to a file if given one."""
        text = to_text(self.to_dict())
        if path is not None:
            write_text(path, text)
        return text

    def to_html(self, path: PathLike | None = None, *, title: str | None = None) -> str:
        """A page that needs nothing else, also written to a file if given one."""
        page = render(self.to_dict(), title=title)
        if path is not None:
            write_text(path, page)
        return page

    def _repr_html_(self) -> str:
        return render_fragment(self.to_dict())


@final
@dataclass(frozen=True)
class Audit(_Record):
    """What an audit found: plain values, that pickle, compare, and go through JSON unchanged.

    Attributes:
        model: The type of the model.
        parameters: How many numbers its parameters have.
        inputs: Shapes of the example inputs, with the batch.
        layers: The affine layers in the order of their first use, each chain after its last part.
        skipped: What was left out by name, and why.
        lipschitz: Bounds on the Lipschitz constant of the whole network; None if not asked for, or
            if there are none to be had: then `skipped["(the network)"]` says why.
        settings: What the audit was asked for.
        environment: Versions, device, seconds taken.
        created: When, in UTC, as ISO 8601 has it.
        scores: How much of what differs between inputs arrives at the output; None where it cannot
            be said.
        heads: The attention heads, in the order of their use.

    Example:
        >>> import torch
        >>> from spectralclip import audit
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        >>> found = audit(model, torch.zeros(1, 4))
        >>> type(found).from_json(found.to_json()) == found
        True
    """

    model: str
    parameters: int
    inputs: tuple[tuple[int, ...], ...]
    layers: tuple[LayerAudit, ...]
    skipped: dict[str, str]
    lipschitz: NetworkBound | None
    settings: dict[str, Any]
    environment: dict[str, Any]
    created: str
    scores: Scores | None = None
    heads: tuple[HeadAudit, ...] = ()

    def __getitem__(self, name: str) -> LayerAudit:
        """The layer or chain of that name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        if name in self.skipped:
            raise KeyError(f"{name!r} was left out of the audit: {self.skipped[name]}")
        raise KeyError(
            f"no layer {name!r} in this audit; there are {[x.name for x in self.layers]}"
        )

    def largest(self, role: Literal["layer", "chain"] | None = None) -> LayerAudit:
        """The layer whose norm may be largest; among single layers or chains only, if asked.

        Raises:
            ValueError: There is none.
        """
        among = [layer for layer in self.layers if role in (None, layer.role)]
        if not among:
            raise ValueError(
                f"The audit of {self.model} has no {role or 'layer'}: .skipped says what was left "
                "out, and why."
            )
        return max(among, key=lambda layer: layer.norm.upper)

    @property
    def uncertified(self) -> dict[str, str]:
        """What has a norm that could not be bounded, by name, and why.

        These are affine layers and chains, and "(the network)". Modules that are no affine layers,
        such as layer norms, are among the `skipped` only.

        Example:
            >>> import torch
            >>> from spectralclip import audit
            >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
            >>> found = audit(model, torch.zeros(1, 4), lipschitz=False)
            >>> list(found.skipped), list(found.uncertified)
            (['1'], [])
        """
        return uncertified(self.skipped)

    def certified_radius(self, logits: Tensor) -> Tensor:
        """How far each input may move before the class can change: `margin / (sqrt(2) L)`.

        Args:
            logits: What the model answered, one row an input.

        Raises:
            ValueError: The network's bound was not asked for, or could not be had.
        """
        if self.lipschitz is None:
            why = self.uncertified.get(NETWORK, "it was not asked for; audit with lipschitz=True.")
            raise ValueError(f"The audit of {self.model} has no bound on the network: {why}")
        return certified_radius(logits, self.lipschitz)

    def compare(self, other: Audit) -> AuditComparison:
        """This audit as before, and another as after."""
        if not isinstance(other, Audit):
            raise TypeError(f"Expected another Audit to compare with, got {type(other).__name__}.")
        return AuditComparison(self, other)

    def _sheet(self) -> Sheet:
        left_out = [
            f"left out: {shown_name(name)}: {shown_reason(why)}"
            for name, why in self.skipped.items()
        ]
        held = any(layer.max_norm is not None for layer in self.layers)
        said = [self._bound_text(), *tables.scores_text(self.scores)]
        return Sheet(
            f"{self.model}: {self.parameters:,} parameters",
            [*tables.LAYER_COLUMNS, *(tables.HELD_COLUMNS if held else ())],
            [tables.layer_row(layer, held=held) for layer in self.layers],
            "\n".join(filter(None, [*said, heads_text(self.heads), *left_out])),
        )

    def _bound_text(self) -> str:
        return tables.bound_text(self.lipschitz, failed=NETWORK in self.skipped)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes, as a dictionary."""
        return document_of(AUDIT, self)

    @classmethod
    def from_json(cls, source: PathLike | Mapping[str, Any]) -> Audit:
        """An audit from what `to_json` made: the text, the path of a file, or the dictionary.

        Raises:
            ValueError: It is no audit, or one of a version that cannot be read.
        """
        return cls(**audit_fields(read_document(source, AUDIT)))


@final
@dataclass(frozen=True)
class AuditComparison(_Record):
    """Two audits side by side, such as those of a model before clipping and after.

    Attributes:
        before: The first.
        after: The second.
    """

    before: Audit
    after: Audit

    @property
    def rows(self) -> tuple[Change, ...]:
        """Each layer that one of them has, in the order of the first, new ones last."""
        old = {layer.name: layer.norm for layer in self.before.layers}
        new = {layer.name: layer.norm for layer in self.after.layers}
        return tuple(change_of(name, old.get(name), new.get(name)) for name in {**old, **new})

    def _sheet(self) -> Sheet:
        before, after = (audit._bound_text() for audit in (self.before, self.after))
        return Sheet(
            f"{self.before.model}, before and after",
            tables.CHANGE_COLUMNS,
            [tables.change_row(row) for row in self.rows],
            f"before: {before}\nafter: {after}",
        )

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes, as a dictionary."""
        before, after = self.before.to_dict(), self.after.to_dict()
        return {"format": COMPARISON, "version": VERSION, "before": before, "after": after}

    @classmethod
    def from_json(cls, source: PathLike | Mapping[str, Any]) -> AuditComparison:
        """A comparison from what `to_json` made: the text, the path of a file, or the dictionary.

        Raises:
            ValueError: It is no comparison, or one of a version that cannot be read.
        """
        document = read_document(source, COMPARISON)
        return cls(*(Audit.from_json(document.get(key, {})) for key in ("before", "after")))
