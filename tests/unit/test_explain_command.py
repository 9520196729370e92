"""``nccltune explain``: words or one JSON object on stdout, one line for what cannot be read."""

import json
from pathlib import Path

import pytest

from nccltune import cli

LOG = Path(__file__).parents[1] / "recordings/nccl/2.28.9-nvlink-default.log"
TRACES = sorted((LOG.parents[1] / "traces").glob("2xh200-resnet-128.*.json.gz"))
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-31\t0\nGPU1\tNV18\t X \t0-31\t0\n"


def test_a_log_as_one_object(capsys):
    assert cli.run(["explain", "--json", str(LOG)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nccl_version"] == "2.28.9"
    assert found["class"] is None


def test_a_log_in_words(capsys):
    assert cli.run(["explain", str(LOG)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "nccl version: 2.28.9" in said
    assert "AllReduce of 64 bytes: Ring, LL, channel 0" in said
    assert "AllReduce of 33554432 bytes: Ring, Simple, channels 0 to 23" in said
    assert not any(line.startswith(("nccl versions", "hcas without gdr", "algo proto")) for line in said)


def test_traces_in_words(capsys):
    assert cli.run(["explain", *map(str, TRACES)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "step: 55.08 ms" in said
    assert "exposed comm share: 17 %" in said
    assert "collectives: 42 (each in --json)" in said


def test_a_folder_is_told_apart_from_a_wrong_name(tmp_path, capsys):
    assert cli.run(["explain", str(tmp_path)]) == 1
    assert f"{tmp_path} is a folder. Name the files in it: {tmp_path}/*" in capsys.readouterr().err


def test_a_matrix(tmp_path, capsys):
    (tmp_path / "topo.txt").write_text(MATRIX)
    assert cli.run(["explain", str(tmp_path / "topo.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nvlink"] is True


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe\x80" * 100, b"\xff\xfeN\x00C\x00"])
def test_what_says_nothing_gets_an_empty_answer(tmp_path, capsys, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    assert cli.run(["explain", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["nccl_version"] is None


@pytest.mark.parametrize(
    ("argv", "status"), [(["explain"], 2), (["explain", "/no/such/file"], 1), (["explain", "."], 1)]
)
def test_what_cannot_be_read_is_one_line(argv, status, capsys):
    assert cli.run(argv) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("nccltune: ")
    assert shown.err.count("\n") == 1
