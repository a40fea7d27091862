"""A method on its way through training runs that somebody else's loop conducts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from spectralclip._clipping import ClipResult, Targets
from spectralclip._models import ExampleInputs, Pairs
from spectralclip._training import Attachment, Method, Schedule, attach

Certify: TypeAlias = bool | Literal["deterministic"]


@final
class Run:
    """What the callbacks have in common: an attachment from the start of a run to its end.

    Its state outlives it: checkpoints are also written after the end.

    Attributes:
        attachment: What is at work now, if anything is.
        results: What the latest finalization did, by layer.
    """

    def __init__(
        self,
        method: Method,
        *,
        max_norm: Targets,
        schedule: Schedule | None,
        pairs: Pairs,
        seed: int,
        finalize: bool,
        certify: Certify,
    ) -> None:
        if not isinstance(method, Method):
            raise TypeError(f"method must be a Method such as SpectralClip(), got {method!r}.")
        if certify and not finalize:
            raise ValueError(
                f"certify={certify!r} is about how layers are finalized: pass finalize=True too."
            )
        self.method, self.results = method, dict[str, ClipResult]()
        self.attachment: Attachment | None = None
        self._max_norm, self._schedule, self._seed = max_norm, schedule, seed
        self._pairs, self._finalize, self._certify = tuple(pairs), finalize, certify
        self._latest: dict[str, Any] = {}

    def start(
        self,
        model: nn.Module,
        example_inputs: ExampleInputs,
        optimizers: Sequence[Optimizer],
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Attach to the optimizers, and go on from a state if there is one."""
        self.remove()  # what a run that broke off has left behind
        self._latest = {}
        self.attachment = attach(
            self.method,
            model,
            moved(example_inputs, next((p.device for p in model.parameters()), None)),
            optimizers,
            max_norm=self._max_norm,
            schedule=self._schedule,
            pairs=self._pairs,
            seed=self._seed,
        )
        if state:
            try:
                self.attachment.load_state_dict(state)
            except BaseException:
                self._detach()
                raise

    def penalty(self) -> Tensor:
        """The penalty of the attachment; zero while there is none."""
        return torch.zeros(()) if self.attachment is None else self.attachment.penalty()

    def norms(self) -> dict[str, float]:
        """The latest norm of each layer."""
        return {} if self.attachment is None else dict(self.attachment.norms())

    def state_dict(self) -> dict[str, Any]:
        """The state of now, or that at the end of the latest run."""
        if self.attachment is not None:
            self._latest = self.attachment.state_dict()
        return dict(self._latest)

    def end(self) -> None:
        """The end of a run, as it should be: finalize if that was asked for, and remove."""
        self.state_dict()
        try:
            if self._finalize and self.attachment is not None:
                self.results = self.attachment.finalize(certify=self._certify)
        finally:
            self._detach()

    def remove(self) -> None:
        """Remove without finalizing, as after an exception."""
        # Several processes gather their state together, and others may be gone by now.
        if not _among_others():
            self.state_dict()
        self._detach()

    def _detach(self) -> None:
        if self.attachment is not None:
            self.attachment.remove()
        self.attachment = None


def moved(inputs: ExampleInputs, device: torch.device | None) -> ExampleInputs:
    """Example inputs on a device."""
    plain = dict(inputs) if isinstance(inputs, Mapping) else inputs  # such as a BatchEncoding
    on_device: ExampleInputs = tree_map_only(Tensor, lambda x: x.to(device), plain)
    return on_device


def _among_others() -> bool:
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
