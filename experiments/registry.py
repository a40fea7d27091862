"""The experiments: every `figure_*` and `table_*` of a package, a folder or a file."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Mapping, Sequence

from experiments.experiment import SCALES, Cell, Experiment, Scale

PACKAGE = "experiments"
_KINDS = ("figure_", "table_")


class Unknown(ValueError):
    """There is no such experiment, or its file is not as it should be."""


def names(package: str = PACKAGE) -> list[str]:
    """The names of all experiments, figures first.

    Raises:
        Unknown: There is no such package.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Unknown(f"expected a package with experiments, got {package!r}: none of that name.")
    found = sorted(module.name for module in pkgutil.iter_modules(spec.submodule_search_locations))
    return [name for kind in _KINDS for name in found if name.startswith(kind)]


def load(name: str, package: str = PACKAGE) -> Experiment:
    """An experiment by its name.

    Raises:
        Unknown: There is none of that name, or its file does not hold it.
    """
    known = names(package)
    if name not in known:
        raise Unknown(f"experiment: expected one of {', '.join(known)} or all, got {name!r}.")
    experiment = getattr(importlib.import_module(f"{package}.{name}"), "EXPERIMENT", None)
    if not isinstance(experiment, Experiment):
        raise Unknown(f"{package}.{name}: expected an Experiment named EXPERIMENT, got none.")
    if experiment.name != name:
        raise Unknown(
            f"{package}.{name}: expected an experiment with the name of its file, got "
            f"{experiment.name!r}."
        )
    used = {other for scale in SCALES for other in experiment.used(scale)}
    if strange := used - set(known):
        raise Unknown(f"{package}.{name} uses {', '.join(sorted(strange))}: no such experiments.")
    return experiment


def find(package: str = PACKAGE) -> dict[str, Experiment]:
    """All experiments by name.

    Raises:
        Unknown: A file does not hold what it should.
    """
    return {name: load(name, package) for name in names(package)}


def title(package: str) -> str:
    """The first line of what a package says of itself, or its name."""
    lines = (importlib.import_module(package).__doc__ or "").strip().splitlines()
    return (lines[0].strip().rstrip(".") if lines else "") or package


def also_needed(
    wanted: Sequence[str], scale: Scale, package: str = PACKAGE
) -> dict[str, list[str]]:
    """The experiments that were not named, but whose runs those that were read, by their names.

    Raises:
        Unknown: There is none of a name.
    """
    if "all" in wanted:
        return {}
    uses = {name: load(name, package).used(scale) for name in wanted}
    missing = {name: [one for one in used if one not in wanted] for name, used in uses.items()}
    return {name: others for name, others in missing.items() if others}


def cells(wanted: Iterable[str], scale: Scale, package: str = PACKAGE) -> list[Cell]:
    """The runs that some experiments need, of those that they use too, each once.

    The first seed of all of them comes first: what is stopped half way has some seeds of
    everything, and not all seeds of something.

    Args:
        wanted: Names; "all" is all of them.
        scale: Of the runs.
        package: With the experiments.

    Raises:
        Unknown: There is none of a name, or a grid is not as it should be.
    """
    chosen: dict[str, Experiment] = {}
    for name in wanted:
        chosen.update(find(package) if name == "all" else _with_uses(name, scale, package))
    found = [cell for one in chosen.values() for cell in _checked(one, scale).values()]
    return sorted(found, key=lambda cell: int(cell.config.get("seed", 0)))


def _with_uses(name: str, scale: Scale, package: str) -> dict[str, Experiment]:
    experiment = load(name, package)
    used = {other: load(other, package) for other in experiment.used(scale)}
    return {**used, name: experiment}


def _checked(experiment: Experiment, scale: Scale) -> Mapping[str, Cell]:
    """The cells by id, of which there must be no two the same, and none that could only fail."""
    found: dict[str, Cell] = {}
    for cell in experiment.cells(scale):
        try:
            experiment.check(cell.config)
        except ValueError as error:
            raise Unknown(
                f"{experiment.name} at scale {scale}: a run that cannot be done: {error}"
            ) from error
        try:
            name = cell.id
        except (TypeError, ValueError) as error:
            raise Unknown(
                f"{experiment.name} at scale {scale}: a configuration that JSON cannot hold: "
                f"{error}."
            ) from error
        if name in found:
            raise Unknown(f"{experiment.name} at scale {scale}: two cells are the same, {name}.")
        found[name] = cell
    return found
