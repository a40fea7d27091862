"""Every Python block of the documentation and every docstring example runs."""

from __future__ import annotations

import doctest
import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    # Importing a __main__ runs the program.
    if path.name != "__main__.py"
]

FENCE = re.compile(r"\s*(?P<marks>`{3,}|~{3,})\s*(?P<info>[^`]*)$")
NOT_RUN = re.compile(r"\s*<!--\s*not run:(?P<reason>.*)-->\s*$")


@dataclass(frozen=True)
class Block:
    """The lines between two fences."""

    language: str
    code: str
    first_line: int
    not_run: bool


def fenced_blocks(markdown: str) -> list[Block]:
    """The fenced blocks of a page, in order.

    A block is not run if the last line before it that is not blank is the comment
    `<!-- not run: reason -->`.
    """
    blocks = []
    lines = markdown.splitlines()
    before = ""
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        skip = NOT_RUN.match(before)
        if skip and not skip["reason"].strip():
            raise ValueError(f"Line {number}: say why the block is not run.")
        opening = FENCE.match(line)
        if opening is None:
            if skip and line.strip():
                raise ValueError(f"Line {number}: no block follows the `not run` comment.")
            before = line if line.strip() else before
            continue
        start = number
        closing = re.compile(rf"\s*{opening['marks'][0]}{{{len(opening['marks'])},}}\s*$")
        while number < len(lines) and not closing.match(lines[number]):
            number += 1
        if number == len(lines):
            raise ValueError(f"Line {start}: the block is never closed.")
        language = re.match(r"\{?\.?(\w*)", opening["info"])[1].lower()
        code = dedent("\n".join(lines[start:number]) + "\n")
        blocks.append(Block(language, code, first_line=start + 1, not_run=skip is not None))
        before = ""
        number += 1
    return blocks


def run_page(page: Path) -> None:
    """Run a page's Python blocks, one after the other, in one namespace."""
    namespace = {"__name__": "__main__"}
    for block in fenced_blocks(page.read_text(encoding="utf-8")):
        if block.language in {"python", "py", "python3"} and not block.not_run:
            # Blank lines in front make a traceback point at the line of the page.
            padded = "\n" * (block.first_line - 1) + block.code
            exec(compile(padded, page, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        run_page(page)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if not name.startswith("spectralclip.integrations."):
            raise
        pytest.skip(str(error))
    with torch.random.fork_rng(devices=[]):
        result = doctest.testmod(
            module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
    assert result.failed == 0


def test_doctests_see_the_examples() -> None:
    from spectralclip import digits

    assert doctest.testmod(digits).attempted > 0


PAGE = """
```python
order = ["first"]
```

<!-- not run: it would wipe the disk -->

```python
raise AssertionError("ran a block that is marked")
```

````markdown
```python
raise AssertionError("ran a quoted block")
```
````

```text
not python
```

1. In a list:

   ```python title="indented"
   order.append("second")
   ```

```python
from pathlib import Path
Path("order.txt").write_text(" ".join(order))
```
"""


def test_blocks_share_a_namespace_and_marked_ones_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text(PAGE)
    run_page(Path("page.md"))
    assert Path("order.txt").read_text() == "first second"


def test_a_failing_block_names_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nfine = 1\nassert fine == 2\n```\n")
    with pytest.raises(AssertionError) as failure:
        run_page(page)
    assert failure.traceback[-1].lineno + 1 == 5


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("<!-- not run: -->\n```python\n1\n```\n", "say why"),
        ("<!-- not run: slow -->\nSome prose.\n```python\n1\n```\n", "no block follows"),
        ("```python\n1\n", "never closed"),
    ],
)
def test_a_malformed_page_is_refused(page: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fenced_blocks(page)
