"""Worker of staging.py: train with checkpoints of --size MB, and resume from the newest one.

    saving_worker.py DIRECTORY --how torch|dcp|async|trainer [--size 1000] [--every 30]

A save begins whenever --every seconds have passed; rank 0 decides. After the first step of a round,
each rank reports to the benchmark as worker.py does, and it trains until the benchmark closes the
connection. The model is on the first GPU, if there is one. It writes a line of JSON for each event
to `events-RANK-ROUND`:

    ["step", NUMBER, BEGAN, ENDED]      a step of the optimizer
    ["save", NUMBER, BEGAN]             a save after this step, which ends when the next step begins
    ["stored", NUMBER, TIME]            async: the checkpoint is on storage

Times are of CLOCK_MONOTONIC. A step computes for about 50 ms, half of it in Python. The state is
one trained layer and frozen tensors, which nothing fills before they are loaded. With DCP, each
rank has a part of these, in a world of any size; otherwise, each has all of them, and rank 0 saves.
"""

import argparse
import json
import os
import select
import shutil
import socket
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from time import monotonic

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

MB = 10**6
KEPT = 2  # checkpoints
PIECE, LEAST_PIECES = 64 * MB, 12  # bytes of a frozen tensor, about; their number
WIDTH = 512
PRODUCTS, ITERATIONS = 3, 300_000  # of a step
SAVE, STOP = 0, 1

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Timeline:
    """The file of events, and the connection to the benchmark."""

    def __init__(self) -> None:
        restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
        self._file = Path(f"events-{rank}-{restarts}").open("a", buffering=1)  # noqa: SIM115
        self._who = str(rank), restarts
        self._benchmark: socket.socket | None = None

    def add(self, *event: object) -> None:
        self._file.write(json.dumps(event) + "\n")

    def add_step(self, number: int, began: float) -> None:
        ended = monotonic()
        self.add("step", number, began, ended)
        if self._benchmark is None:
            self._benchmark = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._benchmark.connect(os.environ["BENCH_SOCKET"])
            self._benchmark.send(json.dumps([*self._who, {"first step done": ended}]).encode())

    def must_stop(self) -> bool:
        """Return whether the benchmark has closed the connection."""
        return bool(self._benchmark and select.select([self._benchmark], [], [], 0)[0])


class Model(torch.nn.Module):
    """A trained layer, and every `parts`-th of the frozen tensors, which have `size` bytes."""

    def __init__(self, size: int, part: int = 0, parts: int = 1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        pieces = max(LEAST_PIECES, size // PIECE)
        self.frozen = torch.nn.ParameterDict(
            {
                f"piece-{number}": torch.nn.Parameter(
                    torch.empty(size // 4 // pieces), requires_grad=False
                )
                for number in range(part, pieces, parts)
            }
        )

    def forward(self, x: torch.Tensor, **_: object) -> dict[str, torch.Tensor]:
        for _ in range(PRODUCTS * 4):
            x = torch.tanh(self.layer(x))
        for _ in range(ITERATIONS):
            pass
        return {"loss": x.square().mean()}


class Checkpoints:
    """Checkpoints by torch.save or DCP, of which the newest are kept."""

    def __init__(self, where: Path, how: str, model: Model, timeline: Timeline) -> None:
        self._where, self._how, self._model, self._timeline = where, how, model, timeline
        self._pending: Future | None = None
        self._group = dist.new_group() if how == "async" else None  # of the thread that writes

    def load(self) -> int:
        """Load the newest checkpoint, if there is one; return its step."""
        path = os.environ.get("HPCLAUNCH_CHECKPOINT")
        if not path:
            return 0
        if self._how == "torch":
            state = torch.load(path, map_location=device, mmap=True)
            self._model.load_state_dict(state["model"])
        else:
            dcp.load(self._model.state_dict(), checkpoint_id=path)
        return int(Path(path).stem.rpartition("-")[2])

    def save(self, step: int) -> None:
        self.wait()
        path = self._where / f"step-{step}"
        if self._how == "torch":
            if rank == 0:
                torch.save({"model": self._model.state_dict(), "step": step}, f"{path}.pt")
        elif self._how == "dcp":
            dcp.save(self._model.state_dict(), checkpoint_id=path)
        else:
            self._pending = dcp.async_save(
                self._model.state_dict(), checkpoint_id=path, process_group=self._group
            )
            self._pending.add_done_callback(
                lambda _: self._timeline.add("stored", step, monotonic())
            )
        if rank == 0:
            self._rotate()

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _rotate(self) -> None:
        found = sorted(self._where.glob("step-*"), key=lambda p: int(p.stem.rpartition("-")[2]))
        for old in found[: -KEPT - (self._how == "async")]:
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink()


def train(args: argparse.Namespace, timeline: Timeline) -> None:
    dist.init_process_group("gloo")
    part, parts = (0, 1) if args.how == "torch" else (rank, world)
    model = Model(args.size * MB, part, parts).to(device)
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.01)
    checkpoints = Checkpoints(args.directory, args.how, model, timeline)
    number, data = checkpoints.load(), torch.ones(WIDTH, WIDTH, device=device)
    saved = monotonic()
    while True:
        number, began = number + 1, monotonic()
        model(data)["loss"].backward()
        orders = torch.zeros(2)
        orders[SAVE] = rank == 0 and monotonic() > saved + args.every
        orders[STOP] = timeline.must_stop()
        dist.all_reduce(orders)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        timeline.add_step(number, began)
        if orders[STOP]:
            break
        if orders[SAVE]:
            saved = monotonic()
            timeline.add("save", number, saved)
            checkpoints.save(number)
    checkpoints.wait()
    dist.destroy_process_group()


def train_with_trainer(args: argparse.Namespace, timeline: Timeline) -> None:
    """Train with Hugging Face's Trainer, which saves the model, the optimizer and more."""
    import transformers

    class Saving(transformers.TrainerCallback):
        began = saved = monotonic()

        def on_step_begin(self, *_: object, **__: object) -> None:
            self.began = monotonic()

        def on_step_end(self, _, state, control, **__: object) -> None:
            timeline.add_step(state.global_step, self.began)
            control.should_training_stop = timeline.must_stop()
            if self.began > self.saved + args.every and not control.should_training_stop:
                self.saved = monotonic()
                control.should_save = True
                timeline.add("save", state.global_step, self.saved)

    settings = transformers.TrainingArguments(
        output_dir=str(args.directory),
        max_steps=10**9,
        per_device_train_batch_size=WIDTH,
        save_strategy="no",  # the callback decides
        save_total_limit=KEPT,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=device.type == "cpu",
        optim="sgd",
    )
    data = [{"x": torch.ones(WIDTH)}] * WIDTH
    model = Model(args.size * MB)
    trainer = transformers.Trainer(model, settings, train_dataset=data, callbacks=[Saving()])
    trainer.train(resume_from_checkpoint=os.environ.get("HPCLAUNCH_CHECKPOINT") or None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--how", choices=["torch", "dcp", "async", "trainer"], default="torch")
    parser.add_argument("--size", type=int, default=1000, help="MB of state, of all ranks")
    parser.add_argument("--every", type=float, default=30, help="seconds between saves")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with suppress(FileExistsError):
        args.directory.mkdir()
    timeline = Timeline()
    if args.how == "trainer":
        train_with_trainer(args, timeline)
    else:
        train(args, timeline)


if __name__ == "__main__":
    main()
