"""The runs: one convolution with its batch norm, clipped to several targets."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.experiment import Config, Record, Scale
from experiments.judging import verdicts
from experiments.trained import small_network, trained
from experiments.trained.resnet import compositions

METHODS = ("fast_clip", "spectral_clip")
PAPERS = "fast_clip"
SETTING = 2
# The paper says "various values"; a new convolution of this network has a norm of about 4.
TARGETS = (0.25, 0.5, 1.0, 2.0)


def grid(scale: Scale) -> list[Config]:
    """Each target with the paper's method and ours; ResNet-18 is that of another experiment."""
    targets = TARGETS if scale != "smoke" else TARGETS[1:3]
    return [
        small_network.config(
            scale,
            setting=SETTING,
            method=method,
            target=target,
            seed=seed,
            measure="compositions",
        )
        for method in METHODS
        for target in targets
        for seed in range(small_network.SIZES[scale].seeds)
    ]


def target_of(record: Record) -> float:
    return float(record.config["max_norm"][small_network.LAYER])


def own_runs(records: Sequence[Record]) -> list[Record]:
    """Runs of this experiment: those that it uses are of other networks."""
    return verdicts.select(trained(records), model="small")


def clipped_resnets(records: Sequence[Record]) -> list[Record]:
    found = verdicts.select(records, model="resnet18", method=PAPERS, measure="compositions")
    return [record for record in trained(found) if compositions(record)]
