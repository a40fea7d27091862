"""Numbers, names and files as users give them: what every other room may use."""

from spectralclip._common.amx import FaultyProcessorError, explained, needed
from spectralclip._common.commands import (
    FINE,
    INTERRUPTED,
    TERMINATED,
    Problem,
    Terminated,
    file_problems,
    guarded,
    note,
    one_line,
)
from spectralclip._common.files import replacing, require_writable, write_text, write_texts
from spectralclip._common.numbers import (
    Shape,
    as_shape,
    checked_generator,
    checked_seed,
    positive_number,
)
from spectralclip._common.progress import Progress, Steps, shown
from spectralclip._common.text import ITSELF, printable, shown_name, shown_reason

__all__ = [
    "FINE",
    "INTERRUPTED",
    "ITSELF",
    "TERMINATED",
    "FaultyProcessorError",
    "Problem",
    "Progress",
    "Shape",
    "Steps",
    "Terminated",
    "as_shape",
    "checked_generator",
    "checked_seed",
    "explained",
    "file_problems",
    "guarded",
    "needed",
    "note",
    "one_line",
    "positive_number",
    "printable",
    "replacing",
    "require_writable",
    "shown",
    "shown_name",
    "shown_reason",
    "write_text",
    "write_texts",
]
