import pytest

from nccltune.errors import SpaceError, UsageError
from nccltune.records import Candidate
from nccltune.space.catalogue import load_catalogue
from nccltune.space.conditions import conditions_of
from nccltune.space.legality import Circumstances, why_illegal
from nccltune.space.space_file import load_space, space_names

CATALOGUE = load_catalogue()

WHOLE = """\
name: mine
description: Two sockets and a bound.
backend: nccl
knobs:
  NCCL_ALGO: [null, "AllReduce:Tree,Ring"]
  NCCL_BUFFSIZE: [null, 0x100000, 4194304]
  NCCL_NTHREADS:
pins:
  NCCL_CROSS_NIC: 1
conditions:
  - predicate: implies
    when: {NCCL_BUFFSIZE: 1048576}
    then: {NCCL_NTHREADS: [null, 256]}
start:
  - {NCCL_NTHREADS: 256}
"""


def _file(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def _refusal(tmp_path, old, new):
    assert old in WHOLE
    path = _file(tmp_path, WHOLE.replace(old, new, 1))
    with pytest.raises(SpaceError) as caught:
        load_space(str(path), CATALOGUE)
    assert str(caught.value).startswith(f"{path}:")
    return str(caught.value).removeprefix(f"{path}:")


@pytest.mark.parametrize("name", space_names())
def test_the_spaces_of_the_installation_load(name):
    space = load_space(name, CATALOGUE)
    assert space.name == name
    assert space.start or name == "cpu"
    about = Circumstances(
        CATALOGUE, backend=space.backend, conditions=conditions_of(space), ll128=True, nccl_nodes=None
    )
    for candidate in space.start:
        assert why_illegal(candidate.settings, about) is None


def test_the_named_spaces_hold_the_named_knobs():
    def names(space):
        return [dimension.name for dimension in load_space(space, CATALOGUE).dimensions]

    common = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"]
    assert names("tcp") == [*common, "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_BUFFSIZE"]
    assert names("nvlink") == [*common, "NCCL_P2P_LEVEL", "NCCL_NTHREADS", "NCCL_BUFFSIZE"]
    assert set(space_names()) == {"cpu", "infiniband", "nvlink", "pcie", "tcp"}


def test_a_file_of_ones_own_is_read_whole(tmp_path):
    space = load_space(str(_file(tmp_path, WHOLE)), CATALOGUE)
    values = {dimension.name: dimension.values for dimension in space.dimensions}
    assert values["NCCL_ALGO"] == (None, "allreduce:tree,ring")
    assert values["NCCL_BUFFSIZE"] == (None, "1048576", "4194304")
    assert values["NCCL_NTHREADS"] == tuple(
        None if v is None else str(v) for v in CATALOGUE.knobs["NCCL_NTHREADS"].suggest
    )
    assert values["NCCL_CROSS_NIC"] == ("1",)
    assert space.start == (Candidate(settings={"NCCL_NTHREADS": "256", "NCCL_CROSS_NIC": "1"}),)


def test_conditions_of_the_file_are_heeded(tmp_path):
    space = load_space(str(_file(tmp_path, WHOLE)), CATALOGUE)
    about = Circumstances(CATALOGUE, conditions=conditions_of(space))
    assert why_illegal({"NCCL_BUFFSIZE": "1048576", "NCCL_NTHREADS": "256"}, about) is None
    assert why_illegal({"NCCL_BUFFSIZE": "4194304", "NCCL_NTHREADS": "128"}, about) is None
    why = why_illegal({"NCCL_BUFFSIZE": "1048576", "NCCL_NTHREADS": "128"}, about)
    assert why == "with NCCL_BUFFSIZE=1048576, NCCL_NTHREADS must be unset or 256"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("name: mine", "nome: mine", 1, "nome: is no field here. Did you mean 'name'"),
        ("name: mine", "name: a/b", 1, "name: "),
        ("backend: nccl", "backend: mpi", 3, "backend: "),
        ("  NCCL_NTHREADS:\n", "  NCCL_NTHREAD:\n", 7, "knobs.NCCL_NTHREAD: NCCL_NTHREAD is no knob"),
        ("  NCCL_NTHREADS:\n", "  NCCL_NTHREADS: [100]\n", 7, "knobs.NCCL_NTHREADS.0: 100 is no multiple of 32"),
        ("  NCCL_NTHREADS:\n", "  NCCL_NTHREADS: []\n", 7, "knobs.NCCL_NTHREADS: "),
        ("  NCCL_NTHREADS:\n", "  NCCL_NTHREADS: [yes]\n", 7, "knobs.NCCL_NTHREADS.0: "),
        ("  NCCL_NTHREADS:\n", "  NCCL_NTHREADS: [64.5]\n", 7, "knobs.NCCL_NTHREADS.0: "),
        ("  NCCL_NTHREADS:\n", "  NCCL_NTHREADS: 64\n", 7, "knobs.NCCL_NTHREADS: "),
        ("4194304]", "4M]", 6, "knobs.NCCL_BUFFSIZE.2: '4M' is no plain decimal number; NCCL would read 4"),
        ("4194304]", "1048576]", 6, "knobs.NCCL_BUFFSIZE.2: 1048576 stands here twice"),
        ("AllReduce:Tree,Ring", "tree", 5, "knobs.NCCL_ALGO.1: 'tree' must name the collective"),
        ("AllReduce:Tree,Ring", "allreduce:tre", 5, "knobs.NCCL_ALGO.1: 'allreduce:tre' 'tre' is unknown"),
        ("NCCL_CROSS_NIC: 1", "NCCL_CROSS_NIC: 7", 9, "pins.NCCL_CROSS_NIC: 7 is none of 0, 1, 2"),
        ("NCCL_CROSS_NIC: 1", "NCCL_NTHREADS: 64", 9, "pins.NCCL_NTHREADS: is searched under 'knobs'"),
        ("NCCL_CROSS_NIC: 1", "NCCL_IB_TIMEOUT: 20", 9, "pins.NCCL_IB_TIMEOUT: is never searched"),
        ("NCCL_CROSS_NIC: 1", "OMP_NUM_THREADS: 2", 9, "pins.OMP_NUM_THREADS: does not act with backend nccl"),
        ("predicate: implies", "predicate: eval", 11, "conditions.0: "),
        ("when: {NCCL_BUFFSIZE", "when: {NCCL_BUFSIZE", 11, "conditions.0: NCCL_BUFSIZE is no knob"),
        ("{NCCL_NTHREADS: 256}", "{NCCL_NTHREADS: 64}", 15, "start.0.NCCL_NTHREADS: 64 is none of the values"),
        ("{NCCL_NTHREADS: 256}", "{NCCL_NTHREDS: 64}", 15, "start.0.NCCL_NTHREDS: is not searched in this space"),
        ("start:", "start: [", 15, "is no YAML"),
    ],
)
def test_a_wrong_field_is_named_with_line_and_path(tmp_path, old, new, line, said):
    refusal = _refusal(tmp_path, old, new)
    assert refusal.startswith(f"{line}: "), refusal
    assert said in refusal


def test_a_dropped_name_says_so(tmp_path):
    assert "dropped in NCCL 2.5" in _refusal(tmp_path, "  NCCL_NTHREADS:\n", "  NCCL_LL_THRESHOLD:\n")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"- a\n- b\n", b"just text", b"a: &a [*a]\n", b"x: 2026-99-99\n"]
)
def test_a_file_that_is_no_space_gets_one_line(tmp_path, content):
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(SpaceError) as caught:
        load_space(str(path), CATALOGUE)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "huge.yaml"
    path.write_text("a: 1\n" * 300_000)
    with pytest.raises(SpaceError, match="larger than 1 MiB"):
        load_space(str(path), CATALOGUE)


def test_an_unknown_space_names_the_nearest():
    with pytest.raises(UsageError, match=r"no space and no file 'nvlnk'.*nvlink"):
        load_space("nvlnk", CATALOGUE)
    with pytest.raises(UsageError, match="no space and no file 'knobs'"):
        load_space("knobs", CATALOGUE)


def test_aliases_that_multiply_are_refused_at_once(tmp_path):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(SpaceError, match="more than 100,000 fields"):
        load_space(str(path), load_catalogue())
