"""Kill real processes while they save, and examine the files that they leave.

    python tests/system/checkpoints/kills.py [NAME...] [--kills 200] [--seed N]

Each time some steps are saved by the real library, in one place, and one rank or all are killed at
a random moment. What is chosen then has to be the newest that all ranks had saved (or the next one,
if that was just complete), and the library has to load it: every tensor has to be of that step.
Nothing may be chosen that is torn. A failure is printed with the command that tries it again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "launcher")]

from looking import newest  # noqa: E402
from makers import Maker  # noqa: E402


class Case(NamedTuple):
    maker: str
    options: dict
    world: int = 2
    within: float = 0.3  # seconds, of some saves
    where: str = ""  # below the directory in which is saved
    apart: float = 0.0  # seconds between two saves in the same place, as it seems
    loses: bool = False  # a torn save leaves nothing of the one before
    first: bool = False  # the only save is not taken, just before the end of a round


BIG = 400_000
CASES = {
    "torch.save": Case("torch_save", {"size": BIG}),
    "torch.save-older-form": Case("torch_save", {"size": BIG, "zipped": False}),
    "torch.save-no-checksums": Case("torch_save", {"size": BIG, "crc": False}),
    "torch.save-one-file": Case("torch_save", {"size": BIG, "name": "snapshot.pt"}, loses=True),
    "torch.save-link": Case("torch_save", {"size": BIG, "link": "latest.pt"}),
    "safetensors": Case("safetensors_files", {"size": BIG}),
    "dcp": Case("dcp", {"size": BIG}),
    "dcp-threads": Case("dcp", {"size": BIG, "threads": 3}),
    "dcp-async": Case("dcp", {"size": BIG, "background": "thread"}),
    "dcp-one-place": Case("dcp", {"size": BIG, "name": "last"}, apart=60, loses=True),
    "hf-trainer": Case("hf_trainer", {"size": 256}),
    "hf-trainer-one-rank": Case("hf_trainer", {"size": 256}, world=1),
    "hf-trainer-shards": Case("hf_trainer", {"size": 256, "shards": "1MB"}),
    "hf-trainer-deepspeed": Case("hf_trainer", {"size": 128, "deepspeed": 2}),
    "accelerate": Case("accelerate_state", {"objects": 2}, first=True),
    "accelerate-automatic": Case(
        "accelerate_state", {"objects": 1, "automatic": True}, where="checkpoints", first=True
    ),
    "accelerate-sharded": Case("accelerate_state", {"fsdp": True}, first=True),
    "accelerate-one-place": Case(
        "accelerate_state", {"objects": 2, "name": "last"}, apart=60, loses=True, first=True
    ),
    "deepspeed-0": Case("deepspeed_engine", {"stage": 0}),
    "deepspeed-1": Case("deepspeed_engine", {"stage": 1}),
    "deepspeed-2": Case("deepspeed_engine", {"stage": 2}),
    "deepspeed-3": Case("deepspeed_engine", {"stage": 3}),
    "deepspeed-pipeline": Case("deepspeed_engine", {"stage": 1, "pipeline": True}),
    "deepspeed-experts": Case("deepspeed_engine", {"stage": 2, "experts": 4}),
    "deepspeed-experts-without-ZeRO": Case("deepspeed_engine", {"stage": 0, "experts": 4}),
    "deepspeed-older-form": Case("deepspeed_engine", {"stage": 2, "zipped": False}),
    "deepspeed-one-place": Case("deepspeed_engine", {"tag": "last"}, apart=60, loses=True),
    "deepspeed-one-place-with-a-number": Case(
        "deepspeed_engine", {"tag": "stage-2"}, apart=30, loses=True
    ),
    "lightning": Case("lightning_trainer", {"size": BIG}),
    "lightning-link": Case("lightning_trainer", {"size": BIG, "link": True}, world=1),
    "lightning-sharded": Case("lightning_trainer", {"size": BIG, "sharded": True}),
    "lightning-deepspeed": Case(
        "deepspeed_engine", {"tag": "epoch=0-step={}.ckpt", "inner": "checkpoint"}
    ),
    "megatron": Case("megatron_legacy", {"size": BIG}),
    "megatron-newer-form": Case("megatron_legacy", {"size": BIG, "distributed": True}),
    "composer": Case("torch_save", {"size": BIG, "name": "ep0-ba{}-rank0.pt"}),
    "sealed": Case("sealed_directory", {"size": BIG}),
}


class Tally:
    """The outcomes of the kills."""

    def __init__(self) -> None:
        self.chosen = self.torn = self.nothing = 0

    def __str__(self) -> str:
        kept = f"{self.chosen} times the newest was chosen and loaded"
        torn = f"{self.torn} times over a torn one"
        return f"{kept}, {torn}; {self.nothing} times there was none"


def kill_once(case: Case, maker: Maker, directory: Path, rng: random.Random, tally: Tally) -> None:
    """Kill one save. Raise AssertionError if a wrong checkpoint is chosen."""
    root = directory / "out"
    victims = rng.choice([[rank] for rank in range(case.world)] + [[*range(case.world)]])
    outcome = maker.kill(
        root,
        rng.uniform(0, case.within),
        victims,
        world=case.world,
        apart=case.apart,
        **case.options,
    )
    by_all = min(outcome["saved"])
    begun = 0 if case.apart else outcome["begun"]
    where = root / case.where
    path, lines = newest(where, rounds=[[begun, outcome["ended"], case.world]])
    context = f"killed {victims}, saved {outcome['saved']}, chosen {path or 'none'}, {lines}"
    tally.torn += bool(lines)
    if not path:
        tally.nothing += 1
        first = case.first and (by_all == 1 or len(list(where.iterdir())) == 1)
        allowed = case.loses or by_all == 0 or first
        assert allowed, f"a complete one is passed over: {context}"
        return
    try:
        step = maker.load(path, root, world=case.world, **case.options)
    except (AssertionError, ValueError) as e:
        raise AssertionError(f"what is chosen is not whole ({e}): {context}") from e
    assert step >= by_all, f"an older one is chosen, {step}: {context}"
    tally.chosen += 1


def run(name: str, maker: Maker, kills: int, seed: int, only: int | None = None) -> Tally:
    """Kill saves of the case `name`, by its `maker`. Errors have the command that repeats them."""
    case, tally = CASES[name], Tally()
    for number in range(kills) if only is None else (only,):
        with tempfile.TemporaryDirectory() as scratch:
            rng = random.Random(f"{seed} {name} {number}")
            try:
                kill_once(case, maker, Path(scratch), rng, tally)
            except AssertionError as e:
                kept = Path(tempfile.mkdtemp()) / "out"
                shutil.copytree(Path(scratch) / "out", kept, symlinks=True)
                again = f"{Path(__file__).name} {name} --seed {seed} --only {number}"
                raise AssertionError(f"{e}\n  left in {kept}\n  again: python {again}") from e
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--only", type=int, help="this one of the kills")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    failed = 0
    for name in options.names or CASES:
        began = time.monotonic()
        maker = Maker(CASES[name].maker)
        try:
            said = str(run(name, maker, options.kills, options.seed, options.only))
        except AssertionError as e:
            failed += 1
            said = f"FAILED: {e}"
        finally:
            maker.close()
        print(f"{name} ({time.monotonic() - began:.0f} s): {said}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
