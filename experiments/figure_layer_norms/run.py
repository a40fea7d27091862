"""One run: the seconds of a step of every training, taken in turns.

All networks and methods take their steps one after the other, round by round, in one process: what
else the machine does meanwhile, it does to all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from experiments import training
from experiments.experiment import Config, Context, Result
from experiments.measuring.stopwatch import Stopwatch, Times, seconds_of, share_of

TIMED = "step"


def name_of(config: Mapping[str, Any]) -> str:
    """What a training is called among those of a run."""
    return f"{config['model']} {config['dataset']} {config['method']}"


def run(config: Config, context: Context) -> Result:
    """Train all of them for some rounds, and take the time of all steps but the first few.

    Raises:
        RuntimeError: A training has come to its end before.
    """
    watch, times = Stopwatch(), {name_of(one): Times() for one in config["trainings"]}
    diverged: dict[str, str] = {}
    rounds = config["warm_up"] + config["steps"]
    with training.surroundings(context):
        quiet = replace(context, say=lambda share, words: None)
        going = {
            name_of(one): training.steps({**one, "seed": config["seed"]}, quiet)
            for one in config["trainings"]
        }
        for number in range(rounds):
            for name in _turns(list(going), number):
                try:
                    taken = _timed_step(going[name])
                except training.TrainingDiverged as error:
                    diverged[name] = str(error)
                    del going[name]
                    continue
                except StopIteration:
                    raise RuntimeError(
                        f"expected {rounds} steps to time, got {number}: give it more train_images."
                    ) from None
                if number >= config["warm_up"]:
                    times[name].append(taken)
            context.say((number + 1) / rounds, "timing")
    for name in going:
        watch.seconds[name], watch.shares[name] = seconds_of(times[name]), share_of(times[name])
    result = {"steps": config["steps"], "diverged": diverged}
    return {"result": result, "timing": watch.summary(context.threads)}


def _turns(names: list[str], number: int) -> list[str]:
    """Another one is first in each round."""
    first = number % max(1, len(names))
    return names[first:] + names[:first]


def _timed_step(steps: Iterator[None]) -> tuple[float, float]:
    wall, own = time.perf_counter(), time.process_time()
    next(steps)
    return time.perf_counter() - wall, time.process_time() - own
