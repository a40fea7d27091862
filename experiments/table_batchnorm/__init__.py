"""Table 3: batch norms clipped on their own, against clipping conv + BN; both on CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from experiments.accuracy import tables as accuracy_tables
from experiments.accuracy.claims import Column, beats, between
from experiments.accuracy.grid import MODELS, RIVALS, configs
from experiments.experiment import Claim, Config, Experiment, Record, Scale, Section, Verdict
from experiments.judging.verdicts import Question, judge
from experiments.trained import run

COLUMNS = (Column("resnet18", "cifar10"), Column("dla", "cifar10"))
CLAMPED_RIVALS = tuple(f"{name}+bn" for name in RIVALS)
CLAMPED = (*CLAMPED_RIVALS, "fast_clip+bn")
CONCAT = "fast_clip_concat"
METHODS = (*CLAMPED, CONCAT, "spectral_clip+bn", "spectral_clip_conv_bn")
SMOKE = ("gouk+bn", CONCAT, "spectral_clip_conv_bn")
# The paper treats compositions every 500 steps, which a short run never reaches.
PERIODS = {"smoke": ":concat_every=1", "laptop": ":concat_every=100", "paper": ""}
TEST, ATTACKS = ("test_accuracy",), ("pgd_accuracy", "cw_accuracy")
CLOSE, SIGNIFICANT = 0.02, 0.05  # of accuracy


def grid(scale: Scale) -> list[Config]:
    """Both models with each way to treat their batch norms."""
    chosen = SMOKE if scale == "smoke" else METHODS
    methods = [name + PERIODS[scale] if name == CONCAT else name for name in chosen]
    return [
        config
        for model in (("resnet18",) if scale == "smoke" else ("resnet18", "dla"))
        for config in configs(
            scale,
            model=model,
            datasets=("cifar10",),
            batch_norm=True,
            methods=methods,
            measure="compositions",
        )
    ]


def section(records: Sequence[Record]) -> Section:
    """The table as the paper lays it out: ResNet-18, then DLA; and a chart of it."""
    shown = ("none", "fast_clip", *METHODS)
    tables = [accuracy_tables.by_metric(records, column, shown) for column in COLUMNS]
    drawn = accuracy_tables.chart("table_batchnorm", records, COLUMNS, shown)
    return Section((INTRODUCTION, *tables, drawn))


INTRODUCTION = (
    "*BN clipped* clamps each batch norm to norm 1 on its own, as Gouk et al. do; FastClip-concat "
    "clips convolution and batch norm together. The first two rows are those of the other tables, "
    "with batch norms left free. In short runs FastClip-concat treats compositions every 100 steps "
    "in place of 500."
)


def _best(records: Sequence[Record], column: Column, metric: str) -> Verdict:
    return judge(beats(records, [column], [metric], "fast_clip+bn", CLAMPED_RIVALS))


def _hinders(records: Sequence[Record], column: Column) -> Verdict:
    return judge(_freed(records, column, "test_accuracy"))


def _little_robustness(records: Sequence[Record], column: Column) -> Verdict:
    return judge(_freed(records, column, "pgd_accuracy", margin=SIGNIFICANT))


def _freed(
    records: Sequence[Record], column: Column, metric: str, margin: float = 0.0
) -> list[Question]:
    """Asks of each method whether it is better with batch norms left free."""
    return [
        between(records, metric, (column, plain), (column, f"{plain}+bn"), margin=margin)
        for plain in (*RIVALS, "fast_clip")
    ]


def _clamped_against_original(records: Sequence[Record], column: Column) -> Verdict:
    return judge(beats(records, [column], ATTACKS, "fast_clip+bn", ["none"]))


def _none_beats_removal(records: Sequence[Record]) -> Verdict:
    column = COLUMNS[0]
    return judge(
        [
            between(records, metric, (column.without, "fast_clip"), (column, name))
            for metric in (*TEST, *ATTACKS)
            for name in CLAMPED
        ]
    )


def _concat_accuracy(records: Sequence[Record], column: Column) -> Verdict:
    return judge(beats(records, [column], TEST, CONCAT, CLAMPED))


def _concat_robustness(records: Sequence[Record], column: Column) -> Verdict:
    return judge(beats(records, [column], ATTACKS, CONCAT, ["none", "fast_clip"]))


def _concat_is_close(records: Sequence[Record], column: Column) -> Verdict:
    return judge(beats(records, [column], TEST, CONCAT, ["fast_clip"], margin=CLOSE))


def _concat_beats_removal(records: Sequence[Record]) -> Verdict:
    column = COLUMNS[0]
    removed = (column.without, "fast_clip")
    return judge([between(records, "test_accuracy", (column, CONCAT), removed)])


# What the paper says of both models: the claim, its place, what is compared, and the judge.
SAID: tuple[tuple[str, str, str, Callable[..., Verdict]], ...] = (
    (
        "with batch norms clipped on their own, FastClip has the best test accuracy.",
        "Table 3, {model}",
        "the test accuracy of FastClip less that of each rival, all with batch norms clipped.",
        partial(_best, metric="test_accuracy"),
    ),
    (
        "with batch norms clipped on their own, FastClip is the best under PGD.",
        "Table 3, {model}",
        "the accuracy under PGD of FastClip less that of each rival, all with batch norms clipped.",
        partial(_best, metric="pgd_accuracy"),
    ),
    (
        "clipping batch norms on their own lowers the test accuracy of every method.",
        "Table 3, {model}, against {others}",
        "the test accuracy with batch norms free less that with batch norms clipped, for each "
        "of the paper's five methods.",
        _hinders,
    ),
    (
        "clipping batch norms on their own brings no significant gain of robustness.",
        "Table 3, {model}, against {others}",
        "5 points less the gain under PGD by clipping batch norms, for each of the paper's "
        "five methods. Under CW the paper's own numbers do gain.",
        _little_robustness,
    ),
    (
        "FastClip with batch norms clipped is more robust than the original model.",
        "Table 3, {model}, against {others}",
        "its accuracy under PGD and under CW less the original model's.",
        _clamped_against_original,
    ),
    (
        "FastClip-concat has a better test accuracy than all with batch norms clipped.",
        "Table 3, {model}, and the caption",
        "FastClip-concat's test accuracy less that of each of the five methods with batch "
        "norms clipped.",
        _concat_accuracy,
    ),
    (
        "FastClip-concat is more robust than the original model and than FastClip.",
        "Table 3, {model}, against {others}",
        "its accuracy under PGD and under CW less those of the original model and of FastClip.",
        _concat_robustness,
    ),
    (
        "FastClip-concat's test accuracy is close to FastClip's.",
        "Table 3, {model}, against {others}",
        "its test accuracy plus 2 points less FastClip's.",
        _concat_is_close,
    ),
)


def _claims_of(column: Column, others: str) -> list[Claim]:
    """The claims on a model; of each apart, since their seeds differ in number."""
    model = MODELS[column.model]
    return [
        Claim(
            f"{model}: {text}",
            f"{where.format(model=model, others=others)}; Section 3.3",
            f"Rule for comparisons on {rule}",
            partial(judged, column=column),
        )
        for text, where, rule, judged in SAID
    ]


CLAIMS = (
    *_claims_of(COLUMNS[0], "Table 1"),
    Claim(
        "ResNet-18: no method with batch norms clipped reaches the accuracy or robustness of "
        "FastClip with batch norms removed.",
        "Table 3 against Table 1; Section 3.3",
        "Rule for comparisons on each of the three accuracies of FastClip without batch norm less "
        "that of each of the five methods with batch norms clipped.",
        _none_beats_removal,
    ),
    Claim(
        "ResNet-18: FastClip-concat has a better test accuracy than FastClip with batch norms "
        "removed.",
        "Table 3 against Table 1; Section 3.3",
        "Rule for comparisons on its test accuracy less that of FastClip without batch norm.",
        _concat_beats_removal,
    ),
    *_claims_of(COLUMNS[1], "Table 2"),
)

EXPERIMENT = Experiment(
    name="table_batchnorm",
    title="Clipping batch norm, alone or with its convolution",
    where="Table 3",
    grid=grid,
    run=run,
    section=section,
    claims=CLAIMS,
    uses=("table_resnet", "table_dla"),
)
