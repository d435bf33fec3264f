"""DeepSpeed, where a step of the engine is several of its optimizer: zero.py STAGE --dir DIR

As in_handler.py.
"""

import os
import signal
import sys

import deepspeed
import torch
import torch.distributed as dist
from holding import hold
from torch import nn

STEPS = 20
stage, directory = int(sys.argv[1]), sys.argv[3]
held_after = int(os.environ.get("HOLD", 0))


class Training:
    def __init__(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors}]
        config = {
            "train_batch_size": 8,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
            # Parts of 64 weights: ZeRO-3 has several of them for each group.
            "zero_optimization": {"stage": stage, "sub_group_size": 64},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 1 << 30,
        }
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)

    def run(self):
        while (done := self.engine.global_steps) < STEPS:
            batches = torch.Generator().manual_seed(2 * done + dist.get_rank())
            x, wanted = torch.rand(2, 4, 8, generator=batches)
            self.engine.backward(nn.functional.mse_loss(self.engine(x), wanted))
            self.engine.step()
            if done + 1 == held_after:
                hold(dist.get_rank())
        return numbers(self.engine.optimizer.state_dict())

    def save(self, *_):
        self.engine.save_checkpoint(directory, f"step-{self.engine.global_steps}")
        self.engine.destroy()
        dist.destroy_process_group()
        sys.exit()


def numbers(state):
    """Return the numbers of all tensors in an optimizer's state, which include its weights."""
    if isinstance(state, torch.Tensor):
        return [state.reshape(-1).tolist()]
    if isinstance(state, dict):
        state = list(state.values())
    return [each for part in state for each in numbers(part)] if isinstance(state, list) else []


deepspeed.init_distributed()
first = Training()
signal.signal(signal.SIGUSR1, first.save)
if checkpoint := os.environ["HPCLAUNCH_CHECKPOINT"]:
    first.engine.load_checkpoint(*os.path.split(checkpoint))
    assert 0 < first.engine.global_steps < STEPS
    found = first.run()
    assert found
    assert found == Training().run()
else:
    first.run()
first.engine.destroy()
dist.destroy_process_group()
