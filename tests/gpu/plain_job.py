"""A job that knows nothing of nccltune: each rank is an emulated node of its own and takes part in some all-reduces."""

import os

import torch
from torch import distributed

rank = int(os.environ["LOCAL_RANK"])
os.environ |= {"NCCL_HOSTID": f"emulated-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
torch.cuda.set_device(rank)
distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
numbers = torch.ones(8 << 20, device="cuda")
for _ in range(3):
    distributed.all_reduce(numbers)
torch.cuda.synchronize()
assert bool((numbers == distributed.get_world_size() ** 3).all())
distributed.destroy_process_group()
