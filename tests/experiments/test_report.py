"""The page of the study, from made-up records."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from table_records import TABLES, changed, fill, tiny

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")
markdown_it = pytest.importorskip("markdown_it")

from experiments import table_batchnorm, table_resnet  # noqa: E402
from experiments.experiment import Chart, Claim, Experiment, Section, Table, Verdict  # noqa: E402
from experiments.report import conditions, write  # noqa: E402
from experiments.store import Store  # noqa: E402

DRAWN = ("layer_norms", "table_resnet", "table_dla", "table_batchnorm")
FINDINGS = ("finding-norms", "finding-batchnorm", "finding-resnet", "finding-resnet-no-bn")


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
    assert {path.stem for path in paths[2:]} == {*DRAWN, *FINDINGS}
    assert all(path.is_file() for path in paths)


def test_charts_are_drawings_that_stand_alone(page):
    for path in page[1][2:]:
        text = path.read_text()
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("svg") and float(root.get("width")) > 300
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 10
        assert "var(" not in text and "NaN" not in text


def test_the_markdown_is_well_formed(page):
    text = (page[0] / "index.md").read_text()
    titles = ("\n## In short", "\n## Claims", "\n### ResNet-18", "\n## ResNet-18")
    assert sorted(titles, key=text.index) == list(titles)
    assert text.index("finding-resnet.svg") < text.index("\n## Claims")
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
                words = ["Scale laptop", "seed", "epoch", "training images", "tested on"]
                if block.caption.startswith("Seconds of a training step"):
                    words = ["Scale laptop", "seed", "100 steps", "in turns", "standard deviation"]
                for word in words:
                    assert word in block.caption


def test_captions_of_the_tables_tell_how_runs_differ_from_the_paper_s(page):
    records = Store(page[0]).records("table_resnet", "laptop")
    for block in table_resnet.section(records).blocks:
        if isinstance(block, (Table, Chart)):
            for words in ("lr 0.1 or 0.01", "SGD from a rate of 0.05", "SpectralClip alone is"):
                assert words in block.caption
    records = Store(page[0]).records("table_batchnorm", "laptop")
    caption = table_batchnorm.section(records).blocks[1].caption
    assert "fast_clip_concat with concat_every=100" in caption


def test_attacks_as_published_have_columns_of_their_own(page):
    records = Store(page[0]).records("table_resnet", "laptop")
    assert not any(
        "as published" in name for name in table_resnet.section(records).blocks[2].header
    )

    def attacked(record):
        both = {"pgd_accuracy": 0.125, "cw_accuracy": 0.25}
        return replace(record, result={**record.result, "paper_protocol": both})

    records = changed(records, attacked, dataset="cifar10")
    test, pgd, cw = table_resnet.section(records).blocks[1:4]
    assert "attacked as published" not in test.header
    for table, number in ((pgd, "12.50 ± 0.00"), (cw, "25.00 ± 0.00")):
        assert table.header[5:] == [
            *("CIFAR-10, with BN", "attacked as published", "paper"),
            *("CIFAR-10, no BN", "attacked as published", "paper"),
        ]
        assert all(len(row) == len(table.header) for row in table.rows)
        assert {row[6] for row in table.rows} == {row[9] for row in table.rows} == {number}
        assert "attacks like the paper's" in table.caption
    protocols = {c["protocol"] for c in table_resnet.grid("paper") if c["dataset"] == "cifar10"}
    assert protocols == {"both"}


def test_what_stands_in_for_a_data_set_is_called_so(tmp_path):
    store = Store(tmp_path)
    for one in TABLES.values():
        fill(store, one, "smoke")
    records = [record for one in TABLES for record in store.records(one, "smoke")]
    for experiment in TABLES.values():
        for block in experiment.section(records).blocks:
            if isinstance(block, Table):
                for place, word in enumerate(block.header):
                    has_runs = any(row[place] != "–" for row in block.rows)
                    if has_runs and ("MNIST" in word or "CIFAR" in word):
                        assert "(stand-in)" in word
            if isinstance(block, Chart):
                ours = [r for r in block.spec["data"]["values"] if r.get("kind") != "paper"]
                assert ours and all("(stand-in)" in row["column"] for row in ours)


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
    assert found.tags.count("svg") == len(DRAWN) + len(FINDINGS)
    assert all(link.startswith("#") for link in found.links)
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(found.ids)


def test_ours_and_the_paper_s_numbers_stand_side_by_side(page):
    text = (page[0] / "index.md").read_text()
    lines = text[text.index("\n## ResNet-18") :].splitlines()
    row = next(line for line in lines if line.startswith("| FastClip (published, not raising)"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2::2] == ["99.41 ± 0.04", "99.31 ± 0.02", "95.28 ± 0.07", "92.08 ± 0.28"]
    assert all(re.fullmatch(r"\d\d\.\d\d ± \d+\.\d\d", cell) for cell in cells[1::2])


def test_what_claims_say_is_text_and_never_markup(tmp_path):
    verdict = Verdict("contradicted", "a | b <script>alert(1)</script>")
    claim = Claim("<b>x</b>\ny", "z", "r", lambda records: verdict)
    store, experiment = Store(tmp_path), tiny([claim])
    for cell in experiment.cells("laptop"):
        store.save(cell, {"a": 1}, {})
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
    store.save(experiment.cells("paper")[2], {"a": 1}, {})
    write(store, tmp_path, experiments=reported)
    for cell in experiment.cells("laptop"):
        store.save(cell, {"a": 1}, {})
    write(store, tmp_path, experiments=reported)
    for cell in experiment.cells("paper")[:2]:
        assert store.adopt(cell)
    write(store, tmp_path, experiments=reported)
    write(store, tmp_path, "laptop", experiments=reported)
    assert chosen == [["paper"], ["laptop"] * 2, ["paper"] * 3, ["laptop"] * 2]


def test_runs_of_an_older_grid_are_left_out(tmp_path):
    store, older = Store(tmp_path), tiny(paper=5)
    for cell in older.cells("paper"):
        store.save(cell, {"a": 1}, {"seconds": 3600})
    newer = tiny(paper=3)
    write(store, tmp_path, experiments={newer.name: newer})
    assert "| Tiny | paper | 3 | 3 | 3.00 |" in (tmp_path / "index.md").read_text()


def test_a_smoke_run_reproduces_nothing(tmp_path):
    claim = Claim("c", "w", "r", lambda records: Verdict("reproduced", "sure"))
    store, experiment = Store(tmp_path), tiny([claim])
    for cell in experiment.cells("smoke"):
        store.save(cell, {"a": 1}, {})
    write(store, tmp_path, "smoke", experiments={experiment.name: experiment})
    text = (tmp_path / "index.md").read_text()
    assert "**not at this scale** (smoke)" in text and "sure" not in text


def test_two_charts_of_one_name_are_refused(tmp_path):
    chart = Chart("same", {"data": {"values": []}, "mark": "point"}, "c", "a")
    store, experiment = Store(tmp_path), tiny(blocks=(chart, chart))
    store.save(experiment.cells("laptop")[0], {"a": 1}, {})
    with pytest.raises(ValueError, match="'same'"):
        write(store, tmp_path, experiments={experiment.name: experiment})
    assert not (tmp_path / "index.md").exists()


def test_conditions_of_nothing():
    assert conditions([]) == "No runs."
