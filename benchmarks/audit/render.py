"""The page of the audit benchmark, from its JSON."""

from __future__ import annotations

from typing import Any

# Targets on two cores: seconds, and gigabytes where that matters.
TARGETS = {
    "ResNet-18, 3x32x32": (60, None),
    "ResNet-50, 3x224x224": (600, 4),
    "transformer, 64 tokens": (60, None),
    "ViT-B, 3x224x224": (90, None),
}
WIDTH = 0.01


def page(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    machine = results["machine"]
    lines = [
        "# Audits of whole models",
        "",
        "`python -m benchmarks.audit`: every affine layer and every chain of a model, each with an",
        "interval around its norm within 1 %, ten singular values, and the network's Lipschitz",
        "interval; of attention, both products of every head. Random weights; batch norms with",
        "factors and statistics that differ from channel to channel. Each run is in processes of",
        "its own, each of one thread. The transformer is a language model as large as GPT-2.",
        "",
        f"{versions}; {machine['cpu']}, {machine['cores']} cores.",
        "",
        "| model | parameters | rows | heads | workers | seconds | memory | widest interval |",
        "|---|---|---|---|---|---|---|---|",
        *[_time(row) for row in results["rows"]],
        "",
        "## The network",
        "",
        "The upper end takes each affine chain as one operator; the product bounds every layer and",
        "every batch norm apart, by the same rules.",
        "",
        "| model | lower | upper | upper / lower | product / upper | not bounded |",
        "|---|---|---|---|---|---|",
        *[_network(row) for row in _one_each(results["rows"])],
        "",
        "## Targets",
        "",
        "| | target | measured | |",
        "|---|---|---|---|",
        *[line for model in TARGETS for line in _targets(model, results["rows"])],
        "",
    ]
    return "\n".join(lines)


def _one_each(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each model the first run: what is found does not depend on the workers."""
    return list({row["model"]: row for row in reversed(rows)}.values())[::-1]


def _time(row: dict[str, Any]) -> str:
    cells = [
        row["model"],
        f"{row['parameters'] / 1e6:.1f} M",
        str(row["rows"]),
        str(row["heads"] or ""),
        str(row["workers"]),
        f"{row['seconds']:.0f}",
        f"{row['gigabytes']:.1f} GB",
        f"{row['widest']:.2%}",
    ]
    return "| " + " | ".join(cells) + " |"


def _network(row: dict[str, Any]) -> str:
    if row["upper"] is None:
        places = f"{row['unbounded']} places"
        return f"| {row['model']} | {row['lower']:.3g} | | | | {places} |"
    return (
        f"| {row['model']} | {row['lower']:.3g} | {row['upper']:.3g} "
        f"| {row['upper'] / row['lower']:.3g} | {row['product'] / row['upper']:.3g} | |"
    )


def _targets(model: str, rows: list[dict[str, Any]]) -> list[str]:
    own = [row for row in rows if row["model"] == model]
    seconds, gigabytes = TARGETS[model]
    best = min(own, key=lambda row: row["seconds"])
    lines = [_target(f"{model}: seconds", seconds, best["seconds"])]
    if gigabytes is not None:
        lines.append(_target(f"{model}: gigabytes", gigabytes, best["gigabytes"]))
    widest = max(row["widest"] for row in own)
    lines.append(_target(f"{model}: widest interval", WIDTH, widest))
    if own[0]["heads"]:
        heads = max(row["widest_head"] for row in own)
        lines.append(_target(f"{model}: widest interval of a head's product", WIDTH, heads))
    if model.startswith("ResNet-18"):
        gained = own[0]["product"] / own[0]["upper"]
        met = "reached" if gained >= 2 else "not reached"
        lines.append(f"| {model}: product over upper bound | >= 2 | {gained:.3g} | {met} |")
    return lines


def _target(what: str, most: float, measured: float) -> str:
    met = "reached" if measured <= most else "not reached"
    return f"| {what} | <= {most:g} | {measured:.3g} | {met} |"
