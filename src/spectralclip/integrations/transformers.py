"""A callback for the Trainer of `transformers`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._common import missing_package
from spectralclip._models import ExampleInputs
from spectralclip._training import NormWarning
from spectralclip.integrations._callback import NormCallback

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing_package(__name__, "transformers", "integrations", error) from error

__all__ = ["STATE_FILE", "SpectralClipCallback"]

STATE_FILE = "spectralclip.pt"


@final
class SpectralClipCallback(NormCallback, TrainerCallback):
    """Keeps the norms of a model's layers in check while a `transformers.Trainer` trains it.

    The method is attached when training begins and removed when it ends. Each checkpoint gets a
    file `spectralclip.pt` beside the model's, from which a resumed run goes on exactly. The
    Trainer does not tell its callbacks where it resumes from: the file is looked for in
    `resume_from`, in `args.resume_from_checkpoint`, and in the folder of that step under
    `output_dir`, and taken where it belongs to the weights that the model has.

    The Trainer does not tell its callbacks of exceptions either. After one, call `remove()`;
    the next `train()` does it by itself. Norms are added to the logs of those callbacks that come
    after this one, and to the Trainer's history.

    For methods with a penalty, add `callback.penalty()` to the loss, in your own `compute_loss`.

    Args:
        example_inputs: What the model is called with, such as what a tokenizer returns. By default
            the model's own `dummy_inputs`.
        resume_from: The checkpoint folder that `trainer.train(resume_from_checkpoint=...)` is
            given, where it is not under `output_dir`.
        settings: The other arguments of `spectralclip.integrations.NormCallback`. With
            `finalize=True` layers are clipped after the best model has been loaded, if the Trainer
            does that.

    Example:
        >>> import torch
        >>> from spectralclip.integrations.transformers import SpectralClipCallback
        >>> inputs = {"input_ids": torch.zeros(1, 16, dtype=torch.long)}
        >>> callback = SpectralClipCallback(inputs, max_norm=2.0)
        >>> # trainer = transformers.Trainer(model, args, ..., callbacks=[callback])
        >>> callback.norms()
        {}
    """

    _own_inputs = "dummy_inputs"

    def __init__(
        self,
        example_inputs: ExampleInputs | None = None,
        *,
        resume_from: str | Path | None = None,
        **settings: Any,
    ) -> None:
        """Take note of the settings; the method is attached when training begins."""
        super().__init__(example_inputs, **settings)
        self._resume_from = resume_from

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach, and go on from a checkpoint's state."""
        model = kwargs["model"]
        saved = self._saved(args, state, model) if state.global_step else None
        self._start(model, [kwargs["optimizer"]], saved)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the state beside the checkpoint that has just been written."""
        content = {"run": self._state(), "weights": _fingerprint(kwargs["model"])}
        folder = _folder(args, state)
        # In a search for hyperparameters, the Trainer writes elsewhere and does not say where.
        if args.should_save and folder.is_dir():
            torch.save(content, folder / STATE_FILE)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the norms to what is logged of the training."""
        logs: dict[str, float] | None = kwargs.get("logs")
        if self._log and logs is not None and "loss" in logs:
            logged = self._logged()
            logs.update(logged)
            state.log_history[-1].update(logged)  # a copy of the logs, made before

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Finalize if asked to, and remove."""
        self._end()

    def _saved(self, args: Any, state: Any, model: nn.Module) -> dict[str, Any] | None:
        """The state of the checkpoint that the model's weights come from."""
        named = [self._resume_from, args.resume_from_checkpoint]
        places = [Path(place) for place in named if isinstance(place, (str, Path))]
        files = [place / STATE_FILE for place in (*places, _folder(args, state))]
        now = _fingerprint(model)
        for file in dict.fromkeys(filter(Path.is_file, files)):
            content = torch.load(file, map_location="cpu", weights_only=True)
            if content["weights"] == now:
                run: dict[str, Any] = content["run"]
                return run
        warnings.warn(
            f"Training resumes at step {state.global_step}, but the norms' state that belongs to "
            f"these weights was not found in {[str(file) for file in files]}, so that it starts "
            "anew: pass the checkpoint's folder as resume_from.",
            NormWarning,
            stacklevel=2,
        )
        return None


def _folder(args: Any, state: Any) -> Path:
    """Where the Trainer keeps the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _fingerprint(model: nn.Module) -> Mapping[str, float]:
    """An entry of each weight: two runs never agree on all of them."""
    return {
        name: float(parameter.detach().flatten()[0])
        for name, parameter in model.named_parameters()
        # A shard has its first entry on one process only.
        if type(parameter) in (Tensor, nn.Parameter) and parameter.numel()
    }
