"""Accelerate with gradients of several batches, saved in a handler: accumulating.py --dir DIR

As in_handler.py.
"""

import os
import signal
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from holding import digest, hold
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EACH = 3  # batches for a step
EPOCHS = 2
directory = sys.argv[2]
held_after = int(os.environ.get("HOLD", 0))
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=EACH,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
)
values = torch.rand(128, 9, generator=torch.Generator().manual_seed(1))
data = TensorDataset(values[:, :8], values[:, 8:])


class Training:
    def __init__(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        self.model, self.optimizer, self.scheduler, self.loader = accelerator.prepare(
            model, optimizer, scheduler, DataLoader(data, 2, shuffle=True)
        )
        self.batches = 0  # that steps were made of

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]

    def run(self):
        first, skip = divmod(self.batches, len(self.loader))
        for epoch in range(first, EPOCHS):
            batches = accelerator.skip_first_batches(self.loader, skip)
            batches.set_epoch(epoch)
            skip = 0
            seen = self.batches
            for x, wanted in batches:
                with accelerator.accumulate(self.model):
                    accelerator.backward(nn.functional.mse_loss(self.model(x), wanted))
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                seen += 1
                if accelerator.sync_gradients:
                    self.batches = seen
                if seen == held_after:
                    hold(accelerator.process_index)
        return digest([self.optimizer.optimizer])

    def save(self, *_):
        accelerator.save_state(f"{directory}/batch-{self.batches}")
        accelerator.end_training()
        sys.exit()


first = Training()
accelerator.register_for_checkpointing(first)
signal.signal(signal.SIGUSR1, first.save)
if checkpoint := os.environ["HPCLAUNCH_CHECKPOINT"]:
    accelerator.load_state(checkpoint)
    assert first.batches > 0
    assert first.run() == Training().run()
else:
    first.run()
accelerator.end_training()
