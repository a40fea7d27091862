"""`audit`: every affine layer of a model, and the network as a whole."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from spectralclip._audit.describe import type_name
from spectralclip._audit.examine import Request
from spectralclip._audit.heads import HEADS, HeadAudit, audited_heads
from spectralclip._audit.layer import LayerAudit
from spectralclip._audit.left_out import NETWORK, NOT_CERTIFIED, with_verdicts
from spectralclip._audit.record import Audit
from spectralclip._audit.rows import Book, Row, find_rows, jobs_for
from spectralclip._audit.scores import Holding, held_by, require_holding, scores_of
from spectralclip._audit.work import Workers, check_workers, examined, from_first_rank
from spectralclip._bounds import check_request
from spectralclip._common import Progress, checked_seed, shown
from spectralclip._lipschitz import NetworkBound, network_bound
from spectralclip._models import (
    ExampleInputs,
    Survey,
    left_as_it_was,
    tensors_in,
    unwrapped,
    with_kwargs,
)


def audit(
    model: nn.Module,
    example_inputs: ExampleInputs,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    k: int = 10,
    tol: float = 0.01,
    failure: float = 1e-6,
    deterministic: bool = False,
    seed: int = 0,
    lipschitz: bool = True,
    attachment: Holding | None = None,
    workers: Workers = 1,
    progress: Progress = False,
) -> Audit:
    """What each affine layer of a model does to lengths, and what the network does.

    Each affine layer is examined by itself, and each chain of layers that directly follow each
    other (a convolution and its batch norm, for example) as one operator: an interval that holds
    its norm, its leading singular values, its Frobenius norm, what torch's `spectral_norm` would
    take for its norm, and a remark. For each attention head there are intervals around the norms
    of its two products, as `attention_heads` finds them. Of the network there are a bound, and how
    much of what differs between inputs arrives at its output. The model counts as in evaluation,
    and is left as it was.

    Args:
        model: Any module.
        example_inputs: What the model is called with, with the batch dimension: a tensor, a tuple
            of positional arguments, or a dictionary of keyword arguments.
        example_kwargs: Keyword arguments, beside positional ones:
            `audit(model, (tokens,), {"mask": mask})` for `model(tokens, mask=mask)`.
        k: How many singular values of each layer.
        tol: Relative width of the intervals to stop at.
        failure: Accepted probability that the upper end of one layer's interval is too small.
            For the network the probabilities of its layers add up.
        deterministic: Accept only upper ends that rest on no probability. Layers that have none
            are left out, and `skipped` says so.
        seed: Of the random starts.
        lipschitz: Also bound the Lipschitz constant of the whole network.
        attachment: What `attach` returned for this model: then the audit also has the bound of
            each layer that is held, and the share of a step that clipping undoes there.
        workers: How many processes examine layers at once, each with one thread; they import the
            script that is running, so that its own work has to stand below
            `if __name__ == "__main__":`. With "ranks" the ranks of `torch.distributed` share the
            layers out, and each returns the same audit. A model under `fully_shard` is audited
            with 1, on every rank at once.
        progress: True for a progress bar, or a function of the number of steps done, the number
            of all, and the name of the last.

    Returns:
        An `Audit`.

    Raises:
        ValueError: An argument is out of range, or weights have no sizes or values yet. Errors
            of the model itself, at an input that it does not take, are passed on.

    Example:
        >>> import torch
        >>> from spectralclip import audit
        >>> conv, norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        >>> found = audit(torch.nn.Sequential(conv, norm), torch.zeros(1, 3, 8, 8))
        >>> [layer.name for layer in found.layers]
        ['0', '1', '0+1']
        >>> found["0+1"].norm.width <= 0.01
        True
    """
    request = _request(k, tol, failure, deterministic, seed)
    _check_model(model)
    example_inputs = with_kwargs(example_inputs, example_kwargs)
    bare = unwrapped(model)
    check_workers(workers, bare)
    started, ranks = time.perf_counter(), workers == "ranks"
    survey = Survey.of(model, example_inputs)
    rows = find_rows(survey)
    require_holding(attachment, [row.layer.name for row in rows])
    jobs = jobs_for(rows, survey)
    quiet = ranks and dist.get_rank() > 0
    with shown(False if quiet else progress, "audit", len(jobs) + lipschitz) as steps:
        with left_as_it_was(bare):
            findings = examined(list(jobs.values()), request, workers, steps)
        book = Book(dict(zip(jobs, findings, strict=True)), request)

        def finish() -> Audit:
            bound = None
            if lipschitz:
                steps.begin(NETWORK)
                bound = _network(survey, example_inputs, book, request)
                steps.done(NETWORK)
            with left_as_it_was(bare):
                heads = audited_heads(bare, example_inputs, survey)
            seconds = time.perf_counter() - started
            made = _assembled(survey, example_inputs, rows, book, bound, heads, request, seconds)
            layers = tuple(held_by(attachment, layer) for layer in made.layers)
            return replace(made, layers=layers, scores=scores_of(bare, example_inputs))

        result: Audit = from_first_rank(finish) if ranks else finish()
    return result


def _request(k: int, tol: float, failure: float, deterministic: bool, seed: int) -> Request:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k must be a positive number of singular values, got {k!r}.")
    check_request(tol, failure)
    if isinstance(tol, bool) or not tol < 1:
        raise ValueError(f"tol must be a number between 0 and 1, such as 0.01, got {tol!r}.")
    return Request(k, float(tol), failure, bool(deterministic), checked_seed(seed))


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}.")
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(
                f"{name!r} of {type(model).__name__} is on the meta device and has no values: load "
                "the weights before the audit."
            )


def _network(
    survey: Survey, example_inputs: ExampleInputs, book: Book, request: Request
) -> NetworkBound | str:
    """The network's Lipschitz interval, from the norms in the book; or why there is none."""
    try:
        return network_bound(
            survey.model,
            example_inputs,
            book.interval_of,
            lambda modules, shape: request.bounded(modules, shape)[0],
            request.tol,
            request.seed,
            survey,
        )
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error) or type(error).__name__


def _assembled(
    survey: Survey,
    example_inputs: ExampleInputs,
    rows: Sequence[Row],
    book: Book,
    bound: NetworkBound | str | None,
    heads: tuple[HeadAudit, ...] | str,
    request: Request,
    seconds: float,
) -> Audit:
    model, said = survey.model, dict(book.layers(rows))
    errors = {
        name: NOT_CERTIFIED + one
        for name, one in (*said.items(), (NETWORK, bound), (HEADS, heads))
        if isinstance(one, str)
    }
    inputs = tensors_in(example_inputs)
    return Audit(
        model=type_name(model),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        inputs=tuple(tuple(tensor.shape) for tensor in inputs),
        layers=tuple(one for one in said.values() if isinstance(one, LayerAudit)),
        skipped={**with_verdicts(model, survey.skipped()), **errors},
        lipschitz=None if isinstance(bound, str) else bound,
        settings=request._asdict(),
        environment=_environment(model, seconds),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        heads=() if isinstance(heads, str) else heads,
    )


def _environment(model: nn.Module, seconds: float) -> dict[str, Any]:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return {
        "spectralclip": version("spectralclip"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 3),
    }
