import json
import re
from pathlib import Path

import pytest
import yaml

from nccltune.errors import SpaceError
from nccltune.space.catalogue import Catalogue, data_folder, load_catalogue, nearest_knob, parse_version, read_catalogue
from nccltune.space.conditions import c_integer, names_of
from nccltune.space.describe import describe_knob
from nccltune.space.space_file import SpaceFile, json_schema
from nccltune.space.values import canonical_value, why_no_value

CATALOGUE = load_catalogue()


@pytest.mark.parametrize("name", CATALOGUE.knobs)
def test_every_suggestion_is_legal_and_in_its_one_spelling(name):
    knob = CATALOGUE.knobs[name]
    for value in knob.suggest:
        if value is not None:
            assert why_no_value(str(value), knob, CATALOGUE) is None
            assert canonical_value(str(value), knob, CATALOGUE) == str(value)
    assert len(set(knob.suggest)) == len(knob.suggest)


@pytest.mark.parametrize("name", CATALOGUE.knobs)
def test_every_knob_says_where_it_comes_from_and_how_it_is_proven(name):
    knob = CATALOGUE.knobs[name]
    assert knob.name == name
    assert knob.source
    if knob.proof in ("integer-echo", "string-echo"):
        assert knob.evidence_line.startswith(f"{name} set by environment to {{value}}")
    elif knob.proof != "none" and "nccl" in knob.backends:
        assert knob.proof_line
    if "corrupt" in knob.safety and not knob.never:
        assert knob.ship != "plain"


def test_every_name_that_an_entry_mentions_exists():
    known = {*CATALOGUE.knobs, *CATALOGUE.gone}
    for knob in CATALOGUE.knobs.values():
        mentioned = {*knob.instead, *knob.off_when}
        assert mentioned <= known, knob.name
    for algorithm in CATALOGUE.algorithms.values():
        assert {*algorithm.off_when, *algorithm.needs_setting} <= known
        assert {word for words in algorithm.pairs.values() for word in words} <= set(CATALOGUE.protocols)
    for condition in CATALOGUE.conditions:
        assert set(names_of(condition)) <= known
    assert not set(CATALOGUE.gone) & set(CATALOGUE.knobs)


def test_a_tree_exists_for_allreduce_alone_and_ring_for_all():
    assert set(CATALOGUE.algorithms["tree"].pairs) == {"allreduce"}
    assert set(CATALOGUE.algorithms["ring"].pairs) == set(CATALOGUE.functions)
    assert len(CATALOGUE.functions) == 5


@pytest.mark.parametrize(("model", "name"), [(Catalogue, "knobs"), (SpaceFile, "space")])
def test_the_published_schema_is_that_of_the_model(model, name):
    published = json.loads((data_folder() / f"{name}.schema.json").read_text())
    assert published == json_schema(model)


def _changed(tmp_path: Path, old: str, new: str) -> Path:
    text = (data_folder() / "knobs.yaml").read_text()
    assert old in text
    path = tmp_path / "knobs.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "field", "said"),
    [
        ("    scope: communicator\n", "    scope: commune\n", "knobs.NCCL_ALGO.scope", "'process', 'communicator'"),
        ("    docs: debugging\n", "    docs: debugging\n    colour: red\n", "knobs.NCCL_ALGO.colour", "no field"),
        ("    default: all that exist\n", "", "knobs.NCCL_ALGO.default", "required"),
        ('    since: "2.5"\n', "    since: 2.5\n", "knobs.NCCL_ALGO.since", "string"),
        ("limit: 64", "limit: none", "conditions.0.limit", "integer"),
        ("    predicate: needs", "    predicate: wants", "", ""),
    ],
)
def test_a_wrong_field_is_named_with_file_line_and_path(tmp_path, old, new, field, said):
    if not field:
        old, new, field, said = "  - predicate: needs", "  - predicate: wants", "conditions.1", "wants"
    path = _changed(tmp_path, old, new)
    with pytest.raises(SpaceError) as caught:
        read_catalogue(path)
    match = re.match(rf"{re.escape(str(path))}:(\d+): ([\w.]+): (.*)", str(caught.value))
    assert match, str(caught.value)
    assert match[2] == field
    assert said in match[3]
    first_change = next(
        number
        for number, (one, other) in enumerate(
            zip((data_folder() / "knobs.yaml").read_text().splitlines(), path.read_text().splitlines(), strict=False), 1
        )
        if one != other
    )
    # A missing field is reported at its knob, above the place where it is missing.
    assert int(match[1]) == first_change or (not new and int(match[1]) < first_change)


def test_a_name_that_stands_twice_is_refused(tmp_path):
    path = _changed(tmp_path, "  NCCL_PROTO:\n", "  NCCL_ALGO:\n")
    with pytest.raises(SpaceError, match=r"knobs\.NCCL_ALGO: stands here twice"):
        read_catalogue(path)


def test_a_condition_on_an_unknown_knob_is_refused(tmp_path):
    path = _changed(tmp_path, "    other: NCCL_SOCKET_NTHREADS\n", "    other: NCCL_SOCKET_THREADS\n")
    with pytest.raises(SpaceError, match=r"NCCL_SOCKET_THREADS, which is no knob.*NCCL_SOCKET_NTHREADS"):
        read_catalogue(path)


def test_unknown_and_dropped_names():
    assert "NCCL_NTHREADS" in nearest_knob("NCCL_NTHREAD", CATALOGUE)
    with pytest.raises(SpaceError, match=r"no knob of the catalogue.*NCCL_BUFFSIZE"):
        CATALOGUE.knob("NCCL_BUFSIZE")
    with pytest.raises(SpaceError, match=r"dropped in NCCL 2\.5"):
        CATALOGUE.knob("NCCL_LL_THRESHOLD")


@pytest.mark.parametrize(
    ("text", "number"),
    [("4M", 4), ("0x10", 16), ("010", 8), ("1e6", 1), ("true", 0), ("", 0), ("-2", -2), ("089", 0), (" +7", 7)],
)
def test_numbers_are_read_as_the_source_reads_them(text, number):
    assert c_integer(text) == number


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.28.9", (2, 28, 9)),
        ("2.4", (2, 4, 0)),
        ("2.30.7+cuda13.3", (2, 30, 7)),
        ("", None),
        (None, None),
        ("x", None),
    ],
)
def test_versions(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize("name", CATALOGUE.knobs)
def test_every_knob_can_be_explained(name):
    knob = CATALOGUE.knobs[name]
    lines = describe_knob(name, CATALOGUE)
    said = "\n".join(lines)
    assert lines[0] == f"{name}: {knob.does}"
    assert str(knob.default) in said
    assert knob.source in said
    assert (knob.never or "searched") in said


def test_an_explanation_tells_of_the_rules_that_name_the_knob():
    said = "\n".join(describe_knob("NCCL_NSOCKS_PERTHREAD", CATALOGUE))
    assert "limit 64" in said
    assert "without helper threads" in said


def test_the_catalogue_is_plain_yaml_without_tags():
    text = (data_folder() / "knobs.yaml").read_text()
    assert yaml.safe_load(text)["schema_version"] == 1
    assert "!!" not in text


def test_no_foreign_name_is_a_knob():
    from nccltune.space.foreign import foreign_names

    assert "NCCL_VERSION" in foreign_names()
    assert not foreign_names() & (CATALOGUE.knobs.keys() | CATALOGUE.gone.keys())
