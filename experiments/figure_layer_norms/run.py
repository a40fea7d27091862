"""One run: the seconds of some steps of training."""

from __future__ import annotations

from dataclasses import replace

from experiments import training
from experiments.experiment import Config, Context, Result
from experiments.measuring.stopwatch import Stopwatch

TIMED = "steps"


class _Enough(Exception):
    """All steps have been timed."""


def run(config: Config, context: Context) -> Result:
    """Train for some steps, and take the time of all but the first few.

    Raises:
        RuntimeError: The training has come to its end before.
    """
    watch, done = Stopwatch(), 0
    first = config["warm_up"]
    last = first + config["steps"]

    def say(share: float, words: str) -> None:
        nonlocal done
        done += words == "training"
        if done == last:
            watch.stop(TIMED)
            raise _Enough
        context.say(done / last, words)
        if done == first:
            watch.start(TIMED)

    try:
        training.train(config["training"], replace(context, say=say))
    except training.TrainingDiverged as error:
        return {"diverged": str(error)}
    except _Enough:
        result = {"steps": config["steps"]}
        return {"result": result, "timing": watch.summary(context.threads)}
    raise RuntimeError(f"expected {last} steps to time, got {done}: give it more train_images.")
