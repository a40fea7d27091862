"""Every affine layer of a model, and the network as a whole, as data."""

from spectralclip._audit.audit import audit
from spectralclip._audit.estimates import EstimatedLayer, compare_estimates, estimates_sheet
from spectralclip._audit.layer import LayerAudit
from spectralclip._audit.left_out import NETWORK
from spectralclip._audit.record import Audit, AuditComparison
from spectralclip._audit.table import Column, Sheet, at_least_zero, plain_table, rich_table

__all__ = [
    "NETWORK",
    "Audit",
    "AuditComparison",
    "Column",
    "EstimatedLayer",
    "LayerAudit",
    "Sheet",
    "at_least_zero",
    "audit",
    "compare_estimates",
    "estimates_sheet",
    "plain_table",
    "rich_table",
]
