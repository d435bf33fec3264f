"""torch.save by the first rank: a name for each step, or the same each time, or the older form."""

import os
from pathlib import Path


def setup() -> None:
    import torch  # noqa: F401


class Saver:
    def __init__(
        self, rank: int, world: int, root: Path, name: str = "step-{}.pt", size: int = 200_000,
        zipped: bool = True, crc: bool = True, link: str = "", whole: bool = True,
    ) -> None:  # fmt: skip
        import torch

        torch.serialization.set_crc32_options(crc)
        self.rank, self.root, self.name, self.size = rank, root, name, size
        self.zipped, self.link, self.whole = zipped, link, whole
        root.mkdir(parents=True, exist_ok=True)

    def save(self, step: int) -> None:
        import torch

        if self.rank:
            return
        tensors = {f"layer.{i}": torch.full((self.size,), float(step)) for i in range(4)}
        state = {"model": tensors, "step": step}
        if self.whole:
            state["optimizer"] = {"state": {"exp_avg": torch.full((self.size,), float(step))}}
        path = self.root / self.name.format(step)
        torch.save(state, path, _use_new_zipfile_serialization=self.zipped)
        if self.link:
            link = self.root / self.link
            new = self.root / (self.link + ".tmp")
            os.symlink(path.name, new)
            new.replace(link)

    def load(self, path: str) -> int:
        import torch

        state = torch.load(path)
        values = {t.unique().item() for t in state["model"].values()}
        values |= {t.unique().item() for t in state.get("optimizer", {}).get("state", {}).values()}
        assert values == {float(state["step"])}, values
        return state["step"]
