"""Composer's Trainer, which saves after every batch."""

from pathlib import Path


def setup() -> None:
    import composer  # noqa: F401


class Saver:
    def __init__(self, rank: int, world: int, root: Path) -> None:
        self.root = root

    def save(self, step: int) -> None:
        """Train up to this batch; save after each batch."""
        import torch
        from composer import Trainer
        from composer.models import ComposerModel
        from torch.utils.data import DataLoader

        class Model(ComposerModel):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(4, 2)

            def forward(self, batch):
                return self.layer(batch)

            def loss(self, outputs, batch):
                return outputs.sum()

        model = Model()
        trainer = Trainer(
            model=model, train_dataloader=DataLoader(torch.ones(8, 4), batch_size=2),
            optimizers=torch.optim.Adam(model.parameters()), max_duration=f"{step}ba", device="cpu",
            save_folder=str(self.root), save_interval="1ba", progress_bar=False,
        )  # fmt: skip
        trainer.fit()
        trainer.close()
