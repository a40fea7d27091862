"""`clip_model_`: every affine layer of a model within its bound."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn

from spectralclip._clipping.clip import Certify, ClipResult, clip_, restored_on_failure
from spectralclip._clipping.free_weights import Move
from spectralclip._common import Shape, positive_number, shown
from spectralclip._models import Compose, ExampleInputs, FoundLayer, Pairs, find_layers
from spectralclip._spectrum import spectral_norm

Targets: TypeAlias = float | Mapping[str, float] | Callable[[str, FoundLayer], float | None]
LEAVING_OUT = (
    "Layers are left out by giving max_norm, or with max_lipschitz proportions, by name, or as a "
    "function that returns None for them."
)

# Layers that share a weight, or are used at several sizes, pull at each other: so often at most.
PASSES = 5


def clip_model_(
    model: nn.Module,
    example_inputs: ExampleInputs,
    max_norm: Targets = 1.0,
    *,
    compose: Compose = "conv_bn",
    pairs: Pairs = (),
    tol: float = 1e-3,
    exact: bool = False,
    certify: Certify = False,
    move: Move = "first",
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> dict[str, ClipResult]:
    """Clip every affine layer of a model, in place, each as `clip_` does.

    Where a layer is used at several input sizes, the bound holds at each of them; where layers
    share a weight, it holds for each of them.

    Args:
        model: Any module.
        example_inputs: What the model is called with, as for `find_layers`.
        max_norm: One bound for all; or a bound for some layers by name, as `find_layers` names
            them; or a function of a layer's name and `FoundLayer`, which may return None for
            one that is to be left alone.
        compose: Which layers to bound together, as for `find_layers`: a dense layer or
            convolution and the following batch norm ("conv_bn"), "chains", or "none".
        pairs: Layers to bound together besides, by name; as for `find_layers`.
        tol: As for `clip_`.
        exact: As for `clip_`.
        certify: As for `clip_`.
        move: As for `clip_`.
        generator: Source of random vectors; by default the same for each layer.
        progress: Show a progress bar, where `rich` is installed and the output is a terminal.

    Returns:
        A `ClipResult` for each layer, by name. For one that was clipped several times, the
        distances of the steps are added up, and no lower bound is given.

    Raises:
        ValueError: A layer cannot be clipped; the whole model is as it was.

    Example:
        >>> import torch
        >>> from spectralclip import clip_model_
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Conv2d(1, 8, 3, padding=1),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Flatten(),
        ...     torch.nn.Linear(8 * 6 * 6, 10),
        ... )
        >>> results = clip_model_(model, torch.zeros(1, 1, 6, 6), max_norm=0.5)
        >>> [name for name, result in results.items() if result.norm_after < 0.501]
        ['0', '3']
    """
    layers = find_layers(model, example_inputs, compose, pairs=pairs)
    targets = layer_targets(layers, max_norm)
    return clip_found_layers_(
        layers,
        targets,
        tol=tol,
        exact=exact,
        certify=certify,
        move=move,
        generator=generator,
        progress=progress,
    )


def clip_found_layers_(
    layers: Mapping[str, FoundLayer],
    targets: Mapping[str, float],
    *,
    progress: bool = False,
    certify: Certify = False,
    **settings: Any,
) -> dict[str, ClipResult]:
    """Clip layers that have been found, each to its target, or none; `settings` as for `clip_`."""
    uses = [(name, shape) for name in targets for shape in layers[name].in_shapes]
    results: dict[str, ClipResult] = {}

    def clip(name: str, in_shape: Shape) -> bool:
        """Clip one use of a layer; whether that moved it."""
        try:
            modules = list(layers[name].modules)
            result = clip_(modules, in_shape, targets[name], certify=certify, **settings)
        except ValueError as error:
            raise ValueError(
                f"Layer {name!r} cannot be clipped, and the model is left as it was: {error} "
                f"({LEAVING_OUT})"
            ) from error
        results[name] = _together(results.get(name), result)
        return result.distance > 0

    seen = progress and sys.stderr.isatty()
    with restored_on_failure(p for layer in layers.values() for p in layer.parameters()):
        with shown(seen, "clip", len(uses)) as steps:
            moved = []
            for name, in_shape in uses:
                steps.begin(name)
                moved += [(name, in_shape)] if clip(name, in_shape) else []
                steps.done(name)
        tangles = {n for n, one in layers.items() if len(one.in_shapes) > 1 or one.shared}
        entangled = [use for use in uses if use[0] in tangles]
        for _ in range(PASSES - 1):
            if not any(use in entangled for use in moved):
                break
            moved = [use for use in entangled if clip(*use)]
        for name in dict.fromkeys(name for name, _ in entangled if not certify):
            # Others have pulled at the same weight since.
            modules, tol = list(layers[name].modules), settings.get("tol", 1e-3)
            norms = [spectral_norm(modules, shape, tol=tol) for shape in layers[name].in_shapes]
            results[name] = replace(results[name], norm_after=float(max(norms)))
    return results


def check_bounds(
    max_norm: Targets | None, max_lipschitz: float | None, proportions: Targets
) -> None:
    """Raise unless there is one bound, of layers or of the network."""
    if max_lipschitz is not None and max_norm is not None:
        raise ValueError("Give max_norm, or max_lipschitz for the whole network: not both.")
    if max_lipschitz is None and proportions != 1.0:
        raise ValueError(
            "proportions are those of the layers' bounds below max_lipschitz, and there is none: "
            "give max_lipschitz, or the bounds themselves by max_norm."
        )


def layer_targets(
    layers: Mapping[str, FoundLayer], max_norm: Targets, argument: str = "max_norm"
) -> dict[str, float]:
    """The bound of each layer that is to have one; errors name the argument that gave it."""
    if isinstance(max_norm, Mapping):
        unknown = [name for name in max_norm if name not in layers]
        if unknown:
            raise ValueError(
                f"{argument} names {unknown}, which are not among the affine layers found: "
                f"{list(layers)}. A layer that is bounded with the following batch norm has one "
                "name together; skipped_layers says what was left out, and why."
            )
        given = {name: max_norm[name] for name in layers if name in max_norm}
    elif callable(max_norm):
        answers = {name: max_norm(name, layer) for name, layer in layers.items()}
        given = {name: bound for name, bound in answers.items() if bound is not None}
    else:
        return dict.fromkeys(layers, positive_number(max_norm, argument))
    return {
        name: positive_number(bound, f"{argument} of layer {name!r}")
        for name, bound in given.items()
    }


def _together(before: ClipResult | None, result: ClipResult) -> ClipResult:
    """Two clips of one layer as one: the larger of the norms that were left."""
    if before is None:
        return result
    moved = result.distance > 0
    return replace(
        result,
        norm_before=max(before.norm_before, 0.0 if before.distance else result.norm_before),
        norm_after=result.norm_after if moved else max(before.norm_after, result.norm_after),
        distance=before.distance + result.distance,
        distance_lower_bound=None if moved else before.distance_lower_bound,
        num_matvecs=before.num_matvecs + result.num_matvecs,
        rounds=before.rounds + result.rounds,
        converged=before.converged and result.converged,
        flops=before.flops + result.flops,
    )
