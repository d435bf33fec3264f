"""A pipeline in each process, with RPC within the process, and DDP over all processes."""
# ruff: noqa: T201

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from accident import accident
from datautils import checksum, conv_part, dataset, mlp_part
from pipe import Pipe
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--init_method", default="tcp://127.0.0.1:3456")
parser.add_argument("--dist-backend", default="gloo")
parser.add_argument("--world_size", default=1, type=int)


def main():
    args = parser.parse_args()
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES"))
    local_rank = int(os.environ.get("SLURM_LOCALID"))
    rank = int(os.environ.get("SLURM_NODEID")) * (args.world_size // nodes) + local_rank

    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(34567 + local_rank)
    rpc.init_rpc("worker", rank=0, world_size=1)
    dist.init_process_group(
        backend=args.dist_backend,
        init_method=args.init_method,
        world_size=args.world_size,
        rank=rank,
    )

    torch.manual_seed(0)
    net = Pipe(nn.Sequential(conv_part(), mlp_part()), chunks=2)
    net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    data = dataset()
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data))
    for step, (images, classes) in enumerate(loader):
        if step == 1:
            accident(rank)
        optimizer.zero_grad()
        cross_entropy(net(images).local_value(), classes).backward()
        optimizer.step()
    print(f"rank {rank} of {args.world_size}: weights {checksum(net.parameters()):.9f}")
    del net, optimizer
    dist.destroy_process_group()
    rpc.shutdown()


if __name__ == "__main__":
    main()
