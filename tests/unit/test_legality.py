import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.records import DEFAULT, Candidate
from nccltune.space.catalogue import load_catalogue
from nccltune.space.conditions import Ordered, Together
from nccltune.space.legality import (
    Circumstances,
    canonical,
    coupled,
    illegal,
    why_illegal,
    why_setting_illegal,
)
from nccltune.space.rules import CANDIDATE_RULES, SETTING_RULES
from nccltune.space.selection import Entry, parse_selection, render_selection

CATALOGUE = load_catalogue()
NOW = (2, 30, 7)
OLD = (2, 23, 4)


def _why(settings, *, version=NOW, **about):
    return why_illegal(settings, Circumstances(CATALOGUE, nccl_version=version, **about))


LEGAL = [
    {},
    {"NCCL_ALGO": "allreduce:tree"},
    {"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "allreduce:simple"},
    {"NCCL_ALGO": "allreduce:ring;allgather:ring", "NCCL_PROTO": "allreduce:ll;allgather:simple"},
    {"NCCL_ALGO": "allreduce:ring,nvls"},
    {"NCCL_ALGO": "allreduce:^nvls,nvlstree", "NCCL_PROTO": "allreduce:ll"},
    {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "4"},
    {"NCCL_SOCKET_NTHREADS": "16"},
    {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"},
    {"NCCL_MAX_NCHANNELS": "64"},
    {"NCCL_BUFFSIZE": "65536"},
    {"NCCL_NTHREADS": "96"},
    {"NCCL_P2P_LEVEL": "NVL"},
    {"NCCL_CGA_CLUSTER_SIZE": "4", "NCCL_MAX_CTAS": "16"},
    {"NCCL_CGA_CLUSTER_SIZE": "0", "NCCL_MAX_CTAS": "7"},
    {"NCCL_P2P_READ_ENABLE": "-2"},
]


@pytest.mark.parametrize("settings", LEGAL, ids=str)
def test_what_may_be_launched(settings):
    assert _why(settings) is None


ILLEGAL = [
    # ALGO and PROTO
    ({"NCCL_ALGO": "tree"}, "must name the collective"),
    ({"NCCL_ALGO": "ring;allreduce:tree"}, "must name the collective"),
    ({"NCCL_ALGO": "allreduce:tre"}, "'tre' is unknown"),
    ({"NCCL_ALGO": "alltoall:ring"}, "'alltoall' is no collective"),
    ({"NCCL_ALGO": "allreduce:tree, ring"}, "' ring' is unknown"),
    ({"NCCL_ALGO": "allreduce:Tree"}, "is written allreduce:tree"),
    ({"NCCL_ALGO": "allreduce:ring,tree"}, "is written allreduce:tree,ring"),
    ({"NCCL_ALGO": "allreduce:tree;allreduce:ring"}, "names a collective twice"),
    ({"NCCL_ALGO": "allreduce:"}, "'' is unknown"),
    ({"NCCL_ALGO": ";allreduce:tree"}, "'' is unknown"),
    ({"NCCL_ALGO": ""}, "is empty"),
    ({"NCCL_ALGO": "allgather:tree"}, "tree does not exist for allgather"),
    ({"NCCL_ALGO": "reduce:nvls"}, "nvls does not exist for reduce"),
    ({"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "broadcast:simple"}, "must name the same collectives"),
    ({"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "allreduce:simple;allgather:ll"}, "must name the same collectives"),
    ({"NCCL_ALGO": "allreduce:ring,nvls", "NCCL_PROTO": "allreduce:ll"}, "nvls has no protocol among ll"),
    ({"NCCL_ALGO": "allreduce:collnetdirect"}, "collnetdirect needs NCCL_COLLNET_ENABLE=1"),
    ({"NCCL_PROTO": "allreduce:ll128"}, "forces LL128"),
    ({"NCCL_PROTO": "allreduce:^ll"}, "forces LL128"),
    ({"NCCL_PROTO": "allreduce:ll128,simple"}, "forces LL128"),
    ({"NCCL_PROTO": "allreduce:^ll,ll128,simple"}, "leaves nothing"),
    # sockets
    ({"NCCL_SOCKET_NTHREADS": "17"}, "outside 1 to 16"),
    ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "5"}, "is 80, more than 64"),
    ({"NCCL_NSOCKS_PERTHREAD": "4"}, "no effect without NCCL_SOCKET_NTHREADS"),
    # channels
    ({"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "8"}, "is more than NCCL_MAX_NCHANNELS=8"),
    ({"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_CTAS": "8"}, "is more than NCCL_MAX_CTAS=8"),
    ({"NCCL_MIN_NCHANNELS": "8", "NCCL_MIN_CTAS": "8"}, "exclude each other"),
    ({"NCCL_MAX_NCHANNELS": "65"}, "outside 1 to 64"),
    ({"NCCL_CGA_CLUSTER_SIZE": "3", "NCCL_MAX_CTAS": "16"}, "does not divide NCCL_MAX_CTAS=16"),
    # numbers and words
    ({"NCCL_BUFFSIZE": "32768"}, "outside 65536"),
    ({"NCCL_BUFFSIZE": "3000000"}, "no power of two"),
    ({"NCCL_BUFFSIZE": "4M"}, "no plain decimal number; NCCL would read 4"),
    ({"NCCL_BUFFSIZE": "0x100000"}, "no plain decimal number; NCCL would read 1048576"),
    ({"NCCL_NTHREADS": "100"}, "no multiple of 32"),
    ({"NCCL_NTHREADS": "0512"}, "no plain decimal number"),
    ({"NCCL_NTHREADS": "word"}, "no plain decimal number"),
    ({"NCCL_NTHREADS": "512 "}, "no plain decimal number"),
    ({"NCCL_NTHREADS": "٥١٢"}, "no plain decimal number"),
    ({"NCCL_P2P_LEVEL": "loc"}, "is none of LOC"),
    ({"NCCL_P2P_LEVEL": "5"}, "is none of LOC"),
    ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}, "NCCL_P2P_LEVEL must be unset"),
    # names
    ({"NCCL_NTHREAD": "512"}, "no knob of the catalogue. Did you mean 'NCCL_NTHREADS'"),
    ({"NCCL_LL_THRESHOLD": "0"}, "dropped in NCCL 2.5"),
    ({"NCCL_IB_TIMEOUT": "22"}, "never searched"),
    ({"OMP_NUM_THREADS": "2"}, "backend is nccl"),
]


@pytest.mark.parametrize(("settings", "reason"), ILLEGAL, ids=lambda value: str(value)[:60])
def test_what_may_not_and_why(settings, reason):
    why = _why(settings)
    assert why is not None
    assert reason in why


def test_ll128_may_be_forced_where_its_own_check_allowed_it():
    assert _why({"NCCL_PROTO": "allreduce:ll128"}, ll128=True) is None


def test_nvls_follows_what_is_inherited():
    settings = {"NCCL_ALGO": "allreduce:nvls"}
    assert _why(settings) is None
    assert "nvls is switched off by NCCL_NVLS_ENABLE=0" in _why(settings, inherited={"NCCL_NVLS_ENABLE": "0"})
    assert _why(settings, inherited={"NCCL_NVLS_ENABLE": "2"}) is None
    assert "switched off" in _why({**settings, "NCCL_NVLS_ENABLE": "0"})
    assert _why({"NCCL_ALGO": "allreduce:^nvls"}, inherited={"NCCL_NVLS_ENABLE": "0"}) is None


def test_algorithms_follow_the_number_of_nodes():
    assert "nvlstree does not exist on one node" in _why({"NCCL_ALGO": "allreduce:nvlstree"}, nccl_nodes=1)
    assert _why({"NCCL_ALGO": "allreduce:nvlstree"}, nccl_nodes=2) is None
    assert "nvls does not exist on several nodes" in _why({"NCCL_ALGO": "allreduce:nvls"}, nccl_nodes=2)
    assert "pat does not exist on one node" in _why({"NCCL_ALGO": "allgather:pat"}, nccl_nodes=1)


def test_old_versions_have_other_spellings_ceilings_and_names():
    assert "does not read a collective in front" in _why({"NCCL_ALGO": "allreduce:tree"}, version=OLD)
    assert _why({"NCCL_ALGO": "tree", "NCCL_PROTO": "simple"}, version=OLD) is None
    assert "nvls has no protocol" in _why({"NCCL_ALGO": "nvls", "NCCL_PROTO": "ll"}, version=OLD)
    assert "outside 1 to 32" in _why({"NCCL_MAX_NCHANNELS": "64"}, version=(2, 24, 3))
    assert "came with NCCL 2.27" in _why({"NCCL_SOCKET_INLINE": "0"}, version=(2, 26, 6))
    assert "pat came with NCCL 2.23" in _why({"NCCL_ALGO": "pat"}, version=(2, 22, 3))
    assert "dropped in NCCL 2.30.5" in _why({"NCCL_SHM_MEMCPY_MODE": "2"})
    assert _why({"NCCL_ALGO": "allreduce:tree"}, version=None) is None


def test_inherited_settings_are_baseline_and_take_part_in_the_rules():
    assert "inherited" in _why({"NCCL_NTHREADS": "256"}, inherited={"NCCL_NTHREADS": "512"})
    assert "is more than" in _why({"NCCL_MIN_NCHANNELS": "8"}, inherited={"NCCL_MAX_NCHANNELS": "4"})
    assert _why({"NCCL_MIN_NCHANNELS": "8"}, inherited={"NCCL_MAX_NCHANNELS": "0x10"}) is None
    assert _why({"NCCL_NSOCKS_PERTHREAD": "4"}, inherited={"NCCL_SOCKET_NTHREADS": "4"}) is None
    assert "is 80" in _why({"NCCL_NSOCKS_PERTHREAD": "5"}, inherited={"NCCL_SOCKET_NTHREADS": "16"})
    # A pair that is wrong in the baseline itself is nobody's candidate.
    wrong = {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "4"}
    assert _why({"NCCL_BUFFSIZE": "1048576"}, inherited=wrong) is None


def test_protocols_under_an_inherited_list_of_algorithms():
    prefixed, bare = {"NCCL_ALGO": "allgather:ring"}, {"NCCL_ALGO": "Ring"}
    assert "same collectives" in _why({"NCCL_PROTO": "allreduce:simple"}, inherited=prefixed)
    assert _why({"NCCL_PROTO": "allreduce:simple"}, inherited=bare) is None
    assert _why({"NCCL_PROTO": "allreduce:simple"}, inherited={"NCCL_ALGO": "rubbish;;:x"}) is None


def test_a_name_that_the_library_does_not_hold_is_refused():
    assert "unknown to the NCCL that is loaded" in _why({"NCCL_NTHREADS": "256"}, known_names=("NCCL_ALGO",))
    assert _why({"NCCL_NTHREADS": "256"}, known_names=("NCCL_NTHREADS",)) is None
    assert why_illegal({"OMP_NUM_THREADS": "2"}, Circumstances(CATALOGUE, backend="gloo", known_names=("X",))) is None


def test_conditions_of_a_space_are_heeded():
    both = Together(predicate="together", knobs=("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"), reason="because")
    assert "(because)" in _why({"NCCL_SOCKET_NTHREADS": "4"}, conditions=(both,))
    rising = Ordered(predicate="ordered", knobs=("NCCL_MIN_NCHANNELS", "NCCL_SOCKET_NTHREADS"))
    assert "is more than" in _why({"NCCL_MIN_NCHANNELS": "4", "NCCL_SOCKET_NTHREADS": "2"}, conditions=(rising,))


def test_the_default_is_always_legal():
    inherited = {"NCCL_ALGO": "nonsense", "NCCL_MAX_NCHANNELS": "x"}
    assert illegal(DEFAULT, CATALOGUE, nccl_version=NOW, inherited=inherited, backend="nccl") is None


@pytest.mark.parametrize(
    ("name", "text", "spelled"),
    [
        ("NCCL_ALGO", "AllReduce:Ring, Tree", "allreduce:tree,ring"),
        ("NCCL_ALGO", "allgather:ring;allreduce:TREE", "allreduce:tree;allgather:ring"),
        ("NCCL_ALGO", "allreduce:tre", "allreduce:tre"),
        ("NCCL_BUFFSIZE", " 0x100000", "1048576"),
        ("NCCL_BUFFSIZE", "4M", "4M"),
        ("NCCL_P2P_LEVEL", "loc", "LOC"),
        ("NCCL_CROSS_NIC", "01", "1"),
        ("NCCL_NOPE", " x ", " x "),
    ],
)
def test_canonical_spelling(name, text, spelled):
    assert canonical(Candidate(settings={name: text}), CATALOGUE, NOW).settings == {name: spelled}


def test_canonical_spelling_before_prefixes():
    settings = {"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "allreduce:simple;allgather:ll"}
    old = canonical(Candidate(settings=settings), CATALOGUE, OLD).settings
    assert old == {"NCCL_ALGO": "tree", "NCCL_PROTO": "allreduce:simple;allgather:ll"}


def test_the_grammar_is_the_sources():
    assert parse_selection("ring;AllReduce:^NVLS,Tree") == (
        Entry("", False, ("ring",)),
        Entry("allreduce", True, ("nvls", "tree")),
    )
    assert render_selection(parse_selection("ring;allreduce:^nvls,tree")) == "ring;allreduce:^nvls,tree"


def test_groups_of_knobs_that_no_rule_joins():
    names = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NVLS_ENABLE"]
    groups = coupled(names, Circumstances(CATALOGUE))
    assert set(groups) == {
        frozenset({"NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE"}),
        frozenset({"NCCL_BUFFSIZE"}),
        frozenset({"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"}),
    }


_names = st.one_of(st.sampled_from([*CATALOGUE.knobs, *CATALOGUE.gone]), st.from_regex(r"[A-Z_]{1,12}", fullmatch=True))
_words = [
    "allreduce",
    "allgather",
    "tree",
    "ring",
    "nvls",
    "ll",
    "ll128",
    "simple",
    ":",
    ";",
    ",",
    "^",
    " ",
    "-",
    "0x",
    "9",
]
_texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], min_codepoint=32), max_size=30).filter(
        lambda text: "\x7f" not in text
    ),
    st.lists(st.sampled_from(_words), max_size=8).map("".join),
    st.integers().map(str),
)
_settings = st.dictionaries(_names, _texts, max_size=4)
_versions = st.one_of(st.none(), st.sampled_from([(2, 18, 5), OLD, (2, 24, 3), NOW, (2, 32, 7)]))


@given(_settings, _settings, _versions, st.sampled_from(["nccl", "gloo"]), st.booleans(), st.sampled_from([None, 1, 2]))
def test_any_text_gets_an_answer(settings, inherited, version, backend, ll128, nodes):
    about = Circumstances(CATALOGUE, version, inherited, backend, (), (), ll128, nodes)
    why = why_illegal(settings, about)
    assert why is None or why
    # Every rule for itself: those behind the first refusal are reached as well.
    for name, value in settings.items():
        if name in CATALOGUE.knobs:
            for rule in SETTING_RULES.values():
                if (
                    rule.__name__ not in ("_algorithms_exist", "_uses_exist")
                    or why_setting_illegal(name, value, about) is None
                ):
                    rule(name, value, about)
    if all(why_setting_illegal(name, value, about) is None for name, value in settings.items()):
        for rule in CANDIDATE_RULES.values():
            rule(settings, about)


@given(_settings, _versions)
def test_what_is_legal_is_canonical_and_canonical_is_stable(settings, version):
    candidate = Candidate(settings=settings)
    spelled = canonical(candidate, CATALOGUE, version)
    assert canonical(spelled, CATALOGUE, version) == spelled
    if why_illegal(settings, Circumstances(CATALOGUE, nccl_version=version)) is None:
        assert spelled == candidate
