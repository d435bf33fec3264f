"""A training script's use of torch: seeds, threads, a loader and processes of torch's.

It follows probe.py in one script, and adds to its facts.
"""

import json
import os
import random
import sys
import threading

TORCH_FIRST = [name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy")]

import numpy  # noqa: E402
import torch  # noqa: E402
import torch.multiprocessing  # noqa: E402


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor(float(i * i)), torch.utils.data.get_worker_info().id


def child(index, path):
    with open(path, "w") as f:
        f.write(
            f"{index} {__name__} {torch.get_num_threads()} {torch.distributed.is_initialized()}"
        )


def draws():
    return [random.random(), float(numpy.random.rand()), float(torch.rand(()))]


def main():
    directory, rank = os.environ["CONFORMANCE_OUT"], os.environ["RANK"]
    facts = {
        "torch was there": TORCH_FIRST,
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "dtype": str(torch.get_default_dtype()),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda was used": torch.cuda.is_initialized(),
        "group": torch.distributed.is_initialized(),
        "torchelastic": torch.distributed.is_torchelastic_launched(),
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "start method": torch.multiprocessing.get_start_method(allow_none=True),
        "python threads": threading.active_count(),
        "own.unseeded": draws(),
        "own.initial_seed": torch.initial_seed(),
    }
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    facts["own.seeded"] = draws()
    loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=2)
    facts["loader"] = [[x.tolist(), i.tolist()] for x, i in loader]
    torch.set_num_threads(2)
    ones = torch.ones(300, 300)
    results = []
    thread = threading.Thread(target=lambda: results.append(float((ones @ ones).sum())))
    thread.start()
    thread.join()
    facts["matmul"] = [float((ones @ ones).sum()), *results]
    facts["threads set"] = torch.get_num_threads()
    if rank == "0":  # one is enough: each imports torch again
        path = os.path.join(directory, "child")
        torch.multiprocessing.spawn(child, args=(path,), nprocs=1)
        with open(path) as f:
            facts["spawn"] = f.read()
        os.unlink(path)
    path = os.path.join(directory, rank + ".json")
    with open(path, encoding="utf-8") as f:
        facts |= json.load(f)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(facts, f, indent=0, sort_keys=True)


if __name__ == "__main__":
    main()
