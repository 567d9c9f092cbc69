"""The side of a training program in Wattle's job contract.

    job = wattle_job.Job(steps_total=1000, global_batch=256)
    ...
    # After each step; true: a checkpoint is requested.
    if job.step(step) and job.write("last.pt", lambda path: torch.save(state, path)):
        job.exit()

`job.size` is the granted number of GPUs, nodes and processes. Hooks for frameworks are in
`wattle_job.pytorch`, `wattle_job.huggingface` and `wattle_job.lightning`; they import their framework, this
module imports nothing beyond Python. Outside of Wattle everything here does nothing.
"""

from .checkpoint import checkpoint_dir, writing
from .job import Job
from .size import Size

__all__ = ["Job", "Size", "checkpoint_dir", "writing"]
__version__ = "0.1.0"
