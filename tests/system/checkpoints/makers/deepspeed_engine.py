"""DeepSpeed's save_checkpoint and load_checkpoint, of any stage of ZeRO."""

import sys
from pathlib import Path


def setup() -> None:
    import warnings

    warnings.simplefilter("ignore")
    import deepspeed.runtime.zero.muon.muon_optimizer
    import deepspeed.runtime.zero.stage3
    import deepspeed.runtime.zero.stage_1_and_2  # noqa: F401

    without_compilation()


def without_compilation() -> None:
    """Skip compiling the shared-memory collectives, which these tests do not need."""
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


class Saver:
    def __init__(
        self, rank: int, world: int, root: Path, stage: int = 2, size: int = 100_000,
        tag: str = "global_step{}", zipped: bool = True, inner: str = "", pipeline: bool = False,
        experts: int = 0,
    ) -> None:  # fmt: skip
        import deepspeed
        import torch

        deepspeed.init_distributed("gloo")
        self.root, self.tag, self.inner, self.stage = root, tag, inner, stage
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "Adam", "params": {"lr": 0.0, "torch_adam": True}},
            "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
            "checkpoint": {"checkpoint_serialization": zipped}, "steps_per_print": 1 << 30,
        }  # fmt: skip
        model = torch.nn.Sequential(torch.nn.Linear(64, size // 64), torch.nn.Linear(size // 64, 1))
        parameters = [*model.parameters()]
        if pipeline:  # of a stage for each rank
            model = self._pipeline(world)
            parameters = [*model.parameters()]
        elif experts:
            model, parameters = self._with_experts(experts, world)
        self.engine, *_ = deepspeed.initialize(
            model=model, model_parameters=parameters, config=config
        )
        if pipeline or experts:
            return
        self.engine.backward(self.engine(torch.ones(1, 64)).sum())
        self.engine.step()

    def _pipeline(self, world):
        import torch
        from deepspeed.pipe import PipelineModule

        layers = [torch.nn.Linear(64, 64) for _ in range(2 * world)]
        return PipelineModule(layers, num_stages=world, loss_fn=torch.nn.MSELoss())

    def _with_experts(self, experts, world):
        """Return a model whose experts are spread over all ranks, and its parameters."""
        import torch
        from deepspeed.moe.layer import MoE
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.moe = MoE(64, torch.nn.Linear(64, 64), num_experts=experts, ep_size=world)

            def forward(self, x):
                return self.moe(x)[0]

        model = Model()
        group = {"params": [*model.parameters()], "name": "all"}
        return model, split_params_into_different_moe_groups_for_optimizer(group)

    def _tensors(self):
        optimizer = getattr(self.engine.optimizer, "optimizer", self.engine.optimizer)
        found = [s["exp_avg"] for s in optimizer.state.values() if "exp_avg" in s]
        if self.stage == 0:
            found += [p.data for p in self.engine.module.parameters()]
        elif self.stage == 3:
            found += self.engine.optimizer.fp32_partitioned_groups_flat
        else:
            found += self.engine.optimizer.single_partition_of_fp32_groups
        return found

    def save(self, step: int) -> None:
        import torch

        with torch.no_grad():
            for tensor in self._tensors():
                tensor.fill_(float(step))
        root, tag = self.root, self.tag.format(step)
        if self.inner:  # as Lightning does it
            root, tag = self.root / tag, self.inner
        self.engine.save_checkpoint(str(root), tag, client_state={"step": step})

    def load(self, path: str) -> int:
        found = Path(path)
        root, tag = (path, self.inner) if self.inner else (str(found.parent), found.name)
        _, state = self.engine.load_checkpoint(root, tag)
        values = {v for t in self._tensors() for v in t[: t.numel() // 2].unique().tolist()}
        values |= {float(state["step"])}
        (step,) = values
        return int(step)
