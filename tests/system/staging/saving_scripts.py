"""Scripts that save, each in its own way, into one directory."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

SIZE = 20_000  # floats, twice in each file
Save = Callable[[Path, int], None]  # of a step; it deletes older ones, as the script would


def write(path: Path, step: int, **more: object) -> None:
    """Save with torch.save, under another name first."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    weights = torch.full((SIZE,), float(step))
    new = path.with_name(path.name + ".tmp")
    torch.save({"model": weights, "optimizer": {"exp_avg": weights + 1}, **more}, new)
    new.replace(path)


def rotate(root: Path, pattern: str, keep: int) -> None:
    found = sorted(root.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
    for path in found[:-keep]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def files(root: Path, step: int) -> None:
    write(root / f"step-{step}.pt", step)
    new = root / "last.tmp"
    new.symlink_to(root / f"step-{step}.pt")
    new.replace(root / "last.pt")
    rotate(root, "step-*.pt", 1)


def one_name(root: Path, step: int) -> None:
    write(root / "snapshot.pt", step)


def ranks(root: Path, step: int) -> None:
    for rank in (0, 1):
        write(root / f"ep0-ba{step}-rank{rank}.pt", step)
    rotate(root, "*-rank0.pt", 1)
    rotate(root, "*-rank1.pt", 1)


def _fill(directory: Path, step: int) -> None:
    write(directory / "rank-0.pt", step)
    write(directory / "inner" / "rank-1.pt", step)
    (directory / "config.json").write_text(f'{{"step": {step}}}')


def sealed(root: Path, step: int) -> None:
    _fill(root / f"step-{step}", step)
    (root / f"step-{step}" / ".complete").touch()
    rotate(root, "step-*", 1)


def sealed_one_name(root: Path, step: int) -> None:
    _fill(root / "last.tmp", step)
    (root / "last.tmp" / ".complete").touch()
    shutil.rmtree(root / "last", ignore_errors=True)
    (root / "last.tmp").rename(root / "last")


def sealed_root(root: Path, step: int) -> None:
    (root / ".complete").unlink(missing_ok=True)
    _fill(root, step)
    (root / ".complete").touch()


def dcp(root: Path, step: int) -> None:
    _dcp(root / f"step-{step}", step)
    rotate(root, "step-*", 1)


def dcp_root(root: Path, step: int) -> None:
    (root / ".metadata").unlink(missing_ok=True)
    _dcp(root, step)


def _dcp(directory: Path, step: int) -> None:
    import warnings

    import torch
    from torch.distributed import checkpoint

    state = {"model": torch.full((20_000,), float(step)), "optim": torch.full((9,), float(step))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process, and a directory that was there
        checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(directory))


def megatron(root: Path, step: int) -> None:
    write(root / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt", step)
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    rotate(root, "iter_*", 1)


def deepspeed(root: Path, step: int) -> None:
    tag = root / f"global_step{step}"
    sizes = {"dp_world_size": 1, "mp_world_size": 1, "param_shapes": []}
    write(tag / "mp_rank_00_model_states.pt", step, **sizes)
    write(tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt", step)
    (root / "latest").write_text(tag.name)
    rotate(root, "global_step*", 1)


def accelerate(root: Path, step: int) -> None:
    directory = root / f"checkpoint_{step}"
    write(directory / "optimizer.bin", step)
    write(directory / "random_states_0.pkl", step)
    write(directory / "custom_checkpoint_0.pkl", step)
    rotate(root, "checkpoint_*", 1)


SCRIPTS: dict[str, Save] = {
    each.__name__.replace("_", "-"): each
    for each in (
        files, one_name, ranks, sealed, sealed_one_name, sealed_root, dcp, dcp_root, megatron,
        deepspeed, accelerate,
    )
}  # fmt: skip
ROOT = {"accelerate": "checkpoints"}  # names of the directory that matter; "ckpt" for the others


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def picture(root: Path) -> dict[str, str]:
    """Return the digests of all files below a directory, by path; of a link, what it names."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            target = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
            found[name] = f"-> {target}"
        elif path.is_file():
            found[name] = digest(path)
    return found
