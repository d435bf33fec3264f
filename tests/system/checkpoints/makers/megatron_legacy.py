"""Megatron's older form, in the order of `save_checkpoint` in its training/checkpointing.py: each
model-parallel rank writes its file, all wait for all, and the first writes the tracker. (Megatron
itself needs a GPU.) With one data-parallel rank, so that every rank writes."""

from pathlib import Path


def setup() -> None:
    import torch.distributed  # noqa: F401


class Saver:
    def __init__(
        self, rank: int, world: int, root: Path, size: int = 200_000, distributed: bool = False
    ) -> None:
        import torch

        torch.distributed.init_process_group("gloo")
        self.rank, self.root, self.size, self.distributed = rank, root, size, distributed

    def prepare(self) -> None:
        """Save once elsewhere, since the first save takes long."""
        root, self.root = self.root, Path("scratch").absolute()
        self.save(0)
        self.root = root

    def save(self, step: int) -> None:
        import torch

        iteration = self.root / f"iter_{step:07d}"
        weights = torch.full((self.size,), float(step))
        state = {"iteration": step, "model": weights, "optimizer": {"exp_avg": weights.clone()}}
        if self.distributed:  # "torch_dist": DCP, then metadata.json
            from torch.distributed import checkpoint as dcp

            iteration.mkdir(parents=True, exist_ok=True)
            dcp.save(state, checkpoint_id=iteration)
            if self.rank == 0:
                with (iteration / "metadata.json").open("w") as f:
                    f.write('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
            torch.distributed.barrier()
        else:
            path = iteration / f"mp_rank_{self.rank:02d}" / "model_optim_rng.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state, path)
        torch.distributed.barrier()
        if self.rank == 0:
            with (self.root / "latest_checkpointed_iteration.txt").open("w") as f:
                f.write(str(step))

    def load(self, path: str) -> int:
        import torch

        if self.distributed:
            from torch.distributed import checkpoint as dcp

            state = {"iteration": -1, "model": torch.zeros(self.size)}
            state["optimizer"] = {"exp_avg": torch.zeros(self.size)}
            dcp.load(state, checkpoint_id=path)
        else:
            state = torch.load(Path(path) / f"mp_rank_{self.rank:02d}" / "model_optim_rng.pt")
        tensors = [state["model"], state["optimizer"]["exp_avg"]]
        assert {v for t in tensors for v in t.unique().tolist()} == {float(state["iteration"])}
        return state["iteration"]
