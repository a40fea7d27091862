"""Make src/spectralclip/demo/data/digits.npz from the four MNIST files.

    python tools/make_digits.py --mnist FOLDER

FOLDER holds the original gzipped idx files. The result depends on nothing but their
contents and the zlib that Python was built with: run twice, it gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import struct
import zipfile
from pathlib import Path

import numpy as np

OUTPUT = Path(__file__).resolve().parents[1] / "src" / "spectralclip" / "data" / "digits.npz"

# (name here, prefix in MNIST, digits kept of each class)
SPLITS = (("train", "train", 400), ("test", "t10k", 100))


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped idx file of unsigned bytes."""
    content = gzip.decompress(path.read_bytes())
    zeros, type_code, ndim = struct.unpack_from(">HBB", content)
    if zeros != 0 or type_code != 0x08:
        raise ValueError(f"{path} is not an idx file of unsigned bytes; give the original MNIST.")
    shape = struct.unpack_from(f">{ndim}I", content, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * ndim).reshape(shape)


def first_of_each_class(labels: np.ndarray, per_class: int) -> np.ndarray:
    """Indices, in file order, of the first `per_class` digits of every class."""
    chosen = [np.flatnonzero(labels == digit)[:per_class] for digit in range(10)]
    for digit, found in enumerate(chosen):
        if len(found) < per_class:
            raise ValueError(f"Only {len(found)} digits of class {digit}; {per_class} are needed.")
    return np.sort(np.concatenate(chosen))


def select(mnist: Path) -> dict[str, np.ndarray]:
    arrays = {}
    for split, prefix, per_class in SPLITS:
        images = read_idx(mnist / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(mnist / f"{prefix}-labels-idx1-ubyte.gz")
        chosen = first_of_each_class(labels, per_class)
        arrays[f"{split}_images"] = images[chosen]
        arrays[f"{split}_labels"] = labels[chosen]
    return arrays


def write_npz(arrays: dict[str, np.ndarray], output: Path) -> None:
    # np.savez_compressed leaves the time stamps and the compression level to the Python version.
    with zipfile.ZipFile(output, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
            archive.writestr(entry, buffer.getvalue(), compresslevel=9)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mnist", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE")
    arguments = parser.parse_args()
    write_npz(select(arguments.mnist), arguments.output)
    content = arguments.output.read_bytes()
    print(
        f"{arguments.output}: {len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}"
    )


if __name__ == "__main__":
    main()
