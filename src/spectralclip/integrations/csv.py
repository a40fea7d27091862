"""Norms as lines of a text file, for whatever reads CSV."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import final

from spectralclip.integrations._dashboard import NormRecord

__all__ = ["CsvWriter"]

COLUMNS = ["step", "name", "value"]


@final
class CsvWriter:
    """Appends the scalars of a `NormRecord` to a file, one line each: `step,name,value`.

    A resumed run goes on in the same file; of a step that is there twice, the later lines count.
    The file is whole after each write, and no longer open.

    Args:
        path: The file; it is made if there is none.

    Raises:
        OSError: The file cannot be written.
        ValueError: There is a file of other columns.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from spectralclip.integrations import NormRecord
        >>> from spectralclip.integrations.csv import CsvWriter
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name, "norms.csv")
        >>> CsvWriter(file).write(NormRecord(7, {"conv": 0.9}, {"conv": 1.0}, {}))
        >>> print(file.read_text().strip())
        step,name,value
        7,spectral_norm/conv,0.9
        7,spectral_norm_bound/conv,1.0
        >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Make the file, or see that it can be continued."""
        self._path = Path(path)
        # Whatever the file holds, the error below is to name it.
        with self._path.open("a+", newline="", encoding="utf-8", errors="replace") as file:
            file.seek(0)
            found = next(csv.reader(file), None)
            if found is None:
                csv.writer(file).writerow(COLUMNS)
            elif found != COLUMNS:
                raise ValueError(
                    f"{self._path} is a file of other content: expected the columns "
                    f"{','.join(COLUMNS)}, got {','.join(found)[:80]!r}. Name a new file."
                )

    def write(self, record: NormRecord) -> None:
        """Append a line for each number."""
        rows = [(record.step, name, value) for name, value in record.scalars().items()]
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
