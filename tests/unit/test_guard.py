"""Does a profile hold here? The answer of the program and that of the script for images without Python."""

import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.machine.facts import Facts, link_kind
from nccltune.machine.gpus import Gpu
from nccltune.machine.inherited import Inherited
from nccltune.machine.library import NcclFacts, TorchFacts
from nccltune.machine.limits import Cpu
from nccltune.machine.topology import Topology
from nccltune.verdict import guard
from nccltune.verdict import profile as profiles

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
NAMES = st.from_regex(r"NCCL_[A-Z0-9_]{1,20}", fullmatch=True)
VALUES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(str.isprintable)
HOSTILE = "a'b\"c$(touch pwned)`touch pwned`;d\\e|f^g #h %i ${HOME} \\$x !j"
CONDITIONS = {
    "backend": "nccl",
    "torch": "2.13.0+cu130",
    "gpus": "2x NVIDIA H200",
    "links": "nvlink (1 NV18), nvswitch",
    "driver": "580.159.04",
    "nccl": "2.28.9",
    "world size": "2",
    "nccltune": "0.1",
}
SETTINGS = {"NCCL_ALGO": "allreduce:tree;broadcast:ring", "NCCL_BUFFSIZE": "1048576"}


def a_profile(**changes):
    values = {
        "cluster": "2xh200-nvlink",
        "study": "s",
        "created": "2026-01-01",
        "verdict": "ship",
        "sentence": "Ship it's",
        "settings": SETTINGS,
        "workload": "resnet",
        "backend": "nccl",
        "min_gain": 0.01,
        "numbers": profiles.Numbers(),
        "conditions": CONDITIONS,
        "inherited": {"NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "WARN", "TORCH_NCCL_X": "1"},
    }
    return profiles.Profile(**{**values, **changes})


def machine(**changes):
    paths = Topology(gpus=(0, 1), links={"0-1": "NV18"}, p2p={"0-1": "OK"})
    values = {
        "torch": TorchFacts(version="2.13.0+cu130", path="/t", cuda="13.0", has_nccl=True),
        "nccl": NcclFacts(version="2.28.9", library="/l"),
        "gpus": tuple(Gpu(index=index, name="NVIDIA H200") for index in (0, 1)),
        "driver": "580.159.04",
        "topology": paths,
        "links": link_kind(paths, 2),
        "nvswitch": True,
        "cpu": Cpu(cores_usable=16),
        "inherited": Inherited(settings={"NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "INFO"}),
    }
    return Facts(**{**values, **changes})


# ---- the program


def test_it_holds_on_the_machine_it_was_measured_on():
    assert guard.differing(a_profile(), machine(), {}) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"driver": "590.1"}, "driver: 580.159.04 before, 590.1 now"),
        ({"nccl": NcclFacts(version="2.30.7", library="/l")}, "nccl: 2.28.9 before, 2.30.7 now"),
        ({"nccl": None}, "nccl: 2.28.9 before, unknown now"),
        ({"gpus": (Gpu(index=0, name="NVIDIA H200"),)}, "gpus: 2x NVIDIA H200 before, 1x NVIDIA H200 now"),
        ({"gpus": (Gpu(index=0, name="B200"), Gpu(index=1, name="B200"))}, "gpus: 2x NVIDIA H200 before, 2x B200 now"),
        ({"gpus": ()}, "backend: nccl before, gloo now"),
        ({"gpus": tuple(Gpu(index=i, name="NVIDIA H200", mig=True) for i in (0, 1))}, "mig: unknown before, yes now"),
        ({"nvswitch": False}, "links: nvlink"),
        ({"inherited": Inherited()}, "NCCL_NVLS_ENABLE: 0 before, unknown now"),
        (
            {"inherited": Inherited(settings={"NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "simple"})},
            "NCCL_PROTO: unknown before, simple now",
        ),
        (
            {"inherited": Inherited(settings={"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "ring"})},
            "NCCL_ALGO: allreduce:tree;broadcast:ring in the profile, already set to ring",
        ),
    ],
)
def test_each_change_is_named_by_its_field(changes, said):
    assert any(line.startswith(said) for line in guard.differing(a_profile(), machine(**changes), {}))


def test_what_an_image_says_of_itself_is_no_part_of_the_baseline():
    measured = a_profile(inherited={"NCCL_NVLS_ENABLE": "0", "NCCL_VERSION": "2.28.3-1"})
    another = Inherited(settings={"NCCL_NVLS_ENABLE": "0", "NCCL_VERSION": "2.30.1-1", "NCCL_HOME": "/usr"})

    assert guard.differing(measured, machine(), {}) == ()
    assert guard.differing(measured, machine(inherited=another), {}) == ()


def test_a_setting_that_is_there_already_is_left_alone():
    assert guard.differing(a_profile(), machine(), {"NCCL_ALGO": "ring"})
    same = {"NCCL_ALGO": SETTINGS["NCCL_ALGO"]}
    assert guard.differing(a_profile(), machine(), same) == ()
    assert guard.exports(a_profile(), same) == ("export NCCL_BUFFSIZE=1048576",)


def test_on_gloo_the_processor_counts_and_the_environment_of_nccl_does_not():
    profile = a_profile(
        backend="gloo",
        settings={"OMP_NUM_THREADS": "2"},
        conditions={"backend": "gloo", "cpu": "Xeon", "cores": "4", "torch": "2.13.0"},
    )
    here = machine(
        gpus=(), torch=TorchFacts(version="2.13.0", path="/t"), nccl=None, cpu=Cpu(model="Xeon", cores_usable=4)
    )
    assert guard.differing(profile, here, {"NCCL_ALGO": "ring"}) == ()
    assert guard.differing(profile, here, {"OMP_NUM_THREADS": "8"})
    other = here.model_copy(update={"cpu": Cpu(model="Xeon", cores_usable=8)})
    assert guard.differing(profile, other, {}) == ("cores: 4 before, 8 now",)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_any_profile_is_safe_to_eval(tuned):
    profile = a_profile(settings={**tuned, "NCCL_HOSTILE": HOSTILE})
    assert exported("bash", 'eval "$1"', "\n".join(guard.exports(profile, {}))) == profile.settings


def exported(shell, script, *words, environ=None, cwd=None, check=True):
    """The NCCL_ and OMP_ variables that a command sees which the shell starts afterwards."""
    run = subprocess.run(
        [shell, "-c", f"{script}\nexec env -0", shell, *words],
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", **(environ or {})},
        cwd=cwd,
        check=True,
    )
    assert not check or run.stderr == b"", run.stderr
    pairs = [entry.decode().split("=", 1) for entry in run.stdout.split(b"\0") if entry]
    return {name: value for name, value in pairs if name.startswith(("NCCL_", "OMP_"))}


# ---- the script

SMI = """#!/bin/sh
[ "$*" = "$EXPECTED_ARGUMENTS" ] || exit 9
printf '%s\\n' "$SMI_SAYS"
"""
ALL = "--query-gpu=name,driver_version,mig.mode.current --format=csv,noheader"
TWO = "NVIDIA H200, 580.159.04, Disabled\nNVIDIA H200, 580.159.04, Disabled"


class Image:
    """A machine as a shell sees it: a fake nvidia-smi, a fake library, an empty home."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "bin").mkdir()
        smi = folder / "bin" / "nvidia-smi"
        smi.write_text(SMI)
        smi.chmod(0o755)
        self.library("2.28.9")
        self.environ = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(folder),
            "NCCLTUNE_NCCL_LIBRARY": str(folder / "libnccl.so.2"),
            "EXPECTED_ARGUMENTS": ALL,
            "SMI_SAYS": TWO,
            "NCCL_NVLS_ENABLE": "0",
        }

    def library(self, version):
        text = f"\0junk\nNCCL version %d.%d\0NCCL version {version}+cuda13.0\0more\n".encode()
        (self.folder / "libnccl.so.2").write_bytes(b"\x7fELF\x80\xff" + text)

    def run(self, shell, profile, script='. "$1"', **environ):
        """Returns the profile's variables that were set, and what was said."""
        path = self.folder / "guard.sh"
        path.write_text(guard.script(profile))
        environ = {name: value for name, value in {**self.environ, **environ}.items() if value is not None}
        run = subprocess.run(
            [shell, "-c", f"{script}\nexec env -0", shell, str(path)],
            capture_output=True, env=environ, cwd=self.folder, check=True, timeout=60,
        )  # fmt: skip
        assert not (self.folder / "pwned").exists()
        pairs = [entry.split("=", 1) for entry in run.stdout.decode().split("\0") if entry]
        return {name: value for name, value in pairs if name in profile.settings}, run.stderr.decode()


@pytest.fixture
def image(tmp_path):
    return Image(tmp_path)


@pytest.mark.parametrize(
    "script", ['. "$1"', 'eval "$(sh "$1")"', 'set -eu; . "$1"', 'IFS=/; . "$1"', 'set -f; . "$1"']
)
@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_sets_all_where_the_conditions_hold(image, shell, script):
    assert image.run(shell, a_profile(), script) == (SETTINGS, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_becomes_the_command_whether_it_sets_or_not(image, shell):
    assert image.run(shell, a_profile(), f'exec {shell} "$1" env -0') == (SETTINGS, "")
    found, said = image.run(shell, a_profile(), f'exec {shell} "$1" env -0', SMI_SAYS="")
    assert found == {}
    assert "nothing was set" in said


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SMI_SAYS": TWO.replace("580", "590")}, "driver: 580.159.04 before, 590.159.04 now"),
        ({"SMI_SAYS": TWO.replace("H200", "B200")}, "gpus: 2x NVIDIA H200 before, 2x NVIDIA B200 now"),
        ({"SMI_SAYS": TWO.split("\n")[0]}, "gpus: 2x NVIDIA H200 before, 1x NVIDIA H200 now"),
        ({"SMI_SAYS": TWO.replace("Disabled", "Enabled")}, "mig: no before, yes now"),
        ({"SMI_SAYS": ""}, "gpus: 2x NVIDIA H200 before, unknown now"),
        ({"EXPECTED_ARGUMENTS": "it fails"}, "driver: 580.159.04 before, unknown now"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "gpus: 2x NVIDIA H200 before, unknown now"),
        ({"NCCLTUNE_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}, "nccl: 2.28.9 before, unknown now"),
        ({"NCCL_NVLS_ENABLE": None}, "NCCL_NVLS_ENABLE: 0 before"),
        ({"NCCL_NVLS_ENABLE": "1"}, "NCCL_NVLS_ENABLE: not set like this before"),
        ({"NCCL_PROTO": "simple"}, "NCCL_PROTO: not set like this before"),
    ],
)
@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_sets_nothing_where_something_differs_or_cannot_be_seen(image, shell, environ, said):
    found, error = image.run(shell, a_profile(), 'set -eu; . "$1"', **environ)
    assert found == {}
    assert error.startswith("nccltune: nothing was set: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_asks_for_the_visible_gpus_alone(image, shell):
    words = {"CUDA_VISIBLE_DEVICES": "4,5", "EXPECTED_ARGUMENTS": f"-i 4,5 {ALL}"}
    assert image.run(shell, a_profile(), **words) == (SETTINGS, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_names_another_library_version(image, shell):
    image.library("2.30.7")
    found, error = image.run(shell, a_profile())
    assert found == {}
    assert "nccl: 2.28.9 before, 2.30.7 now" in error


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_finds_the_library_as_the_loader_would_and_wants_every_copy_alike(image, shell):
    other = image.folder / "other"
    other.mkdir()
    image.library("2.27.3")
    shutil.copy(image.folder / "libnccl.so.2", other)
    image.library("2.28.9")
    _, error = image.run(
        shell, a_profile(), NCCLTUNE_NCCL_LIBRARY=None, LD_LIBRARY_PATH=f"/none:{image.folder}:{other}"
    )
    assert "2.27.3, 2.28.9" in error


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_leaves_what_the_user_has_set(image, shell):
    found, error = image.run(shell, a_profile(), NCCL_ALGO="ring")
    assert found == {"NCCL_ALGO": "ring"}
    assert "NCCL_ALGO: already set otherwise" in error
    assert image.run(shell, a_profile(), NCCL_ALGO=SETTINGS["NCCL_ALGO"]) == (SETTINGS, "")
    assert image.run(shell, a_profile(), 'NCCL_ALGO=ring; . "$1"')[0] == {}  # set, not exported: not touched either


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_heeds_nccls_own_file(image, shell):
    conf = image.folder / ".nccl.conf"
    conf.write_text("# NCCL_P2P_LEVEL=LOC\nNCCL_DEBUG=INFO\nNCCL_BUFFSIZE=1048576\n")
    assert image.run(shell, a_profile()) == (SETTINGS, "")
    conf.write_text("NCCL_BUFFSIZE=4194304\n")
    assert "NCCL_BUFFSIZE: set otherwise by a file" in image.run(shell, a_profile())[1]
    conf.write_text("NCCL_P2P_LEVEL=LOC\n")
    assert "NCCL_P2P_LEVEL: not set like this before" in image.run(shell, a_profile())[1]
    assert image.run(shell, a_profile(), NCCL_CONF_FILE="/dev/null") == (SETTINGS, "")


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=15, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=3), st.text(max_size=20))
def test_a_hostile_profile_gets_no_foothold_in_the_script(shell, tmp_path_factory, tuned, text):
    tuned = {name: value for name, value in tuned.items() if name not in ("NCCL_NVLS_ENABLE", "NCCL_CONF_FILE")}
    profile = a_profile(
        settings={**tuned, "NCCL_HOSTILE": HOSTILE},
        sentence=text + HOSTILE,
        conditions={"gpus": HOSTILE, "driver": HOSTILE, "nccl": HOSTILE, text: HOSTILE},
        inherited={"NCCL_NVLS_ENABLE": HOSTILE},
    )
    image = Image(tmp_path_factory.mktemp("image"))
    found, error = image.run(shell, profile)
    assert found == {}
    assert error.startswith("nccltune: nothing was set")
    holding = profile.model_copy(update={"conditions": CONDITIONS})
    assert image.run(shell, holding, NCCL_NVLS_ENABLE=HOSTILE) == (holding.settings, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_passes_over_what_an_image_says_of_itself(image, shell):
    measured = a_profile(inherited={"NCCL_NVLS_ENABLE": "0", "NCCL_VERSION": "2.28.3-1"})

    assert image.run(shell, measured, NCCL_HOME="/usr") == (SETTINGS, "")
    assert image.run(shell, measured, NCCL_VERSION="2.30.1-1") == (SETTINGS, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_guard_without_settings_does_nothing(image, shell):
    assert image.run(shell, a_profile(verdict="keep-default", settings={}), SMI_SAYS="") == ({}, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_knows_the_processor_on_gloo(image, shell):
    from nccltune.machine.limits import read_cpu

    cpu = read_cpu()
    if cpu.model is None:
        pytest.skip("the kernel does not name the processor")
    profile = a_profile(
        backend="gloo",
        settings={"OMP_NUM_THREADS": "2"},
        conditions={"backend": "gloo", "cpu": cpu.model, "cores": str(len(os.sched_getaffinity(0)))},
        inherited={},
    )
    if cpu.cores_usable == len(os.sched_getaffinity(0)):
        assert image.run(shell, profile) == ({"OMP_NUM_THREADS": "2"}, "")
    other = profile.model_copy(update={"conditions": {"cpu": "Z80", "cores": "99"}})
    found, error = image.run(shell, other)
    assert found == {}
    assert "cpu: Z80 before" in error
    assert "cores: 99 before" in error
