"""The screen: folded between words, a bar that keeps its parts, commands that can be pasted."""

import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from nccltune import terminal
from nccltune.plan import Options, prepare
from nccltune.records import Candidate, Disturbance, Disturbances, Disturbed, Failure, Launch, Reach, Verdict
from nccltune.study.entries import Intent, NoiseFloor, TrialEntry
from nccltune.verdict.profile import Numbers

LONG = Candidate(settings={"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"})


@pytest.fixture
def plan():
    return prepare(Options(workload="allreduce", given={"sizes": "64K,1M:4"}), {})


def screen(plan, *, is_terminal, width=80):
    err = Console(file=io.StringIO(), force_terminal=is_terminal, width=width, highlight=False, soft_wrap=True)
    return terminal.Screen(plan, stdout=err, stderr=err), err.file


def test_lines_are_folded_between_words_on_a_terminal_and_never_in_a_file(plan):
    text = "  " + "word " * 40
    shown, file = screen(plan, is_terminal=True)
    shown.on_note(text)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert {word for line in lines for word in line.split()} == {"word"}
    assert lines[1].startswith("    word")
    shown, file = screen(plan, is_terminal=False)
    shown.on_note(text)
    assert file.getvalue() == text + "\n"


def test_the_bar_keeps_its_name_and_count_in_a_narrow_window(plan):
    shown, file = screen(plan, is_terminal=True, width=60)
    with shown:
        shown.on_stage("fresh rounds", 6)
        shown.on_launch_start(
            Intent(launch_id="0001-confirm", purpose="confirm", candidate=LONG, started_at="", folder="")
        )
        shown._progress.refresh()
    assert "fresh rounds" in file.getvalue()
    assert "0/6" in file.getvalue()
    assert "now OMP_NUM" in file.getvalue()


def test_a_noise_above_the_default_has_no_exponent(plan):
    shown, file = screen(plan, is_terminal=False)
    shown.on_noise_floor(NoiseFloor(relative=2.13, medians=(1.0, 2.0), n=2), 12.0)
    assert "noise floor 210 %" in file.getvalue()
    assert "goes on with what earlier runs measured" in file.getvalue()


REACH = Reach(
    min_gain=0.01, rounds=6, finalists=1, power=0.8, wanted=0.02, smallest=0.05, rounds_needed=30, quieter=0.001,
    farther=0.04, falls_short=True, sentences=("shows gains from 5 % on", "2 % takes 30 rounds"),
)  # fmt: skip


def test_what_the_study_can_show_is_said_before_the_search_and_a_warning_when_it_falls_short(plan):
    shown, file = screen(plan, is_terminal=False)
    shown.on_noise_floor(NoiseFloor(relative=0.02, medians=(1.0, 2.0), n=3, reach=REACH), 12.0)
    lines = file.getvalue().splitlines()
    assert lines[1:3] == ["shows gains from 5 % on", "2 % takes 30 rounds"]
    assert lines[3].startswith("warning: this study cannot be expected to show a gain of 2 %")
    assert "--rounds 30" in lines[3]
    shown, file = screen(plan, is_terminal=False)
    enough = REACH.model_copy(update={"falls_short": False})
    shown.on_noise_floor(NoiseFloor(relative=0.02, medians=(1.0, 2.0), n=3, reach=enough), 12.0)
    assert "shows gains from 5 % on" in file.getvalue()
    assert "warning" not in file.getvalue()


def test_what_disturbs_launches_is_said_when_it_is_first_seen_and_counted_at_the_end(plan):
    shown, file = screen(plan, is_terminal=False)
    for number in range(3):
        disturbed = Disturbances(seen=(Disturbance(kind="cpu", text=f"others used {number} cores", share=0.5),))
        outcome = Failure(name="hang", blame="candidate", message="it hung", disturbances=disturbed)
        shown.on_launch_end(
            Launch(
                launch_id=f"000{number}-search", purpose="search", candidate=LONG, started_at="", wall_s=1.0,
                outcome=outcome,
            )
        )  # fmt: skip
    assert [line for line in file.getvalue().splitlines() if "disturbed" in line] == [
        "  0000-search was disturbed: others used 0 cores"
    ]
    counted = Disturbed(watched=17, disturbed=3, worst="others", worst_launch="0001-search")
    numbers = Numbers(disturbed=counted, reach=REACH)
    assert terminal._account(Verdict(word="no-verdict", sentence="", needed="more"), numbers)[1:] == [
        "disturbed 3 of 17 launches; the worst: others (0001-search)",
        "foreseen  shows gains from 5 % on",
        "needed    more",
    ]
    calm = Numbers(disturbed=Disturbed(watched=17), reach=REACH)
    assert len(terminal._account(Verdict(word="keep-default", sentence=""), calm)) == 1


def test_the_last_lines_are_folded_between_words_as_well(plan):
    _, file = screen(plan, is_terminal=True)
    console = Console(file=file, force_terminal=True, width=60, highlight=False, soft_wrap=True)
    terminal._folded(console, "needed    " + "word " * 30, set_in=10)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith(" " * 10 + "word")


def test_a_number_keeps_its_unit_where_a_line_ends(plan):
    _, file = screen(plan, is_terminal=True)
    for width in range(40, 60):
        terminal._folded(
            Console(file=file, force_terminal=True, width=width, soft_wrap=True, highlight=False),
            "launches that differ by 0.11 % instead of 7 %, 12 ms a step, in about 13 min",
        )
    assert not any(line.lstrip().startswith(("%", "ms", "min")) for line in file.getvalue().splitlines())


@pytest.mark.parametrize(
    ("needed", "next_one"),
    [
        ("--rounds 6 or more", "--rounds 6   (goes on with more rounds)"),
        ("about 30 rounds at this noise (--rounds 30), or launches that differ less", "--rounds 30   (goes on with"),
        ("more time or trials: a larger --budget or --trials", "--trials 16   (goes on with more trials)"),
    ],
)
def test_the_next_command_gives_what_is_needed(plan, needed, next_one):
    shown, _ = screen(plan, is_terminal=False)
    profile = SimpleNamespace(settings={}, emulated=0, shipped=False)
    said = shown._next(SimpleNamespace(profile=profile, verdict=SimpleNamespace(needed=needed)))
    assert next_one in said


def test_the_default_has_no_gain_over_itself(plan):
    shown, file = screen(plan, is_terminal=False)
    shown.on_noise_floor(NoiseFloor(relative=0.1, medians=(100.0, 110.0), n=2), 12.0)
    shown.on_trial(TrialEntry(number=0, candidate=Candidate(settings={}), state="measured", value_us=105.0), None)
    assert file.getvalue().splitlines()[-1] == "trial 0 default: 105 µs"


def test_sizes_are_shown_as_they_are_typed(plan):
    shown, file = screen(plan, is_terminal=False)
    shown.machine()
    assert "sizes=64K,1M:4" in file.getvalue()


def test_values_left_out_for_one_reason_share_a_line():
    removed = {"A=4": "few cores", "A=8": "few cores", "A=1": "the same", "B": "not here"}
    assert terminal._by_reason(removed) == [("A=4, 8", "few cores"), ("A=1", "the same"), ("B", "not here")]


@pytest.mark.parametrize(
    ("called", "on_path", "expected"),
    [
        (".venv/bin/nccltune", None, ".venv/bin/nccltune --workload resnet"),
        ("/usr/bin/nccltune", "/usr/bin/nccltune", "nccltune --workload resnet"),
        ("/x/nccltune/__main__.py", None, "nccltune --workload resnet"),
    ],
)
def test_a_command_to_paste_names_the_program_as_it_was_called(monkeypatch, called, on_path, expected):
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(terminal.shutil, "which", lambda _: on_path)
    assert terminal.as_typed("nccltune --workload resnet") == expected
