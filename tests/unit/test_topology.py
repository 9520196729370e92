import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.machine.topology import Topology, groups, nearest_nic, parse_topology, topology_answer


def matrix(devices, link, tails=(), tail_names=(), separator="\t"):
    """A matrix as nvidia-smi prints it: ``link(a, b)`` is the word between two devices."""
    lines = [separator.join(["", *devices, *tail_names])]
    for at, row in enumerate(devices):
        cells = [" X " if row == column else link(row, column) for column in devices]
        lines.append(separator.join([row, *cells, *(tails[at] if at < len(tails) else ())]))
    return "\n".join(lines) + "\n"


def hgx():
    """Eight GPUs on switches, twelve NICs, two sockets; NIC2 and NIC3, NIC8 and NIC9 are not for the GPUs."""
    gpus = [f"GPU{number}" for number in range(8)]
    nics = [f"NIC{number}" for number in range(12)]
    near = dict(zip(gpus, ["NIC0", "NIC1", "NIC4", "NIC5", "NIC6", "NIC7", "NIC10", "NIC11"], strict=True))

    def socket(name):
        number = int(name[3:])
        return number >= 4 if name.startswith("GPU") else number >= 6

    def link(one, other):
        if one in gpus and other in gpus:
            return "NV18"
        if near.get(one) == other or near.get(other) == one:
            return "PIX"
        return "NODE" if socket(one) == socket(other) else "SYS"

    tails = [("0-47,96-143", "0", "N/A")] * 4 + [("48-95,144-191", "1", "N/A")] * 4
    text = matrix(gpus + nics, link, tails, ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))
    legend = "".join(f"  NIC{number}: mlx5_{number + 3}\n" for number in range(12))
    return text + "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing # NVLinks\n\nNIC Legend:\n\n" + legend


def test_eight_gpus_on_switches_with_twelve_nics():
    answer = topology_answer(parse_topology(hgx()))
    assert answer["gpus"] == 8
    assert answer["nics"] == [f"mlx5_{number}" for number in range(3, 15)]
    assert (answer["nvlink"], answer["nvlink_all_to_all"], answer["nvlink_width"]) == (True, True, 18)
    assert len(answer["links"]) == 28
    assert answer["links"]["3-7"] == "NV18"
    assert answer["nearest_nic"]["0"] == ["mlx5_3", "PIX"]
    assert answer["nearest_nic"]["7"] == ["mlx5_14", "PIX"]
    assert answer["cpu_affinity"]["4"] == "48-95,144-191"
    assert answer["numa_affinity"] == {**dict.fromkeys("0123", "0"), **dict.fromkeys("4567", "1")}
    assert answer["gpu_numa_id"] is None
    assert answer["sockets"] == 2
    assert answer["p2p_domains"] == [list(range(8))]


PREFIXES = {
    "srun -l": lambda line: f"3: {line}",
    "glued": lambda line: f"[trainer3]:{line}",
    "collector": lambda line: f"2031-02-03T04:05:06.789Z pod-7 stdout F {line}",
    "quoted": lambda line: f"> {line}",
    "indented": lambda line: f"        {line}",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("expand", [False, True], ids=["tabs", "blanks"])
def test_prefixes_change_nothing(prefix, expand):
    text = hgx().expandtabs() if expand else hgx()
    changed = "\n".join(prefix(line) for line in text.splitlines()) + "\n"
    assert topology_answer(parse_topology(changed)) == topology_answer(parse_topology(hgx()))


def test_windows_line_ends_change_nothing():
    assert parse_topology(hgx().replace("\n", "\r\n")) == parse_topology(hgx())


@pytest.mark.parametrize("seed", range(5))
def test_the_same_matrix_from_several_ranks_interleaved(seed):
    lines = hgx().splitlines()
    chooser = random.Random(seed)
    waiting = [[f"{rank}: {line}" for line in lines] for rank in range(3)]
    mixed = []
    while any(waiting):
        mixed.append(chooser.choice([queue for queue in waiting if queue]).pop(0))
    assert topology_answer(parse_topology("\n".join(mixed) + "\n")) == topology_answer(parse_topology(hgx()))


def test_two_different_machines_interleaved_are_not_mixed():
    here = matrix(["GPU0", "GPU1"], lambda *_: "NV4").splitlines()
    there = matrix(["GPU0", "GPU1"], lambda *_: "SYS").splitlines()
    mixed = [line for pair in zip(here, there, strict=True) for line in (f"0: {pair[0]}", f"1: {pair[1]}")]
    assert parse_topology("\n".join(mixed) + "\n").links == {"0-1": "NV4"}


def test_escape_codes_around_the_header():
    text = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    text += "GPU0\t X \tPHB\t0-31,64-95\t0-1\t\tN/A\nGPU1\tPHB\t X \t0-31,64-95\t0-1\t\tN/A\n"
    for variant in (text, text.replace("\x1b", ""), text.replace("\x1b", "^[")):
        answer = topology_answer(parse_topology(variant))
        assert answer["gpus"] == 2
        assert answer["numa_affinity"] == {"0": "0-1", "1": "0-1"}
        assert answer["gpu_numa_id"] is None
        assert (answer["nvlink"], answer["sockets"], answer["p2p_domains"]) == (False, 1, [[0, 1]])


def test_columns_go_by_their_header():
    """The oldest form: devices by name, out of order, no NUMA column, ``SOC`` for the link between sockets."""
    words = {("GPU0", "hfi1_9"): "PXB", ("GPU1", "hfi1_2"): "PIX", ("GPU0", "GPU1"): "SOC"}

    def link(one, other):
        return words.get((one, other)) or words.get((other, one)) or "SOC"

    text = matrix(["GPU0", "GPU1", "hfi1_9", "hfi1_2"], link, [("0-9",), ("10-19",), ("",), ("",)], ("CPU Affinity",))
    answer = topology_answer(parse_topology(text))
    assert answer["nics"] == ["hfi1_9", "hfi1_2"]
    assert answer["links"] == {"0-1": "SYS"}
    assert answer["nearest_nic"] == {"0": ["hfi1_9", "PXB"], "1": ["hfi1_2", "PIX"]}
    assert answer["cpu_affinity"] == {"0": "0-9", "1": "10-19"}
    assert answer["numa_affinity"] is None
    assert answer["p2p_domains"] == []


def test_memory_of_its_own_and_lists_of_nodes():
    tails = [("0-71", "0,2-8", "1"), ("72-143", "9,11-17", "10")]
    names = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
    for separator in ("\t", "   "):
        text = matrix(["GPU0", "GPU1"], lambda *_: "NV12", tails, names, separator)
        answer = topology_answer(parse_topology(text))
        assert answer["gpu_numa_id"] == {"0": 1, "1": 10}
        assert answer["numa_affinity"] == {"0": "0,2-8", "1": "9,11-17"}


def test_affinity_that_is_not_said_stays_unknown():
    names = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
    text = matrix(["GPU0", "GPU1"], lambda *_: "NODE", [("N/A", "N/A", "N/A"), ("", "1", "N/A")], names)
    answer = topology_answer(parse_topology(text))
    assert answer["cpu_affinity"] is None
    assert answer["sockets"] is None
    assert answer["numa_affinity"] == {"1": "1"}


def test_all_nics_equally_far_pick_none():
    text = matrix(["GPU0", "NIC0", "NIC1"], lambda *_: "SYS")
    assert nearest_nic(parse_topology(text), 0) == (None, "SYS")
    assert nearest_nic(parse_topology(matrix(["GPU0", "NIC0"], lambda *_: "SYS")), 0) == ("NIC0", "SYS")
    assert nearest_nic(parse_topology(matrix(["GPU0", "GPU1"], lambda *_: "SYS")), 0) is None


def test_pairs_of_nvlink_are_islands():
    def link(one, other):
        return "NV4" if int(one[3:]) // 2 == int(other[3:]) // 2 else "SYS"

    topology = parse_topology(matrix([f"GPU{number}" for number in range(6)], link))
    answer = topology_answer(topology)
    assert (answer["nvlink"], answer["nvlink_all_to_all"], answer["nvlink_width"]) == (True, False, 4)
    assert groups(topology) == ((0, 1), (2, 3), (4, 5))
    assert groups(topology, ["SYS"]) == ((0, 1, 2, 3, 4, 5),)


def test_the_matrix_of_peer_access_is_no_matrix_of_links():
    text = matrix(["GPU0", "GPU1"], lambda *_: "GNS")
    assert topology_answer(parse_topology(text))["links"] is None
    both = text + "\n" + matrix(["GPU0", "GPU1"], lambda *_: "PHB")
    assert parse_topology(both).links == {"0-1": "PHB"}


def test_mig_is_seen():
    text = matrix(["GPU0", "GPU1"], lambda *_: "NV18") + "  MIG 1g.18gb     Device  0: (UUID: MIG-x)\n"
    assert parse_topology(text).mig
    assert not parse_topology(hgx()).mig


def old_form():
    """Two GPUs and a NIC whose row has no affinity, so that a full row of a GPU can be cut in its last column."""
    tails = [("0-13,28-41",), ("14-27,42-55",), ("",)]
    return matrix(["GPU0", "GPU1", "hfi1_0"], lambda *_: "NODE", tails, ("CPU Affinity",))


WITHOUT_LEGEND = hgx().partition("\nLegend")[0] + "\n"
CUTS = [*((old_form(), end) for end in range(len(old_form()))), *((WITHOUT_LEGEND, end) for end in range(0, 1600, 13))]


@pytest.mark.parametrize(("text", "end"), CUTS)
def test_a_cut_text_says_nothing_that_the_whole_does_not(text, end):
    whole, part = parse_topology(text), parse_topology(text[:end])
    assert part.gpus in ((), whole.gpus)
    assert part.nics in ((), whole.nics)
    for field in ("links", "nic_links", "cpu_affinity", "numa_affinity"):
        assert getattr(part, field).items() <= getattr(whole, field).items()


def test_a_whole_matrix_may_lack_the_last_line_end():
    text = matrix(["GPU0", "GPU1"], lambda *_: "PHB", [("0-3",), ("4-7",)], ("CPU Affinity",))
    assert parse_topology(text.rstrip("\n")) == parse_topology(text)


@pytest.mark.parametrize(
    "text",
    ["", "\0\xff\x1b[", "GPU0", "GPU0 is busy", "Failed to initialize NVML: Unknown Error\n", "X\tX\tX\n" * 3],
)
def test_what_is_no_matrix_is_nothing(text):
    assert parse_topology(text).links == {}
    answer = topology_answer(parse_topology(text))
    assert {key for key, value in answer.items() if value is not None} <= {"gpus", "nics", "nvlink"}


CELLS = st.sampled_from(
    ["X", " X ", "GPU0", "GPU1", "GPU99999", "NIC0", "NIC0:", "NV18", "NV", "SYS", "CPU Affinity", "NUMA Affinity",
     "GPU NUMA ID", "0-3", "N/A", "\t", "\n", "  ", ",", ":", "\x1b[4m", "9" * 5000, "NV" + "9" * 5000]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(CELLS).map(" ".join), st.lists(CELLS).map("".join)))
def test_no_text_raises(text):
    topology = parse_topology(text)
    answer = topology_answer(topology)
    assert set(answer) == {
        "gpus", "nics", "nvlink", "nvlink_all_to_all", "nvlink_width", "links", "nearest_nic", "cpu_affinity",
        "numa_affinity", "gpu_numa_id", "sockets", "p2p_domains",
    }  # fmt: skip
    assert Topology.model_validate_json(topology.model_dump_json()) == topology


WORDS = st.sampled_from(["NV1", "NV2", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])


@given(st.integers(1, 9), st.integers(0, 5), st.data())
def test_every_matrix_comes_back(gpu_count, nic_count, data):
    gpus = [f"GPU{number}" for number in range(gpu_count)]
    nics = [f"NIC{number}" for number in range(nic_count)]
    known = {}

    def link(one, other):
        key = frozenset((one, other))
        if key not in known:
            known[key] = data.draw(WORDS)
        return known[key]

    text = matrix(gpus + nics, link, [("0-3", "0")] * gpu_count, ("CPU Affinity", "NUMA Affinity"))
    for variant in (text, text.expandtabs(), text.rstrip("\n")):
        topology = parse_topology(variant)
        assert topology.gpus == tuple(range(gpu_count))
        assert topology.nics == tuple(nics)
        for one, other in topology.pairs():
            assert topology.link(one, other) == known[frozenset((f"GPU{one}", f"GPU{other}"))]
        for gpu in range(gpu_count):
            for nic in nics:
                assert topology.nic_links[f"{gpu} {nic}"] == known[frozenset((f"GPU{gpu}", nic))]
