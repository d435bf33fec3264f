"""Save a checkpoint of each step, and resume from HPCLAUNCH_CHECKPOINT.

resume.py --dir DIR --steps N    rank 0 saves DIR/step-1.pt to step-N.pt
          --each                 every rank saves, for its own node
          --breaks NAME          this checkpoint cannot be loaded

It needs no torch: its files are what torch.save writes for a dict with one number.
"""

# ruff: noqa: T201 -- the tests read the output
import argparse
import os
import pickle
import sys
import time
import zipfile
from pathlib import Path


def save(step: int, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": step}, protocol=2))
        archive.writestr("archive/version", "3\n")


def load_checkpoint(path: str, breaks: str) -> int:
    if not path:
        return 0
    if Path(path).name == breaks:
        raise RuntimeError(f"size mismatch in round {os.environ['TORCHELASTIC_RESTART_COUNT']}")
    with zipfile.ZipFile(path) as archive:
        return pickle.loads(archive.read("archive/data.pkl"))["step"]


def barrier(step: int) -> None:
    """Wait for all ranks, by files in the working directory, which all nodes share."""
    round_ = f"{os.environ['TORCHELASTIC_RUN_ID']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    Path(f"done-{round_}-{step}-{os.environ['RANK']}").touch()
    while len(list(Path().glob(f"done-{round_}-{step}-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--breaks", default="")
    args = parser.parse_args()

    rank, path = os.environ["RANK"], os.environ["HPCLAUNCH_CHECKPOINT"]
    done = load_checkpoint(path, args.breaks)
    print(f"rank {rank} resumes from {Path(path).name or 'nothing'}", flush=True)
    for step in range(done + 1, args.steps + 1):
        if args.each or rank == "0":
            draft = args.dir / "draft.tmp"
            save(step, draft)
            draft.rename(args.dir / f"step-{step}.pt")
        barrier(step)


if __name__ == "__main__":
    sys.exit(main())
