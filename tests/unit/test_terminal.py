"""The screen: folded between words, a bar that keeps its parts, commands that can be pasted."""

import io
import sys

import pytest
from rich.console import Console

from nccltune import terminal
from nccltune.plan import Options, prepare
from nccltune.records import Candidate
from nccltune.study.entries import Intent, NoiseFloor, TrialEntry

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
