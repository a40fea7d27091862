"""Figure 3: norms of the tables' networks, and times of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from table_records import TABLES, changed, fill, times

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

from experiments import figure_layer_norms
from experiments.experiment import Context
from experiments.figure_layer_norms.grid import DLA_CIFAR
from experiments.figure_layer_norms.measured import seconds, timed
from experiments.figure_layer_norms.run import name_of
from experiments.measuring.stopwatch import seconds_of, share_of
from experiments.store import Store

FIGURE_3 = ("figure_layer_norms", "table_resnet", "table_dla")


def figure_3(tmp_path):
    store = Store(tmp_path)
    for name in FIGURE_3:
        fill(store, TABLES[name])
    return [record for name in FIGURE_3 for record in store.records(name, "laptop")]


def judged(records):
    claims = TABLES["figure_layer_norms"].claims
    return {claim.text: claim.judge(records) for claim in claims}


def kinds(records, words):
    return [verdict.kind for text, verdict in judged(records).items() if words in text]


def lengthened(record):
    return replace(record, config={**record.config, "epochs": 20})


def retimed(records, **settings):
    """The same with other times."""
    return [
        replace(record, run={"timing": times(record.config, **settings)})
        if "trainings" in record.config
        else record
        for record in records
    ]


def test_figure_3_judges_norms_of_the_tables_and_times_of_its_own(tmp_path):
    records = figure_3(tmp_path)
    assert kinds(records, "ResNet-18: with FastClip all layers") == ["reproduced"]
    precise = "ResNet-18: FastClip is the most precise"
    assert kinds(records, precise) == ["not at this scale"]  # trainings are short
    assert kinds(changed(records, lengthened), precise) == ["reproduced"]
    # Rivals were made two and three times as slow, all four times as slow on DLA.
    assert kinds(records, "is faster than") == ["reproduced"] * 2
    assert kinds(records, "grows by a smaller factor") == ["not at this scale"]
    assert kinds(records, "An epoch on MNIST") == ["reproduced"]
    assert kinds(records, "One iteration of PowerQR") == ["reproduced"]
    slow = retimed(records, costs={"fast_clip": 9.0})
    assert kinds(slow, "is faster than") == ["contradicted"] * 2


def test_a_seed_is_one_measurement_of_time(tmp_path):
    records = figure_3(tmp_path)
    one = [r for r in records if r.config["seed"] == 0]
    assert kinds(one, "is faster than") == ["not at this scale"] * 2
    found = timed(records)
    assert [*seconds(found, DLA_CIFAR, "gouk")] == [0, 1, 2]


def test_times_of_runs_that_were_disturbed_do_not_count(tmp_path):
    records = retimed(figure_3(tmp_path), share=0.5)
    assert set(kinds(records, "is faster than")) == {"not run"}  # that would count
    caption = figure_layer_norms.section(records).blocks[-1].caption
    assert "no runs" in caption and "disturbed, and are left out: 63" in caption


def test_our_own_method_cannot_contradict_what_the_paper_says_of_its_own(tmp_path):
    records = figure_3(tmp_path)
    slow = retimed(records, costs={"mnist spectral_clip": 9.0})
    assert kinds(slow, "An epoch on MNIST") == ["reproduced"]
    trains = [
        replace(record, result={"test_accuracy": 0.9 if record.config["batch_norm"] else 0.1})
        for record in records
        if "trainings" not in record.config
    ]

    def better(record):
        return replace(record, result={"test_accuracy": 0.9})

    seeds = [replace(r, config={**r.config, "seed": s}) for r in trains for s in range(3)]
    needs = TABLES["table_dla"].claims[-1]
    assert needs.judge(seeds).kind == "reproduced"
    assert needs.judge(changed(seeds, better, method="spectral_clip")).kind == "reproduced"
    assert needs.judge(changed(seeds, better, method="gouk")).kind == "contradicted"


def test_norms_that_still_fall_contradict_nothing(tmp_path):
    def off(first, last):
        def change(record):
            if "norms" not in record.result:
                return record
            jitter = 1 + 1e-3 * record.config["seed"]
            norms = [{"a": norm * jitter, "b": 1.0} for norm in (first, last)]
            epochs = [{"norms": found, "tracked": {}} for found in norms]
            result = {**record.result, "epochs": epochs, "norms": norms[1]}
            return lengthened(replace(record, result=result))

        return change

    records = figure_3(tmp_path)
    for words in ("ResNet-18: with FastClip all layers", "ResNet-18: FastClip is the most precise"):
        settled = changed(records, off(9.0, 9.0), method="fast_clip", model="resnet18")
        assert kinds(settled, words) == ["contradicted"]
        falling = changed(records, off(10.0, 9.0), method="fast_clip", model="resnet18")
        assert kinds(falling, words) == ["not at this scale"]


def test_norms_that_are_not_followed_contradict_the_claim(tmp_path):
    def lagging(record):
        if "epochs" not in record.result:
            return record
        last = record.result["epochs"][-1]
        tracked = {name: 0.7 * norm for name, norm in last["norms"].items()}
        return replace(record, result={**record.result, "epochs": [{**last, "tracked": tracked}]})

    records = changed(figure_3(tmp_path), lagging, method="fast_clip")
    assert kinds(records, "One iteration of PowerQR") == ["contradicted"]


@pytest.mark.parametrize(("scale", "seeds"), [("smoke", 1), ("laptop", 3), ("paper", 3)])
def test_times_are_taken_alone_over_a_whole_period(scale, seeds):
    configs = figure_layer_norms.EXPERIMENT.grid(scale)
    assert [config["seed"] for config in configs] == [*range(seeds)]
    for config in configs:
        assert config["alone"] and (scale == "smoke" or config["steps"] == 100)
        for one in config["trainings"]:
            needed = (config["steps"] + config["warm_up"]) * one["batch"]
            assert one["attacks"] is None and one["train_images"] == needed


def test_a_timed_run_stops_after_its_steps(tmp_path):
    (config,) = figure_layer_norms.EXPERIMENT.grid("smoke")
    said = []
    context = Context(None, tmp_path, say=lambda share, words: said.append(share))
    outcome = figure_layer_norms.EXPERIMENT.run(config, context)
    assert outcome["result"] == {"steps": 2, "diverged": {}} and said == [1 / 3, 2 / 3, 1]
    names = [name_of(one) for one in config["trainings"]]
    assert len(set(names)) == 6 and list(outcome["timing"]["seconds"]) == names
    assert all(second > 0 for second in outcome["timing"]["seconds"].values())
    assert list(tmp_path.iterdir()) == []
    short = {**config, "steps": 50}
    with pytest.raises(RuntimeError, match="expected 51 steps to time, got 3"):
        figure_layer_norms.EXPERIMENT.run(short, context)


def test_a_training_that_diverges_leaves_the_others_their_times(tmp_path):
    (config,) = figure_layer_norms.EXPERIMENT.grid("smoke")
    first, *others = config["trainings"]
    wild = {**config, "trainings": [{**first, "lr": 1e30}, *others]}
    outcome = figure_layer_norms.EXPERIMENT.run(wild, Context(None, tmp_path))
    assert list(outcome["result"]["diverged"]) == [name_of(first)]
    assert list(outcome["timing"]["seconds"]) == [name_of(one) for one in others]


def test_a_step_is_its_median_and_what_comes_now_and_then():
    # Another program took most of one step; the method took ten times as long at one of ten.
    walls, own = [1.0] * 8 + [50.0, 10.0], [1.0] * 9 + [10.0]
    times = [*zip(walls, own, strict=True)]
    assert seconds_of(times) == pytest.approx(1.9)
    assert share_of(times) == 1.0
