"""Lightning's Trainer.save_checkpoint, by what its strategies do at the end of it. Sharded, under
FSDP, it saves on GPUs only, so its functions are called here."""

from pathlib import Path


def setup() -> None:
    import pytorch_lightning  # noqa: F401
    from lightning_fabric.strategies.fsdp import _METADATA_FILENAME  # noqa: F401


class Saver:
    def __init__(
        self, rank: int, world: int, root: Path, size: int = 100_000, sharded: bool = False,
        name: str = "epoch=0-step={}.ckpt", link: bool = False, weights_only: bool = False,
    ) -> None:  # fmt: skip
        import torch

        self.rank, self.world, self.root = rank, world, root
        self.sharded, self.name, self.size, self.link = sharded, name, size, link
        self.weights_only = weights_only
        if world > 1:
            torch.distributed.init_process_group("gloo")
        root.mkdir(parents=True, exist_ok=True)

    def _checkpoint(self, step: float) -> dict:
        """Return a dictionary like that of Trainer.dump_checkpoint."""
        import torch

        weights = torch.full((self.size,), step)
        checkpoint = {
            "epoch": 0, "global_step": int(step), "pytorch-lightning_version": "2.6.6",
            "state_dict": {"weight": weights}, "loops": {},
        }  # fmt: skip
        if self.weights_only:
            return checkpoint
        return checkpoint | {
            "callbacks": {},
            "optimizer_states": [{"state": {0: {"exp_avg": weights.clone()}}, "param_groups": []}],
            "lr_schedulers": [],
        }

    def prepare(self) -> None:
        """Save once elsewhere, since the first save takes long."""
        root, self.root = self.root, Path("scratch").absolute()
        self.root.mkdir(exist_ok=True)
        self.save(0)
        self.root = root

    def save(self, step: int) -> None:
        checkpoint, path = self._checkpoint(float(step)), self.root / self.name.format(step)
        if self.sharded:
            self._save_sharded(checkpoint, path)
        elif self.rank == 0:
            from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

            TorchCheckpointIO().save_checkpoint(checkpoint, path)
            if self.link:
                from types import SimpleNamespace

                from pytorch_lightning.callbacks import ModelCheckpoint

                strategy = SimpleNamespace(barrier=lambda: None)
                trainer = SimpleNamespace(is_global_zero=True, strategy=strategy)
                ModelCheckpoint._link_checkpoint(trainer, str(path), str(self.root / "last.ckpt"))

    def _save_sharded(self, checkpoint: dict, path: Path) -> None:
        """FSDPStrategy.save_checkpoint, word for word from `if self._state_dict_type ==` on."""
        import torch
        from lightning_fabric.strategies.fsdp import (
            _METADATA_FILENAME,
            _distributed_checkpoint_save,
        )

        path.mkdir(parents=True, exist_ok=True)
        converted_state = {"model": checkpoint.pop("state_dict")}
        converted_state.update(
            {f"optimizer_{i}": s for i, s in enumerate(checkpoint.pop("optimizer_states", []))}
        )
        _distributed_checkpoint_save(converted_state, path)
        if self.rank == 0:
            torch.save(checkpoint, path / _METADATA_FILENAME)

    def load(self, path: str) -> int:
        import torch
        from lightning_fabric.utilities.cloud_io import _load

        if not self.sharded:
            state = _load(path, weights_only=False)
            moments = state["optimizer_states"][0]["state"][0]["exp_avg"]
            tensors = [state["state_dict"]["weight"], moments]
            step = state["global_step"]
        else:
            from lightning_fabric.strategies.fsdp import _METADATA_FILENAME
            from torch.distributed import checkpoint as dcp

            state = {"model": {"weight": torch.zeros(self.size)}}
            state["optimizer_0"] = {"state": {0: {"exp_avg": torch.zeros(self.size)}}}
            dcp.load(state, checkpoint_id=path)
            tensors = [state["model"]["weight"], state["optimizer_0"]["state"][0]["exp_avg"]]
            step = torch.load(Path(path) / _METADATA_FILENAME)["global_step"]
        assert {v for t in tensors for v in t.unique().tolist()} == {float(step)}
        return step
