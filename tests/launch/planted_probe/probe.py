"""The probe, on a machine where ranks 0 and 2 give each other wrong data and ranks 0 and 1 never come back."""

import time

from torch import distributed

from nccltune.workloads import probe
from nccltune.workloads.harness import main

whole = probe._all_reduce


def broken(data, group):
    ranks = distributed.get_process_group_ranks(group)
    if ranks == [0, 1]:
        time.sleep(3600)
    whole(data, group)
    if ranks == [0, 2] and distributed.get_rank() == 2 and len(data) > 1000:
        data[77] += 1


if __name__ == "__main__":
    probe._all_reduce = broken
    main(probe.build)
