"""A JAX loop. Several processes agree about a checkpoint with jax.experimental.multihost_utils."""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

import wattle_job


def largest(values):
    """The largest of each value over all processes."""
    from jax.experimental import multihost_utils
    return np.max(multihost_utils.process_allgather(np.array(values, np.float32)), axis=0).tolist()


@jax.jit
def train_step(weights, key):
    inputs = jax.random.normal(key, (64, 32))
    loss = lambda w: jnp.mean((inputs @ w - inputs.sum(1)) ** 2)
    return weights - 0.01 * jax.grad(loss)(weights)


total = int(sys.argv[1]) if len(sys.argv) > 1 else 400
step, weights = 0, jnp.zeros(32)
path = os.path.join(wattle_job.checkpoint_dir(), "last.npz")
if os.path.exists(path):
    with np.load(path) as state:
        step, weights = int(state["step"]), jnp.asarray(state["weights"])



def save(to):
    with open(to, "wb") as file:
        np.savez(file, step=step, weights=weights)


several = jax.process_count() > 1
job = wattle_job.Job(steps_total=total, steps_per_epoch=100, global_batch=64, first_step=step,
                     agree=largest if several else None)
print("attempt {} from step {}".format(job.attempt, step), flush=True)
while step < total:
    weights = train_step(weights, jax.random.key(step))
    # Otherwise the loop would only queue steps, and report them before they are computed.
    weights.block_until_ready()
    step += 1
    if job.step(step) and (jax.process_index() > 0 or job.write("last.npz", save)):
        job.exit()
job.close()
print("completed")
