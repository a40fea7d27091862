"""The integrations are found where they are asked for, and nowhere else."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = ("lightning", "transformers", "accelerate")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_is_named_with_the_remedy(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] in (package, f"pytorch_{package}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"spectralclip.integrations.{package}", raising=False)
    with pytest.raises(ImportError) as failure:
        importlib.import_module(f"spectralclip.integrations.{package}")
    assert failure.value.name == package
    assert f"needs the package '{package}'" in str(failure.value)
    assert 'pip install "spectralclip[integrations]"' in str(failure.value)
    assert isinstance(failure.value.__cause__, ImportError)


LOADED = """
import sys
import spectralclip, spectralclip.integrations, spectralclip.integrations.tensorboard
print([name for name in sys.argv[1:] if name in sys.modules])
"""


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    names = (*PACKAGES, "pytorch_lightning", "tensorboard", "torch.utils.tensorboard")
    finished = subprocess.run(
        [sys.executable, "-c", LOADED, *names], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == "[]"
