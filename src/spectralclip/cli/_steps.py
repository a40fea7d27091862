"""What the commands have in common: a model, its weights and inputs, and the files they write."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from json import loads
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from spectralclip._audit import Audit, AuditComparison
from spectralclip._common import explained, require_writable, write_texts
from spectralclip._linalg import testable
from spectralclip._models import in_evaluation, tensors_in, unwrapped
from spectralclip.cli import _output, _weights_file
from spectralclip.cli._example_inputs import SYNTAX, example_inputs, parse_input
from spectralclip.cli._input_files import LARGEST_TEXT, LARGEST_WEIGHTS, read_text
from spectralclip.cli._model_source import load, parse_options
from spectralclip.cli._problems import Problem, file_problems, listed, one_line

STANDARD_OUTPUT = "-"


@final
class Subject:
    """The model that the user means, with the same random weights for the same seed.

    What there is to say goes to `notes`, to be shown once all has gone well: an error is one line.
    """

    def __init__(
        self,
        text: str,
        settings: Sequence[str] | None,
        has_weights: bool,
        *,
        trust: bool,
        limit: float | None,
        device: str | None,
        seed: int,
    ) -> None:
        self._text, self._limit, self._seed = text, limit, seed
        self.notes: list[str] = []
        options = parse_options(settings or ())
        folder = os.getcwd()
        # What a model prints on its way is not a part of our output.
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(sys.stderr):
            torch.manual_seed(seed)
            source = load(text, options, trust=trust, has_weights=has_weights, limit=limit)
        os.chdir(folder)  # relative paths go on to mean what they meant to the user
        self.model, self._example, is_random = source
        if is_random and not has_weights:
            made = f"note: {text} has the weights that it makes itself; --weights loads others."
            self.notes.append(made)
        if not (is_random or has_weights):
            require_finite(self.model, f"MODEL {text!r}")
        if device is not None:
            try:
                self.model.to(device)
            except (RuntimeError, AssertionError) as error:
                raise Problem(f"--device {device!r} cannot be used: {one_line(error)}") from error

    def load_weights_(
        self, path: Path, *, allow_partial: bool
    ) -> tuple[_weights_file.Checkpoint, _weights_file.Fit]:
        """Load a file into the model, and say what was recognized in it."""
        checkpoint = _weights_file.read(path, self._limit or LARGEST_WEIGHTS)
        fit = _weights_file.load_(self.model, checkpoint, allow_partial=allow_partial)
        require_finite(self.model, f"weights {path}")
        said = [f"{len(fit.names)} tensors of {path}"]
        if checkpoint.wrapper:
            said.append("kept under " + " / ".join(map(repr, checkpoint.wrapper)))
        if fit.prefix:
            said.append(f"named with {fit.prefix!r} in front")
        self.notes.append("; ".join(["weights: " + ", ".join(said), *fit.complaints]))
        return checkpoint, fit

    def example(self, inputs: Sequence[str] | None, batch: int = 1) -> Any:
        """What to call the model with; it has been called with it once."""
        if inputs:
            specs = [parse_input(one) for one in inputs]
            try:
                example = example_inputs(specs, self.model, batch=batch, seed=self._seed)
            except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
                shapes = ", ".join(str((batch, *spec.shape)) for spec in specs)
                raise Problem(
                    f"--input: no tensors of shape {shapes} can be made ({one_line(error)[:80]}): "
                    "give smaller sizes, or a smaller --batch."
                ) from error
        elif self._example is not None:
            example = self._example
        else:
            raise Problem(
                f"MODEL {self._text!r}: the shape of its input is not known: add --input {SYNTAX}, "
                "for example --input 3,32,32."
            )
        args, kwargs = ((), example) if isinstance(example, Mapping) else (example, {})
        args, kwargs = tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        try:
            with torch.no_grad(), in_evaluation(self.model):
                self.model(*args, **kwargs)
        except Exception as error:
            if (fault := explained(error)) is not None:
                raise fault from error
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(example))
            raise Problem(
                f"MODEL {self._text!r} cannot be called with {shapes}: {type(error).__name__}: "
                f"{one_line(error)}. --input is the shape of one input without the batch, with "
                ":int64 after it for token ids."
            ) from error
        return example


def require_finite(model: nn.Module, origin: str) -> None:
    """Refuse weights that have no norm."""
    bad = list(_not_finite(unwrapped(model)))
    if bad:
        raise Problem(
            f"{origin}: NaN or infinite values in {len(bad)} of the model's tensors: "
            f"{listed(bad)}. Norms are not defined then: restore finite weights."
        )


def _not_finite(model: nn.Module) -> Iterator[str]:
    parameters = dict(model.named_parameters())
    for name, tensor in {**parameters, **dict(model.named_buffers())}.items():
        if is_lazy(tensor) or tensor.is_meta or tensor.layout != torch.strided:
            continue
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        # Masks, which are buffers, rightly hold infinities.
        numbers = testable(tensor)
        wrong = ~torch.isfinite(numbers) if name in parameters else torch.isnan(numbers)
        if bool(wrong.any()):
            yield name


def require_outputs(html: Path | None, json: str | None, inputs: Iterable[Path | None]) -> None:
    """Find out before the work whether its result can be written, and over no input."""
    file = None if json == STANDARD_OUTPUT else json
    # Links are followed when files are written, so that two names may be one file.
    if html is not None and file is not None and os.path.realpath(html) == os.path.realpath(file):
        raise Problem(f"--html and --json are the same file, {html}: choose two.")
    for option, path in (("--html", html), ("--json", file)):
        if path is not None:
            require_no_input(f"{option} {path}", path, inputs)
            with file_problems("write"):
                require_writable(path)


def require_no_input(what: str, path: Path | str, inputs: Iterable[Path | None]) -> None:
    """Refuse to write over a file that is read, whatever names or links it is known by."""
    for one in inputs:
        with contextlib.suppress(OSError):  # of a file that is not there
            if one is not None and os.path.samefile(path, one):
                raise Problem(f"{what} is the file that is read, {one}: choose another name.")


def write_result(
    result: Audit | AuditComparison, html: Path | None, json: str | None, notes: Sequence[str] = ()
) -> None:
    """Write what was asked for, all or nothing, and print the table or the JSON."""
    texts: dict[Any, str] = {}
    if html is not None:
        texts[html] = result.to_html()
    if json is not None and json != STANDARD_OUTPUT:
        texts[json] = result.to_json()
    with file_problems("write"):
        write_texts(texts)
    if json == STANDARD_OUTPUT:
        _output.say(result.to_json())
    else:
        _output.show(result)
    for line in (*notes, *(f"wrote {path}" for path in texts)):
        _output.note(line)


def read_audit(path: Path, limit: float | None) -> Audit:
    try:
        document = loads(read_text(path, "audit", limit or LARGEST_TEXT))
        if not isinstance(document, dict):  # text would be taken for a path
            raise TypeError(f"got a {type(document).__name__}")
        return Audit.from_json(document)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Problem(
            f"{path}: expected an audit as --json writes it, but it is none: {one_line(error)}"
        ) from error
