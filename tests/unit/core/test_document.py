"""Documents: whole or not there, at one with themselves, and errors that say what to do where they arise."""

import copy
import json
from collections.abc import Iterator
from dataclasses import asdict

import ceilings_fixtures
import pytest
import record_fixtures as made
from data_fixtures import published_results
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.benchmarks.store_builds import DOCUMENT as BUILDS
from gpufeed.core.cells import cell_id
from gpufeed.core.config_schema import SCHEMAS
from gpufeed.core.document import disagreements, validator
from gpufeed.core.equivalence_verdict import VERDICT as GATES
from gpufeed.core.errors import GpufeedError
from gpufeed.core.record import CEILINGS, DECODING, KERNELS, Record
from gpufeed.core.record import INFERENCE as INFERENCES
from gpufeed.core.record import RECORD as RECORDS
from gpufeed.report.load_records import read_records, timed

PUBLISHED = {
    "records/*/*/*.json": RECORDS,
    "sweeps/*/*.json": DECODING,
    "builds/*/*.json": BUILDS,
    "kernels/*.json": KERNELS,
    "inference/*/*.json": INFERENCES,
    "ceilings/*/*.json": CEILINGS,
    "gate/*/*/*.json": GATES,
}


def test_a_document_that_breaks_the_schema_is_not_written_and_nobody_is_told_to_delete_it(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(GpufeedError) as raised:
        DECODING.write({"decoder": "pillow"}, path)
    assert "sweep.schema.yaml" in raised.value.expected
    assert "delete" not in raised.value.remedy
    assert "nothing was written" in raised.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "{}"])
def test_a_damaged_document_on_disk_is_to_be_moved_away(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(GpufeedError) as raised:
        DECODING.read(path)
    assert "move the file away and run snakemake" in raised.value.remedy


def test_a_document_of_another_version_is_not_called_damaged(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"schema_version": 2, "new": 1}')
    with pytest.raises(GpufeedError) as raised:
        DECODING.read(path)
    assert "schema version 2" in raised.value.found
    assert raised.value.expected == "schema version 1"
    assert "move" not in raised.value.remedy


def renamed(record, **axes):
    """Another cell in the record, under the name that such a cell has."""
    record["cell"] |= axes
    record["cell_id"] = cell_id(record["cell"])


def thousandfold(record):
    record["throughput"]["images_per_s"] *= 1000


def other_epoch(record):
    record["epochs"][0]["images_per_s"] *= 2


def other_mean(record):
    record["steps"]["total_ms"]["mean"] *= 2
    record["steps"]["total_ms"]["max"] *= 2


def other_accuracy(record):
    record["accuracy"]["top1"] = 0.9


def other_order(record):
    record["steps"]["load_ms"]["min"] = record["steps"]["load_ms"]["max"] + 1


EDITS = {
    "unknown loader": (lambda record: renamed(record, loader="magic"), "magic"),
    "unknown model": (lambda record: renamed(record, model="magic"), "magic"),
    "batch below one": (lambda record: renamed(record, batch_size=-1), "batch_size"),
    "no number": (lambda record: renamed(record, batch_size="many"), "batch_size"),
    "another setting": (lambda record: record["cell"].update(workers=7), "digest"),
    "another option": (lambda record: record["cell"]["hyper"].update(model={"stem": "cifar"}), "digest"),
    "another repeat": (lambda record: record.update(repeat=5), "5.json"),
    "another experiment": (lambda record: record.update(experiment="peers"), "peers"),
    "a thousandfold rate": (thousandfold, "images_per_s is 1000000, and images / seconds is 1000"),
    "another rate of an epoch": (other_epoch, "epochs[0]"),
    "another mean than the seconds": (other_mean, "seconds"),
    "another accuracy": (other_accuracy, "top1"),
    "a minimum above the maximum": (other_order, "steps.load_ms"),
}


@pytest.mark.parametrize(("edit", "said"), EDITS.values(), ids=EDITS)
def test_a_record_edited_by_hand_is_named_not_used_and_not_lost(tmp_path, edit, said):
    of = made.cell("resident")
    path, other = made.write(tmp_path, *(made.record(of, repeat, top1=0.5) for repeat in (0, 1)))
    assert Record.read(path).repeat == 0
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    with pytest.raises(GpufeedError) as raised:
        Record.read(path)
    assert str(path) in raised.value.found
    assert said in raised.value.found
    assert "delete" not in raised.value.remedy
    assert "move" in raised.value.remedy
    assert "snakemake" in raised.value.remedy
    table = read_records([path, other])
    assert table["status"].tolist() == ["unusable", "done"]
    assert str(path) in table["sentence"][0]
    assert raised.value.remedy in table["sentence"][0]
    assert timed(table)["path"].tolist() == [str(other)]
    assert json.loads(path.read_text()) == data  # what the user wrote is the user's


@pytest.mark.parametrize(
    "place", ["0.json", "pipelining/0.json", "peers/{cell_id}/0.json", "pipelining/x/0.json"]
)
def test_a_record_counts_in_its_own_place_alone(tmp_path, place):
    one = made.record(made.cell("resident"))
    path = tmp_path / place.format(cell_id=one.cell_id)
    one.write(path)
    with pytest.raises(GpufeedError, match=one.cell_id):
        Record.read(path)


def test_the_way_to_a_record_may_lead_through_another_folder(tmp_path):
    (path,) = made.write(tmp_path, made.record(made.cell("resident")))
    (path.parent.parent / "other").mkdir()
    assert Record.read(path.parent.parent / "other/.." / path.parent.name / path.name).repeat == 0


def test_another_record_of_a_repeat_may_lie_beside_the_first(tmp_path):
    (path,) = made.write(tmp_path, made.record(made.cell("resident"), repeat=3))
    for name, counts in (("3-again.json", True), ("30-again.json", False), ("30.json", False)):
        beside = path.with_name(name)
        beside.write_text(path.read_text())
        if counts:
            assert Record.read(beside) == Record.read(path)
        else:
            with pytest.raises(GpufeedError, match=path.name):
                Record.read(beside)


def test_other_documents_are_held_to_the_same(tmp_path):
    ceilings = ceilings_fixtures.document(ceilings_fixtures.pairs(0.5))
    path = ceilings_fixtures.write(tmp_path, ceilings)
    CEILINGS.read(path)
    ceilings["cell"]["batch_size"] += 1
    CEILINGS.write(ceilings, path)
    with pytest.raises(GpufeedError, match="digest"):
        CEILINGS.read(path)
    ceilings = ceilings_fixtures.document(ceilings_fixtures.pairs(0.5))
    CEILINGS.write(ceilings, moved := path.with_name("moved.json"))
    with pytest.raises(GpufeedError, match=ceilings["cell_id"]):
        CEILINGS.read(moved)


@pytest.mark.slow
def test_every_published_document_agrees_with_itself():
    counted = dict.fromkeys(PUBLISHED, 0)
    for place, document in PUBLISHED.items():
        for path in sorted(published_results().glob(f"**/{place}")):
            document.read(path)
            counted[place] += 1
    assert all(counted.values()), counted


def test_published_documents_are_of_a_commit_without_changes():
    documents = [json.loads(path.read_text()) for path in published_results().rglob("*.json")]
    environments = [one["environment"] for one in documents if isinstance(one, dict) and "environment" in one]
    assert all(one["commit"] and one["dirty"] is False for one in environments if "machine" in one)
    # documents of earlier versions have no machine, and may not know their changes: they become no more
    old = [one["dirty"] for one in environments if "machine" not in one]
    assert (old.count(None) <= 467, old.count(True) <= 16, old.count(False)) == (True, True, 0)


DESCRIBED = {path.name.partition(".")[0] for path in SCHEMAS.iterdir()} - {"watch"}
WRITTEN_BY_HAND = {"config", "hyper", "site"}
OPEN = {"gate": ["recipe", "options"], "sweep": ["settings"]}  # each loader and decoder has its own


def parts_of(schema: dict, name: str = "document") -> Iterator[tuple[str, dict]]:
    """Every part of a schema that describes an object, by the key that holds it."""
    if schema.get("type") == "object" or "properties" in schema:
        yield name, schema
    for key, part in [*schema.get("properties", {}).items(), *schema.get("$defs", {}).items()]:
        yield from parts_of(part, key)
    for key in ("items", "additionalProperties"):
        yield from parts_of(schema[key], name) if isinstance(schema.get(key), dict) else ()


@pytest.mark.parametrize("name", sorted(DESCRIBED))
def test_the_schemas_are_closed_and_describe_every_key(name):
    schema = copy.deepcopy(validator(name).schema)
    validator(name).check_schema(schema)
    if name not in {"record", "gate", "kernel", *WRITTEN_BY_HAND}:  # later versions gave the first keys
        assert set(schema["required"]) == set(schema["properties"])
    schema["properties"].pop("environment", None)  # described in the schema of records
    schema["properties"].pop("cell", None)  # old ones have other keys
    parts = [*parts_of(schema)]
    assert [key for key, part in parts if "additionalProperties" not in part] == OPEN.get(name, [])
    with_keys = [(key, part) for key, part in parts if "properties" in part]
    assert [key for key, part in with_keys if part["additionalProperties"] is not False] == []
    keys = [(key, one) for _, part in with_keys for key, one in part["properties"].items()]
    assert [key for key, one in keys if not one.get("description")] == []


NAMES = ["min", "median", "max", "mean", "images", "seconds", "images_per_s", "correct", "top1"]
WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=30,
)


@given(WILD)
def test_whatever_numbers_a_document_has_are_judged_without_an_error(wild):
    one = asdict(made.record(made.cell("resident")))
    one["telemetry"] = copy.deepcopy(wild)
    for sentence in disagreements(one):
        assert "telemetry" in sentence
