"""Audits as JSON: the schema, the way there and back, and files that are whole or absent."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from zoo import BY_NAME

from spectralclip._audit import Audit, AuditComparison, audit

SCHEMA = json.loads((files("spectralclip.report") / "audit.schema.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(
    SCHEMA, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
)
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "audit-schema.md"


@pytest.fixture(scope="module")
def small() -> Audit:
    return audit(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.zeros(1, 3), lipschitz=False)


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", BY_NAME)
def test_round_trip_and_schema(name: str, tmp_path: Path) -> None:
    specimen = BY_NAME[name]
    found = audit(specimen.model(), specimen.inputs(), k=3)
    path = tmp_path / "audit.json"
    text = found.to_json(path)
    assert path.read_text("utf-8") == text
    document = strict(text)
    VALIDATOR.validate(document)
    for source in (text, path, str(path), document, found.to_dict()):
        assert Audit.from_json(source) == found
    comparison = found.compare(replace(found, model="Other"))
    document = strict(comparison.to_json(path))
    VALIDATOR.validate(document)
    for again in (document, path):
        assert AuditComparison.from_json(again) == comparison


@pytest.mark.parametrize("name", ["created", "layers", "skipped", "lipschitz"])
def test_schema_wants_every_key(small: Audit, name: str) -> None:
    document = small.to_dict()
    del document[name]
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document)
    with pytest.raises(ValueError, match=rf"audit-schema\.md describes: KeyError: '{name}'"):
        Audit.from_json(document)


def test_schema_wants_every_key_of_a_layer(small: Audit) -> None:
    for key in SCHEMA["$defs"]["layer"]["required"]:
        document = small.to_dict()
        del document["layers"][0][key]
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(document)
        with pytest.raises(ValueError, match=key):
            Audit.from_json(document)


def test_documents_without_the_keys_that_were_added_are_read(small: Audit) -> None:
    document = small.to_dict()
    del document["scores"], document["layers"][0]["max_norm"], document["layers"][0]["pressure"]
    VALIDATOR.validate(document)
    assert Audit.from_json(document) == replace(small, scores=None)


def test_keys_of_later_versions_are_ignored(small: Audit) -> None:
    document = small.to_dict()
    document["later"] = document["layers"][0]["later"] = 1
    VALIDATOR.validate(document)
    assert Audit.from_json(document) == small


def test_documentation_has_every_key() -> None:
    text = DOCUMENTATION.read_text("utf-8")
    for name, part in SCHEMA["$defs"].items():
        heading = f"## {name.replace('_', ' ').capitalize()}\n"
        section = text[text.index(heading) :].split("\n## ")[0]
        documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        assert documented == list(part["properties"]), name
        for key in part["properties"].values():
            assert key.get("description", "") in section


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "spectralclip.audit", "ver', "is no JSON"),
        ("{}", "has the format None"),
        (
            '{"format": "spectralclip.audit", "version": 1}',
            "reads version 2: audit the model again",
        ),
        ('{"format": "spectralclip.comparison", "version": 2}', r"AuditComparison\.from_json"),
    ],
)
def test_other_texts_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    for source in (text, path):
        with pytest.raises(ValueError, match=message):
            Audit.from_json(source)


def test_an_audit_is_no_comparison(small: Audit) -> None:
    with pytest.raises(ValueError, match=r"Audit\.from_json"):
        AuditComparison.from_json(small.to_json())
    with pytest.raises(FileNotFoundError):
        Audit.from_json("missing.json")


# --- Files -----------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(
    small: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.json"
    path.write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        small.to_json(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_rights_and_links_are_kept(small: Audit, tmp_path: Path) -> None:
    path, link, fresh = tmp_path / "audit.json", tmp_path / "link.json", tmp_path / "fresh"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    small.to_json(link)
    assert link.is_symlink() and Audit.from_json(path) == small
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    small.to_json(fresh)
    (tmp_path / "usual").write_text("")
    assert fresh.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_numbers_are_finite(small: Audit) -> None:
    layer = small.layers[0]
    assert math.isfinite(layer.norm.upper) and small.created.endswith("+00:00")
    assert set(small.environment) == set(SCHEMA["$defs"]["environment"]["properties"])
    assert set(small.settings) == set(SCHEMA["$defs"]["settings"]["properties"])


@pytest.mark.parametrize("value", [None, [], {}])
@pytest.mark.parametrize(
    "place",
    [
        ("layers", 0, "name"),
        ("layers", 0, "norm", "upper"),
        ("lipschitz", "lower"),
        ("scores", "spread"),
    ],
)
def test_entries_of_another_type_are_refused(place: tuple[Any, ...], value: Any) -> None:
    document = audit(nn.Linear(3, 3), torch.zeros(1, 3), k=1).to_dict()
    entry: Any = document
    for key in place[:-1]:
        entry = entry[key]
    entry[place[-1]] = value
    with pytest.raises(
        ValueError, match=rf"audit-schema\.md describes: TypeError: '{place[-1]}' is"
    ):
        Audit.from_json(document)
