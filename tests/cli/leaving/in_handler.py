"""Saves in a handler of SIGUSR1, with collectives, and leaves there: in_handler.py KIND --dir DIR

KIND is `fsdp`, `stages` (of a pipeline), `optimizers` (two of them) or `frozen` (rank 0 trains
nothing, and counts its steps). With HOLD=STEP it is held after a step. A training that resumes
from what was saved must end with the same result as an undisturbed one, which runs after it.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from holding import content, digest, hold
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from hpclaunch.progress import step as count_step

STEPS = 20
WIDTH = 8
kind, directory = sys.argv[1], Path(sys.argv[3])
held_after = int(os.environ.get("HOLD", 0))


class Training:
    """`models` and `optimizers` are those of this rank; `done` is how many steps it has made."""

    def __init__(self):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)]
        self.done = 0
        self.models = self.made_of(layers)
        trained = [] if kind == "frozen" and rank == 0 else self.models
        self.optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in trained]
        self.schedulers = [
            torch.optim.lr_scheduler.StepLR(optimizer, 5) for optimizer in self.optimizers
        ]

    def made_of(self, layers):
        if kind == "fsdp":
            return [fully_shard(nn.Sequential(*layers))]
        if kind == "stages":
            stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"))
            self.schedule = ScheduleGPipe(stage, 2, nn.functional.mse_loss)
        if kind == "optimizers":
            return list(map(DistributedDataParallel, layers))
        return [layers[rank]]

    def step(self):
        batches = torch.Generator().manual_seed(self.done)
        x, wanted = torch.rand(2, 4, WIDTH, generator=batches)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if kind == "stages":
            self.schedule.step(*([x] if rank == 0 else []), target=wanted)
        elif kind == "frozen":
            self.pass_on(x, wanted)
        else:
            for model in self.models:
                nn.functional.mse_loss(model(x + rank), wanted).backward()
        for optimizer, scheduler in zip(self.optimizers, self.schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        if not self.optimizers:
            count_step(self.done + 1)
        self.done += 1

    def pass_on(self, x, wanted):
        if rank == 0:
            dist.send(self.models[0](x).detach(), 1)
        else:
            dist.recv(x, 0)
            nn.functional.mse_loss(self.models[0](x), wanted).backward()

    def state(self):
        """Return FSDP's state with the names that all ranks share, or this rank's own state."""
        if kind == "fsdp":
            weights, moments = get_state_dict(self.models[0], self.optimizers[0])
            found = {"models": weights, "optimizers": moments}
        else:
            found = {
                "models": [model.state_dict() for model in self.models],
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            }
        schedulers = [scheduler.state_dict() for scheduler in self.schedulers]
        return found | {"schedulers": schedulers, "done": self.done}

    def resume_from(self, path):
        if kind == "fsdp":
            state = self.state()
            dcp.load(state, checkpoint_id=path)
            models, optimizers = state["models"], state["optimizers"]
            set_state_dict(
                *(self.models[0], self.optimizers[0]),
                model_state_dict=models,
                optim_state_dict=optimizers,
            )
        else:
            state = torch.load(f"{path}/rank-{rank}.pt", weights_only=True)
            for model, known in zip(self.models, state["models"], strict=True):
                model.load_state_dict(known)
            for optimizer, known in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(known)
        for scheduler, known in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(known)
        self.done = state["done"]

    def save(self, *_):
        path = directory / f"step-{self.done}"
        seen = [None] * dist.get_world_size()
        dist.all_gather_object(seen, self.done)
        assert len(set(seen)) == 1, seen
        if kind == "fsdp":
            dcp.save(self.state(), checkpoint_id=path)
        else:
            path.mkdir(parents=True, exist_ok=True)
            torch.save(self.state(), path / f"rank-{rank}.pt")
            dist.barrier()
            if rank == 0:
                (path / ".complete").touch()
        dist.barrier()
        dist.destroy_process_group()
        sys.exit()

    def run(self):
        while self.done < STEPS:
            self.step()
            if self.done == held_after:
                hold(rank)
        weights = [content(tensor) for model in self.models for tensor in model.parameters()]
        return weights, digest(self.optimizers)


dist.init_process_group("gloo")
rank = dist.get_rank()
first = Training()
signal.signal(signal.SIGUSR1, first.save)
if checkpoint := os.environ["HPCLAUNCH_CHECKPOINT"]:
    first.resume_from(checkpoint)
    assert 0 < first.done < STEPS
    assert first.run() == Training().run()
else:
    first.run()
dist.destroy_process_group()
