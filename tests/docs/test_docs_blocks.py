"""The running of the documentation's pages itself: it finds what is not true."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from docs_blocks import Page, console_steps, fenced_blocks, require_same_words

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

   ```python linenums="1"
   order.append("second")
   ```

```python title="third.py"
def word():
    return "third"
```

```python
from pathlib import Path
from third import word
order.append(word())
Path("order.txt").write_text(" ".join(order))
print(f"there are {len(order)} words, in 0.25 s")
```

<!-- output -->

```text
there are 7 words, in 0.5 s
```

```console
$ spectralclip --version
spectralclip 99.0.0
$ spectralclip audit \\
    third.py:word --input 3
error: ...
$ echo $?
2
```
"""


def page_of(folder: Path, markdown: str) -> Page:
    path = folder / "page.md"
    path.write_text(markdown, encoding="utf-8")
    return Page.read(path)


def test_blocks_run_in_order(tmp_path: Path) -> None:
    place, path = Path.cwd(), list(sys.path)
    page_of(tmp_path, PAGE).run(tmp_path)
    assert (tmp_path / "order.txt").read_text() == "first second third"
    assert Path.cwd() == place and sys.path == path and "third" not in sys.modules


def test_a_failing_block_names_its_line(tmp_path: Path) -> None:
    page = page_of(tmp_path, "# Title\n\n```python\nfine = 1\nassert fine == 2\n```\n")
    with pytest.raises(AssertionError) as failure:
        page.run(tmp_path)
    assert failure.traceback[-1].lineno + 1 == 5


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("there are 7 words", "there are 7 letters", "line 44: .*but this is printed"),
        ("$ echo $?\n2", "$ echo $?\n1", "the exit code is 2"),
        ("$ echo $?\n2", "", "exit code 2 of"),
        ("error: ...", "fine", "but this is printed"),
        ("$ spectralclip --version", "$ rm -r folder", "cannot run 'rm -r folder'"),
    ],
)
def test_a_page_that_is_not_true_is_found(
    old: str, new: str, complaint: str, tmp_path: Path
) -> None:
    assert PAGE.count(old) == 1
    page = page_of(tmp_path, PAGE.replace(old, new))
    with pytest.raises(AssertionError, match=f"(?s){complaint}"):
        page.run(tmp_path)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("<!-- not run: -->\n```python\n1\n```\n", "say why"),
        ("<!-- not run: slow -->\nSome prose.\n```python\n1\n```\n", "no block follows"),
        ("<!-- output -->\nSome prose.\n", "no block follows"),
        ("```python\n1\n", "never closed"),
        ('```python title="../nets.py"\n1\n```\n', "file's name"),
    ],
)
def test_a_malformed_page_is_refused(page: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fenced_blocks(page)


def test_needed_packages_are_read(tmp_path: Path) -> None:
    page = page_of(tmp_path, "# Title\n\n<!-- needs: first, second -->\n\nProse.\n")
    assert page.needs == ("first", "second")


def test_numbers_may_differ_and_words_may_not() -> None:
    require_same_words(
        "0+1  together  9.02 .. 9.09  -5%\n...\nend", "0+1 together 8.1 -7%\n\na\nend"
    )
    with pytest.raises(AssertionError):
        require_same_words("norm 1.0", "norm")


def test_console_steps_join_lines() -> None:
    steps = console_steps("$ one \\\n    two\nsaid\n$ three\n")
    assert steps == [("one two", "said"), ("three", "")]
