"""200 layers with certified norms, to test an estimate of a spectral norm against.

`load` reads them and `run` holds a function against them; `spectralclip conformance` is both on the
command line. The files can be read without this package: see `docs/conformance.md`.
"""

from spectralclip.integrations.conformance._run import Outcome, Report, run
from spectralclip.integrations.conformance._suite import ConformanceLayer, default_folder, load
from spectralclip.integrations.conformance._table import report_sheet as report_sheet

__all__ = ["ConformanceLayer", "Outcome", "Report", "default_folder", "load", "run"]
