"""A Job for PyTorch loops, of one process or of several in a process group.

All processes of a group get a checkpoint request after the same step: a process that stopped alone would
leave the others waiting in their next collective operation.
"""

import os

import torch
import torch.distributed as dist

from . import job

NAME = "last.pt"
"""The checkpoint's file."""


def agreement(device=None):
    """A function for `Job.agree` over the default process group; None without a group of several
    processes. `device` is by default the current GPU with NCCL, else the processor."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    if device is None:
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"

    def largest(values):
        tensor = torch.tensor(values, dtype=torch.float32, device=device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    return largest


class Job(job.Job):
    """A `wattle_job.Job` that agrees over the default process group and saves with `torch.save`.

    Make it after `init_process_group`.
    """

    def __init__(self, *arguments, device=None, **options):
        options.setdefault("agree", agreement(device))
        super().__init__(*arguments, **options)

    def save(self, state, name=NAME):
        """Writes `state` as rank 0, and waits for it in every process; whether it is complete.

        As `write`: an error is logged in every process, training may continue.
        """
        failed = self.size.rank == 0 and not self.write(name, lambda path: torch.save(state, path))
        if self.agree is None:
            return not failed
        try:
            failed = self.agree([float(failed)])[0] > 0
        except Exception as error:
            self.not_written(error)
            return False
        if failed and self.size.rank != 0:
            self.not_written("rank 0 has failed")
        return not failed

    def load(self, name=NAME, map_location="cpu"):
        """The state that `save` wrote in this or an earlier attempt; None at the first start."""
        path = self.path(name)
        return torch.load(path, map_location=map_location) if os.path.exists(path) else None
