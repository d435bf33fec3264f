"""Worker of `first_step.py`: an ordinary training that reports when its first step was done.

`first_step.py` prepends the imports of one kind, and the time at which the script began. The
message has the form of `worker.py`'s; its last time is the end of the first optimizer step. Then
the script saves a checkpoint, which the next round loads. It trains at a slow pace until the
benchmark closes the connection, or something kills it.
"""

import json
import os
import select
import socket
from pathlib import Path
from time import monotonic

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

marks = {"script begins": began}  # noqa: F821


def mark(name):
    """Record the time of a stage, unless an earlier step has recorded it."""
    marks.setdefault(name, monotonic())


mark("imports done")
dist.init_process_group("gloo")
mark("process group ready")
transformers = "BertConfig" in globals()
if transformers:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    model = BertForSequenceClassification(BertConfig(intermediate_size=16, **small))  # noqa: F821
    batch = {"input_ids": torch.ones(2, 8, dtype=torch.long), "labels": torch.tensor([0, 1])}
else:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    batch = {"input": torch.randn(8, 32)}
mark("model built")
model = DistributedDataParallel(model)
mark("model wrapped in DDP")
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
mark("optimizer built")
parts = model, optimizer, scheduler
checkpoint = Path("checkpoint.pt")
if checkpoint.exists():
    for part, state in zip(parts, torch.load(checkpoint, weights_only=True), strict=True):
        part.load_state_dict(state)
mark("checkpoint loaded")


def step():
    out = model(**batch)
    loss = out.loss if transformers else out.sum()
    mark("forward done")
    optimizer.zero_grad()
    loss.backward()
    mark("backward done")
    optimizer.step()
    scheduler.step()
    mark("optimizer step done")


step()
step()
if dist.get_rank() == 0 and not checkpoint.exists():
    torch.save([part.state_dict() for part in parts], checkpoint)
who = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as benchmark:
    benchmark.connect(os.environ["BENCH_SOCKET"])
    benchmark.send(json.dumps([*who, marks]).encode())
    ended = torch.zeros(1)
    while not ended.item():
        ended.fill_(float(bool(select.select([benchmark], [], [], 0.2)[0])))
        dist.all_reduce(ended)
        step()
dist.destroy_process_group()
