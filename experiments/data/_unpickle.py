"""Arrays from pickles that nobody has to trust."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

# What NumPy itself names in a pickle; the module that it is in has moved from version to version.
_reconstruct: Any = np.empty(0).__reduce__()[0]

# A pickle may call whatever it can name. The published batches name these three things, by the
# modules that they were in at the time; files that were written anew use today's name of one.
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Arrays(pickle.Unpickler):
    """Knows how to make arrays, and otherwise only what needs no name: dictionaries, text, ..."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"expected arrays and plain values, got {module}.{name}"
            ) from None


def loads(data: bytes) -> Any:
    """What a pickle holds, where that is plain values and arrays; text of Python 2 as bytes.

    Raises:
        pickle.UnpicklingError: It asks for something else, or is none.
    """
    try:
        return _Arrays(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # bytes that are no pickle may end in any error
        raise pickle.UnpicklingError(f"no pickle of arrays: {error}") from error
