#!/usr/bin/env python3
"""Writes an invented `sacct -aDP` export with every kind of row that sites have.

    tests/saving/export.py --jobs 100000 > sacct.txt
    wattle saving --trace sacct.txt

Jobs arrive over the days of the period and are scheduled first come, first served with backfill on two
partitions, so the recorded starts, ends and nodes fit the cluster: three quarters of the nodes have A100s
under Slurm's long type name, the others H100s. The rows include steps, arrays, requeued jobs (several
rows of one JobID), jobs cancelled in the queue or while running, failed, timed-out and running jobs,
jobs on several nodes, jobs whose type is in ReqTRES only, jobs without a GPU and jobs on a slice of a GPU.
The same options give the same file. Only Python's standard library is needed.
"""

import argparse
import collections
import heapq
import random
import sys
import time

COLUMNS = (
    "JobID JobName User Partition Submit Eligible Start End Elapsed State ReqTRES AllocTRES NNodes NodeList Comment"
)
START = 1714953600  # 2024-05-06, a Monday, UTC
GPUS_PER_NODE = 8
TYPES = {"gpu": "nvidia_a100-sxm4-80gb", "long": "nvidia_h100_80gb_hbm3"}
SIZES, SIZE_WEIGHTS = (1, 2, 4, 8, 16), (62, 12, 13, 10, 3)
STATES = ("COMPLETED", "FAILED", "CANCELLED by 1004", "TIMEOUT", "OUT_OF_MEMORY")
STATE_WEIGHTS = (70, 14, 9, 5, 2)
# Jobs examined behind the head of the queue.
BACKFILL = 40


def stamp(at):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(START + at))


def elapsed(seconds):
    days, rest = divmod(seconds, 86400)
    text = time.strftime("%H:%M:%S", time.gmtime(rest))
    return f"{days}-{text}" if days else text


def tres(gpus, gpu_type=None, nodes=1):
    typed = f"gres/gpu:{gpu_type}={gpus}," if gpu_type else ""
    return f"billing={4 * gpus},cpu={4 * gpus},{typed}gres/gpu={gpus},mem={32 * gpus}G,node={nodes}"


def node_list(prefix, nodes):
    if len(nodes) == 1:
        return f"{prefix}{nodes[0]:03d}"
    return f"{prefix}[{','.join(f'{node:03d}' for node in nodes)}]"


def jobs(draw, count, nodes):
    """(submit, partition, GPUs, seconds) of every run, in the order of submission."""
    gpus = {"gpu": nodes * 3 // 4 * GPUS_PER_NODE, "long": (nodes - nodes * 3 // 4) * GPUS_PER_NODE}
    rows, busy = [], 0
    for _ in range(count):
        partition = "long" if draw.random() < 0.25 else "gpu"
        size = draw.choices(SIZES, SIZE_WEIGHTS)[0]
        lasts = max(30, min(5 * 86400, int(draw.lognormvariate(7.6, 1.8))))
        rows.append((partition, min(size, gpus[partition]), lasts))
        busy += size * lasts
    period = busy / (0.75 * sum(gpus.values()))
    # Twice as many submissions by day as by night.
    at = sorted(draw.uniform(0, period) for _ in range(count))
    return [(int(t) - int(t) % 7, *row) for t, row in zip(at, rows)], period


def place(free, size):
    """Nodes for a job by best fit, or None."""
    if size <= GPUS_PER_NODE:
        fits = [(gpus, node) for node, gpus in free.items() if gpus >= size]
        return [min(fits)[1]] if fits else None
    empty = sorted(node for node, gpus in free.items() if gpus == GPUS_PER_NODE)
    needed = -(-size // GPUS_PER_NODE)
    return empty[:needed] if len(empty) >= needed else None


def schedule(runs, nodes):
    """Yields (run index, start, nodes), first come, first served with backfill in each partition."""
    for partition in TYPES:
        count = nodes * 3 // 4 if partition == "gpu" else nodes - nodes * 3 // 4
        free = {node + 1: GPUS_PER_NODE for node in range(count)}
        queue, ends = collections.deque(), []
        arrivals = collections.deque(i for i, run in enumerate(runs) if run[1] == partition)
        while arrivals or queue:
            now = min([runs[arrivals[0]][0]] if arrivals else [ends[0][0]], default=0)
            now = min(now, ends[0][0]) if ends else now
            while ends and ends[0][0] <= now:
                _, used, size = heapq.heappop(ends)
                for node in used:
                    free[node] += min(size, GPUS_PER_NODE)
            while arrivals and runs[arrivals[0]][0] <= now:
                queue.append(arrivals.popleft())
            for i in list(queue)[:BACKFILL]:
                _, _, size, lasts = runs[i]
                used = place(free, size)
                if used is None:
                    continue
                queue.remove(i)
                for node in used:
                    free[node] -= min(size, GPUS_PER_NODE)
                start = now + 1
                heapq.heappush(ends, (start + lasts, used, size))
                yield i, start, used


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--jobs", type=int, default=2000, help="number of GPU jobs [default: 2000]")
    options.add_argument("--nodes", type=int, default=64, help="nodes of 8 GPUs, at least 8 [default: 64]")
    options.add_argument("--seed", type=int, default=1, help="random seed [default: 1]")
    options = options.parse_args()
    draw = random.Random(options.seed)
    runs, period = jobs(draw, options.jobs, options.nodes)
    placed = {i: (start, used) for i, start, used in schedule(runs, options.nodes)}
    export_at = int(period)
    out = sys.stdout.write
    out(COLUMNS.replace(" ", "|") + "\n")
    number, task = 48210, 0
    # The job of a later run, where it is a further run of a requeued job.
    again = {}
    for i, (submit, partition, size, lasts) in enumerate(runs):
        user = draw.choice(("ada", "bob", "dee", "eli", "gus", "hal"))
        name = draw.choice(("sweep", "finetune", "rank", "segment", "gan", "speech", "eval"))
        state = draw.choices(STATES, STATE_WEIGHTS)[0]
        start, used = placed[i]
        end, gpu_type = start + lasts, TYPES[partition]
        nodes = node_list("gpu" if partition == "gpu" else "hop", used)
        requests = tres(size, None if draw.random() < 0.8 else gpu_type, len(used))
        # Some sites account only the untyped count; the type is then in the request.
        if draw.random() < 0.05:
            requests, allocates = tres(size, gpu_type, len(used)), tres(size, None, len(used))
        else:
            allocates = tres(size, gpu_type, len(used))
        comment = draw.choices(("", "can_checkpoint=yes", "can_checkpoint=no"), (80, 15, 5))[0]
        if i in again:
            job, user, name = again[i]
        elif task or draw.random() < 0.03:
            task = task % 5 + 1
            number += task == 1
            job, task = f"{number}_{task}", task % 5
        else:
            number += 1
            job = str(number)
        # A requeued job has further rows with its JobID, each submitted after the end of the one before.
        if "_" not in job and draw.random() < 0.01:
            later = range(i + 1, min(i + 2000, len(runs)))
            fits = (j for j in later if runs[j][0] >= end and runs[j][1:3] == (partition, size))
            j = next(fits, None)
            if j is not None and j not in again:
                again[j] = job, user, name
                state = draw.choice(("NODE_FAIL", "PREEMPTED", "REQUEUED"))
        shown, took = stamp(end), lasts
        if start >= export_at:
            out(f"{job}|{name}|{user}|{partition}|{stamp(submit)}|{stamp(submit)}|Unknown|Unknown|00:00:00|PENDING|{requests}||{len(used)}|None assigned|{comment}\n")
            continue
        if end > export_at:
            state, shown, took = "RUNNING", "Unknown", export_at - start
        times = f"{stamp(submit)}|{stamp(submit)}|{stamp(start)}|{shown}|{elapsed(took)}|{state}"
        out(f"{job}|{name}|{user}|{partition}|{times}|{requests}|{allocates}|{len(used)}|{nodes}|{comment}\n")
        if draw.random() < 0.1:
            out(f"{job}.batch|batch|||{times}||{allocates}|1|{nodes}|\n")
        if draw.random() < 0.03:
            number += 1
            at = f"{stamp(submit)}|{stamp(submit)}|{stamp(submit + 9)}|{stamp(submit + 9)}|00:00:00|CANCELLED by 1004"
            out(f"{number}|{name}|{user}|{partition}|{at}|{requests}||1|None assigned|\n")
        if draw.random() < 0.03:
            number += 1
            at = f"{stamp(submit)}|{stamp(submit)}|{stamp(submit + 5)}|{stamp(submit + 605)}|00:10:00|COMPLETED"
            out(f"{number}|prepare|{user}|cpu|{at}|cpu=4,mem=16G,node=1|cpu=4,mem=16G,node=1|1|cpu01|\n")
        if draw.random() < 0.02:
            number += 1
            at = f"{stamp(submit)}|{stamp(submit)}|{stamp(submit + 5)}|{stamp(submit + 3605)}|01:00:00|COMPLETED"
            slice_tres = "cpu=4,gres/gpu:a100_3g.20gb=1,gres/gpu=1,mem=16G,node=1"
            out(f"{number}|notebook|{user}|mig|{at}|{slice_tres}|{slice_tres}|1|mig01|\n")


if __name__ == "__main__":
    main()
