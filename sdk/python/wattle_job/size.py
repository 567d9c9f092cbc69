"""The size that an attempt was granted, from its environment.

The launcher sets CUDA_VISIBLE_DEVICES, PET_NNODES and PET_NODE_RANK; Slurm sets SLURM_*. A starter of one
process per GPU, such as torchrun, srun or mpirun, adds rank and number of processes.
"""

import os
from collections import namedtuple

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PET_NODE_RANK", "SLURM_PROCID")
_WORLDS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PET_NNODES", "SLURM_NTASKS")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


class Size(namedtuple("Size", "gpus nodes gpus_here node_rank rank processes local_rank")):
    """The granted size.

    gpus        GPUs of the whole job; of several nodes, all have the same number
    nodes       nodes of the job
    gpus_here   GPUs of this node
    node_rank   number of this node, from 0
    rank        number of this process among all of the job, from 0; rank 0 reports
    processes   processes of the job
    local_rank  number of this process on its node, from 0
    """

    __slots__ = ()

    @classmethod
    def of(cls, environment=None):
        """The size that `environment` states, by default os.environ."""
        get = (os.environ if environment is None else environment).get
        nodes = max(_first(get, ("PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), 1), 1)
        here = _visible(get("CUDA_VISIBLE_DEVICES"))
        if here is None:
            here = _first(get, ("SLURM_GPUS_ON_NODE", "PET_NPROC_PER_NODE", "LOCAL_WORLD_SIZE"), 0)
        processes = max(_first(get, _WORLDS, 1), 1)
        rank = _first(get, _RANKS, 0)
        gpus = here * nodes
        if _number(get("WORLD_SIZE")) and _number(get("LOCAL_WORLD_SIZE")) == here:
            # One process per GPU, so the number is exact.
            gpus = processes
        return cls(
            gpus=gpus,
            nodes=nodes,
            gpus_here=here,
            node_rank=_first(get, ("PET_NODE_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_NODEID"), 0),
            rank=rank,
            processes=processes,
            local_rank=_first(get, _LOCAL_RANKS, 0),
        )


def _number(text):
    """A whole number of at least 0, or None."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _first(get, names, default):
    """The value of the first of these variables that is a number."""
    for name in names:
        number = _number(get(name))
        if number is not None:
            return number
    return default


def _visible(text):
    """The number of devices in CUDA_VISIBLE_DEVICES; None if it is not set."""
    if text is None:
        return None
    count = 0
    for device in text.split(","):
        device = device.strip()
        # CUDA ignores a negative index and all that follow it.
        if not device or device.startswith("-"):
            break
        count += 1
    return count
