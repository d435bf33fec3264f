"""Train a small Llama on text, byte by byte, with the Trainer of Hugging Face's transformers.

    hpclaunch --nproc 2 --checkpoint-dir checkpoints/hf_trainer \
        workers/hf_trainer.py --dir checkpoints/hf_trainer

For the Trainer, the launcher looks like torchrun. The Trainer saves `checkpoint-N` every few steps
and deletes the oldest. After a restart, the training resumes from the newest complete checkpoint,
even within an epoch, with the random state of every rank, so the result is the same. When the end
of the job is near, the Trainer saves after the current step and exits. The model is built from a
configuration, and the text is Python's own manual, as `help()` prints it, so nothing is downloaded.
It reaches a loss below 2.3 nats per byte on held-out text (a random guess has 5.5).
"""

import argparse
import os
from pydoc_data.topics import topics

import torch
import transformers
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainingArguments,
)

from hpclaunch.notice import due

LENGTH = 64  # bytes of a sample
SAMPLES = 2048
HELD_OUT = 128


class Text(Dataset):
    """Pieces of a text, of LENGTH bytes each; a byte is a token, and its own label."""

    def __init__(self, text: bytes) -> None:
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.pieces = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


def text() -> tuple[Text, Text]:
    """Return the texts for training and for testing."""
    manual = "\n".join(topics[name] for name in sorted(topics)).encode()
    held_out, end = HELD_OUT * LENGTH, (HELD_OUT + SAMPLES) * LENGTH
    return Text(manual[held_out:end]), Text(manual[:held_out])


class SaveAndLeave(TrainerCallback):
    def on_step_end(self, _arguments: object, _state: object, control: TrainerControl, **_: object):
        if due():  # the end of the job is near
            control.should_save = control.should_training_stop = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--dir", default="checkpoints/hf_trainer", help="where to save")
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    each = max(1, args.batch_size // int(os.environ["WORLD_SIZE"]))
    arguments = TrainingArguments(
        args.dir,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=each,
        per_device_eval_batch_size=each,
        learning_rate=4e-3,
        save_steps=args.save_steps,
        save_total_limit=3,
        logging_steps=args.save_steps,
        disable_tqdm=True,
        report_to="none",
        use_cpu=not gpu,  # otherwise, without a GPU each worker would train alone
        dataloader_pin_memory=gpu,
        ddp_find_unused_parameters=False,
        seed=0,
    )
    transformers.logging.disable_progress_bar()
    transformers.set_seed(0)
    config = LlamaConfig(
        vocab_size=256, max_position_embeddings=LENGTH, hidden_size=64, intermediate_size=192,
        num_hidden_layers=2, num_attention_heads=4, attention_dropout=0.1,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    train, test = text()
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=train,
        eval_dataset=test,
        callbacks=[SaveAndLeave()],
    )
    checkpoint = os.environ.get("HPCLAUNCH_CHECKPOINT")
    if checkpoint and trainer.is_world_process_zero():
        print(f"resuming from {os.path.basename(checkpoint)}")
    trainer.train(resume_from_checkpoint=checkpoint or None)
    if due():
        return
    reached = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"loss {reached:.6f}")


if __name__ == "__main__":
    main()
