"""What the pages of the documentation show, and how to run it.

| a page has | what becomes of it |
|---|---|
| a `python` block | it runs; all of a page share one namespace, in order |
| a `python` block with a title | it is written to a file of that name |
| a `console` block | its `spectralclip` commands run; what follows them is what they print |
| an `sh` or `yaml` block | its `spectralclip` commands are looked at, not run |
| `<!-- output -->` and a `text` block | what the block of code before it prints |
| `<!-- not run: reason -->` and a block | nothing |
| `<!-- needs: package, ... -->` | the page is left out where one of them is not installed |
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import torch

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

PYTHON = ("python", "py", "python3")
SHELL = ("sh", "bash", "shell", "console", "yaml", "yml")

FENCE = re.compile(r"\s*(?P<marks>`{3,}|~{3,})\s*(?P<info>[^`]*)$")
MARK = re.compile(r"\s*<!--\s*(?P<what>not run|output|needs)\b\s*:?(?P<rest>.*)-->\s*$")
TITLE = re.compile(r"\btitle=\"([^\"]+)\"")
COMMAND = re.compile(r"^\s*(?:\$\s+|(?:-\s+)?run:\s+)?(?P<command>spectralclip(?:\s.*)?)$")
NUMBER = re.compile(
    r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?:\s\.\.\s[-+]?\d[\d.]*(?:e[-+]?\d+)?)?"
)


@dataclass(frozen=True)
class Block:
    """The lines between two fences."""

    language: str
    code: str
    first_line: int
    title: str | None = None
    not_run: bool = False
    is_output: bool = False


@dataclass(frozen=True)
class Page:
    """The blocks of a page, in order, and the packages that they need."""

    path: Path
    blocks: tuple[Block, ...]
    needs: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Page:
        text = path.read_text(encoding="utf-8")
        return cls(path, tuple(fenced_blocks(text)), needed_packages(text))

    def run(self, folder: Path) -> int:
        """Run it from top to bottom, in a folder of its own: files that it names are made there.

        Returns how many blocks were written, run, or compared with what was printed.
        """
        with _working_in(folder), torch.random.fork_rng(devices=[]):
            return self._run_blocks([block for block in self.blocks if not block.not_run])

    def _run_blocks(self, blocks: list[Block]) -> int:
        namespace: dict[str, object] = {"__name__": "__main__"}
        printed = ""
        left_out = 0
        for block in blocks:
            if block.language in PYTHON and block.title:
                Path(block.title).write_text(block.code, encoding="utf-8")
            elif block.language in PYTHON:
                printed = _run_python(self.path, block, namespace)
            elif block.language == "console":
                with _located(self.path, block):
                    _run_console(block)
            elif block.is_output:
                with _located(self.path, block):
                    require_same_words(block.code, printed)
            else:
                left_out += 1
        return len(blocks) - left_out


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Modules can be imported from the folder, and are forgotten again."""
    place, path, modules = Path.cwd(), list(sys.path), set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(place)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
                del sys.modules[name]


@contextlib.contextmanager
def _located(path: Path, block: Block) -> Iterator[None]:
    """Say where on the page a complaint belongs; tracebacks of Python know it themselves."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{path.name}, block at line {block.first_line}: {error}") from error


def needed_packages(markdown: str) -> tuple[str, ...]:
    marks = [MARK.match(line) for line in markdown.splitlines()]
    rests = [mark["rest"] for mark in marks if mark and mark["what"] == "needs"]
    return tuple(name.strip() for rest in rests for name in rest.split(","))


def fenced_blocks(markdown: str) -> list[Block]:
    """The fenced blocks of a page. A mark belongs to the block behind it, blank lines aside."""
    blocks = []
    lines = markdown.splitlines()
    before = ""
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        mark = MARK.match(before)
        kind = mark["what"] if mark and mark["what"] != "needs" else None
        if mark and kind == "not run" and not mark["rest"].strip():
            raise ValueError(f"Line {number}: say why the block is not run.")
        opening = FENCE.match(line)
        if opening is None:
            if kind and line.strip():
                raise ValueError(f"Line {number}: no block follows the `{kind}` comment.")
            before = line if line.strip() else before
            continue
        start = number
        closing = re.compile(rf"\s*{opening['marks'][0]}{{{len(opening['marks'])},}}\s*$")
        while number < len(lines) and not closing.match(lines[number]):
            number += 1
        if number == len(lines):
            raise ValueError(f"Line {start}: the block is never closed.")
        blocks.append(_block(opening["info"], lines[start:number], start + 1, kind))
        before = ""
        number += 1
    return blocks


def _block(info: str, lines: list[str], first_line: int, kind: str | None) -> Block:
    language = re.match(r"\{?\.?(\w*)", info)
    title = TITLE.search(info)
    if title and Path(title[1]).name != title[1]:
        raise ValueError(f"Line {first_line - 1}: a title is a file's name, got {title[1]!r}.")
    return Block(
        language[1].lower() if language else "",
        dedent("\n".join(lines) + "\n"),
        first_line,
        title[1] if title else None,
        not_run=kind == "not run",
        is_output=kind == "output",
    )


def _run_python(path: Path, block: Block, namespace: dict[str, object]) -> str:
    # Blank lines in front make a traceback point at the line of the page.
    padded = "\n" * (block.first_line - 1) + block.code
    return _printed(lambda: exec(compile(padded, path, "exec"), namespace))[0]


def _run_console(block: Block) -> None:
    """Run commands; each has to succeed, unless `echo $?` behind it says otherwise."""
    from spectralclip.cli import main

    steps = console_steps(block.code)
    code = 0
    for (command, shown), following in zip(steps, [*steps[1:], ("", "")], strict=True):
        if command == "echo $?":
            assert int(shown) == code, f"the exit code is {code}"
            continue
        words = split_command(command)
        assert words[:1] == ["spectralclip"], f"cannot run {command!r}: mark the block as not run"
        printed, result = _printed(lambda words=words: main(words[1:]))
        code = result if isinstance(result, int) else 0
        assert code == 0 or following[0] == "echo $?", f"exit code {code} of {command!r}: {printed}"
        if shown.strip():
            require_same_words(shown, printed)


def console_steps(code: str) -> list[tuple[str, str]]:
    """The commands behind `$`, each with the lines that it is said to print."""
    steps: list[tuple[str, list[str]]] = []
    for line in _joined(code):
        if line.startswith("$ "):
            steps.append((line[2:].strip(), []))
        elif steps:
            steps[-1][1].append(line)
        elif line.strip():
            raise ValueError(f"a console block begins with `$` and a command, got {line!r}")
    return [(command, "\n".join(lines)) for command, lines in steps]


def commands_of(block: Block) -> list[list[str]]:
    """The `spectralclip` commands that a block of the shell or of YAML shows."""
    matches = [COMMAND.match(line) for line in _joined(block.code)]
    return [split_command(match["command"]) for match in matches if match]


def split_command(command: str) -> list[str]:
    """The words of a command up to a comment, a pipe or whatever else the shell does with it."""
    words = shlex.split(command, comments=True)
    ends = [index for index, word in enumerate(words) if word in {"|", "||", "&&", ";", ">", "2>"}]
    return words[: ends[0]] if ends else words


def _joined(code: str) -> list[str]:
    return re.sub(r"\s*\\\n\s*", " ", code).splitlines()


def _printed(run: Callable[[], object]) -> tuple[str, object]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        result = run()
    return out.getvalue(), result


def require_same_words(shown: str, printed: str) -> None:
    """What a page shows is what was printed, but for numbers, which differ between machines.

    `...` in the page stands for anything.
    """
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not checker.check_output(_words(shown), _words(printed), flags):
        raise AssertionError(f"the page shows\n{shown}\nbut this is printed:\n{printed}")


def _words(text: str) -> str:
    return re.sub(r"-{2,}", "-", NUMBER.sub("#", text)).strip() + "\n"
