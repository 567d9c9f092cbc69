"""A callback for the Trainer of Lightning.

It reports the optimizer steps; on request it writes a checkpoint and stops the Trainer, whose `fit` returns.
"""

import os

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from . import checkpoint
from .job import Job
from .pytorch import agreement

NAME = "last.ckpt"
"""The checkpoint's file."""


class WattleCallback(Callback):
    """The Job of a Trainer: `Trainer(..., callbacks=[wattle])`. Arguments are those of Job."""

    def __init__(self, **options):
        self.job = Job(**options)
        self._saved = False

    def last_checkpoint(self):
        """The checkpoint of an earlier attempt, for `ckpt_path`; None at the first start."""
        path = self.job.path(NAME)
        return path if os.path.exists(path) else None

    def on_train_start(self, trainer, module):
        job = self.job
        job.agree = agreement(trainer.strategy.root_device)
        job.completed = trainer.global_step
        if job.steps_total is None:
            job.steps_total = _finite(trainer.estimated_stepping_batches)
        if job.steps_per_epoch is None:
            batches = _finite(trainer.num_training_batches)
            job.steps_per_epoch = batches and max(-(-batches // trainer.accumulate_grad_batches), 1)
        if job.global_batch is None:
            job.global_batch = _global_batch(trainer)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        # Once per batch: with gradient accumulation several batches have the same step.
        requested = self.job.step(trainer.global_step, trainer.current_epoch)
        if requested and not self._saved:
            try:
                self._save(trainer)
            except Exception as error:  # a full disk must not end the training
                self.job.not_written(error)
                return
            self._saved = True
            # A validation would take time that is meant for the checkpoint.
            trainer.limit_val_batches = 0
            trainer.should_stop = True

    def on_train_end(self, trainer, module):
        self.job.report()

    def exit_if_requested(self):
        """Ends the process with the Job's exit code if a checkpoint was requested; after `fit`."""
        self.job.exit_if_requested()

    def _save(self, trainer):
        path = self.job.path(NAME)
        part = path + ".part"
        # In every process: sharded strategies gather the state.
        trainer.save_checkpoint(part)
        if trainer.is_global_zero:
            # Some strategies write a folder.
            checkpoint.replace(part, path)
        trainer.strategy.barrier()


def _finite(number):
    """A number of steps; None where Lightning states that it is unknown (inf or -1)."""
    return int(number) if 0 < number < float("inf") else None


def _global_batch(trainer):
    """Samples of one step over all processes; None if the loader has no batch size."""
    size = getattr(trainer.train_dataloader, "batch_size", None)
    if not isinstance(size, int):
        return None
    return size * trainer.world_size * trainer.accumulate_grad_batches
