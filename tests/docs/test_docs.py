"""The documentation is true: its code runs, its commands exist, and it covers what is public."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from docs_blocks import PAGES, PYTHON, ROOT, SHELL, Page, commands_of, fenced_blocks

SOURCE = ROOT / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    # Importing a __main__ runs the program.
    if path.name != "__main__.py"
]


def of_root(page: Path) -> str:
    return str(page.relative_to(ROOT))


# The defaults of trainers, on a machine without a GPU.
def page_param(path: Path) -> Any:
    """The tutorial trains networks, which takes as long as ten other pages."""
    marks = [pytest.mark.slow] if path.name == "tutorial.md" else []
    return pytest.param(path, id=of_root(path), marks=marks)


@pytest.mark.filterwarnings(
    "ignore:'pin_memory' argument is set as true:UserWarning:torch.utils.data",
    "ignore:The '.*dataloader' does not have many workers:UserWarning:lightning",
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning:lightning",
)
@pytest.mark.parametrize("path", [page_param(path) for path in PAGES])
def test_page_runs(path: Path, tmp_path: Path) -> None:
    page = Page.read(path)
    for package in page.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    shown = [block for block in page.blocks if not block.not_run]
    for_us = [block for block in shown if block.is_output or block.language in (*PYTHON, "console")]
    assert page.run(tmp_path) == len(for_us)


def module_param(name: str) -> Any:
    """The example of the demo is the demo once more, which its own tests run and look at."""
    marks = [pytest.mark.slow] if name == "spectralclip.demo.tour" else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [module_param(name) for name in MODULES])
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        # What is missing has to be the package that it integrates with, not a module of ours.
        is_ours = (error.name or "").partition(".")[0] == "spectralclip"
        if is_ours or not name.startswith("spectralclip.integrations."):
            raise
        pytest.skip(str(error))
    with torch.random.fork_rng(devices=[]):
        result = doctest.testmod(
            module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
    assert result.failed == 0


def test_doctests_see_the_examples() -> None:
    from spectralclip.demo import digits

    assert doctest.testmod(digits).attempted > 0


COMMANDS = [
    pytest.param(command, id=f"{of_root(path)}:{block.first_line}:{number}")
    for path in PAGES
    for block in fenced_blocks(path.read_text(encoding="utf-8"))
    if block.language in SHELL
    for number, command in enumerate(commands_of(block))
]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_one(command: list[str]) -> None:
    """Its options exist, and their values are of the right kind; it is not run."""
    name = require_command(command[1:])
    assert command[0] == "spectralclip" and (name in command or name == "")


def require_command(args: list[str]) -> str:
    """The name of the command that these arguments are for, empty for options of the whole."""
    import typer

    from spectralclip.cli import app

    group = typer.main.get_command(app)
    context = type(group).context_class(group, info_name="spectralclip")
    if not args or args[0].startswith("-"):
        group.make_parser(context).parse_args(args=list(args))
        return ""
    assert args[0] in group.commands, f"there is no command {args[0]!r}"
    made = group.commands[args[0]].make_context(args[0], list(args[1:]), parent=context)
    return str(made.info_name)


def test_commands_of_the_pages_are_found() -> None:
    assert len(COMMANDS) > 8


@pytest.mark.parametrize(
    "args",
    [
        ["audti", "nets:Net"],
        ["audit", "nets:Net", "--inptu", "3,32,32"],
        ["audit", "nets:Net", "--fail-above", "one"],
        ["clip", "nets:Net", "--weights", "a.pt"],
        ["--vresion"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_found(args: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no (such|command)|missing|valid"):
        require_command(args)


@pytest.mark.parametrize("path", PAGES, ids=of_root)
def test_extras_exist(path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    known = set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))
    named = re.findall(r"(?:spectralclip|\.)\[([\w,]+)\]", path.read_text(encoding="utf-8"))
    assert {extra for names in named for extra in names.split(",")} <= known


def test_the_reference_has_all_public_names() -> None:
    import spectralclip

    api = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    described = re.findall(r"^::: spectralclip\.([\w.]+)$", api, re.MULTILINE)
    names = ("integrations.adapters", "methods", "nn")
    rooms = {name: importlib.import_module(f"spectralclip.{name}") for name in names}
    public = {name for name in spectralclip.__all__ if name not in rooms}
    public |= {f"{room}.{name}" for room, own in rooms.items() for name in _public_names(own)}
    assert public - set(described) == set()
    assert len(described) == len(set(described))


def _public_names(package: ModuleType) -> list[str]:
    """What a package has beside its modules."""
    named = {name: value for name, value in vars(package).items() if not name.startswith("_")}
    return [name for name, value in named.items() if not isinstance(value, ModuleType)]
