"""The loop itself, which knows methods only by what is attached."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from experiments import methods
from experiments.attacks._inputs import Protocol as AttackProtocol
from experiments.experiment import Config, Context, Result
from experiments.measuring.norms import true_norms
from experiments.training.batches import batches, count, pixels
from experiments.training.board import Board
from experiments.training.config import ATTACKS, TrainConfig
from experiments.training.evaluate import attacked_accuracy, test_accuracy
from experiments.training.process_group import ProcessGroup
from experiments.training.run import Run, prepared
from spectralclip import Attachment

# Of the progress bar, where there are attacks.
SHARE_OF_TRAINING = 0.8


class TrainingDiverged(RuntimeError):
    """The loss is no number any more."""


def train(config: Config, context: Context) -> Result:
    """Train a network with a method, measure it after each epoch, and attack it at the end.

    After each epoch the state goes to `context.scratch`; a run that finds one there goes on from
    it. Under `torchrun` the processes share each batch, and all return the same.

    Args:
        config: What `TrainConfig.of` takes.
        context: Where to run.

    Returns:
        "result" and "timing". The result has "epochs", a list of dictionaries with "epoch" (from
        1), "loss", "train_accuracy", "test_accuracy", "norms" (the true ones, by layer) and
        "tracked" (the method's own estimates); of the finished model "test_accuracy",
        "pgd_accuracy" and "cw_accuracy" (None where there was no attack), with the protocol
        "both" once more in "paper_protocol", as the paper attacks; "norms" at the end,
        "final_norms" after our own method has been finalized (None for others); "parameters"; and
        "layers", the names of those measured. The timing has the seconds of training in each
        epoch (of the processor, on one), of the attacks, and of all, measuring included.

    Raises:
        TrainingDiverged: The loss is NaN or infinite.
        ValueError: A setting makes no sense.
    """
    settings = TrainConfig.of(config)
    with surroundings(context):
        group = ProcessGroup.joined(context.device)
        run = prepared(settings, context, group)
        run.resume()
        board = Board(context.scratch.name, len(run.epochs) + 1) if group.rank == 0 else None
        while len(run.epochs) < settings.epochs:
            run.epochs.append(_epoch(run))
            run.save()
            if board is not None:
                board.write(run.epochs[-1])
        if board is not None:
            board.close()
        return _finished(run)


def steps(config: Config, context: Context) -> Iterator[None]:
    """Train, and pause after each step: trainings that are timed take turns.

    Nothing is measured and nothing is stored. It ends with the last epoch, and is to be called
    within `surroundings`.

    Raises:
        TrainingDiverged: The loss is NaN or infinite.
    """
    run = prepared(TrainConfig.of(config), context, ProcessGroup.joined(context.device))
    run.wrapped.train()
    for epoch in range(run.config.epochs):
        for _ in _steps(run, epoch):
            yield


@contextmanager
def surroundings(context: Context) -> Iterator[None]:
    """The number of threads and the algorithms that the last bits depend on."""
    threads = torch.get_num_threads()
    with ExitStack() as stack:
        if context.device.startswith("cuda"):
            stack.enter_context(
                torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
            )
        torch.set_num_threads(context.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _epoch(run: Run) -> dict[str, Any]:
    """Train for one more epoch, and measure."""
    config, group, epoch = run.config, run.group, len(run.epochs)
    run.wrapped.train()
    losses, right, seen = 0.0, 0.0, 0.0
    clock = _clock(group.device)
    start = clock()
    for loss, hits, images in _steps(run, epoch):
        losses, right, seen = losses + loss, right + hits, seen + images
    run.seconds.append(clock() - start)
    losses, right, seen = group.total([losses, right, seen])
    group.agree_on_buffers(run.model)
    _require_finite(run)
    run.model.eval()
    return {
        "epoch": epoch + 1,
        "loss": losses / seen,
        "train_accuracy": right / seen,
        "test_accuracy": test_accuracy(run.model, run.data, config, group)
        if config.test_epochs
        else None,
        "norms": true_norms(run.model, run.layers),
        "tracked": {n: float(x) for each in run.attachments for n, x in each.norms().items()},
    }


def _steps(run: Run, epoch: int) -> Iterator[tuple[float, int, int]]:
    """The steps of an epoch, each with its summed loss, its hits, and the images it saw."""
    config, group = run.config, run.group
    number = count(config, len(run.data.train_images), group.size)
    for index, batch in enumerate(batches(run.data, config, epoch, group.size)):
        # A cycle begins above zero, and its last step is not one of length zero.
        for parameters in run.optimizer.param_groups:
            parameters["lr"] = config.rate(epoch + (index + 0.5) / number)
        found = _step(run, *batch, f"epoch {epoch + 1}, batch {index + 1}")
        share = (epoch + (index + 1) / number) / config.epochs
        run.say(share * _training_share(config), "training")
        yield found


def _step(run: Run, images: Tensor, labels: Tensor, where: str) -> tuple[float, int, int]:
    """One step of the optimizer: the summed loss, the hits, and the images of this process."""
    config, group, whole = run.config, run.group, len(labels)
    images, labels = group.share(images, labels)
    inputs, labels = pixels(images, config, group.device), labels.to(group.device)
    run.optimizer.zero_grad(set_to_none=True)
    with torch.autocast(group.device.type, dtype=torch.bfloat16, enabled=config.amp):
        scores = run.wrapped(inputs)
        summed = functional.cross_entropy(scores.float(), labels, reduction="sum")
    # Processes average their gradients, and their shares of a batch may differ by an image.
    loss = summed * (group.size / whole)
    for attachment in run.attachments:
        loss = loss + attachment.penalty()
    # The sum of all processes: if one of them alone gave up, the others would wait for it.
    (value,) = group.total([float(loss.detach())])
    if not math.isfinite(value):
        raise TrainingDiverged(f"the loss is {value} at {where}{_remedy(run)}")
    loss.backward()
    run.optimizer.step()
    hits = int((scores.detach().argmax(1) == labels).sum())
    return float(summed.detach()), hits, len(labels)


def _clock(device: torch.device) -> Callable[[], float]:
    """Seconds: of the processor where that does the work, since runs share it with others."""
    return time.process_time if device.type == "cpu" else time.perf_counter


def _require_finite(run: Run) -> None:
    """The last step of an epoch has no loss behind it that would tell."""
    for name, tensor in run.model.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise TrainingDiverged(
                f"{name!r} is not finite after epoch {len(run.epochs) + 1}{_remedy(run)}"
            )


def _remedy(run: Run) -> str:
    config = run.config
    return (
        f", with method {config.method!r} and learning rate {config.rate(len(run.epochs)):g}: "
        "lower the rate, or train with batch norm."
    )


def _training_share(config: TrainConfig) -> float:
    return SHARE_OF_TRAINING if config.attacks else 1.0


def _finished(run: Run) -> Result:
    """Make the model plain, and attack it."""
    config, group, model = run.config, run.group, run.model
    model.eval()
    norms = run.epochs[-1]["norms"] if run.layers else true_norms(model, run.at_the_end)
    ours = methods.is_ours(config.method)
    for attachment in run.attachments:
        _end(attachment, finalize=ours)
    final = true_norms(model, run.at_the_end) if ours else None
    model.eval().requires_grad_(False)
    accuracy = test_accuracy(model, run.data, config, group)
    start = time.perf_counter()
    robust = _attacked(run)
    attacks = time.perf_counter() - start
    return {
        "result": {
            "epochs": run.epochs,
            "test_accuracy": accuracy,
            **robust,
            "norms": norms,
            "final_norms": final,
            "parameters": run.parameters,
            "layers": list(run.at_the_end),
        },
        "timing": {"epochs": run.seconds, "attacks": attacks, "total": run.elapsed()},
    }


def _end(attachment: Attachment, *, finalize: bool) -> None:
    if finalize:
        attachment.finalize()
    else:
        attachment.remove()


def _attacked(run: Run) -> dict[str, Any]:
    """The accuracies under each attack, by the protocol, or by both."""
    protocol = run.config.protocol
    protocols: tuple[AttackProtocol, ...] = (
        ("pixels", "paper") if protocol == "both" else (protocol,)
    )
    total = len(protocols) * len(ATTACKS)

    def accuracies(place: int) -> dict[str, float | None]:
        return {
            f"{name}_accuracy": attacked_accuracy(
                name,
                protocols[place],
                run.model,
                run.data,
                run.config,
                run.group,
                partial(_say, run, name, place * len(ATTACKS) + number, total),
            )
            for number, name in enumerate(ATTACKS)
        }

    first, *other = (accuracies(place) for place in range(len(protocols)))
    return {**first, "paper_protocol": other[0]} if other else dict(first)


def _say(run: Run, name: str, place: int, total: int, share: float) -> None:
    done = (place + min(share, 1.0)) / total
    run.say(SHARE_OF_TRAINING + (1 - SHARE_OF_TRAINING) * done, f"attack {name}")
