"""The tables of the study and its page, from made-up records."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")
markdown_it = pytest.importorskip("markdown_it")

from experiments import (  # noqa: E402
    figure_layer_norms,
    methods,
    table_batchnorm,
    table_dla,
    table_resnet,
)
from experiments.experiment import (  # noqa: E402
    SCALES,
    Chart,
    Claim,
    Experiment,
    Section,
    Table,
    Verdict,
)
from experiments.published import METRICS, NUMBERS, Place  # noqa: E402
from experiments.report import conditions, write  # noqa: E402
from experiments.store import Store  # noqa: E402
from experiments.training import TrainConfig  # noqa: E402

TABLES = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (figure_layer_norms, table_batchnorm, table_dla, table_resnet)
}
# By how much each method is better than the original model, if FastClip is what the paper says.
GAINS = {"none": 0.0, "miyato": 0.02, "gouk": 0.01, "fast_clip": 0.2, "fast_clip_concat": 0.3}


def made_up(config, gains):
    """A result and times for a configuration, the seed adding to all methods alike."""
    rng = random.Random(str(sorted(config.items(), key=str)))
    method = config["method"].partition(":")[0]
    shared = random.Random(config["seed"]).uniform(0, 0.2)
    accuracy = 0.2 + shared + gains.get(method, 0.0) + rng.uniform(-0.002, 0.002)
    names = [f"layer{place}" for place in range(6)]
    spread = 0.01 if method == "fast_clip" else 0.5
    result = {
        "epochs": [],
        **{metric: accuracy for metric in METRICS},
        "norms": {name: 1 + spread * rng.uniform(0.5, 1) for name in names},
    }
    cost = {"senderovich": 3.0, "delattre": 2.0}.get(method, 1.0)
    seconds = [cost * (4 if config["model"] == "dla" else 1) * rng.uniform(1, 1.01) for _ in "12"]
    return result, {"seconds": 60.0, "timing": {"epochs": seconds}}


def fill(store, experiment, scale="laptop", gains=GAINS, keep=lambda config: True):
    for cell in experiment.cells(scale):
        if keep(cell.config):
            store.save(cell, *made_up(cell.config, gains))


def verdicts(experiment, store, used=()):
    records = [
        record for one in (experiment, *used) for record in store.records(one.name, "laptop")
    ]
    return {claim.text: claim.judge(records).kind for claim in experiment.claims}


def tiny(claims=(), blocks=("Words.",), name="figure_tiny", paper=3):
    """An experiment of two or three runs."""

    def grid(scale):
        return [{"label": "x", "n": n} for n in range(paper if scale == "paper" else 2)]

    return Experiment(
        name,
        "Tiny",
        "Figure 9",
        grid,
        lambda config, context: {},
        lambda r: Section(blocks),
        claims,
    )


# --- the paper's numbers --------------------------------------------------------------------


def test_all_numbers_of_the_paper_are_there():
    counts = {}
    for number in NUMBERS.values():
        counts[number.where] = counts.get(number.where, 0) + 1
    assert counts == {
        "Table 1": 60,
        "Table 1, caption": 6,
        "Table 2": 30,
        "Table 2, caption": 6,
        "Table 3": 36,
    }


def test_what_the_paper_prints_bold_is_the_best_of_its_column():
    columns = {}
    for place, number in NUMBERS.items():
        if "caption" not in number.where:
            key = (number.where, place.model, place.dataset, place.batch_norm, place.metric)
            columns.setdefault(key, []).append(number)
    assert len(columns) == 12 + 6 + 6
    for key, numbers in columns.items():
        best = max(numbers, key=lambda number: number.mean)
        assert [number for number in numbers if number.bold] == [best], key


def test_numbers_are_of_methods_that_can_be_run():
    for place in NUMBERS:
        assert methods.get(place.method, batch_norm=True) or place.method == "none"
    assert str(NUMBERS[Place("resnet18", "mnist", False, "senderovich", "test_accuracy")]) == (
        "62.63 ± 24.01"
    )


# --- the grids ------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", list(TABLES))
def test_grids_are_configurations_that_training_takes(name, scale):
    cells = TABLES[name].cells(scale)
    assert len({cell.id for cell in cells}) == len(cells)
    for cell in cells:
        config = TrainConfig.of(cell.config)
        assert methods.get(config.method, batch_norm=config.batch_norm) or config.method == "none"


def test_the_paper_s_scale_is_the_paper_s_training():
    for name in ("table_resnet", "table_dla", "table_batchnorm"):
        for config in TABLES[name].grid("paper"):
            is_mnist = config["dataset"] == "mnist"
            assert (config["width"], config["batch"]) == (64, 128)
            assert config["train_images"] is None and config["test_images"] is None
            assert config["epochs"] == (120 if is_mnist else 200)
            assert config["lr"] == (1e-3 if is_mnist else 0.1)
            assert ":" not in config["method"]
            if config["attacks"]:
                assert config["attacks"]["pgd"]["eps"] == (0.1 if is_mnist else 0.02)
                assert config["attacks"]["cw"]["iterations"] == 1000


def test_every_number_of_the_paper_has_runs_beside_it():
    runs = {
        (config["model"], config["dataset"], config["batch_norm"], config["method"])
        for experiment in TABLES.values()
        for config in experiment.grid("paper")
    }
    assert {(p.model, p.dataset, p.batch_norm, p.method) for p in NUMBERS} <= runs


# --- the claims -----------------------------------------------------------------------------


def test_claims_hold_on_records_made_to_fit_them(tmp_path):
    store = Store(tmp_path)
    fill(store, TABLES["table_resnet"])
    found = verdicts(TABLES["table_resnet"], store)
    held = [text for text, kind in found.items() if kind == "reproduced"]
    assert len(held) == 5
    assert not [kind for kind in found.values() if kind == "contradicted"]
    undecided = [text for text in found if text not in held]  # batch norm made no difference
    assert all("batch norm" in text for text in undecided)


def test_claims_fall_on_records_made_against_them(tmp_path):
    store = Store(tmp_path)
    fill(store, TABLES["table_resnet"], gains={"fast_clip": -0.19})
    found = verdicts(TABLES["table_resnet"], store)
    assert [*found.values()].count("contradicted") == 5


def test_a_table_without_seeds_decides_nothing(tmp_path):
    store = Store(tmp_path)
    fill(store, TABLES["table_resnet"], keep=lambda config: config["seed"] == 0)
    assert set(verdicts(TABLES["table_resnet"], store).values()) == {"not at this scale"}


@pytest.mark.parametrize("name", list(TABLES))
def test_no_runs_or_few_are_reported_as_such(name, tmp_path):
    store, experiment = Store(tmp_path), TABLES[name]
    for one in TABLES.values():
        fill(store, one, "smoke")
    few = [record for one in TABLES for record in store.records(one, "smoke")]
    for records in ([], few):
        assert {claim.judge(records).kind for claim in experiment.claims} == {"not at this scale"}
        assert len(experiment.section(records).blocks) >= 4


def test_a_diverged_run_counts_as_chance_and_is_marked(tmp_path):
    store, dla = Store(tmp_path), TABLES["table_dla"]
    for cell in dla.cells("laptop"):
        result, run = made_up(cell.config, GAINS)
        lost = not cell.config["batch_norm"]
        store.save(cell, {"diverged": "the loss is nan"} if lost else result, run)
    table = dla.section(store.records("table_dla", "laptop")).blocks[-1]
    assert isinstance(table, Table)
    assert all("10.00" in cell and "diverged" in cell for row in table.rows for cell in row[1:])


def test_figure_3_judges_norms_and_times_of_the_tables(tmp_path):
    store = Store(tmp_path)
    used = TABLES["table_resnet"], TABLES["table_dla"]
    for experiment in used:
        fill(store, experiment)
    found = verdicts(TABLES["figure_layer_norms"], store, used)
    assert found[
        "ResNet-18: with FastClip all layers have a norm very close to the target of 1."
    ] == ("reproduced")
    assert found["ResNet-18: FastClip is the most precise of the clipping methods."] == "reproduced"
    faster = [kind for text, kind in found.items() if "is faster than" in text]
    assert faster == ["reproduced"] * 2  # rivals were made two and three times as slow
    grows = next(kind for text, kind in found.items() if "grows by a smaller factor" in text)
    assert grows == "not at this scale"  # all were made four times as slow on DLA


# --- the page -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    store = Store(folder)
    for experiment in TABLES.values():
        fill(store, experiment)
    return folder, write(store, folder, experiments=TABLES)


def test_the_page_is_written(page):
    paths = page[1]
    assert [path.name for path in paths[:2]] == ["index.md", "index.html"]
    assert {path.name for path in paths[2:]} == {
        f"{name}.svg" for name in ("layer_norms", "table_resnet", "table_dla", "table_batchnorm")
    }
    assert all(path.is_file() for path in paths)


def test_charts_are_drawings_that_stand_alone(page):
    for path in page[1][2:]:
        text = path.read_text()
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("svg") and float(root.get("width")) > 300
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 20
        assert "var(" not in text and "NaN" not in text


def test_the_markdown_is_well_formed(page):
    text = (page[0] / "index.md").read_text()
    assert text.index("## Claims") < text.index("## ResNet-18")
    html = markdown_it.MarkdownIt("commonmark").enable("table").render(text)
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    claims = sum(len(experiment.claims) for experiment in TABLES.values())
    assert sum(row.count("<td>") == 5 and "laptop)" in row for row in rows) == claims
    assert f"{claims} claims: " in text
    for path in page[1][2:]:
        assert f"](charts/{path.name})" in text


def test_captions_tell_scale_seeds_epochs_and_images(page):
    for experiment in TABLES.values():
        records = [
            record
            for name in (experiment.name, *experiment.uses)
            for record in Store(page[0]).records(name, "laptop")
        ]
        for block in experiment.section(records).blocks:
            if isinstance(block, (Table, Chart)):
                for word in ("Scale laptop", "seed", "epoch", "training images", "tested on"):
                    assert word in block.caption


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href"):
                self.links.append(value)


def test_the_html_page_loads_nothing(page):
    text = (page[0] / "index.html").read_text()
    found = Elements()
    found.feed(text)
    assert "script" not in found.tags and "link" not in found.tags and "img" not in found.tags
    assert found.tags.count("svg") == 4
    assert all(link.startswith("#") for link in found.links)
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(found.ids)


def test_ours_and_the_paper_s_numbers_stand_side_by_side(page):
    text = (page[0] / "index.md").read_text()
    lines = text[text.index("## ResNet-18") :].splitlines()
    row = next(line for line in lines if line.startswith("| FastClip, as published"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2::2] == ["99.41 ± 0.04", "99.31 ± 0.02", "95.28 ± 0.07", "92.08 ± 0.28"]
    assert all(re.fullmatch(r"\d\d\.\d\d ± \d+\.\d\d", cell) for cell in cells[1::2])


def test_what_claims_say_is_text_and_never_markup(tmp_path):
    verdict = Verdict("contradicted", "a | b <script>alert(1)</script>")
    claim = Claim("<b>x</b>\ny", "z", "r", lambda records: verdict)
    store, experiment = Store(tmp_path), tiny([claim])
    for cell in experiment.cells("laptop"):
        store.save(cell, {}, {})
    write(store, tmp_path, experiments={experiment.name: experiment})
    text = (tmp_path / "index.html").read_text()
    assert "<script" not in text and "<b>" not in text and "&lt;script&gt;" in text
    line = next(one for one in (tmp_path / "index.md").read_text().splitlines() if "alert" in one)
    assert line.count("|") - line.count("\\|") == 6


def test_the_largest_complete_scale_is_reported(tmp_path):
    store, experiment = Store(tmp_path), tiny()
    chosen = []

    def section(records):
        chosen.append([record.scale for record in records])
        return Section(("Words.",))

    experiment = Experiment(**{**vars(experiment), "section": section})
    reported = {experiment.name: experiment}
    write(store, tmp_path, experiments=reported)
    assert chosen == [] and "No runs yet." in (tmp_path / "index.md").read_text()
    store.save(experiment.cells("paper")[2], {}, {})
    write(store, tmp_path, experiments=reported)
    for cell in experiment.cells("laptop"):
        store.save(cell, {}, {})
    write(store, tmp_path, experiments=reported)
    for cell in experiment.cells("paper")[:2]:
        assert store.adopt(cell)
    write(store, tmp_path, experiments=reported)
    write(store, tmp_path, "laptop", experiments=reported)
    assert chosen == [["paper"], ["laptop"] * 2, ["paper"] * 3, ["laptop"] * 2]


def test_runs_of_an_older_grid_are_left_out(tmp_path):
    store, older = Store(tmp_path), tiny(paper=5)
    for cell in older.cells("paper"):
        store.save(cell, {}, {"seconds": 3600})
    newer = tiny(paper=3)
    write(store, tmp_path, experiments={newer.name: newer})
    assert "| Tiny | paper | 3 | 3 | 3.00 |" in (tmp_path / "index.md").read_text()


def test_a_smoke_run_reproduces_nothing(tmp_path):
    claim = Claim("c", "w", "r", lambda records: Verdict("reproduced", "sure"))
    store, experiment = Store(tmp_path), tiny([claim])
    for cell in experiment.cells("smoke"):
        store.save(cell, {}, {})
    write(store, tmp_path, "smoke", experiments={experiment.name: experiment})
    text = (tmp_path / "index.md").read_text()
    assert "**not at this scale** (smoke)" in text and "sure" not in text


def test_two_charts_of_one_name_are_refused(tmp_path):
    chart = Chart("same", {"data": {"values": []}, "mark": "point"}, "c", "a")
    store, experiment = Store(tmp_path), tiny(blocks=(chart, chart))
    store.save(experiment.cells("laptop")[0], {}, {})
    with pytest.raises(ValueError, match="'same'"):
        write(store, tmp_path, experiments={experiment.name: experiment})
    assert not (tmp_path / "index.md").exists()


def test_conditions_of_nothing():
    assert conditions([]) == "No runs."
