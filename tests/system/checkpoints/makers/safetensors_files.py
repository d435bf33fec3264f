"""safetensors: one file for each step."""

from pathlib import Path


def setup() -> None:
    import safetensors.torch  # noqa: F401


class Saver:
    def __init__(self, rank: int, world: int, root: Path, size: int = 200_000) -> None:
        self.rank, self.root, self.size = rank, root, size
        root.mkdir(parents=True, exist_ok=True)

    def save(self, step: int) -> None:
        import torch
        from safetensors.torch import save_file

        if self.rank == 0:
            tensors = {f"layer.{i}": torch.full((self.size,), float(step)) for i in range(4)}
            save_file(tensors, self.root / f"step-{step}.safetensors")

    def load(self, path: str) -> int:
        from safetensors.torch import load_file

        (step,) = {t.unique().item() for t in load_file(path).values()}
        return int(step)
