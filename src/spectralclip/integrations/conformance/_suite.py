"""Reading the suite: weights, geometry and certified norms."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from spectralclip._bounds import Interval
from spectralclip._common import Shape

VERSION = 1
TRUTH = "truth.json"


@final
@dataclass(frozen=True)
class ConformanceLayer:
    """A layer of the suite, with what is known of its norm.

    Attributes:
        name: Its own name.
        kind: The part of the suite that it belongs to, such as "grid" or "trained".
        weight: In torch's order of axes, float32.
        in_shape: Shape of one input, channels first.
        out_shape: Shape of one output.
        value: The largest singular value.
        norm: The interval that is certified to hold it; its `kind` says by which method.
        geometry: The layer's entry of the document: "module", "stride", "padding" and so on.

    Example:
        >>> from spectralclip.integrations import conformance
        >>> layer = conformance.load()[0]
        >>> layer.make(), layer.in_shape, layer.value in layer.norm
        (Conv1d(4, 6, kernel_size=(3,), stride=(1,), padding=(1,), bias=False), (4, 24), True)
    """

    name: str
    kind: str
    weight: NDArray[np.float32]
    in_shape: Shape
    out_shape: Shape
    value: float
    norm: Interval
    geometry: dict[str, Any]

    def make(self) -> nn.Module:
        """A new torch module with this weight and no bias, in evaluation mode."""
        layer: Any = getattr(nn, self.geometry["module"])
        if layer is nn.Linear:
            made: nn.Module = nn.utils.skip_init(
                layer, self.in_shape[0], self.out_shape[0], bias=False
            )
        else:
            options = {name: self.geometry[name] for name in ("stride", "dilation")}
            if "output_padding" in self.geometry:
                options["output_padding"] = self.geometry["output_padding"]
            made = nn.utils.skip_init(
                layer,
                self.in_shape[0],
                self.out_shape[0],
                tuple(self.geometry["kernel_size"]),
                **{name: tuple(sizes) for name, sizes in options.items()},
                padding=self.padding,
                groups=self.geometry["groups"],
                padding_mode=self.geometry["padding_mode"],
                bias=False,
            )
        with torch.no_grad():
            made.get_parameter("weight").copy_(torch.from_numpy(self.weight.copy()))
        made.eval()
        return made

    @property
    def padding(self) -> Shape | str:
        """Of a convolution as torch has it: one number for each axis, or "same"."""
        pairs = self.geometry["padding"]
        if all(low == high for low, high in pairs):
            return tuple(low for low, _ in pairs)
        return "same"  # the only padding of torch's that differs at the two ends


def default_folder() -> Path:
    """Where the suite is: inside of an installed package, or beside `src` in a checkout."""
    installed = Path(__file__).resolve().parent / "data"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[4] / "conformance"


def load(folder: Path | str | None = None) -> list[ConformanceLayer]:
    """The layers of the suite, in their order.

    Args:
        folder: Where `truth.json` and the weights are; by default the suite that comes with the
            package.

    Raises:
        ValueError: The folder holds no suite that can be read; the message says what to do.

    Example:
        >>> from spectralclip.integrations import conformance
        >>> layers = conformance.load()
        >>> len(layers), sorted({layer.kind for layer in layers})[:3]
        (200, ['dense', 'grid', 'large'])
    """
    place = default_folder() if folder is None else Path(folder)
    try:
        document = json.loads((place / TRUTH).read_text(encoding="utf-8"))
        version = document["version"]
        if version != VERSION:
            raise ValueError(
                f"it is of version {version}, expected {VERSION}: use the suite that comes with "
                "this package, or the package that comes with the suite"
            )
        weights = read_weights(place / document["weights"])
        return [_layer(entry, weights) for entry in document["layers"]]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(
            f"There is no conformance suite in {place} ({error}): give the folder conformance/ of "
            "a checkout."
        ) from error
    except KeyError as error:
        raise ValueError(f"The conformance suite in {place} lacks {error}.") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"The conformance suite in {place} cannot be read: {error}.") from error


def _layer(entry: dict[str, Any], weights: dict[str, NDArray[np.float32]]) -> ConformanceLayer:
    norm = entry["norm"]
    return ConformanceLayer(
        entry["name"],
        entry["kind"],
        weights[entry["name"]],
        tuple(entry["in_shape"]),
        tuple(entry["out_shape"]),
        norm["value"],
        Interval(norm["lower"], norm["upper"], entry["method"], 0.0),
        entry,
    )


def read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """The arrays of a safetensors file of float32: a length, a header in JSON, and the numbers."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} of {path.name} has dtype {entry['dtype']}, expected F32")
        first, last = (start + offset for offset in entry["data_offsets"])
        found[name] = np.frombuffer(raw[first:last], "<f4").reshape(entry["shape"])
    return found
