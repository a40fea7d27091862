"""The runs of the three tables: the paper's training, at each scale.

At the scale `desk` learning rates are those of a short search, the same for all methods, and a
network without batch norm is trained by two recipes: the paper's, and one by which networks learn
under a bound. A run by the second has `recipe` in its configuration. Lines of a table that are more
than a method have `row` in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.accuracy.rates import chosen_rate, rate_key
from experiments.experiment import Config, Scale
from experiments.training import recipe as recipe_of

# The methods of the tables, and the library's own beside them.
RIVALS = ("miyato", "gouk", "senderovich", "delattre")
PAPERS = ("none", *RIVALS, "fast_clip")  # what its claims speak of
METHODS = (*PAPERS, "spectral_clip")
CLAMPED = tuple(f"{name}+bn" for name in (*RIVALS, "fast_clip"))  # with batch norms clipped too
CONCAT = "fast_clip_concat"
NAMES = {
    "none": "none (the original model)",
    "miyato": "Miyato et al. 2018",
    "gouk": "Gouk et al. 2021",
    "senderovich": "Senderovich et al. 2022",
    "delattre": "Delattre et al. 2023",
    # The published code also raises norms below 0.95 to 1; these runs lower them only.
    "fast_clip": "FastClip (published, not raising)",
    "fast_clip_printed": "FastClip, as printed",
    "fast_clip_concat": "FastClip-concat (not raising)",
    "spectral_clip": "SpectralClip (ours)",
    "spectral_clip_conv_bn": "SpectralClip on conv + BN (ours)",
    "spectral_clip_network": "SpectralClip, the network at 300 (ours)",
    "spectral_clip_center": "SpectralClip, the network at 10,000, CenterNorm (ours)",
    "spectral_clip_scalar": "SpectralClip, the network at 10,000, ScalarBatchNorm (ours)",
}
PAPER, BOUNDED = "paper", "bounded"  # recipes
# By which networks learn under a bound: docs/does-not-learn.md says why.
BOUNDED_RECIPE: dict[str, Any] = {
    "at_bound": True,
    "score_scale": 100.0,
    "optimizer": "adam",
    "weight_decay": 0.0,
    "lr_step": None,
}
UNHELD_SCALE = 10.0  # of the scores by that recipe, where no method holds the network
# Lines of tables that are more than a method: what their runs are set to.
ROWS: dict[str, dict[str, Any]] = {
    "spectral_clip_network": {"method": "spectral_clip", "max_lipschitz": 300.0},
    "spectral_clip_center": {
        "method": "spectral_clip",
        "norm": "center",
        "max_lipschitz": 1e4,
    },
    "spectral_clip_scalar": {
        "method": "spectral_clip_conv_bn",
        "norm": "scalar",
        "max_lipschitz": 1e4,
    },
}
MODELS = {"resnet18": "ResNet-18", "dla": "DLA", "small": "small network"}
DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
# What smoke runs use in their place, to need no files.
STAND_INS = {"mnist": "digits", "cifar10": "synthetic"}
CHANCE = 0.1  # all have ten classes
UNTRAINED = CHANCE + 0.05  # a network that is no better has not learned


@dataclass(frozen=True)
class Size:
    """How much of the paper's training a scale does."""

    width: int
    epochs: dict[str, int]
    train_images: int | None
    test_images: int | None
    batch: int
    seeds: dict[str, int]
    pgd_steps: int
    pgd_images: int
    cw_iterations: int
    cw_images: int
    without_batch_norm: Mapping[str, Any] = field(default_factory=dict)  # changes to the recipe
    changes: Mapping[str, Any] = field(default_factory=dict)  # to the recipe of all networks
    share: Mapping[str, float] = field(default_factory=dict)  # of the epochs, by model
    searched: bool = False  # whether learning rates are those of the search
    cifar_unit: float = 1.0  # of an attack's strength on CIFAR-10, in pixels


SIZES: dict[Scale, Size] = {
    "smoke": Size(
        width=4,
        epochs={"mnist": 1, "cifar10": 1},
        train_images=16,
        test_images=16,
        batch=8,
        seeds={"resnet18": 1, "dla": 1},
        pgd_steps=2,
        pgd_images=4,
        cw_iterations=2,
        cw_images=4,
    ),
    # Batches of 64 let the methods that act every 100 steps act at all in two epochs. Of 97 steps
    # no period of 50 or 100 is a divisor, so that norms are not taken just after a round.
    "laptop": Size(
        width=8,
        epochs={"mnist": 2, "cifar10": 2},
        train_images=97 * 64,
        test_images=2000,
        batch=64,
        seeds={"resnet18": 3, "dla": 1},
        pgd_steps=50,
        pgd_images=200,
        cw_iterations=100,
        cw_images=100,
        # Without batch norms gradients vanish with depth: by the paper's recipe all weights do is
        # decay, for so few steps. Adam alone does not care how small gradients are.
        without_batch_norm={"optimizer": "adam", "lr": 3e-3, "weight_decay": 0.0, "lr_step": None},
    ),
    # One cycle of the rate and all images: most of the accuracy comes while the rate falls.
    "desk": Size(
        width=8,
        epochs={"mnist": 4, "cifar10": 10},
        train_images=None,
        test_images=None,
        batch=128,
        seeds={"resnet18": 3, "dla": 3},
        pgd_steps=50,
        pgd_images=500,
        cw_iterations=200,
        cw_images=200,
        changes={"schedule": "one_cycle", "lr_step": None, "channels_last": True},
        share={"dla": 0.5},
        searched=True,
        # The paper attacked normalized images, whose unit is their deviation: about a quarter.
        cifar_unit=0.25,
    ),
    # The paper does not say how many seeds it took.
    "paper": Size(
        width=64,
        epochs={"mnist": 120, "cifar10": 200},
        train_images=None,
        test_images=None,
        batch=128,
        seeds={"resnet18": 5, "dla": 5},
        pgd_steps=50,
        pgd_images=10_000,
        cw_iterations=1000,
        cw_images=10_000,
    ),
}


def plain_method(method: str) -> str:
    """A method's name without settings of its own: "gouk:every=5+bn" is "gouk+bn"."""
    base, plus, _ = method.partition("+bn")
    return base.partition(":")[0] + plus


def row_of(config: Config) -> str:
    """The line of a table that a run belongs to: its method, or one of `ROWS`."""
    return str(config.get("row") or plain_method(str(config.get("method"))))


def method_name(method: str) -> str:
    """What a method, or another line of a table, is called in tables and charts."""
    plain, plus, _ = plain_method(method).partition("+bn")
    return f"{NAMES.get(plain, plain)}{', BN clipped' if plus else ''}"


def short_name(method: str) -> str:
    """The same in a sentence: without what stands in brackets."""
    if method == "none":
        return "no method"
    plain = method_name(method).partition(" (")[0]
    return f"{plain} and batch norms clipped" if method.endswith("+bn") else plain


def configs(
    scale: Scale,
    *,
    model: str,
    datasets: Sequence[str],
    batch_norm: bool,
    methods: Sequence[str],
    measure: str = "layers",
    attacked: bool = True,
    seeds: int | None = None,
    recipe: str = PAPER,
) -> list[dict[str, Any]]:
    """Configurations of one model, for each data set, method and seed.

    Args:
        scale: The scale.
        model: "resnet18" or "dla".
        datasets: Of "mnist" and "cifar10"; a smoke run takes what stands in for them.
        batch_norm: Whether the model has batch norms.
        methods: By name, or other lines of a table, from `ROWS`.
        measure: Which true norms are taken after each epoch.
        attacked: Whether the trained models are attacked.
        seeds: How many, if not as many as the tables have of the model.
        recipe: Of the training.

    Returns:
        Where rates are those of the search, those of which the rate is chosen already.
    """
    found = [
        _config(scale, model, dataset, batch_norm, method, recipe, seed, measure, attacked)
        # A grid that is stopped half way has some seeds of every method, and not some methods.
        for seed in range(seeds or SIZES[scale].seeds[model])
        for dataset in datasets
        for method in methods
    ]
    return [one for one in found if one is not None]


def _config(
    scale: Scale,
    model: str,
    dataset: str,
    batch_norm: bool,
    method: str,
    recipe: str,
    seed: int,
    measure: str,
    attacked: bool,
) -> dict[str, Any] | None:
    made = training(scale, model, dataset, batch_norm, method, recipe)
    words = [model, made["dataset"], "bn" if batch_norm else "no bn", method]
    words += [recipe] if recipe != PAPER else []
    made |= {"label": f"{' '.join(words)} seed {seed}", "seed": seed}
    made |= _tests(scale, dataset, measure, attacked)
    if not SIZES[scale].searched:
        return made
    rate = chosen_rate(rate_key(dataset, batch_norm, recipe, method))
    return None if rate is None else made | {"lr": rate}


def training(
    scale: Scale, model: str, dataset: str, batch_norm: bool, method: str, recipe: str
) -> dict[str, Any]:
    """How a network is trained, with the recipe's own learning rate."""
    size = SIZES[scale]
    epochs = max(1, round(size.share.get(model, 1.0) * size.epochs[dataset]))
    made = {
        "dataset": STAND_INS[dataset] if scale == "smoke" else dataset,
        "model": model,
        "width": size.width,
        "batch_norm": batch_norm,
        "setting": None,
        "method": method,
        "max_norm": 1.0,
        "train_images": size.train_images,
        "test_images": size.test_images,
        **scaled_recipe(dataset, epochs=epochs, batch=size.batch),
        **size.changes,
        **({} if batch_norm else size.without_batch_norm),
    }
    if size.searched and made["optimizer"] == "sgd":
        made["nesterov"] = True
    if recipe == BOUNDED:
        made |= {**BOUNDED_RECIPE, "recipe": BOUNDED}
        made |= {"score_scale": UNHELD_SCALE} if method == "none" else {}
    return made | ({**ROWS[method], "row": method} if method in ROWS else {})


def scaled_recipe(dataset: str, *, epochs: int, batch: int) -> dict[str, Any]:
    """The paper's recipe, with SGD's step in proportion to the batch."""
    found = recipe_of(dataset)
    if found["optimizer"] == "sgd":
        found["lr"] = found["lr"] * batch / found["batch"]
    return {**found, "epochs": epochs, "batch": batch}


def _tests(scale: Scale, dataset: str, measure: str, attacked: bool) -> dict[str, Any]:
    """What is done with a network besides training it."""
    return {
        "attacks": _attacks(dataset, SIZES[scale]) if attacked else None,
        # Normalized images cut to [0, 1] are what the paper attacked of CIFAR-10.
        "protocol": "both" if attacked and (scale, dataset) == ("paper", "cifar10") else "pixels",
        "measure": measure,
        # What no claim and no picture asks for took a fifteenth of the hours.
        **({"test_epochs": False} if scale == "desk" else {}),
    }


def _attacks(dataset: str, size: Size) -> dict[str, dict[str, Any]]:
    strength, unit = {"mnist": (0.1, 1.0), "cifar10": (0.02, size.cifar_unit)}[dataset]
    return {
        "pgd": {"eps": strength * unit, "steps": size.pgd_steps, "images": size.pgd_images},
        "cw": {
            "confidence": 0.1,
            "iterations": size.cw_iterations,
            "initial_const": strength * unit**2,  # beside the square of a distance
            "images": size.cw_images,
            # In a tenth of the iterations, steps of the usual length hardly move black pixels.
            "lr": 0.1 if dataset == "mnist" and size.cw_iterations < 1000 else 0.01,
        },
    }
