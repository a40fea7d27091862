"""Files of safetensors: read without running code, and without what is not asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, final

from torch import Tensor

from spectralclip._common.text import missing_package


@final
class TensorFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file by key; each is read when it is asked for.

    Attributes:
        metadata: What the file says of itself; None if nothing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            from safetensors import safe_open
        except ImportError as error:
            raise missing_package(f"Reading {path}", "safetensors", "cli", error) from error
        file: Any = safe_open
        self._file: Any = file(path, framework="pt")
        self._keys: dict[str, None] = dict.fromkeys(self._file.keys())
        self.metadata: dict[str, str] | None = self._file.metadata()

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._keys:
            raise KeyError(key)
        tensor: Tensor = self._file.get_tensor(key)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def packed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> bytes:
    """The content of a safetensors file, to be written whole."""
    from safetensors.torch import save

    content: bytes = save(dict(tensors), None if metadata is None else dict(metadata))
    return content
