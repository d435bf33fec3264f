"""Accelerate's save_state and load_state. FSDP needs GPUs, so
it is enabled here by hand.
"""

from pathlib import Path


def setup() -> None:
    pass


class Counter:
    """An object that is registered, so that it is saved and loaded with the rest."""

    value = -1

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state) -> None:
        self.value = state["value"]


class Saver:
    def __init__(
        self, rank: int, world: int, root: Path, size: int = 100_000, name: str = "step-{}",
        automatic: bool = False, objects: int = 1, fsdp: bool = False, safe: bool = True,
    ) -> None:  # fmt: skip
        import torch
        from accelerate import Accelerator
        from accelerate.utils import ProjectConfiguration

        self.root, self.name, self.fsdp, self.safe = root, name, fsdp, safe
        project = None
        if automatic:
            project = ProjectConfiguration(
                str(root), automatic_checkpoint_naming=True, total_limit=2
            )
        self.accelerator = Accelerator(cpu=True, project_config=project)
        self.automatic = automatic
        model = torch.nn.Sequential(torch.nn.Linear(64, size // 64), torch.nn.Linear(size // 64, 1))
        optimizer = torch.optim.Adam(model.parameters())
        if fsdp:
            self._shard(model)
            optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        if fsdp:
            self.model, self.optimizer = model, optimizer
            self.accelerator._models, self.accelerator._optimizers = [model], [optimizer]
        else:
            self.model, self.optimizer, scheduler = self.accelerator.prepare(
                model, optimizer, scheduler
            )
        self.counters = [Counter() for _ in range(objects)]
        self.accelerator.register_for_checkpointing(*self.counters)

    def _shard(self, model) -> None:
        from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (self.accelerator.num_processes,))
        fully_shard(model, mesh=mesh)
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, state_dict_type="SHARDED_STATE_DICT"
        )
        self.accelerator.state.fsdp_plugin = plugin
        self.accelerator.state.distributed_type = DistributedType.FSDP

    def _tensors(self):
        found = [*self.model.parameters()]
        found += [s["exp_avg"] for s in self.optimizer.state.values()]
        return [getattr(t, "_local_tensor", t) for t in found]

    def save(self, step: int) -> None:
        import torch

        with torch.no_grad():
            for tensor in self._tensors():
                tensor.fill_(float(step))
        for counter in self.counters:
            counter.value = step
        if self.automatic:
            self.accelerator.project_configuration.iteration = step
            self.accelerator.save_state(safe_serialization=self.safe)
        else:
            path = self.root / self.name.format(step)
            self.accelerator.save_state(str(path), safe_serialization=self.safe)

    def load(self, path: str) -> int:
        self.accelerator.load_state(path)
        values = {v for tensor in self._tensors() for v in tensor.unique().tolist()}
        values |= {float(counter.value) for counter in self.counters}
        (step,) = values
        return int(step)
