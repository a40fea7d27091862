"""From what is written on the command line to a model and its inputs."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from spectralclip.cli._exported import load_program
from spectralclip.cli._input_files import LARGEST_TEXT, LARGEST_WEIGHTS, require_regular
from spectralclip.cli._problems import Problem, one_line, raised

FORMS = "module.path:factory, file.py:factory, timm:NAME, transformers:NAME_OR_DIR, or FILE.pt2"


class Source(NamedTuple):
    """A model as the command line names it."""

    model: nn.Module  # the model
    example: tuple[Any, ...] | None = None  # what it is called with, where the source says so
    random: bool = True  # whether its weights are as they were initialized


def load(
    text: str,
    options: Mapping[str, Any],
    *,
    trust: bool = False,
    has_weights: bool = False,
    limit: float | None = None,
) -> Source:
    """The model that a MODEL argument means."""
    own = file_of(text)
    if own is not None:
        usual = LARGEST_TEXT if own.suffix == ".py" else LARGEST_WEIGHTS
        require_regular(own, "MODEL", limit or usual, empty=own.suffix == ".py")
        if own.suffix == ".pt2":
            return _exported(own, options, trust)
    kind, _, name = text.rpartition(":")
    library, _, rest = text.partition(":")
    if library in ("timm", "transformers"):
        if not rest:
            raise Problem(f"MODEL {text!r}: expected a name after '{library}:'.")
        if library == "timm":
            return _timm(rest, options)
        return _transformers(rest, options, has_weights, limit or LARGEST_WEIGHTS)
    if not kind or not name:
        raise Problem(f"MODEL {text!r}: expected {FORMS}.")
    return Source(_made(text, find_object(text), options))


def find_object(text: str, what: str = "MODEL") -> Any:
    """What `module.path:name` or `file.py:name` names; errors call the argument `what`."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise Problem(f"{what} {text!r}: expected module.path:name or file.py:name.")
    said = f"{what} {text!r}"
    return _attribute(_module(place, said), name, said, place)


def file_of(text: str) -> Path | None:
    """The file that a MODEL argument names, if it names one."""
    if text.endswith(".pt2"):
        return Path(text)
    kind, _, _ = text.rpartition(":")
    return Path(kind) if kind.endswith(".py") else None


# --- A factory of the user's -----------------------------------------------------------------


def _module(name: str, said: str) -> ModuleType:
    """Import a module by its path or by its name, from the current folder too."""
    try:
        if name.endswith(".py"):
            return _from_file(Path(name))
        _look_in(Path.cwd())
        return importlib.import_module(name)
    except Problem:
        raise
    except (Exception, SystemExit) as error:
        raise Problem(f"{said}: cannot import {name}: {_why(error, name)}.") from error


def _why(error: BaseException, name: str) -> str:
    """Why an import failed; where it is simply not there, no line of code is to blame."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(error.name):
        return f"there is no module {error.name!r} here or among the installed packages"
    return raised(error)


def _from_file(path: Path) -> ModuleType:
    # A plain name lets other processes import it too; but never in place of another module.
    name = path.stem if path.stem.isidentifier() else "_model"
    if importlib.util.find_spec(name) is not None:
        name = f"_file_{name}"
    _look_in(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _attribute(module: ModuleType, name: str, said: str, place: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            have = [key for key in vars(module) if not key.startswith("_")]
            raise Problem(
                f"{said}: there is no {part!r} in {place}; it has "
                f"{', '.join(sorted(have)[:8]) or 'nothing public'}."
            ) from error
    return found


def _made(text: str, factory: Any, options: Mapping[str, Any]) -> nn.Module:
    """What a class or a function makes, or a module as it is."""
    if isinstance(factory, nn.Module):
        if options:
            raise Problem(f"MODEL {text!r} is a module already: --set has nothing to set.")
        return factory
    if not callable(factory):
        raise Problem(
            f"MODEL {text!r}: expected a class, a function or a module, got "
            f"{type(factory).__name__}."
        )
    try:
        model = factory(**options)
    except (Exception, SystemExit) as error:
        raise Problem(
            f"MODEL {text!r} raised {raised(error)}. Arguments are given with --set name=value."
        ) from error
    if not isinstance(model, nn.Module):
        raise Problem(
            f"MODEL {text!r}: expected it to make a torch.nn.Module, got {type(model).__name__}."
        )
    return model


# --- Libraries and programs ------------------------------------------------------------------


def _timm(name: str, options: Mapping[str, Any]) -> Source:
    if "checkpoint_path" in options:
        raise Problem(
            f"MODEL 'timm:{name}': timm would read {options['checkpoint_path']} in a way that can "
            "run code: give the file by --weights instead of --set checkpoint_path."
        )
    timm = _package("timm")
    with _named(f"timm:{name}"):
        model = timm.create_model(name, **options)
    return Source(model, random=not options.get("pretrained"))


def _transformers(name: str, options: Mapping[str, Any], has_weights: bool, limit: float) -> Source:
    package = _package("transformers")
    if not sys.stderr.isatty():
        package.utils.logging.disable_progress_bar()  # it would be drawn into logs
    local = os.path.isdir(name)
    if not local and name.startswith((".", "/", "~")):
        raise Problem(f"transformers:{name}: there is no such folder.")
    for path in sorted(Path(name).iterdir()) if local else ():
        if not path.is_dir():
            require_regular(path, f"transformers:{name}:", limit, empty=True)
    with _named(f"transformers:{name}"):
        config = package.AutoConfig.from_pretrained(
            name, trust_remote_code=False, local_files_only=local, **options
        )
        kind = _architecture(package, config)
        if has_weights or (local and not _has_weights(Path(name))):
            make = kind if kind is not package.AutoModel else kind.from_config
            return Source(make(config))
        model = kind.from_pretrained(
            name, config=config, trust_remote_code=False, local_files_only=local
        )
    return Source(model, random=False)


def _architecture(package: Any, config: Any) -> Any:
    """The class that the configuration was saved with, head included, if the package has it."""
    names = getattr(config, "architectures", None) or []
    return next(
        (getattr(package, one) for one in names if hasattr(package, one)), package.AutoModel
    )


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors*")) or any(folder.glob("*.bin*"))


def _exported(path: Path, options: Mapping[str, Any], trust: bool) -> Source:
    if not trust:
        raise Problem(
            f"{path}: an exported program can run code while it is loaded: add --trust if you "
            "trust where it comes from."
        )
    if options:
        raise Problem(f"{path} is an exported program: --set has nothing to set.")
    model, example = load_program(path)
    return Source(model, example, random=False)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Problem(
            f"MODEL {name}:... needs the package {name}, which cannot be imported "
            f"({one_line(error)}): pip install {name}"
        ) from error
    except RuntimeError as error:
        raise Problem(
            f"the package {name} cannot be imported: {one_line(error)}. Are all packages made for "
            f"torch {torch.__version__}?"
        ) from error


@contextlib.contextmanager
def _named(text: str) -> Iterator[None]:
    """Errors of a library with the model's name in front."""
    try:
        yield
    except Exception as error:
        raise Problem(f"MODEL {text!r}: {type(error).__name__}: {one_line(error)}.") from error


def parse_options(settings: Sequence[str]) -> dict[str, Any]:
    """Arguments `name=value`, where the value is a Python literal or else a string."""
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise Problem(f"--set {setting!r}: expected name=value, for example --set width=8.")
        options[name] = _literal(value)
    return options


def _literal(value: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
