"""Every affine layer of a model, and the network as a whole, as data."""

from spectralclip._audit.attention import Head as Head
from spectralclip._audit.attention import attention_heads as attention_heads
from spectralclip._audit.audit import audit as audit
from spectralclip._audit.estimates import compare_estimates as compare_estimates
from spectralclip._audit.estimates import estimates_sheet as estimates_sheet
from spectralclip._audit.heads import HeadAudit as HeadAudit
from spectralclip._audit.json import document_of as document_of
from spectralclip._audit.json import to_text as to_text
from spectralclip._audit.layer import LayerAudit as LayerAudit
from spectralclip._audit.left_out import NETWORK as NETWORK
from spectralclip._audit.record import Audit as Audit
from spectralclip._audit.record import AuditComparison as AuditComparison
from spectralclip._audit.scores import Scores as Scores
from spectralclip._audit.table import Column as Column
from spectralclip._audit.table import Sheet as Sheet
from spectralclip._audit.table import at_least_zero as at_least_zero
from spectralclip._audit.table import interval_text as interval_text
from spectralclip._audit.table import plain_table as plain_table
from spectralclip._audit.table import rich_table as rich_table
from spectralclip._common import publish

publish(Audit, AuditComparison, Head, HeadAudit, LayerAudit)
