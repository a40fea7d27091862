"""A method on its way through training runs that somebody else's loop conducts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from spectralclip._clipping import Certify, ClipResult, Targets
from spectralclip._models import ExampleInputs, Pairs
from spectralclip._training import Attachment, Method, Schedule, SpectralClip, attach
from spectralclip.integrations._dashboard import record_of
from spectralclip.integrations._heads import LargestHeads


class NormCallback:
    """What the callbacks have in common: an attachment from the start of a run to its end.

    For methods with a penalty, add `callback.penalty()` to the loss.

    Args:
        example_inputs: What the model is called with, with the batch dimension: a tensor, a tuple
            of tensors, or a dict of them for keywords. By default the model's own.
        method: As for `attach`.
        max_norm: As for `attach`.
        max_lipschitz: As for `attach`.
        proportions: As for `attach`.
        schedule: As for `attach`.
        pairs: As for `attach`.
        seed: As for `attach`.
        finalize: End the training with a full `clip_` of each layer. Checkpoints that have been
            written before have the weights of before.
        certify: As for `Attachment.finalize`.
        log: Log norms, bounds and pressures, by the names of `NormRecord.scalars`.
        log_inputs: A batch for `Attachment.report`: log the network's bound, spread and gain too.
        log_heads: Example inputs for `attention_heads`: log the largest head norms of each
            attention layer too, whether or not they are held.

    Attributes:
        attachment: What is at work during training, and None at other times.

    Raises:
        TypeError: `method` is not a `Method`.
        ValueError: `certify` without `finalize`; later, when training starts: there are no example
            inputs, no heads to log, or what `attach` raises.
    """

    _own_inputs = ""  # the model's attribute that has example inputs

    def __init__(
        self,
        example_inputs: ExampleInputs | None = None,
        *,
        method: Method | None = None,
        max_norm: Targets | None = None,
        max_lipschitz: float | None = None,
        proportions: Targets = 1.0,
        schedule: Schedule | None = None,
        pairs: Pairs = (),
        seed: int = 0,
        finalize: bool = False,
        certify: Certify = False,
        log: bool = True,
        log_inputs: ExampleInputs | None = None,
        log_heads: ExampleInputs | None = None,
    ) -> None:
        """Take note of the settings; the method is attached when training starts."""
        super().__init__()
        method = SpectralClip() if method is None else method
        if not isinstance(method, Method):
            raise TypeError(f"method must be a Method such as SpectralClip(), got {method!r}.")
        if certify and not finalize:
            raise ValueError(
                f"certify={certify!r} is about how layers are finalized: pass finalize=True too."
            )
        self._method, self._example_inputs = method, example_inputs
        self._log, self._log_inputs, self._log_heads = log, log_inputs, log_heads
        self._heads: LargestHeads | None = None
        self._settings: dict[str, Any] = {
            "max_norm": max_norm,
            "max_lipschitz": max_lipschitz,
            "proportions": proportions,
            "schedule": schedule,
            "pairs": tuple(pairs),
            "seed": seed,
        }
        self._finalize, self._certify = finalize, certify
        self.attachment: Attachment | None = None
        self._results: dict[str, ClipResult] = {}
        # The state outlives the attachment: checkpoints are also written after the end.
        self._latest: dict[str, Any] = {}

    @property
    def results(self) -> dict[str, ClipResult]:
        """What the latest finalization did, by layer."""
        return dict(self._results)

    def penalty(self) -> Tensor:
        """What to add to the loss; zero outside of training.

        Where micro-batches accumulate a gradient, each of them adds it: divide it by their number
        where the loop does not divide the loss.
        """
        return torch.zeros(()) if self.attachment is None else self.attachment.penalty()

    def norms(self) -> dict[str, float]:
        """The latest norm of each layer, as of `Attachment.norms`."""
        return {} if self.attachment is None else dict(self.attachment.norms())

    def remove(self) -> None:
        """Detach from the optimizer without finalizing, as after an exception."""
        # Several processes gather their state together, and others may be gone by now.
        if not _among_others():
            self._state()
        self._detach()

    def _logged(self) -> dict[str, float]:
        if self.attachment is None:
            return {}
        heads = None if self._heads is None else self._heads.read()
        return record_of(self.attachment, inputs=self._log_inputs, heads=heads).scalars()

    def _start(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        state: Mapping[str, Any] | None,
        convert: Callable[[ExampleInputs], ExampleInputs] = lambda inputs: inputs,
    ) -> None:
        """Attach to the optimizers, and go on from a state if there is one."""
        inputs = self._example_inputs
        if inputs is None:
            inputs = getattr(model, self._own_inputs, None)
        if inputs is None:
            raise ValueError(
                f"SpectralClipCallback has to run {type(model).__name__} once to find its layers, "
                "and has no input for it: pass example_inputs to the callback, such as one batch "
                f"without labels, or set {self._own_inputs} in the model."
            )
        self.remove()  # what a run that broke off has left behind
        self._latest = {}
        device = next((p.device for p in model.parameters()), None)
        inputs = moved(convert(inputs), device)
        if self._log_inputs is not None:
            self._log_inputs = moved(convert(self._log_inputs), device)
        if self._log_heads is not None:
            self._heads = LargestHeads(model, moved(convert(self._log_heads), device))
        self.attachment = attach(model, optimizers, inputs, method=self._method, **self._settings)
        if state:
            try:
                self.attachment.load_state_dict(state)
            except BaseException:
                self._detach()
                raise

    def _state(self) -> dict[str, Any]:
        """The state of now, or that at the end of the latest run."""
        if self.attachment is not None:
            self._latest = self.attachment.state_dict()
        return dict(self._latest)

    def _end(self) -> None:
        """The end of a run, as it should be: finalize if that was asked for, and remove."""
        self._state()
        try:
            if self._finalize and self.attachment is not None:
                self._results = self.attachment.finalize(certify=self._certify)
        finally:
            self._detach()

    def _detach(self) -> None:
        if self.attachment is not None:
            self.attachment.remove()
        self.attachment = self._heads = None


def moved(inputs: ExampleInputs, device: torch.device | None) -> ExampleInputs:
    """Example inputs on a device."""
    plain = dict(inputs) if isinstance(inputs, Mapping) else inputs  # such as a BatchEncoding
    on_device: ExampleInputs = tree_map_only(Tensor, lambda x: x.to(device), plain)
    return on_device


def _among_others() -> bool:
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
