"""Records of tables as they could be, and what is judged of them."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

from experiments import figure_layer_norms, table_batchnorm, table_dla, table_resnet
from experiments.accuracy.published import METRICS
from experiments.experiment import Experiment, Section
from experiments.figure_layer_norms.run import name_of

TABLES = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (figure_layer_norms, table_batchnorm, table_dla, table_resnet)
}
# By how much each method is better than the original model, if FastClip is what the paper says.
GAINS = {"none": 0.0, "miyato": 0.02, "gouk": 0.01, "fast_clip": 0.2, "fast_clip_concat": 0.3}


def made_up(config, gains):
    """A result and times for a configuration, the seed adding to all methods alike."""
    if "trainings" in config:
        return {"steps": config["steps"]}, {"seconds": 60.0, "timing": times(config)}
    rng = random.Random(str(sorted(config.items(), key=str)))
    method = config["method"].partition(":")[0]
    shared = random.Random(config["seed"]).uniform(0, 0.2)
    accuracy = 0.2 + shared + gains.get(method, 0.0) + rng.uniform(-0.002, 0.002)
    names = [f"layer{place}" for place in range(6)]
    spread = 0.01 if method == "fast_clip" else 0.5
    norms = {name: 1 + spread * rng.uniform(0.5, 1) for name in names}
    tracked = {name: rng.uniform(0.97, 0.99) * norm for name, norm in norms.items()}
    result = {
        "epochs": [{"norms": norms, "tracked": tracked} for _ in range(2)],
        **{metric: accuracy for metric in METRICS},
        "norms": norms,
    }
    return result, {"seconds": 60.0, "timing": {"epochs": [1.0, 1.0]}}


def times(config, costs=None, share=1.0):
    """Times of a step: two or three times as long by some, and four times with DLA.

    `costs` are those of other trainings, by some of the words of their names.
    """
    rng, seconds = random.Random(config["label"]), {}
    for one in config["trainings"]:
        name = name_of(one)
        slower = {"senderovich": 3.0, "delattre": 2.0}.get(one["method"], 1.0)
        for words, cost in (costs or {}).items():
            slower = cost if words in name else slower
        size = (4 if one["model"] == "dla" else 1) * (0.5 if one["dataset"] == "mnist" else 1)
        seconds[name] = slower * size * rng.uniform(1, 1.01)
    shares = dict.fromkeys(seconds, share)
    return {"seconds": seconds, "core_shares": shares, "threads": 1, "cells_beside": 0}


def fill(store, experiment, scale="laptop", gains=GAINS, keep=lambda config: True):
    for cell in experiment.cells(scale):
        if keep(cell.config):
            store.save(cell, *made_up(cell.config, gains))


def verdicts(experiment, store, used=()):
    records = [
        record for one in (experiment, *used) for record in store.records(one.name, "laptop")
    ]
    return {claim.text: claim.judge(records).kind for claim in experiment.claims}


def tiny(claims=(), blocks=("Words.",), name="figure_tiny", paper=3):
    """An experiment of two or three runs."""

    def grid(scale):
        return [{"label": "x", "n": n} for n in range(paper if scale == "paper" else 2)]

    return Experiment(
        name,
        "Tiny",
        "Figure 9",
        grid,
        lambda config, context: {},
        lambda r: Section(blocks),
        claims,
    )


def changed(records, change, **wanted):
    """Records with some results or times changed."""

    def matches(record):
        return all(record.config.get(key) == value for key, value in wanted.items())

    return [change(record) if matches(record) else record for record in records]
