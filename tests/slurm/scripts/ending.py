"""Trains for ever, and saves when notice is given: ending.py HOW [stays]

HOW is `signal` (a handler of SIGUSR1), `agreed` (the same, and all ranks save after the step in
which one of them had it), `alone` (each trains by itself, and saves wherever SIGUSR2 comes), `due`,
`file`, or `unaware`. Each rank writes at which step it has saved what to saved-RANK.json, and
leaves, unless it `stays`.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hpclaunch.notice import due

how, stays = sys.argv[1], "stays" in sys.argv
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
if how != "alone":
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
batches = torch.Generator().manual_seed(1)
drawn = 0


def save(*_):
    """With collectives, as most scripts do: all ranks must be here at the same step."""
    state = [*model.state_dict().values(), *(s["exp_avg"] for s in optimizer.state.values())]
    digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in state)).hexdigest()
    saved = {"step": scheduler.last_epoch, "drawn": drawn, "digest": digest}
    if how != "alone":
        dist.barrier()
    if rank == 0:
        Path("checkpoints").mkdir(exist_ok=True)
        torch.save({"step": saved["step"], "model": model.state_dict()}, "checkpoints/partial")
        os.replace("checkpoints/partial", f"checkpoints/step-{saved['step']}.pt")
    if how != "alone":
        dist.barrier()
    Path(f"saved-{rank}.json").write_text(json.dumps(saved))
    if not stays:
        dist.destroy_process_group()
        sys.exit(0)


if how == "signal":
    signal.signal(signal.SIGUSR1, save)
if how == "alone":
    signal.signal(signal.SIGUSR2, save)
heard = torch.zeros(1)
if how == "agreed":
    signal.signal(signal.SIGUSR1, lambda *_: heard.fill_(1))
asked = False
while True:
    batch = torch.rand(4, 8, generator=batches)
    drawn += 1
    optimizer.zero_grad()
    model(batch + rank).square().sum().backward()
    optimizer.step()
    scheduler.step()
    time.sleep(0.05)
    if drawn == 20:
        Path(f"trains-{rank}").touch()
    wanted = how == "due" and due()
    if how == "agreed":
        dist.all_reduce(some := heard.clone())
        wanted = bool(some)
    if how == "file":  # rank 0 decides, and tells the others
        found = [os.path.exists(os.environ["HPCLAUNCH_NOTICE_FILE"])]
        dist.broadcast_object_list(found)
        wanted = found[0]
    if wanted and not asked:
        asked = True
        save()
