"""The page on integrations runs, block by block, with the real packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_docs import Block, fenced_blocks

PAGE = Path(__file__).resolve().parents[1] / "docs" / "integrations.md"
BLOCKS = [b for b in fenced_blocks(PAGE.read_text(encoding="utf-8")) if b.language == "python"]
PACKAGES = {
    "lightning": ("lightning.pytorch",),
    "transformers": ("transformers", "accelerate"),
    "accelerate": ("accelerate",),
    "tensorboard": ("tensorboard",),
}


def subject(block: Block) -> str:
    (name,) = [name for name in PACKAGES if f"spectralclip.integrations.{name} " in block.code]
    return name


def test_there_is_a_block_for_each_package() -> None:
    assert {subject(block) for block in BLOCKS} == set(PACKAGES)


@pytest.mark.filterwarnings(
    # The defaults of trainers, on a machine without a GPU.
    "ignore:'pin_memory' argument is set as true:UserWarning:torch.utils.data",
    "ignore:The '.*dataloader' does not have many workers:UserWarning:lightning",
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning:lightning",
)
@pytest.mark.parametrize("block", BLOCKS, ids=subject)
def test_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in PACKAGES[subject(block)]:
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    # Blank lines in front make a traceback point at the line of the page.
    exec(compile("\n" * (block.first_line - 1) + block.code, PAGE, "exec"), namespace)
