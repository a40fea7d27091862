"""What some records are of, in a sentence: the scale, sizes, epochs, images and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.experiment import Record


def conditions(records: Sequence[Record]) -> str:
    """Scale, width, epochs, images, attacks and seeds of `records`, whichever they have."""
    if not records:
        return "No runs."
    configs = [record.config for record in records]
    scale = " and ".join(dict.fromkeys(record.scale for record in records))
    parts = [
        _named("width", (config.get("width") for config in configs)),
        _training(configs),
        _rates(configs),
        _settings(configs),
        _tested(configs),
        *_attacks(configs),
        _seeds(configs),
        _count(len(records), "run"),
    ]
    return f"Scale {scale}: {', '.join(filter(None, parts))}."


def _training(configs: Sequence[Any]) -> str:
    epochs = _different(config.get("epochs") for config in configs)
    if not epochs:
        return ""
    images = [_images(config.get("train_images")) for config in configs if "train_images" in config]
    of = f" of {_joined(images)} training images" if images else ""
    batches = _different(config.get("batch") for config in configs)
    by = f" in batches of {_joined(batches)}" if batches else ""
    return f"{_joined(epochs)} epoch{'' if epochs == [1] else 's'}{of}{by}"


def _rates(configs: Sequence[Any]) -> str:
    """How weights are trained, where that is not as in the paper: rates and their schedule."""
    sgd = [config["lr"] for config in configs if config.get("optimizer") == "sgd"]
    free = [config["lr"] for config in configs if _is_adam_without_decay(config)]
    cycle = [config for config in configs if config.get("schedule") == "one_cycle"]
    searched = [config["lr"] for config in cycle if config.get("optimizer") == "adam"]
    parts = [
        f"SGD from a rate of {_joined(f'{rate:g}' for rate in sgd)}" if sgd else "",
        f"Adam without weight decay at a rate of {_joined(f'{rate:g}' for rate in free)}"
        if free
        else "",
        f"Adam at a rate of {_joined(f'{rate:g}' for rate in searched)}"
        if searched and not free
        else "",
        "one cycle of the rate" if cycle else "",
    ]
    return ", ".join(filter(None, parts))


def _is_adam_without_decay(config: Any) -> bool:
    return (config.get("optimizer"), config.get("weight_decay")) == ("adam", 0)


def _settings(configs: Sequence[Any]) -> str:
    """Methods whose settings are not the paper's, such as FastClip-concat with shorter periods."""
    words = [str(config.get("method", "")).partition(":") for config in configs]
    return " and ".join(dict.fromkeys(f"{name} with {set_}" for name, _, set_ in words if set_))


def _tested(configs: Sequence[Any]) -> str:
    images = [_images(config["test_images"]) for config in configs if "test_images" in config]
    return f"tested on {_joined(images)} images" if images else ""


def _attacks(configs: Sequence[Any]) -> list[str]:
    found: list[str] = []
    attacks = [config["attacks"] for config in configs if config.get("attacks")]
    pgd = [attack["pgd"] for attack in attacks if attack.get("pgd")]
    if pgd:
        steps = _joined(one["steps"] for one in pgd)
        found.append(f"PGD-{steps} on {_joined(_images(one['images']) for one in pgd)}")
    cw = [attack["cw"] for attack in attacks if attack.get("cw")]
    if cw:
        iterations = _joined(_images(one["iterations"]) for one in cw)
        images = _joined(_images(one["images"]) for one in cw)
        rates = _joined(f"{one['lr']:g}" for one in cw)
        found.append(f"CW with {iterations} iterations and lr {rates} on {images}")
    return found


def _seeds(configs: Sequence[Any]) -> str:
    """How many seeds there are of each model, which may differ."""
    seeds: dict[str, set[Any]] = {}
    for config in configs:
        if "seed" in config:
            seeds.setdefault(str(config.get("model", "")), set()).add(config["seed"])
    counts = {model: len(found) for model, found in seeds.items()}
    if len(set(counts.values())) < 2:
        return _count(next(iter(counts.values()), 0), "seed") if counts else ""
    return " and ".join(f"{_count(count, 'seed')} for {model}" for model, count in counts.items())


def _named(name: str, values: Iterable[Any]) -> str:
    found = _different(values)
    return f"{name} {_joined(found)}" if found else ""


def _images(count: int | None) -> str:
    return "all" if count is None else f"{count:,}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _different(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(value for value in values if value is not None))


def _joined(values: Iterable[Any]) -> str:
    return " or ".join(map(str, dict.fromkeys(values)))
