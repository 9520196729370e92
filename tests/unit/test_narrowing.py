from dataclasses import replace

import pytest

from nccltune.machine.facts import Facts
from nccltune.machine.gpus import Gpu
from nccltune.machine.inherited import Inherited
from nccltune.machine.library import NcclFacts, TorchFacts
from nccltune.machine.limits import Cpu
from nccltune.machine.nics import Nic
from nccltune.machine.topology import Topology
from nccltune.records import Candidate, Dimension, Evidence, Placement, Space
from nccltune.space.catalogue import load_catalogue
from nccltune.space.describe import knobs_table
from nccltune.space.enumeration import candidates, distinct
from nccltune.space.legality import coupled, why_illegal
from nccltune.space.narrowing import circumstances, narrow, narrow_by_evidence
from nccltune.space.space_file import choose, load_space

CATALOGUE = load_catalogue()
ONE = Placement()
EMULATED = Placement(emulated_nodes=2)
TWO_NODES = Placement(nnodes=2)


def machine(
    gpus=2,
    links="NV18",
    version="2.30.7",
    inherited=None,
    names=(),
    infiniband=False,
    nvswitch=None,
    capability=(9, 0),
    cpu=None,
):
    word = {f"{a}-{b}": links for a in range(gpus) for b in range(a + 1, gpus)} if isinstance(links, str) else links
    nvlink = bool(word) and all(link.startswith("NV") for link in word.values())
    settings = inherited or {}
    return Facts(
        torch=TorchFacts(version="2.14.1", path="/torch", cuda="13.0", has_nccl=gpus > 0),
        nccl=NcclFacts(version=version, library="/libnccl.so.2", names=tuple(names)) if gpus else None,
        gpus=tuple(Gpu(index=i, name="NVIDIA H200", compute_capability=capability) for i in range(gpus)),
        links="none" if gpus < 2 else "nvlink" if nvlink else "pcie",
        nvswitch=nvswitch,
        topology=Topology(gpus=tuple(range(gpus)), links=word) if gpus else None,
        nics=(Nic(kind="ib", name="mlx5_0", up=True),) if infiniband else (Nic(kind="net", name="eth0", up=True),),
        cpu=cpu or Cpu(model="Intel(R) Xeon(R)", architecture="x86_64", cores_usable=4),
        inherited=Inherited(settings=settings, sources=dict.fromkeys(settings, "environment")),
    )


def _values(space, name):
    return next((dimension.values for dimension in space.dimensions if dimension.name == name), None)


def _narrow(name, facts, placement=ONE, **more):
    return narrow(load_space(name, CATALOGUE), facts, CATALOGUE, placement, **more)


def _of(**values):
    return Space(name="x", dimensions=tuple(Dimension(name=n, values=v) for n, v in values.items()))


def test_auto_picks_by_the_machine():
    assert choose(machine(gpus=0), ONE) == "cpu"
    assert choose(machine(), ONE) == "nvlink"
    assert choose(machine(links="PHB"), ONE) == "pcie"
    assert choose(machine(), TWO_NODES) == "tcp"
    assert choose(machine(infiniband=True), TWO_NODES) == "infiniband"
    assert choose(machine(infiniband=True), EMULATED) == "tcp"


def test_on_gloo_every_nccl_knob_drops_out():
    space = _narrow("tcp", machine(gpus=0))
    assert space.dimensions == ()
    assert space.start == ()
    assert set(space.removed.values()) == {"backend is gloo"}
    assert len(space.removed) == 7


def test_on_nccl_the_cpu_space_drops_out():
    assert _narrow("cpu", machine()).dimensions == ()


def test_two_gpus_on_nvlink():
    space = _narrow("nvlink", machine(inherited={"NCCL_NVLS_ENABLE": "0"}))
    assert [dimension.name for dimension in space.dimensions] == [
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_NTHREADS",
        "NCCL_BUFFSIZE",
    ]
    assert space.removed["NCCL_P2P_LEVEL"] == "the same as unset here: the paths between the GPUs are NVL"
    assert "NCCL_NVLS_ENABLE=0" in space.removed["NCCL_ALGO=allreduce:ring,nvls"]
    assert _values(space, "NCCL_ALGO") == (None, "allreduce:ring", "allreduce:tree")


def test_nvls_needs_the_switch_and_the_gpu():
    def kept(**facts):
        return "allreduce:ring,nvls" in _values(_narrow("nvlink", machine(**facts)), "NCCL_ALGO")

    assert kept(nvswitch=True)
    assert not kept(nvswitch=False)
    assert not kept(nvswitch=None)
    assert not kept(nvswitch=True, capability=(8, 0))
    assert not kept(nvswitch=True, inherited={"NCCL_NVLS_ENABLE": "0"})


def test_inherited_names_are_never_searched():
    facts = machine(inherited={"NCCL_NTHREADS": "256", "NCCL_MAX_NCHANNELS": "8"})
    space = _narrow("nvlink", facts)
    assert space.removed["NCCL_NTHREADS"] == "inherited from the environment (256), so part of the baseline"
    assert "NCCL_MAX_NCHANNELS" in space.removed
    # What is left agrees with the inherited bound, once asked together.
    about = circumstances(space, facts, CATALOGUE, ONE)
    assert why_illegal({"NCCL_MIN_NCHANNELS": "16"}, about)
    assert all("NCCL_MAX_NCHANNELS" not in candidate.settings for candidate in space.start)
    assert all(why_illegal(candidate.settings, about) is None for candidate in space.start)


def test_sockets_need_several_nodes():
    one, two = _narrow("tcp", machine()), _narrow("tcp", machine(), EMULATED)
    assert one.removed["NCCL_SOCKET_NTHREADS"] == "all ranks are on one node"
    assert _values(two, "NCCL_SOCKET_NTHREADS") == (None, "1", "2", "4", "8", "16")
    assert two.start[0] == Candidate(settings={"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"})


def test_infiniband_knobs_need_infiniband():
    name = "NCCL_IB_QPS_PER_CONNECTION"
    assert _narrow("infiniband", machine(), TWO_NODES).removed[name] == "no InfiniBand or RoCE port is up"
    assert _values(_narrow("infiniband", machine(infiniband=True), TWO_NODES), name)
    assert "emulated" in _narrow("infiniband", machine(infiniband=True), EMULATED).removed[name]
    off = machine(infiniband=True, inherited={"NCCL_IB_DISABLE": "1"})
    assert _narrow("infiniband", off, TWO_NODES).removed[name] == "NCCL_IB_DISABLE=1 is inherited"


def test_levels_for_network_cards_are_not_judged_by_the_paths_between_gpus():
    space = _narrow("infiniband", machine(infiniband=True), Placement(nnodes=2, nproc_per_node=2))
    assert _values(space, "NCCL_NET_GDR_LEVEL") == (None, "LOC", "PIX", "PXB", "PHB", "SYS")


def test_a_level_inside_the_node_needs_two_ranks_there():
    assert _narrow("nvlink", machine(), EMULATED).removed["NCCL_P2P_LEVEL"] == "each node has one rank"


MIXED = {"0-1": "NV4", "2-3": "NV4", "0-2": "SYS", "0-3": "SYS", "1-2": "SYS", "1-3": "SYS"}


@pytest.mark.parametrize(
    ("gpus", "links", "cpu", "left"),
    [
        # Unset (PXB) reaches no path through the host; LOC and the levels up to PXB reach none either.
        (2, "PHB", "Intel", (None, "PHB")),
        (2, "NODE", "Intel", (None, "PHB")),
        (2, "SYS", "Intel", (None, "SYS")),
        (4, "SYS", "AMD EPYC", (None, "SYS")),
        # On AMD with two GPUs unset reaches as far as SYS: what is left is to stop it.
        (2, "SYS", "AMD EPYC", (None, "LOC")),
        (2, "PIX", "Intel", (None, "LOC")),
        (2, "PXB", "Intel", (None, "LOC")),
        (2, "NV4", "Intel", (None, "LOC")),
        # Beside NVLink a neighbour may relay, so NVL and PIX may differ.
        (4, MIXED, "Intel", (None, "LOC", "NVL", "SYS")),
        # The host is not known: unset may or may not reach SYS.
        (2, "SYS", None, (None, "LOC", "SYS")),
        (2, {}, "Intel", (None, "LOC", "NVL", "PIX", "PXB", "PHB", "SYS")),
    ],
)
def test_levels_collapse_to_those_that_differ(gpus, links, cpu, left):
    space = _of(NCCL_P2P_LEVEL=(None, "LOC", "NVL", "PIX", "PXB", "PHB", "SYS"))
    facts = machine(gpus=gpus, links=links, cpu=Cpu(model=cpu, cores_usable=4))
    narrowed = narrow(space, facts, CATALOGUE, Placement(nproc_per_node=gpus))
    assert _values(narrowed, "NCCL_P2P_LEVEL") == left


def test_ll128_before_any_launch():
    name, value = "NCCL_PROTO", "allreduce:ll128"
    space = load_space("nvlink", CATALOGUE)
    assert value in _values(narrow(space, machine(), CATALOGUE, ONE), name)
    assert value not in _values(narrow(space, machine(links="PHB"), CATALOGUE, ONE), name)
    assert value not in _values(narrow(space, machine(capability=(6, 0)), CATALOGUE, ONE), name)
    mixed = machine()
    gpus = (mixed.gpus[0], mixed.gpus[1].model_copy(update={"compute_capability": (8, 0)}))
    assert value not in _values(narrow(space, mixed.model_copy(update={"gpus": gpus}), CATALOGUE, ONE), name)


def test_ll128_goes_unless_nccls_own_table_allowed_it():
    space = _narrow("nvlink", machine())
    silent = narrow_by_evidence(space, Evidence(), CATALOGUE)
    assert silent.removed["NCCL_PROTO=allreduce:ll128"] == "nothing shows that NCCL's own table allows LL128 here"
    denied = narrow_by_evidence(space, Evidence(ll128=False), CATALOGUE)
    assert denied.removed["NCCL_PROTO=allreduce:ll128"] == "NCCL's own table does not allow LL128 here"
    for seen in (Evidence(ll128=True), Evidence(choices={"AllReduce 65536": "Ring LL128 8"})):
        kept = narrow_by_evidence(space, seen, CATALOGUE)
        assert "allreduce:ll128" in _values(kept, "NCCL_PROTO")
        about = circumstances(kept, machine(), CATALOGUE, ONE)
        assert why_illegal({"NCCL_PROTO": "allreduce:ll128"}, about) is None
    assert why_illegal({"NCCL_PROTO": "allreduce:ll128"}, circumstances(silent, machine(), CATALOGUE, ONE))


def test_old_nccl_gets_old_spellings_and_ceilings():
    space = _narrow("nvlink", machine(version="2.23.4"))
    assert _values(space, "NCCL_ALGO") == (None, "ring", "tree")
    assert _values(space, "NCCL_PROTO") == (None, "simple", "ll", "ll128")
    assert space.start[0].settings["NCCL_ALGO"] == "ring"
    wide = _of(NCCL_MAX_NCHANNELS=(None, "32", "64"))
    old = narrow(wide, machine(version="2.23.4"), CATALOGUE, ONE)
    assert _values(old, "NCCL_MAX_NCHANNELS") == (None, "32")
    assert "outside 1 to 32" in old.removed["NCCL_MAX_NCHANNELS=64"]
    assert _values(narrow(wide, machine(), CATALOGUE, ONE), "NCCL_MAX_NCHANNELS") == (None, "32", "64")


def test_names_that_the_library_does_not_hold_go():
    names = {"NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE"}
    space = _narrow("nvlink", machine(names=names))
    assert {dimension.name for dimension in space.dimensions} == names
    assert space.removed["NCCL_NTHREADS"] == "NCCL_NTHREADS is unknown to the NCCL that is loaded"


def test_the_class_of_documentation_narrows():
    assert {d.name for d in _narrow("tcp", machine(), EMULATED, allow=("system",)).dimensions} == {
        "NCCL_SOCKET_NTHREADS",
        "NCCL_NSOCKS_PERTHREAD",
    }
    whole = _narrow("tcp", machine(), EMULATED)
    assert _narrow("tcp", machine(), EMULATED, allow=("system", "debugging")) == whole
    assert len(whole.dimensions) == 7


def test_threads_of_the_cpu_stop_at_its_cores_and_leave_out_the_default():
    space = _narrow("cpu", machine(gpus=0))
    assert _values(space, "OMP_NUM_THREADS") == (None, "2", "4")
    assert space.removed["OMP_NUM_THREADS=8"] == "4 cores are usable"
    assert space.removed["OMP_NUM_THREADS=1"].startswith("the same as unset")
    alone = _narrow("cpu", machine(gpus=0), Placement(nproc_per_node=1))
    assert _values(alone, "OMP_NUM_THREADS") == (None, "1", "2", "4")
    taken = _narrow("cpu", machine(gpus=0), environ={"OMP_NUM_THREADS": "2", "HOME": "/"})
    assert "inherited from the environment (2)" in taken.removed["OMP_NUM_THREADS"]


def test_evidence_removes_what_no_connection_uses():
    space = _narrow("tcp", machine(), EMULATED)
    used = narrow_by_evidence(space, Evidence(transports={"NET/Socket": 4}, network="Socket", nnodes=2), CATALOGUE)
    assert used == space
    unused = narrow_by_evidence(space, Evidence(transports={"P2P/CUMEM": 4}, nnodes=1), CATALOGUE)
    assert unused.removed["NCCL_NSOCKS_PERTHREAD"] == "NCCL counts one node"
    other = narrow_by_evidence(space, Evidence(transports={"NET/IB/GDRDMA": 4}, nnodes=2), CATALOGUE)
    assert other.removed["NCCL_SOCKET_NTHREADS"] == "no connection uses NET/Socket"
    assert narrow_by_evidence(space, Evidence(), CATALOGUE) == space


def test_evidence_removes_infiniband_knobs_on_a_socket_fallback():
    space = _narrow("infiniband", machine(infiniband=True), TWO_NODES)
    narrowed = narrow_by_evidence(space, Evidence(network="Socket", nnodes=2), CATALOGUE)
    assert narrowed.removed["NCCL_IB_QPS_PER_CONNECTION"] == "no connection uses NET/IB"
    assert narrowed.removed["NCCL_NET_GDR_LEVEL"] == "no connection uses NET/IB"


def test_bounds_that_the_default_keeps_anyway_are_not_tried():
    space = narrow_by_evidence(_narrow("nvlink", machine()), Evidence(channels=24), CATALOGUE)
    assert _values(space, "NCCL_MIN_NCHANNELS") == (None, "32")
    assert _values(space, "NCCL_MAX_NCHANNELS") == (None, "2", "4", "8", "16")
    assert space.removed["NCCL_MIN_NCHANNELS=8"] == "the same as unset: the default uses 24 channels"


def test_a_start_loses_what_is_removed_and_vanishes_when_nothing_is_left():
    space = Space(
        name="x",
        dimensions=(
            Dimension(name="NCCL_BUFFSIZE", values=(None, "1048576")),
            Dimension(name="NCCL_SOCKET_NTHREADS", values=(None, "4")),
        ),
        start=(
            Candidate(settings={"NCCL_BUFFSIZE": "1048576", "NCCL_SOCKET_NTHREADS": "4"}),
            Candidate(settings={"NCCL_SOCKET_NTHREADS": "4"}),
            Candidate(settings={"NCCL_BUFFSIZE": "1048576"}),
        ),
    )
    narrowed = narrow(space, machine(), CATALOGUE, ONE)
    assert narrowed.start == (Candidate(settings={"NCCL_BUFFSIZE": "1048576"}),)


@pytest.mark.parametrize("name", ["tcp", "nvlink", "pcie", "infiniband", "cpu"])
@pytest.mark.parametrize("placement", [ONE, EMULATED, TWO_NODES], ids=["one", "emulated", "two"])
@pytest.mark.parametrize("version", ["2.18.5", "2.24.3", "2.32.7"])
def test_narrowing_keeps_and_explains(name, placement, version):
    facts = machine(gpus=0 if name == "cpu" else 2, version=version, infiniband=True, nvswitch=True)
    before = load_space(name, CATALOGUE)
    after = narrow(before, facts, CATALOGUE, placement)
    assert narrow(after, facts, CATALOGUE, placement) == after
    named = {dimension.name for dimension in before.dimensions}
    assert {dimension.name for dimension in after.dimensions} | {
        key.partition("=")[0] for key in after.removed
    } == named
    assert all(after.removed.values())
    # Every value that is left can stand in some legal candidate.
    about = circumstances(after, facts, CATALOGUE, placement)
    for group in coupled([dimension.name for dimension in after.dimensions], about):
        part = after.model_copy(update={"dimensions": tuple(d for d in after.dimensions if d.name in group)})
        seen = {
            pair
            for one in candidates(part, lambda c: why_illegal(c.settings, about) is None)
            for pair in one.settings.items()
        }
        assert seen == {(d.name, value) for d in part.dimensions for value in d.values if value is not None}


def test_the_table_shows_what_stays_and_what_went():
    before = load_space("nvlink", CATALOGUE)
    after = narrow_by_evidence(_narrow("nvlink", machine()), Evidence(channels=24), CATALOGUE)
    about = circumstances(after, machine(), CATALOGUE, ONE)
    count = distinct(after, lambda one: why_illegal(one.settings, about) is None)
    table = knobs_table(before, after, count)
    rows = {row.name: row for row in table.rows}
    assert list(rows)[-1] == "NCCL_P2P_LEVEL"
    assert rows["NCCL_P2P_LEVEL"].values == ()
    assert "NVL" in rows["NCCL_P2P_LEVEL"].reason
    assert rows["NCCL_MIN_NCHANNELS"].values == ("unset", "32")
    assert rows["NCCL_MIN_NCHANNELS"].dropped["2"] == "the same as unset: the default uses 24 channels"
    assert table.count.legal > 1


def test_circumstances_carry_the_machine():
    facts = machine(version="2.24.3", inherited={"NCCL_NTHREADS": "256"}, names=("NCCL_ALGO",))
    about = circumstances(_narrow("nvlink", facts), facts, CATALOGUE, EMULATED)
    assert about.nccl_version == (2, 24, 3)
    assert about.inherited == {"NCCL_NTHREADS": "256"}
    assert about.nccl_nodes == 2
    assert replace(about, nccl_nodes=1).known_names == frozenset({"NCCL_ALGO"})
