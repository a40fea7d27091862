"""The results page, Markdown and HTML, from stored runs alone.

`gather` reads the records and judges the claims, `write` renders them; nothing is run and nothing
is loaded from anywhere. `conditions` says in a sentence what records are of, for the captions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.experiment import Experiment, Scale
from experiments.report._captions import conditions
from experiments.report._page import Records, gather

__all__ = ["conditions", "gather", "write"]


def write(
    store: Records,
    folder: Path,
    scale: Scale | None = None,
    *,
    experiments: Mapping[str, Experiment] | None = None,
    title: str | None = None,
) -> list[Path]:
    """Render all that is stored into `index.md`, `index.html` and `charts/*.svg`.

    Args:
        store: Where the records are.
        folder: For the page; it is made if it is not there.
        scale: To report; if left out, of each experiment the one of which the largest share of runs
            is there, of two the larger one; smoke runs only where there are no others.
        experiments: To report, by name; all of the paper's study if left out.
        title: Of the page of another study; that of the paper's if left out.

    Returns:
        The files written, `index.md` first.

    Raises:
        ImportError: jinja2 or vl-convert-python are not installed.
        ValueError: What is stored is not as the experiments expect it.
        OSError: A file cannot be written; none has changed then.
    """
    # What renders is imported here: the tables import this package for their captions alone.
    from experiments.report import _charts, _html, _markdown
    from spectralclip._common import write_texts

    if experiments is None:
        from experiments import registry

        experiments = registry.find()
    page = gather(store, experiments, scale, title)
    drawings = {chart.name: _charts.draw(chart.spec) for chart in page.charts()}
    texts = {
        folder / "index.md": _markdown.render(page),
        folder / "index.html": _html.render(page, drawings),
    }
    for name, drawing in drawings.items():
        texts[folder / _markdown.CHARTS / f"{name}.svg"] = _charts.on_white(drawing)
    (folder / _markdown.CHARTS).mkdir(parents=True, exist_ok=True)
    write_texts({path: text for path, text in texts.items()})
    return list(texts)
