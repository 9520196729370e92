"""Exports, read back by who will read them."""

import re
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.machine.inherited import parse_conf
from nccltune.verdict import export
from nccltune.verdict import profile as profiles

NAMES = st.from_regex(r"NCCL_[A-Z0-9_]{1,20}", fullmatch=True)
VALUES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(str.isprintable)
HOSTILE = "a'b\"c$(touch pwned)`touch pwned`;d\\e|f^g #h %i ${HOME} \\$x !j"


def a_profile(**changes):
    values = {
        "cluster": "2xH200 NVLink",
        "study": "s",
        "created": "2026-01-01",
        "verdict": "ship",
        "sentence": "Ship it",
        "settings": {"NCCL_ALGO": "allreduce:tree;broadcast:ring", "NCCL_PROTO": "^ll128", "NCCL_BUFFSIZE": "1048576"},
        "workload": "resnet",
        "backend": "nccl",
        "min_gain": 0.01,
        "numbers": profiles.Numbers(gain=0.1),
        "conditions": {"nccl": "2.28.9", "gpus": "2x NVIDIA H200"},
    }
    return profiles.Profile(**{**values, **changes})


# ---- the readers


def read_env_file(text):
    """``docker --env-file`` (docker/cli, opts/envfile.go): left-trimmed lines, # comments, a name without blanks."""
    found = {}
    for line in text.split("\n"):
        line = line.lstrip(" \t\n\v\f\r\x85\xa0")
        if line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert name
            assert equals  # a bare name would be taken from the caller's environment
            assert not re.search(r"\s", name)
            found[name] = value
    return found


def read_shell(text, shell="bash"):
    """What a shell exports after it has read the text; with NUL between, so that no value can fake another."""
    script = 'eval "$1"; exec env -0'
    run = subprocess.run(
        [shell, "-c", script, shell, text], capture_output=True, env={"PATH": "/usr/bin:/bin"}, check=True
    )
    assert run.stderr == b""
    pairs = [entry.decode().split("=", 1) for entry in run.stdout.split(b"\0") if entry]
    return {name: value for name, value in pairs if name not in ("PATH", "PWD", "SHLVL", "_", "OLDPWD")}


def read_dockerfile(text, word):
    """Docker's rules for ``ENV`` and ``LABEL`` (buildkit, shell/lex.go): within " a \\ takes ", $ and \\ as such."""
    found = {}
    for line in text.split("\n"):
        if line.startswith(f"{word} "):
            match = re.fullmatch(r'([A-Za-z0-9_.-]+)="((?:[^"\\$]|\\["\\$])*)"', line.removeprefix(f"{word} "))
            assert match, line
            found[match[1]] = re.sub(r"\\(.)", r"\1", match[2])
        else:
            assert not line or line.startswith("#") or re.match("ENV |LABEL ", line)
    return found


def read_k8s(text):
    (found,) = yaml.safe_load_all(text)
    assert (found["apiVersion"], found["kind"]) == ("v1", "ConfigMap")
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", found["metadata"]["name"])
    for key in found["metadata"]["annotations"]:
        assert re.fullmatch(r"nccltune/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", key)
    return found["data"]


READERS = {
    "env": read_env_file,
    "sh": read_shell,
    "nccl-conf": lambda text: dict(parse_conf(text.encode(), (2, 28, 9))),
    "dockerfile": lambda text: read_dockerfile(text, "ENV"),
    "k8s": read_k8s,
}


@pytest.mark.parametrize("form", export.FORMATS)
def test_every_setting_comes_back_from_every_format(form):
    assert READERS[form](export.render(a_profile(), form)) == a_profile().settings


@pytest.mark.parametrize("form", export.FORMATS)
@settings(max_examples=30, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=3), st.text(max_size=20), st.text(max_size=20))
def test_any_value_comes_back_and_no_other_text_acts(form, tuned, sentence, cluster):
    profile = a_profile(
        settings={**tuned, "NCCL_HOSTILE": HOSTILE},
        sentence=sentence,
        cluster=cluster,
        study=sentence,
        conditions={sentence: cluster, "gpus": HOSTILE},
        inherited={"NCCL_X": sentence},
    )
    assert READERS[form](export.render(profile, form)) == profile.settings


@pytest.mark.parametrize("form", export.FORMATS)
def test_every_format_carries_the_header_and_the_classes(form):
    text = export.render(a_profile(emulated=2), form)
    assert "# EMULATED: 2 NCCL nodes" in text
    assert "# gpus: 2x NVIDIA H200" in text
    assert "# NCCL_ALGO is debugging: NVIDIA" in text


@pytest.mark.parametrize("form", export.FORMATS)
def test_a_profile_that_keeps_the_defaults_has_a_header_and_no_setting(form):
    text = export.render(a_profile(verdict="keep-default", settings={}), form)
    assert not READERS[form](text)
    assert "keep the defaults" in text


@pytest.mark.parametrize("form", export.FORMATS)
def test_what_the_profiles_own_file_holds_back_is_exported_when_asked_for(form):
    held = a_profile(collective_only=True, withheld="nccltune --collective-only")
    assert READERS[form](export.render(held, form)) == held.settings


def test_a_dockerfile_says_in_labels_what_was_measured():
    labels = read_dockerfile(export.render(a_profile(emulated=2), "dockerfile"), "LABEL")
    assert labels["nccltune.condition.nccl"] == "2.28.9"
    assert labels["nccltune.emulated"] == "2"
    assert labels["nccltune.verdict"] == "ship"
    assert labels["nccltune.gain"] == "+10 %"


def test_the_first_line_is_no_directive_of_a_dockerfile_parser():
    """``# syntax=`` at the top would fetch a parser from the network."""
    text = export.render(a_profile(verdict="x", sentence="syntax=evil"), "dockerfile")
    assert not re.match(r"#\s*[A-Za-z][A-Za-z0-9]*\s*=", text)


def test_the_pod_lines_name_the_config_map():
    text = export.render(a_profile(), "k8s")
    comments = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    (use,) = yaml.safe_load("\n".join(comments))["envFrom"]
    assert use["configMapRef"]["name"] == yaml.safe_load(text)["metadata"]["name"]


# ---- refused

CONFIRMED = profiles.Confirmation(at="2026-02-02", workload="resnet")
ON_A_COLLECTIVE = profiles.Confirmation(at="2026-02-02", workload="allreduce", collective_only=True)


@pytest.mark.parametrize(
    ("profile", "words", "reason"),
    [
        (a_profile(), {}, None),
        (a_profile(emulated=2), {}, "emulated"),
        (a_profile(emulated=2), {"emulated": True}, None),
        (a_profile(collective_only=True), {}, "--workload MODEL"),
        (a_profile(collective_only=True), {"collective_only": True}, None),
        (a_profile(collective_only=True, confirmed=CONFIRMED), {}, None),
        (a_profile(collective_only=True, confirmed=ON_A_COLLECTIVE), {}, "--workload MODEL"),
        (a_profile(emulated=2, collective_only=True), {"emulated": True}, "--workload MODEL"),
        (a_profile(), {"allow": ("system",)}, "NCCL_ALGO is debugging"),
        (a_profile(), {"allow": ("system", "debugging")}, None),
        (a_profile(settings={"NCCL_NEW": "1"}), {"allow": ("system",)}, "NCCL_NEW is undocumented"),
        (a_profile(verdict="no-verdict", settings={}), {}, "no verdict"),
        (a_profile(verdict="unconfirmed"), {}, "nccltune validate"),
        (a_profile(verdict="unconfirmed", confirmed=CONFIRMED), {}, None),
        (a_profile(verdict="keep-default"), {}, "no confidence bound"),
        (a_profile(verdict="no-verdict"), {}, "no verdict"),
        (a_profile(verdict="keep-default", settings={}, emulated=2, collective_only=True), {}, None),
    ],
)
def test_what_must_not_be_exported_is_refused_with_the_reason(profile, words, reason):
    why = export.why_not(profile, **words)
    assert (why is None) is (reason is None)
    assert reason is None or reason in str(why)


def test_what_is_set_already_is_a_named_conflict():
    said = export.conflicts(a_profile(), {"NCCL_ALGO": "ring", "NCCL_BUFFSIZE": "1048576", "NCCL_OTHER": "1"})
    assert len(said) == 2
    assert "NCCL_ALGO" in said[0]
    assert "ring" in said[0]
    assert "allreduce:tree" in said[0]
    assert "as the profile has it" in said[1]


def test_settings_that_no_file_of_nccl_can_set_are_named():
    assert export.too_late(a_profile(settings={"OMP_NUM_THREADS": "2", "NCCL_ALGO": "ring"})) == ("OMP_NUM_THREADS",)
