"""What the runs of the fake study do; the total is known from Python's own generator."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.experiment import Config, Context, Experiment, Record, Scale, Section


def numbers(config: Config) -> list[int]:
    draw = random.Random(config["seed"])
    return [draw.randrange(1000) for _ in range(config["steps"])]


def add(config: Config, context: Context) -> dict[str, Any]:
    """Add up the numbers one by one, with a checkpoint after each."""
    file = context.scratch / "state.json"
    state = json.loads(file.read_text()) if file.exists() else {"step": 0, "total": 0}
    for step, number in list(enumerate(numbers(config)))[state["step"] :]:
        _trace(f"{config['label']} {step}")
        _get_into_trouble(config.get("trouble", ""), step, context.scratch)
        time.sleep(config.get("pause", 0))
        state = {"step": step + 1, "total": state["total"] + number}
        (context.scratch / "next.json").write_text(json.dumps(state))
        os.replace(context.scratch / "next.json", file)
        context.say(state["step"] / config["steps"], f"step {step}")
    return {"total": state["total"]}


def _get_into_trouble(trouble: str, step: int, scratch: Path) -> None:
    if step != 2 or not trouble:
        return
    print(f"trouble ahead: {trouble}")
    is_first = not (scratch / "trouble").exists()
    (scratch / "trouble").touch()
    if trouble == "is killed" and is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble == "ends" and is_first:
        os._exit(7)
    if trouble == "fails once" and is_first:
        raise RuntimeError("only once")
    if trouble == "always fails":
        raise ValueError("the sum\nis too large")


def _trace(line: str) -> None:
    """Note in a file outside of the study's own folders what was really done."""
    if path := os.environ.get("FAKE_STUDY_TRACE"):
        with open(path, "a") as file:
            file.write(f"{line}\n")


def experiment(
    name: str, grid: Callable[[Scale], list[Config]], uses: Sequence[str] = ()
) -> Experiment:
    def section(records: Sequence[Record]) -> Section:
        return Section([f"{len(records)} runs"])

    return Experiment(
        name, f"The {name}", "Section 0", grid, add, section=section, uses=tuple(uses)
    )


def config(label: str, seed: int = 0, steps: int = 4, **more: Any) -> dict[str, Any]:
    return {"label": label, "seed": seed, "steps": steps, **more}
