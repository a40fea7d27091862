"""Takes the best rate of each search: `python -m experiments.table_rates.choose`.

That is the highest one whose accuracy on the images that were held out is within a standard error
of the best. So few images do not tell these apart, and of equals in one epoch the larger step did
better in ten. A search counts when all of its runs are there; of others the file keeps what it has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from experiments.accuracy.rates import FILE
from experiments.experiment import Record, Scale
from experiments.store import Store, default_folder
from experiments.table_rates.grid import HELD_OUT, grid

SCALE: Scale = "desk"


def accuracy(record: Record) -> float:
    """On the images held out; a training that diverged is worse than any other."""
    return -1.0 if record.result.get("diverged") else float(record.result["test_accuracy"])


def by_search(records: Sequence[Record]) -> dict[str, dict[float, float]]:
    """Of each search, the accuracy by rate."""
    found: dict[str, dict[float, float]] = {}
    for record in sorted(records, key=lambda record: record.config["lr"]):
        found.setdefault(record.config["search"], {})[record.config["lr"]] = accuracy(record)
    return found


def chosen(records: Sequence[Record]) -> dict[str, float]:
    """The rate of each search that is complete."""
    wanted: dict[str, set[float]] = {}
    for config in grid(SCALE):
        wanted.setdefault(config["search"], set()).add(config["lr"])
    found = by_search(records)
    complete = [key for key, rates in wanted.items() if rates <= set(found.get(key, {}))]
    return {key: best(found[key]) for key in complete}


def best(accuracies: Mapping[float, float]) -> float:
    """The highest rate within a standard error, of a difference, of the best accuracy."""
    highest = max(accuracies.values())
    error = math.sqrt(2 * highest * (1 - highest) / HELD_OUT) if highest > 0 else 0.0
    return max(rate for rate, found in accuracies.items() if found >= highest - error)


def main() -> None:
    known = json.loads(FILE.read_text(encoding="utf-8"))
    rates = known | chosen(Store(default_folder(SCALE)).records("table_rates", SCALE))
    FILE.write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rates)} rates in {FILE.name}")


if __name__ == "__main__":
    main()
