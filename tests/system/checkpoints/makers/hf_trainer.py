"""The Trainer of transformers, with a small GPT-2: its own methods save and load."""

import contextlib
import os
from pathlib import Path


def setup() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers
    from transformers import GPT2LMHeadModel, Trainer  # noqa: F401

    transformers.logging.set_verbosity_error()
    with contextlib.suppress(ImportError):
        import deepspeed_engine

        deepspeed_engine.setup()


class Saver:
    def __init__(
        self, rank: int, world: int, root: Path, size: int = 16, keep: int = 2, shards: str = "",
        only_model: bool = False, fsdp: str = "", deepspeed: int = -1, peft: bool = False,
        safe: bool = True,
    ) -> None:  # fmt: skip
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

        config = GPT2Config(n_layer=1, n_embd=size, n_head=1, vocab_size=64, n_positions=8)
        more = {} if safe else {"save_safetensors": False}  # which later versions do not have
        if deepspeed >= 0:
            more["deepspeed"] = {
                "zero_optimization": {"stage": deepspeed}, "train_micro_batch_size_per_gpu": 1,
                "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
                "zero_allow_untested_optimizer": True,
            }  # fmt: skip
        args = TrainingArguments(
            output_dir=str(root), use_cpu=True, report_to=[], save_total_limit=keep,
            save_only_model=only_model, per_device_train_batch_size=1, max_steps=1000,
            logging_strategy="no", disable_tqdm=True, **more,
        )  # fmt: skip
        model = GPT2LMHeadModel(config)
        if peft:
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(target_modules=["c_attn"], r=2))
        if shards:
            save = model.save_pretrained
            model.save_pretrained = lambda *a, **k: save(*a, **{**k, "max_shard_size": shards})
        self.data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4096
        self.torch, self.args, self.trainer = torch, args, None
        self.make = lambda: Trainer(model=model, args=args, train_dataset=self.data)

    def prepare(self) -> None:
        self.trainer = self.make()
        self.trainer.args.max_steps = 1
        self.trainer.args.save_strategy = "no"
        self.trainer.train()
        self.trainer.args.max_steps = 1000

    def save(self, step: int) -> None:
        """Save a training at this step; all weights are the number of the step."""
        if self.trainer is None:
            self.prepare()
        trainer, torch = self.trainer, self.torch
        with torch.no_grad():
            for p in trainer.model.parameters():
                if p.requires_grad:
                    p.fill_(float(step))
        for state in trainer.optimizer.state.values():
            state["exp_avg"].fill_(float(step))
        trainer.state.global_step = step
        trainer._save_checkpoint(trainer.model, trial=None)

    def load(self, path: str) -> int:
        """Resume like train(resume_from_checkpoint=path); stop before the first step."""
        from transformers import TrainerCallback, TrainerState

        torch, found = self.torch, {}

        class Look(TrainerCallback):
            def on_step_begin(self, args, state, control, model=None, optimizer=None, **_):
                found["step"] = state.global_step
                found["weights"] = {
                    v for p in model.parameters() if p.requires_grad
                    for v in torch.unique(getattr(p, "_local_tensor", p)).tolist()
                }  # fmt: skip
                optimizer = getattr(optimizer, "optimizer", optimizer)
                moments = [s["exp_avg"] for s in optimizer.state.values() if "exp_avg" in s]
                found["moments"] = {
                    v for m in moments
                    for v in torch.unique(getattr(m, "_local_tensor", m)).tolist()
                }  # fmt: skip
                raise StopIteration

        step = TrainerState.load_from_json(os.path.join(path, "trainer_state.json")).global_step
        self.args.max_steps = step + 1
        trainer = self.make()
        trainer.add_callback(Look())
        with contextlib.suppress(StopIteration):
            trainer.train(resume_from_checkpoint=path)
        assert found["step"] == step
        assert found["weights"] == {float(step)}
        assert found["moments"] in ({float(step)}, set())
        return step
