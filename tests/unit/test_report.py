"""The report: the numbers of the ledger, nothing of anybody else, nothing from elsewhere."""

import base64
import hashlib
import html.parser
import json
import os
import re
import statistics
from pathlib import Path

import pytest
import studies
from fakes import FakeRunner

from nccltune import cli, terminal, tune
from nccltune import plan as plans
from nccltune.errors import LedgerError, StorageError, StudyError
from nccltune.report import charts, content, page, source
from nccltune.study.ledger import Ledger
from nccltune.verdict import profile as profiles
from nccltune.verdict.reach import foresee
from nccltune.verdict.sequence import Rule

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings" / "ledgers"
RECORDED = sorted(path.name for path in RECORDINGS.iterdir())
HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(2)>'"&"""


class Page(html.parser.HTMLParser):
    """What a browser would see: elements with their attributes, tables as text, scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        known = {name: value or "" for name, value in attrs}
        self.elements.append((tag, known))
        self._open.append(tag)
        if tag == "table":
            self._rows = self.tables.setdefault(known["aria-label"], [])
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append(("", known.get("data-key")))
        if tag == "script":
            self.scripts.append((known, ""))

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open[-1:] == ["script"]:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
            return
        self.text += data
        if "td" in self._open or "th" in self._open:
            text, key = self._rows[-1][-1]
            self._rows[-1][-1] = (f"{text}{data}", key)

    def column(self, table, name):
        head, *rows = self.tables[table]
        index = [heading for heading, _ in head].index(name)
        return [row[index] for row in rows]


def rendered(folder: Path) -> tuple[str, Page]:
    """The page as text and as read, with a stand-in for the megabytes of plotly.js."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "library", lambda: "var Plotly;")
        text = page.render(content.gather(source.find(folder)))
    return text, Page(text)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study that ships, its page as text and as read."""
    ledger = studies.create(tmp_path_factory.mktemp("out") / "runs" / "shipped")
    return ledger, *rendered(ledger.folder)


# ---- numbers


def test_the_verdict_stands_on_top_in_its_own_words(study):
    ledger, _, read = study
    verdict = ledger.verdict
    assert verdict.word == "ship"
    body = read.text.replace("\N{NO-BREAK SPACE}", " ")
    assert f"{verdict.sentence}." in body
    top = body[: body.index("Default against finalists")]
    assert f"{100 * verdict.gain:+.3g} %" in top
    assert f"{100 * verdict.bounds[0]:+.3g} % to {100 * verdict.bounds[1]:+.3g} %" in top
    assert f"{verdict.pays_after_steps:,} steps" in top
    assert "NCCL_BUFFSIZE=8388608" in top
    assert "0.18 %" in top
    assert f"{2 * 11 * len(ledger.launches) / 60:.0f} min" in top
    assert "EMULATED" not in top
    assert "COLLECTIVE ONLY" not in top


def test_every_trial_stands_in_the_table_with_the_ledgers_numbers(study):
    ledger, _, read = study
    assert [int(key) for _, key in read.column("Every trial", "Trial")] == [t.number for t in ledger.trials]
    steps = [None if key is None else float(key) for _, key in read.column("Every trial", "Step")]
    assert steps == [trial.value_us for trial in ledger.trials]
    default_us = statistics.median(ledger.noise.medians)
    gains = [None if key is None else float(key) for _, key in read.column("Every trial", "Gain")]
    assert gains == [
        None if trial.candidate.is_default or trial.value_us is None else default_us / trial.value_us - 1
        for trial in ledger.trials
    ]
    assert [key for _, key in read.column("Every trial", "Launches")] == ["3", "1", "1", "1", "0", "1"]
    states = [text for text, _ in read.column("Every trial", "State")]
    assert states == ["measured", "measured", "measured", "failed", "refused, not launched", "measured"]
    failures = [text for text, _ in read.column("Every trial", "Failure")]
    assert failures[3] == "hang_timeout (candidate): no progress for 60 s"
    assert failures[4] == "the minimum is above the maximum"
    assert [text for text, _ in read.column("Every trial", "What to do")][3] == "look at rank 1"
    bandwidth = [key for _, key in read.column("Every trial", "Bus bandwidth")]
    assert float(bandwidth[1]) == pytest.approx(3e5 / 900.0)
    assert bandwidth[3] is None


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_studies_are_shown_as_they_are(name):
    ledger = Ledger.open(RECORDINGS / name)
    _, read = rendered(RECORDINGS / name)
    steps = [None if key is None else float(key) for _, key in read.column("Every trial", "Step")]
    assert steps == [trial.value_us for trial in ledger.trials]
    parts = {row[0][0].split(" ")[0]: row for row in _rows(read, "by part")}
    for part in ("start", "timed"):
        times = [launch.outcome.parts_s[part] for launch in ledger.launches if part in launch.outcome.parts_s]
        assert float(parts[part][1][1]) == statistics.median(times)
    assert ("EMULATED" in read.text) == bool(ledger.plan["placement"]["emulated_nodes"])
    word = ledger.verdict.label if ledger.verdict else "unfinished"
    assert f" {word}" in read.text


def _rows(read, words):
    (name,) = (name for name in read.tables if words in name)
    return read.tables[name][1:]


def test_the_finalist_has_its_interval_and_every_round(study):
    ledger, _, read = study
    (finalist,) = ledger.verdict.finalists
    (gain,) = read.column("Default against finalists, in fresh rounds", "Gain")
    assert float(gain[1]) == finalist.gain
    (rounds,) = read.column("Default against finalists, in fresh rounds", "Rounds")
    assert int(rounds[1]) == len(finalist.pairs) == studies.ROUNDS
    shown = _figure(read, "rounds")
    points = [x for trace in shown["data"] if "round" in trace["name"] for x in trace["x"]]
    assert sorted(points) == pytest.approx(sorted(100 * pair.gain for pair in finalist.pairs))
    (estimate,) = (trace for trace in shown["data"] if trace["name"].startswith("estimate"))
    middle, bars = estimate["x"][0], estimate["error_x"]
    low, high = middle - bars["arrayminus"][0], middle + bars["array"][0]
    assert (low / 100, high / 100) == pytest.approx(finalist.interval)


def test_the_time_of_a_step_is_cut_without_a_rest(study):
    _, _, read = study
    shown = _figure(read, "time")
    for index, step_us in enumerate((1100.0, 980.0)):
        assert sum(trace["x"][index] for trace in shown["data"]) == pytest.approx(step_us)
    rows = {row[0][0]: row[1:] for row in _rows(read, "time of a step")}
    assert [key for _, key in rows["of communication: transfer"]] == [None, None]
    assert [text for text, _ in rows["of communication: transfer"]] == ["not measured", "not measured"]


def test_failures_and_slow_trials_have_shapes_of_their_own(study):
    shown = {trace["name"]: trace for trace in _figure(study[2], "course")["data"]}
    assert shown["failed: no step time"]["x"] == [3]
    assert shown["slower than shown"]["x"] == [5]
    assert shown["trial"]["x"] == [0, 1, 2]
    assert len({trace["marker"]["symbol"] for trace in shown.values() if trace["mode"] == "markers"}) == 3
    assert shown["best so far"]["y"][-1] == min(shown["trial"]["y"])


def test_warnings_failures_and_disturbances_are_told_launch_by_launch(study):
    told = [[text for text, _ in row] for row in _rows(study[2], "Warnings")]
    assert [row[0] for row in told] == ["0004-search", "0004-search", "0005-search"]
    assert told[0][3] == "the step time drifted"
    assert told[1][3] == "disturbed: others used 40 % of the cores"
    assert told[2][3] == "hang_timeout (candidate): no progress for 60 s; look at rank 1"


def test_the_noise_floor_says_what_it_lets_anybody_show(study):
    ledger, _, read = study
    said = read.text.replace("\N{NO-BREAK SPACE}", " ")
    rule = Rule(min_gain=ledger.verdict.min_gain, rounds=20)
    for sentence in foresee(ledger.noise, rule, 11.0).sentences:
        assert sentence[1:] in said
    medians = [float(row[1][1]) for row in _rows(read, "default's launches")]
    assert tuple(medians) == ledger.noise.medians


def test_the_text_holds_the_same_numbers(study, capsys):
    ledger, _, read = study
    assert cli.run(["report", str(ledger.folder), "--text"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{ledger.verdict.sentence}." in said
    missing = [
        text
        for rows in read.tables.values()
        for row in rows[1:]
        for text, _ in row
        if " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split()) not in said
    ]
    assert missing == []
    assert not (ledger.folder / page.FILE).exists()


# ---- safe


def test_the_page_is_whole_in_itself(study):
    _, text, read = study
    for tag, attributes in read.elements:
        assert not {"src", "srcset", "background", "action", "data"} & attributes.keys(), tag
        assert attributes.get("href", "#").startswith("#")
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert not [name for name in attributes if name.startswith("on")]
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_lets_the_pages_own_scripts_run_and_nothing_else(study):
    _, _, read = study
    policies = [known["content"] for _, known in read.elements if known.get("http-equiv") == "Content-Security-Policy"]
    (policy,) = policies
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert not {"connect-src", "font-src", "frame-src", "object-src"} & rules.keys()
    assert "http" not in policy
    run = [text for known, text in read.scripts if "type" not in known]
    assert len(run) == 2
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in run}
    assert set(rules["script-src"].split()) == hashes


def test_a_hostile_study_stays_text(tmp_path):
    ledger = studies.create(tmp_path / "runs" / "hostile", HOSTILE)
    _, read = rendered(ledger.folder)
    assert len(read.scripts) == 4
    assert "alert(1)" not in "".join(script for known, script in read.scripts if "type" not in known)
    assert not [tag for tag, _ in read.elements if tag == "img"]
    for table, column in (("Every trial", "What to do"), ("Notes of the study", "What"), ("Not searched here", "Why")):
        assert [shown for shown, _ in read.column(table, column) if HOSTILE in shown]
    assert any(HOSTILE in shown for shown, _ in read.column("Every trial", "Settings that differ from the default"))
    hovers = [hover for trace in _figure(read, "course")["data"] for hover in trace.get("hovertext", [])]
    assert any("&lt;/script&gt;" in hover for hover in hovers)
    assert not any("<script" in hover or "<img" in hover for hover in hovers)


def test_plotly_js_cannot_end_its_own_element():
    assert not re.search(r"</script|<!--|\r", charts.library(), re.IGNORECASE)


# ---- states of a study


def test_a_study_without_a_trial_gives_a_page(tmp_path):
    Ledger.create(tmp_path / "begun", studies.PLAN).close()
    _, read = rendered(tmp_path / "begun")
    assert "unfinished" in read.text
    assert "No trial has been measured." in read.text
    assert "The noise floor was not measured." in read.text
    assert json.loads(_data(read, "figures")) == {}


def test_a_study_that_was_cut_off_in_its_rounds_shows_what_there_is(tmp_path):
    whole = studies.create(tmp_path / "whole")
    lines = whole.path.read_bytes().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "ledger.jsonl").write_bytes(b"".join(lines[:-5]) + b'{"torn')
    _, read = rendered(tmp_path / "cut")
    assert "No verdict yet" in read.text
    (rounds,) = read.column("Default against finalists, in fresh rounds", "Rounds")
    assert int(rounds[0]) == 4
    assert (tmp_path / "cut" / "ledger.jsonl").read_bytes().endswith(b'{"torn'), "a report only reads"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda folder: None, StudyError, "there is no study in"),
        (lambda folder: folder.rmdir(), StudyError, "there is no study"),
        (lambda folder: (folder / "ledger.jsonl").write_text("{}\n"), LedgerError, "no study line"),
        (lambda folder: (folder / "ledger.jsonl").write_text(""), LedgerError, "is empty"),
        (lambda folder: [studies.create(folder / "runs" / name) for name in "ab"], StudyError, "holds 2 studies"),
        (lambda folder: os.mkfifo(folder / "ledger.jsonl"), StorageError, "is no file"),
        (
            lambda folder: Ledger.create(folder, {"placement": {"nnodes": "two"}}),
            LedgerError,
            "placement.nnodes is none",
        ),
        (lambda folder: Ledger.create(folder, {"machine": ["gloo"]}), LedgerError, "plan.machine is none"),
    ],
    ids=["empty", "absent", "no ledger", "empty ledger", "two", "pipe", "no count", "no machine"],
)
def test_what_is_no_study_is_one_clear_line(make, error, message, tmp_path, capsys):
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)
    with pytest.raises(error, match=message):
        source.find(folder)
    assert cli.run(["report", str(folder)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# ---- which study


def _profile(folder: Path, study: str, verdict: str = "ship") -> Path:
    profile = profiles.Profile(
        cluster="c", study=study, created="2026-01-01", verdict=verdict, sentence="Ship", workload="resnet",
        backend="nccl", min_gain=0.01, numbers=profiles.Numbers(), conditions={"nccltune": "0.1.0"},
        commands=("nccltune --workload resnet --study shipped",),
    )  # fmt: skip
    profiles.write(profile, folder)
    return folder / "profile.yaml"


def test_a_study_is_found_by_its_folder_its_ledger_its_parent_and_its_profile(tmp_path):
    folder = studies.create(tmp_path / "runs" / "shipped").folder
    file = _profile(tmp_path / "profiles" / "c", "shipped")
    for path in (folder, folder / "ledger.jsonl", tmp_path / "runs", tmp_path, file, file.parent):
        found = source.find(path)
        assert found.study == "shipped"
        assert found.profile is not None
        assert found.profile_file == file
    told = dict(content.gather(source.find(folder)).commands)
    assert told["repeat the study, or go on with it"] == "nccltune --workload resnet --study shipped"
    assert f"nccltune validate {file}" in told.values()


def test_no_command_is_named_that_would_refuse(tmp_path):
    folder = studies.create(tmp_path / "runs" / "open").folder
    _profile(tmp_path / "profiles" / "c", "open", verdict="no-verdict")
    told = "\n".join(command for _, command in content.gather(source.find(folder)).commands)
    assert "nccltune report" in told
    assert "export" not in told
    assert "validate" not in told


def test_another_studys_profile_is_not_this_ones(tmp_path):
    folder = studies.create(tmp_path / "runs" / "shipped").folder
    file = _profile(tmp_path / "profiles" / "c", "another")
    assert source.find(folder).profile is None
    with pytest.raises(StudyError, match="names the study another"):
        source.find(file)


def test_a_study_is_found_from_within_its_folder(tmp_path, monkeypatch):
    folder = studies.create(tmp_path / "runs" / "shipped").folder
    _profile(tmp_path / "profiles" / "c", "shipped")
    monkeypatch.chdir(folder)
    found = source.find(Path())
    assert (found.study, found.profile is not None) == ("shipped", True)


# ---- the command


def test_the_command_writes_beside_the_ledger_or_where_it_is_told(tmp_path, capsys):
    folder = studies.create(tmp_path / "runs" / "shipped").folder
    assert cli.run(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert cli.run(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert cli.run(["report", str(folder), "--out", str(tmp_path / "nowhere" / "page.html")]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert cli.run(["report", str(folder), "--text", "--out", "x"]) == 2


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    folder = studies.create(tmp_path / "runs" / "shipped").folder
    (folder / "report.html").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        page.write(content.gather(source.find(folder)), folder / "report.html")
    assert (folder / "report.html").read_text() == "old"
    assert {path.name for path in folder.iterdir()} == {"ledger.jsonl", "report.html"}


@pytest.mark.parametrize("broken", ["page.gather", "charts.library"])
def test_a_page_that_cannot_be_made_is_told_and_loses_nothing(broken, tmp_path, monkeypatch, caplog):
    def fails(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr(f"nccltune.report.{broken}", fails)
    folder = studies.create(tmp_path / "runs" / "shipped").folder
    assert page.write_if_possible(source.find(folder)) is None
    assert "report.html was not written: planted" in caplog.text
    assert [path.name for path in folder.iterdir()] == ["ledger.jsonl"]


def test_the_main_job_ends_with_its_page_or_without_it(tmp_path, monkeypatch):
    def finished(study):
        words = {"workload": "allreduce", "trials": 2, "out": tmp_path, "study": study, "mlflow": False, "nproc": 2}
        plan = plans.prepare(plans.Options(**words), {})
        return tune.run(plan, terminal.Screen(plan), lambda: False, launcher=FakeRunner(1000.0))

    with_page = finished("one")
    assert with_page.page == tmp_path / "runs" / "one" / "report.html"
    assert f"{with_page.verdict.sentence}." in Page(with_page.page.read_text()).text.replace("\N{NO-BREAK SPACE}", " ")
    assert json.loads(with_page.as_json())["report"] == str(with_page.page)
    monkeypatch.setattr(page, "render", lambda _: 1 / 0)
    without = finished("two")
    assert without.page is None
    assert without.verdict == with_page.verdict
    assert without.profile_file.exists()


def test_mirrors_are_named_where_they_are(tmp_path):
    folder = studies.create(tmp_path / "runs" / "shipped").folder
    assert not [command for _, command in content.gather(source.find(folder)).commands if "sqlite" in command]
    for name in ("mlflow.db", "optuna.db"):
        (folder / name).touch()
    told = [command for _, command in content.gather(source.find(folder)).commands]
    assert f"mlflow ui --workers 1 --backend-store-uri sqlite:///{folder}/mlflow.db" in told
    assert f"optuna-dashboard sqlite:///{folder}/optuna.db" in told


def _data(read, name):
    (text,) = (text for known, text in read.scripts if known.get("id") == name)
    return text


def _figure(read, name):
    return json.loads(_data(read, "figures"))[name]
