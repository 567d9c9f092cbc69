"""A training loop in Python alone: gradient descent on one number."""

import json
import os
import sys
import time

import wattle_job

total = int(sys.argv[1]) if len(sys.argv) > 1 else 400
step, weight = 0, 10.0
path = os.path.join(wattle_job.checkpoint_dir(), "last.json")
if os.path.exists(path):
    with open(path) as file:
        step, weight = json.load(file)



def save(to):
    with open(to, "w") as file:
        json.dump([step, weight], file)


job = wattle_job.Job(steps_total=total, steps_per_epoch=100, global_batch=1, first_step=step)
print("attempt {} from step {} on {} GPUs".format(job.attempt, step, job.size.gpus), flush=True)
while step < total:
    weight -= 0.01 * 2 * weight
    # The time of a step of a real model.
    time.sleep(0.002)
    step += 1
    if job.step(step) and job.write("last.json", save):
        job.exit()
job.close()
print("completed with weight {:.6f}".format(weight))
