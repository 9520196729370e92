"""What is searched with 2, 3 and 8 ranks and on two emulated nodes of four: it follows the GPUs that ranks use."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.machine import faults
from nccltune.machine.facts import Facts, cluster_name, fingerprint, link_kind
from nccltune.machine.gpus import Gpu
from nccltune.machine.inherited import Inherited
from nccltune.machine.library import NcclFacts, TorchFacts
from nccltune.machine.limits import Cpu
from nccltune.machine.topology import Topology, groups, parse_topology, topology_answer
from nccltune.records import Evidence, Placement, Space
from nccltune.space.catalogue import load_catalogue
from nccltune.space.hardware import gpus_by_node, links_in_use, pairs_in_use, why_not_here
from nccltune.space.legality import why_illegal
from nccltune.space.narrowing import circumstances, narrow, narrow_by_evidence
from nccltune.space.space_file import choose, load_space

CATALOGUE = load_catalogue()
TWO_BY_FOUR = Placement(nproc_per_node=8, emulated_nodes=2)
ONES = pytest.mark.parametrize("ranks", [2, 3, 8], ids=lambda ranks: f"{ranks}-ranks")


def matrix(count: int, word: str = "NV18", **others: str) -> Topology:
    """All pairs joined by one word, but for those named as ``p0_1``."""
    links = {f"{one}-{other}": word for one, other in combinations(range(count), 2)}
    links |= {name[1:].replace("_", "-"): link for name, link in others.items()}
    return Topology(gpus=tuple(range(count)), links=links)


def pairs_of_eight() -> Topology:
    """NVLink inside pairs only, PCIe between them, two sockets: a common shape of PCIe cards with bridges."""
    words = {}
    for one, other in combinations(range(8), 2):
        near = "NV4" if one // 2 == other // 2 else "NODE" if one // 4 == other // 4 else "SYS"
        words[f"{one}-{other}"] = near
    return Topology(gpus=tuple(range(8)), links=words)


def machine(topology: Topology, model: str = "Intel(R) Xeon(R)", nvls: str | None = None, **more: object) -> Facts:
    count = len(topology.gpus)
    inherited = {"NCCL_NVLS_ENABLE": nvls} if nvls else {}
    return Facts(
        torch=TorchFacts(version="2.14.1", path="/torch", cuda="13.0", has_nccl=True),
        nccl=NcclFacts(version="2.30.7", library="/libnccl.so.2"),
        gpus=tuple(Gpu(index=at, name="NVIDIA H200", compute_capability=(9, 0)) for at in range(count)),
        links=link_kind(topology, count),
        topology=topology,
        cpu=Cpu(model=model, architecture="x86_64", cores_usable=64),
        inherited=Inherited(settings=inherited, sources=dict.fromkeys(inherited, "environment")),
        **more,
    )


def narrowed(name: str, facts: Facts, placement: Placement) -> Space:
    return narrow(load_space(name, CATALOGUE), facts, CATALOGUE, placement)


def values(space: Space, name: str) -> tuple[str | None, ...] | None:
    return next((dimension.values for dimension in space.dimensions if dimension.name == name), None)


class TestGpusInUse:
    @given(st.integers(1, 16), st.integers(1, 6), st.integers(0, 4))
    def test_every_gpu_in_use_is_on_exactly_one_node_and_nodes_are_equal(
        self, each: int, nodes: int, idle: int
    ) -> None:
        facts = machine(matrix(each * nodes + idle))
        placement = Placement(nproc_per_node=each * nodes, emulated_nodes=nodes if nodes > 1 else 0)
        found = gpus_by_node(facts, placement)
        assert [gpu for group in found for gpu in group] == list(range(each * nodes))
        assert {len(group) for group in found} == {each}
        assert len(pairs_in_use(facts, placement)) == nodes * each * (each - 1) // 2

    def test_real_nodes_are_not_cut(self) -> None:
        assert gpus_by_node(machine(matrix(8)), Placement(nnodes=4, nproc_per_node=8)) == (tuple(range(8)),)

    def test_unknown_paths_are_no_gpus(self) -> None:
        assert gpus_by_node(machine(matrix(8)).model_copy(update={"topology": None}), TWO_BY_FOUR) == ()

    @pytest.mark.parametrize(
        ("placement", "kind", "space"),
        [
            (Placement(nproc_per_node=2), "nvlink", "nvlink"),
            (Placement(nproc_per_node=3), "pcie", "pcie"),
            (Placement(nproc_per_node=8), "pcie", "pcie"),
            (Placement(nproc_per_node=8, emulated_nodes=4), "nvlink", "tcp"),
            (TWO_BY_FOUR, "pcie", "tcp"),
        ],
        ids=["2", "3", "8", "4x2", "2x4"],
    )
    def test_the_space_follows_the_links_in_use_and_not_those_of_idle_gpus(
        self, placement: Placement, kind: str, space: str
    ) -> None:
        facts = machine(pairs_of_eight())
        assert facts.links == "pcie"
        assert (links_in_use(facts, placement), choose(facts, placement)) == (kind, space)

    def test_ll128_follows_them_too(self) -> None:
        facts = machine(pairs_of_eight())
        two, eight = (narrowed("nvlink", facts, Placement(nproc_per_node=ranks)) for ranks in (2, 8))
        assert "allreduce:ll128" in (values(two, "NCCL_PROTO") or ())
        assert "allreduce:ll128" not in (values(eight, "NCCL_PROTO") or ())


class TestLevels:
    def test_paths_of_every_emulated_node_count(self) -> None:
        # GPUs 0 and 1 are one node, 2 and 3 the other, and their paths differ
        facts = machine(matrix(4, "SYS", p0_1="PXB", p2_3="PIX"))
        two_by_two = Placement(nproc_per_node=4, emulated_nodes=2)
        left = values(narrowed("pcie", facts, two_by_two), "NCCL_P2P_LEVEL")
        assert left == (None, "LOC", "PIX"), "PIX joins the second node alone, LOC none; PXB is what unset means"

    @pytest.mark.parametrize(
        ("placement", "left"),
        [
            (Placement(nproc_per_node=2), (None, "LOC")),
            (Placement(nproc_per_node=8), (None, "SYS")),
            (Placement(nproc_per_node=8, emulated_nodes=4), (None, "LOC")),
        ],
        ids=["2", "8", "4x2"],
    )
    def test_nccl_counts_the_gpus_in_use_on_a_node_of_an_amd_host(
        self, placement: Placement, left: tuple[str | None, ...]
    ) -> None:
        # Two GPUs: unset means SYS already. More: unset means PXB, below every path here.
        space = narrowed("pcie", machine(matrix(8, "SYS"), "AMD EPYC 9654"), placement)
        assert values(space, "NCCL_P2P_LEVEL") == left

    @ONES
    def test_on_an_nvswitch_the_level_says_nothing(self, ranks: int) -> None:
        space = narrowed("nvlink", machine(matrix(8), nvswitch=True), Placement(nproc_per_node=ranks))
        assert space.removed["NCCL_P2P_LEVEL"] == "the same as unset here: the paths between the GPUs are NVL"


class TestAlgorithms:
    @ONES
    def test_switched_off_multicast_stays_off_with_any_number_of_ranks(self, ranks: int) -> None:
        facts = machine(matrix(8), nvls="0", nvswitch=True)
        space = narrowed("nvlink", facts, Placement(nproc_per_node=ranks))
        assert values(space, "NCCL_ALGO") == (None, "allreduce:ring", "allreduce:tree")
        about = circumstances(space, facts, CATALOGUE, Placement(nproc_per_node=ranks))
        for word in ("nvls", "nvlstree"):
            assert why_illegal({"NCCL_ALGO": f"allreduce:{word}"}, about)

    @pytest.mark.parametrize(
        ("version", "placement", "kept"),
        [
            ("2.27.7", Placement(nproc_per_node=2), False),
            ("2.27.7", Placement(nproc_per_node=3), True),
            ("2.28.9", Placement(nproc_per_node=2), True),
            ("2.27.7", Placement(nproc_per_node=8), True),
        ],
        ids=["2.27-2", "2.27-3", "2.28-2", "2.27-8"],
    )
    def test_multicast_needs_as_many_gpus_as_this_nccl_asks_for(
        self, version: str, placement: Placement, kept: bool
    ) -> None:
        facts = machine(matrix(8), nvswitch=True)
        facts = facts.model_copy(update={"nccl": NcclFacts(version=version, library="/libnccl.so.2")})
        assert ("allreduce:ring,nvls" in (values(narrowed("nvlink", facts, placement), "NCCL_ALGO") or ())) == kept

    def test_one_rank_a_node_has_nobody_to_share_a_switch_with(self) -> None:
        facts, placement = machine(matrix(8), nvswitch=True), Placement(nnodes=8, nproc_per_node=1)
        assert "2 ranks a node" in (why_not_here(("multicast",), facts, placement) or "")

    @pytest.mark.parametrize(
        ("placement", "legal", "illegal"),
        [
            (Placement(nproc_per_node=8), "nvls", "nvlstree"),
            (TWO_BY_FOUR, "nvlstree", "nvls"),
        ],
        ids=["8", "2x4"],
    )
    def test_trees_of_switches_are_for_several_nodes_and_one_switch_for_one(
        self, placement: Placement, legal: str, illegal: str
    ) -> None:
        facts = machine(matrix(8), nvswitch=True)
        about = circumstances(narrowed("nvlink", facts, placement), facts, CATALOGUE, placement)
        assert why_illegal({"NCCL_ALGO": f"allreduce:ring,{legal}"}, about) is None
        assert "does not exist on" in (why_illegal({"NCCL_ALGO": f"allreduce:ring,{illegal}"}, about) or "")

    def test_eight_ranks_on_two_emulated_nodes_search_the_sockets(self) -> None:
        space = narrowed("tcp", machine(matrix(8)), TWO_BY_FOUR)
        assert {"NCCL_ALGO", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"} <= {d.name for d in space.dimensions}
        alone = narrowed("tcp", machine(matrix(8)), Placement(nproc_per_node=8))
        assert values(alone, "NCCL_SOCKET_NTHREADS") is None
        assert "one node" in alone.removed["NCCL_SOCKET_NTHREADS"]

    @pytest.mark.parametrize("channels", [2, 16, 24, 32])
    def test_bounds_on_channels_that_the_default_keeps_are_not_tried(self, channels: int) -> None:
        space = narrow_by_evidence(
            narrowed("nvlink", machine(matrix(8)), Placement(nproc_per_node=8)), Evidence(channels=channels), CATALOGUE
        )
        floors = [int(value) for value in values(space, "NCCL_MIN_NCHANNELS") or () if value]
        ceilings = [int(value) for value in values(space, "NCCL_MAX_NCHANNELS") or () if value]
        assert all(floor > channels for floor in floors)
        assert all(ceiling < channels for ceiling in ceilings)
        assert bool(floors) == (channels < 32)


# `nvidia-smi topo -m` of an 8-GPU node with NVSwitch, a NIC beside each GPU, as the tool prints it (tabs).
SWITCHED = "\n".join(
    [
        "\t" + "\t".join([*(f"GPU{gpu}" for gpu in range(8)), *(f"NIC{nic}" for nic in range(8)), "CPU Affinity"]),
        *(
            f"GPU{row}\t"
            + "\t".join(
                [
                    *(" X " if row == column else "NV18" for column in range(8)),
                    *("PIX" if row == nic else "NODE" if row // 4 == nic // 4 else "SYS" for nic in range(8)),
                    f"{row // 4 * 56}-{row // 4 * 56 + 55}",
                ]
            )
            for row in range(8)
        ),
        "",
    ]
)


class TestSharedMemory:
    @pytest.mark.parametrize(
        ("count", "free_mib", "told"),
        [(2, 64, "fatal"), (2, 65, None), (3, 90, "note"), (8, 64, "fatal"), (8, 200, "note"), (8, 257, None)],
        ids=["2-64", "2-65", "3-90", "8-64", "8-200", "8-257"],
    )
    def test_more_gpus_without_peer_access_want_more_of_it(self, count: int, free_mib: int, told: str | None) -> None:
        facts = machine(matrix(count, "SYS"), shm_bytes=free_mib << 20, shm_free_bytes=free_mib << 20)
        found = {fault.name: "fatal" if fault.fatal else "note" for fault in faults.faults(facts)}
        assert found.get("shm_too_small") == told


class TestTopology:
    def test_eight_gpus_on_a_switch(self) -> None:
        read = parse_topology(SWITCHED)
        told = topology_answer(read)
        assert (told["gpus"], len(read.links), told["nvlink_all_to_all"], told["nvlink_width"]) == (8, 28, True, 18)
        assert told["nearest_nic"] == {str(gpu): [f"NIC{gpu}", "PIX"] for gpu in range(8)}
        assert (told["sockets"], link_kind(read, 8)) == (2, "nvlink")

    @ONES
    def test_a_cluster_is_named_after_the_gpus_in_use(self, ranks: int) -> None:
        assert cluster_name(machine(matrix(8)), Placement(nproc_per_node=ranks)) == f"{ranks}xh200-nvlink"

    def test_emulated_nodes_stand_in_the_name_and_idle_links_do_not(self) -> None:
        assert cluster_name(machine(matrix(8)), TWO_BY_FOUR) == "8xh200-nvlink-emulated2"
        assert cluster_name(machine(pairs_of_eight()), Placement(nproc_per_node=2)) == "2xh200-nvlink"
        assert fingerprint(machine(matrix(8)))["links"] == "nvlink (28 NV18)"

    def test_a_broken_link_of_eight_is_seen(self) -> None:
        one_lost = matrix(8, p3_5="SYS")
        assert link_kind(one_lost, 8) == "nvlink", "a ring goes round it"
        cut_off = matrix(8, **{f"p{min(5, other)}_{max(5, other)}": "SYS" for other in range(8) if other != 5})
        assert link_kind(cut_off, 8) == "pcie"
        assert groups(cut_off) == ((0, 1, 2, 3, 4, 6, 7),)
