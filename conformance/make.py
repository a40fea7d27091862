"""Make the suite: `python -m conformance.make` writes the weights and their certified norms."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import torch
from safetensors.numpy import save_file

from conformance.cases import formulas
from conformance.norms import certified
from conformance.trained import trained

VERSION, SEED = 1, 2026
FOLDER = Path(__file__).resolve().parent
METHODS = {
    "dense": "LAPACK's singular values of the whole matrix in float64; relative margin 1e-10",
    "symbol": "LAPACK's singular values of the blocks at all frequencies; relative margin 1e-10",
    "cholesky": "below: a Rayleigh quotient of ARPACK's vector; above: a Cholesky factor of "
    "u^2 I - M^T M in float64, for u 1e-8 above that",
}


def main() -> None:
    torch.set_num_threads(1)
    layers = [*formulas(SEED), *trained(SEED)]
    names = [layer.name for layer in layers]
    assert len(set(names)) == len(names) == 200, (len(names), Counter(names).most_common(3))
    records = []
    for layer in layers:
        norm = certified(layer)
        ends = {"value": norm.value, "lower": norm.lower, "upper": norm.upper}
        records.append(
            layer.record() | {"norm": ends, "second": norm.second, "method": norm.method}
        )
        print(f"{layer.name:40} {norm.value:<12.6g} {norm.method}", flush=True)
    lines = ",\n  ".join(json.dumps(record) for record in records)
    head = {"version": VERSION, "weights": "layers.safetensors", "seed": SEED, "methods": METHODS}
    text = f'{json.dumps(head, indent=1)[:-2]},\n "layers": [\n  {lines}\n ]\n}}\n'
    json.loads(text)
    save_file({layer.name: layer.weight for layer in layers}, FOLDER / "layers.safetensors")
    (FOLDER / "truth.json").write_text(text)
    print(Counter(record["method"] for record in records))


if __name__ == "__main__":
    main()
