"""A small language model with the Trainer of Hugging Face Transformers, on random tokens."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from wattle_job.huggingface import WattleCallback, checkpoint_dir, last_checkpoint


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        tokens = (torch.arange(16) * (index + 1)) % 64
        return {"input_ids": tokens, "labels": tokens}


total = int(sys.argv[1]) if len(sys.argv) > 1 else 400
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                   bos_token_id=0, eos_token_id=0))
wattle = WattleCallback()
arguments = TrainingArguments(output_dir=checkpoint_dir(), max_steps=total, per_device_train_batch_size=8,
                              save_strategy="no", report_to=[], disable_tqdm=True)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[wattle])
trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))
print("at step {}".format(trainer.state.global_step), flush=True)
wattle.exit_if_requested()
print("completed")
