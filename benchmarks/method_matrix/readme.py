"""The table of methods in the summary of all benchmarks, from the JSON of the matrix."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common.pages import Row, between_marks, table

MARK = "<!-- methods table -->"

# With the settings of their authors, but for `every`: a clip each hundred steps would be none here.
SHOWN = {
    "spectral_clip": "`SpectralClip`",
    "parametrize": "`Parametrize`",
    "gouk": "`Gouk`, 5 iterations",
    "gouk, power_iterations 1000": "`Gouk`, 1000 iterations",
    "farnia": "`Farnia`",
    "miyato": "`Miyato`",
    "cisse, beta 0.006, share 1.0": "`Cisse`, 20 times the usual pull",
    "senderovich, every 1": "`Senderovich`, at each step",
    "delattre": "`Delattre`",
    "delattre, padding_form zeros": "`Delattre`, form of 2024",
    "fast_clip, every 5 steps": "`FastClip`, every 5 steps",
    "lot": "`LOT` (so `SOC`, `Cayley`)",
    "eco": "`ECO`",
    "aol": "`AOL`",
}


def with_table(text: str, results: Row) -> str:
    """A page with the table between its two marks."""
    return between_marks(text, MARK, _rows(results["rows"]))


def _rows(rows: Sequence[Row]) -> str:
    header = ["method", "within the bound", "refused", "smallest norm left", "largest"]
    alone = [row for row in rows if row["axes"]["kind"] != "conv + batch norm"]
    body = [[label, *_counted(alone, name)] for name, label in SHOWN.items()]
    return table(header, body)


def _counted(rows: Sequence[Row], name: str) -> list[str]:
    own = [row for row in rows if row["method"] == name]
    taken = [row for row in own if row["outcome"] != "refused"]
    reached = sum(row["outcome"] == "reached" for row in taken)
    norms = [row["norm"] for row in taken if "norm" in row]
    extremes = [f"{least(norms):.2f}" for least in (min, max)]
    return [f"{reached} of {len(taken)}", str(len(own) - len(taken)), *extremes]
