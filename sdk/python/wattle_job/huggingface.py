"""A callback for the Trainer of Hugging Face Transformers.

It reports the steps; on request the Trainer writes a checkpoint into its `output_dir` and its `train` returns.
"""

import os

from transformers import TrainerCallback

from .checkpoint import checkpoint_dir
from .job import Job
from .pytorch import agreement

__all__ = ["WattleCallback", "checkpoint_dir", "last_checkpoint"]

_STATE = "trainer_state.json"


def last_checkpoint(folder):
    """The newest complete checkpoint in `folder`, for `resume_from_checkpoint`; None at the first start.

    The Trainer writes its state file last, so a checkpoint without it is incomplete.
    """
    found = []
    try:
        for name in os.listdir(folder):
            prefix, _, step = name.partition("-")
            path = os.path.join(folder, name)
            if prefix == "checkpoint" and step.isdigit() and _is_complete(path):
                found.append((int(step), path))
    except OSError:
        return None
    return max(found)[1] if found else None


def _is_complete(path):
    try:
        return os.path.getsize(os.path.join(path, _STATE)) > 0
    except OSError:
        return False


class WattleCallback(TrainerCallback):
    """The Job of a Trainer: `Trainer(..., callbacks=[wattle])`. Arguments are those of Job."""

    def __init__(self, **options):
        self.job = Job(**options)

    def on_train_begin(self, args, state, control, train_dataloader=None, **_):
        job = self.job
        job.agree = agreement(args.device)
        job.completed = state.global_step
        job.steps_total = job.steps_total or state.max_steps
        if job.steps_per_epoch is None:
            job.steps_per_epoch = _steps_per_epoch(args, train_dataloader)
        if job.global_batch is None:
            job.global_batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size

    def on_step_end(self, args, state, control, **_):
        epoch = None if state.epoch is None else int(state.epoch)
        if self.job.step(state.global_step, epoch) and not control.should_training_stop:
            control.should_save = True
            control.should_evaluate = False
            control.should_training_stop = True
        return control

    def on_epoch_end(self, args, state, control, **_):
        if self.job.checkpoint_requested and control.should_training_stop:
            # Already saved; an evaluation would take time that is meant for the checkpoint.
            control.should_save = control.should_evaluate = False
        return control

    def on_train_end(self, args, state, control, **_):
        self.job.report()

    def exit_if_requested(self):
        """Ends the process with the Job's exit code if a checkpoint was requested; after `train`."""
        self.job.exit_if_requested()


def _steps_per_epoch(args, loader):
    """Optimizer steps of an epoch; None for a loader without a length."""
    try:
        return max(-(-len(loader) // args.gradient_accumulation_steps), 1)
    except TypeError:
        return None
