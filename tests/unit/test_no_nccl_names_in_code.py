"""What NCCL can be told is data of ``search_spaces/``; code knows only the names by which a launch is controlled."""

import ast
import re
from pathlib import Path

import pytest

from nccltune.space.catalogue import load_catalogue

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("tuner", "workloads") for path in (ROOT / folder).rglob("*.py"))

NAME = re.compile(r"(?<![A-Za-z0-9_])NCCL_[A-Z][A-Z0-9_]*")
CONTROL = {
    # where NCCL writes what, and which file it reads
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_LEVELS",
    "NCCL_CONF_FILE",
    # nodes emulated on one machine
    "NCCL_HOSTID",
    "NCCL_SOCKET_IFNAME",
    # plugins that belong to the baseline
    "NCCL_ENV_PLUGIN",
    "NCCL_NET_PLUGIN",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_TUNER_PLUGIN",
}


def _strings(source: str) -> set[str]:
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {name for text in texts if isinstance(text, str) for name in NAME.findall(text)}


def _names(path: Path) -> set[str]:
    source = path.read_text()
    # Identifiers of our own (NCCL_FILE) are no names of NCCL; a comment may still not speak of a searchable one.
    searchable = {name for name, knob in load_catalogue().knobs.items() if not knob.never}
    return _strings(source) | (set(NAME.findall(source)) & searchable)


def test_there_is_code_to_look_at():
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_names_nothing_that_can_be_searched(path):
    assert _names(path) <= CONTROL


def test_no_control_name_can_be_searched():
    knobs = load_catalogue().knobs
    assert not {name for name in CONTROL if name in knobs and not knobs[name].never}


def test_the_search_would_find_a_name(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text('x = {"NCCL_ALGO": 1}  # NCCL_PROTO\ny = f"NCCL_BUFFSIZE={x}"\nNCCL_FILE = TORCH_NCCL_THING = 0\n')
    assert _names(path) == {"NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE"}
