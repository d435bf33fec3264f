"""The worker of `first_step.py`: a training as users write them, which tells of its first step.

`first_step.py` puts the imports of one kind in front of it, and the moment at which it began. The
message is that of `worker.py`; `met` is when the first optimizer step was done. It goes on with a
step now and then, until the benchmark closes the connection, or something kills it.
"""

import os
import select
import socket
from time import monotonic

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

imported = monotonic()
dist.init_process_group("gloo")
initialised = monotonic()
transformers = "BertConfig" in globals()
if transformers:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    model = BertForSequenceClassification(BertConfig(intermediate_size=16, **small))  # noqa: F821
    batch = {"input_ids": torch.ones(2, 8, dtype=torch.long), "labels": torch.tensor([0, 1])}
else:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    batch = {"input": torch.randn(8, 32)}
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)


def step():
    out = model(**batch)
    loss = out.loss if transformers else out.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()


step()
met = monotonic()
step()
marks = began, imported, initialised, met  # noqa: F821
who = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as benchmark:
    benchmark.connect(os.environ["BENCH_SOCKET"])
    benchmark.send(" ".join(map(str, (*who, *marks))).encode())
    ended = torch.zeros(1)
    while not ended.item():
        ended.fill_(float(bool(select.select([benchmark], [], [], 0.2)[0])))
        dist.all_reduce(ended)
        step()
dist.destroy_process_group()
