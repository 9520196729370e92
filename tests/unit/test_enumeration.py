from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.records import DEFAULT, Candidate, Dimension, Space
from nccltune.space.catalogue import load_catalogue
from nccltune.space.conditions import Together, as_data, conditions_of
from nccltune.space.enumeration import candidates, distinct
from nccltune.space.legality import Circumstances, canonical, coupled, why_illegal

CATALOGUE = load_catalogue()


def _space(conditions=(), **values):
    dimensions = tuple(Dimension(name=name, values=each) for name, each in values.items())
    return Space(name="x", dimensions=dimensions, conditions=as_data(conditions))


def test_all_candidates_in_order_the_default_first():
    space = _space(A=(None, "1"), B=(None, "x", "y"))
    found = [candidate.key for candidate in candidates(space, lambda _: True)]
    assert found == ["default", "B=x", "B=y", "A=1", "A=1 B=x", "A=1 B=y"]


def test_illegal_ones_are_left_out():
    space = _space(NCCL_SOCKET_NTHREADS=(None, "4", "16"), NCCL_NSOCKS_PERTHREAD=(None, "4", "8"))
    about = Circumstances(CATALOGUE)
    found = {one.key for one in candidates(space, lambda one: why_illegal(one.settings, about) is None)}
    assert found == {
        "default",
        "NCCL_SOCKET_NTHREADS=4",
        "NCCL_SOCKET_NTHREADS=16",
        "NCCL_NSOCKS_PERTHREAD=4 NCCL_SOCKET_NTHREADS=4",
        "NCCL_NSOCKS_PERTHREAD=8 NCCL_SOCKET_NTHREADS=4",
        "NCCL_NSOCKS_PERTHREAD=4 NCCL_SOCKET_NTHREADS=16",
    }


def test_a_pinned_knob_is_in_every_candidate():
    space = _space(A=("1",), B=(None, "x"))
    assert [one.key for one in candidates(space, lambda _: True)] == ["A=1", "A=1 B=x"]


def test_an_empty_space_holds_the_default_alone():
    assert list(candidates(_space(), lambda _: True)) == [DEFAULT]
    assert distinct(_space(), lambda _: True).legal == 1


def test_counting_stops_at_the_limit_and_says_so():
    space = _space(A=tuple(map(str, range(10))), B=tuple(map(str, range(10))))
    whole, part = distinct(space, lambda _: True), distinct(space, lambda _: True, limit=40)
    assert (whole.legal, whole.combinations, whole.exact, str(whole)) == (100, 100, True, "100")
    assert (part.legal, part.combinations, part.exact, str(part)) == (40, 100, False, "more than 40")


_searchable = {
    name: tuple(None if value is None else str(value) for value in knob.suggest)
    for name, knob in CATALOGUE.knobs.items()
    if "nccl" in knob.backends and not knob.never
}
_coupled = [
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_CGA_CLUSTER_SIZE",
    "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_NVLS_ENABLE",
]  # fmt: skip


@st.composite
def spaces(draw):
    pool = st.sampled_from(_coupled) | st.sampled_from(sorted(_searchable))
    names = draw(st.lists(pool, min_size=1, max_size=4, unique=True))
    values = {name: draw(st.permutations(_searchable[name]))[:3] for name in names}
    conditions = (
        (Together(predicate="together", knobs=tuple(names[:2])),) if len(names) > 1 and draw(st.booleans()) else ()
    )
    return _space(conditions, **{name: tuple(each) for name, each in values.items()})


@given(spaces(), st.sampled_from([None, (2, 24, 3), (2, 30, 7)]))
@settings(deadline=None)
def test_what_a_space_produces_and_legality_accepts_is_canonical_and_survives_as_text(space, version):
    about = Circumstances(CATALOGUE, nccl_version=version, conditions=conditions_of(space), ll128=True)
    seen = set()
    for candidate in candidates(space, lambda one: why_illegal(one.settings, about) is None):
        assert canonical(candidate, CATALOGUE, version) == candidate
        assert candidate not in seen
        seen.add(candidate)
        lines = [f"{name}={value}" for name, value in candidate.settings.items()]
        assert not any(character.isspace() and character != " " for line in lines for character in line)
        assert Candidate(settings=dict(line.split("=", 1) for line in lines)) == candidate
        assert Candidate.model_validate_json(candidate.model_dump_json()) == candidate


@given(spaces())
@settings(deadline=None)
def test_counting_part_by_part_gives_the_same_number(space):
    about = Circumstances(CATALOGUE, conditions=conditions_of(space), ll128=True)

    def is_legal(candidate):
        return why_illegal(candidate.settings, about) is None

    groups = coupled([dimension.name for dimension in space.dimensions], about)
    assert sorted(name for group in groups for name in group) == sorted(d.name for d in space.dimensions)
    brute = sum(1 for _ in candidates(space, is_legal))
    assert distinct(space, is_legal, groups=groups).legal == brute
    assert distinct(space, is_legal).legal == brute
