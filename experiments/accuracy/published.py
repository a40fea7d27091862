"""Every number of the paper's tables, in percent, with its place.

The tables print a mean and a spread over runs whose number the paper does not tell. Its figures
come without numbers: of them there are only the captions and the text.

The attacks of its CIFAR-10 columns ran on normalized images cut to [0, 1], which harms the images
themselves: those numbers are no measure of what an attack on pixels would find.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

METRICS = {
    "test_accuracy": "test set",
    "pgd_accuracy": "PGD-50",
    "cw_accuracy": "CW",
}


@dataclass(frozen=True)
class Published:
    """A number that the paper prints.

    Attributes:
        mean: In percent.
        spread: What stands behind the ±.
        where: Its place in the paper.
        bold: Whether the paper marks it as the best of its column.
    """

    mean: float
    spread: float
    where: str
    bold: bool = False

    def __str__(self) -> str:
        """As the paper writes it."""
        return f"{self.mean:.2f} ± {self.spread:.2f}"


@dataclass(frozen=True)
class Place:
    """What a number is of: a column of a table, a method and what was measured."""

    model: str
    dataset: str
    batch_norm: bool
    method: str
    metric: str


# Columns: MNIST with BN, MNIST without, CIFAR-10 with BN, CIFAR-10 without; * is printed bold.
_RESNET = """
test_accuracy  miyato       99.40 0.06    98.00 0.22    94.82 0.11    88.83 1.41
test_accuracy  gouk         99.25 0.04    21.94 6.01    89.98 0.38    19.80 5.55
test_accuracy  senderovich  99.40 0.03    62.63 24.01   94.19 0.13    68.29 10.63
test_accuracy  delattre     99.29 0.05    97.27 0.03    93.17 0.13    39.35 9.84
test_accuracy  fast_clip    99.41 0.04*   99.31 0.02*   95.28 0.07*   92.08 0.28*
pgd_accuracy   miyato       21.77 12.98   32.67 14.08   23.48 0.11    35.18 7.72
pgd_accuracy   gouk         2.40 2.94     8.41 3.03     16.13 1.28    14.66 3.99
pgd_accuracy   senderovich  30.99 9.28    15.97 4.84    21.74 0.72    39.84 7.87
pgd_accuracy   delattre     30.87 4.77    71.75 1.49    21.08 0.84    16.22 3.17
pgd_accuracy   fast_clip    47.90 5.49*   78.50 2.85*   24.48 0.32*   41.37 0.95*
cw_accuracy    miyato       86.25 2.18    73.56 10.38   16.68 0.95    48.48 6.40
cw_accuracy    gouk         66.59 21.91   21.94 6.01    18.79 2.99    12.63 4.33
cw_accuracy    senderovich  87.72 2.75    58.71 20.67   20.53 0.77    43.82 9.57
cw_accuracy    delattre     83.97 1.79    96.93 0.06*   24.05 1.72    11.92 5.34
cw_accuracy    fast_clip    90.21 1.80*   95.35 1.06    24.31 0.96*   56.28 0.96*
"""
# Columns: test set, PGD, CW.
_RESNET_ORIGINAL = """
mnist    none  99.37 0.02  15.30 9.11  77.46 5.89
cifar10  none  94.77 0.19  22.15 0.54  13.85 0.74
"""
_DLA = """
cifar10  miyato       95.06 0.09   23.62 1.27*  17.75 1.34*
cifar10  gouk         92.44 0.14   19.39 1.34   13.41 1.08
cifar10  senderovich  93.39 2.30   20.37 2.67   15.39 0.87
cifar10  delattre     93.66 0.46   19.90 2.47   14.92 2.77
cifar10  fast_clip    95.53 0.10*  22.54 1.02   17.14 0.76
mnist    miyato       99.40 0.05   3.26 2.95    78.59 5.34
mnist    gouk         99.26 0.06   3.13 2.49    79.16 7.07
mnist    senderovich  99.43 0.03   14.03 5.27   83.92 2.33
mnist    delattre     99.34 0.04   4.28 2.11    68.02 5.37
mnist    fast_clip    99.44 0.04*  16.74 7.09*  84.90 1.59*
"""
_DLA_ORIGINAL = """
mnist    none  99.39 0.08  0.35 0.48   50.78 6.58
cifar10  none  94.82 0.12  21.67 1.42  11.19 1.35
"""
_BATCH_NORM = """
resnet18  miyato+bn         85.91 0.27   17.63 0.44   49.94 2.25*
resnet18  gouk+bn           27.33 2.11   13.89 0.68   11.23 3.53
resnet18  senderovich+bn    69.27 4.35   16.22 1.86   25.27 3.43
resnet18  delattre+bn       30.44 3.59   12.99 4.16   10.17 6.63
resnet18  fast_clip+bn      90.59 0.36   25.97 0.88*  41.50 2.02
resnet18  fast_clip_concat  94.63 0.08*  25.02 1.56   33.77 3.59
dla       miyato+bn         80.91 0.95   16.29 2.79   40.64 5.34*
dla       gouk+bn           29.35 1.19   13.07 3.13   11.95 3.97
dla       senderovich+bn    74.94 1.03   13.92 1.25   34.14 3.52
dla       delattre+bn       32.31 4.38   12.18 3.14   12.07 5.45
dla       fast_clip+bn      89.27 0.25   23.40 1.46   39.16 2.76
dla       fast_clip_concat  95.02 0.07*  25.93 1.31*  28.16 0.81
"""


def find(place: Place) -> Published | None:
    """The paper's number for `place`, where it prints one."""
    return NUMBERS.get(place)


def _rows(text: str) -> Iterator[tuple[str, str, list[tuple[float, float, bool]]]]:
    """Two words and the pairs of mean and spread that follow, line by line."""
    for line in text.strip().splitlines():
        first, second, *numbers = line.split()
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        yield (
            first,
            second,
            [(float(mean), float(std.rstrip("*")), std.endswith("*")) for mean, std in pairs],
        )


def _numbers() -> dict[Place, Published]:
    found: dict[Place, Published] = {}
    columns = [("mnist", True), ("mnist", False), ("cifar10", True), ("cifar10", False)]
    for metric, method, values in _rows(_RESNET):
        for (dataset, has_bn), (mean, std, bold) in zip(columns, values, strict=True):
            place = Place("resnet18", dataset, has_bn, method, metric)
            found[place] = Published(mean, std, "Table 1", bold)
    for model, where, text in (
        ("resnet18", "Table 1, caption", _RESNET_ORIGINAL),
        ("dla", "Table 2", _DLA),
        ("dla", "Table 2, caption", _DLA_ORIGINAL),
    ):
        for dataset, method, values in _rows(text):
            for metric, (mean, std, bold) in zip(METRICS, values, strict=True):
                place = Place(model, dataset, True, method, metric)
                found[place] = Published(mean, std, where, bold)
    for model, method, values in _rows(_BATCH_NORM):
        for metric, (mean, std, bold) in zip(METRICS, values, strict=True):
            place = Place(model, "cifar10", True, method, metric)
            found[place] = Published(mean, std, "Table 3", bold)
    return found


NUMBERS = _numbers()
