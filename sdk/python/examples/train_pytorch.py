"""A PyTorch loop, of one process or, started by torchrun, of one process per GPU."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import wattle_job.pytorch

GLOBAL_BATCH = 64

total = int(sys.argv[1]) if len(sys.argv) > 1 else 400
device = "cuda" if torch.cuda.is_available() else "cpu"
if "RANK" in os.environ:
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")

torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

job = wattle_job.pytorch.Job(steps_total=total, steps_per_epoch=100, global_batch=GLOBAL_BATCH)
step, state = 0, job.load(map_location=device)
if state is not None:
    step = state["step"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
print("attempt {}, rank {} of {}, from step {}".format(
    job.attempt, job.size.rank, job.size.processes, step), flush=True)

# The same global batch on any number of processes.
batch = max(GLOBAL_BATCH // job.size.processes, 1)
parallel = DistributedDataParallel(model) if dist.is_initialized() else model
while step < total:
    inputs = torch.randn(batch, 32, device=device)
    loss = (parallel(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if job.step(step, epoch=step // 100):
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if job.save(state):
            break
if dist.is_initialized() and device == "cuda":
    # Not with Gloo: after it PyTorch 2.15 sometimes aborts at its end (no active exception).
    dist.destroy_process_group()
job.exit_if_requested()
job.close()
print("completed")
