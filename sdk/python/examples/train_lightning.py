"""A small model with the Trainer of Lightning, on random data."""

import sys

import lightning
import torch

from wattle_job.lightning import WattleCallback


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 1)

    def training_step(self, batch, _):
        return (self.layer(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


total = int(sys.argv[1]) if len(sys.argv) > 1 else 400
torch.manual_seed(7)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(800, 32)), batch_size=8)
wattle = WattleCallback()
trainer = lightning.Trainer(max_steps=total, accelerator="auto", callbacks=[wattle], logger=False,
                            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), data, ckpt_path=wattle.last_checkpoint())
print("at step {}".format(trainer.global_step), flush=True)
wattle.exit_if_requested()
print("completed")
