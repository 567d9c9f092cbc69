"""A predictor in Python: the moving mean of each configuration, with its scatter.

It predicts only configurations that the job ran in. See docs/extending/predictor.md.

    python3 predict.py --nats nats://127.0.0.1:4222 --cluster main
"""

import argparse
import asyncio
import json
import math
from collections import deque

import nats
import nats.micro

NEWEST = 20  # windows kept per configuration
JOBS_MAX = 1000
CONFIGURATIONS_MAX = 64


def estimate(values):
    """Mean and 90 % interval of the next value; with few values the interval is wide."""
    n = len(values)
    mean = sum(values) / n
    variance = sum((v - mean) ** 2 for v in values) / max(n - 1, 1)
    # One more reading with an error of 5 % is assumed, so that a single window is not certain.
    spread = math.sqrt((variance * (n - 1) + (0.05 * mean) ** 2) / n)
    half = 1.645 * spread * math.sqrt(1 + 1 / n)
    return {"mean": mean, "low": max(mean - half, 0.0), "high": mean + half}


class Job:
    def __init__(self):
        self.seen = {}  # configuration: readings
        self.newest = None

    def learn(self, window):
        """Adds a window; true where it is new and usable."""
        rate, power = window.get("steps_per_s"), window.get("power_mw_gpus")
        if not rate or not power or window.get("steps_inferred"):
            return False
        names = sorted(n.get("workload") or "unknown" for n in window["neighbours"])
        key = (
            window["gpus_total"],
            window["nodes_total"],
            window.get("cap_mw"),
            window.get("clock_mhz_max"),
            tuple(names),
        )
        if key not in self.seen and len(self.seen) >= CONFIGURATIONS_MAX:
            del self.seen[next(iter(self.seen))]
        readings = self.seen.setdefault(key, deque(maxlen=NEWEST))
        reading = (window["node"], window["from_us"], rate, power / 1000 / len(window["gpus"]))
        if any(reading[:2] == known[:2] for known in readings):
            return False  # duplicate
        readings.append(reading)
        self.newest = window
        return True

    def surface(self, name):
        alone = [r[2] for key, rs in self.seen.items() if not key[4] for r in rs]
        fastest = max(alone or [r[2] for rs in self.seen.values() for r in rs])
        points = []
        for (gpus, nodes, cap, clock, neighbours), readings in self.seen.items():
            rate = estimate([r[2] for r in readings])
            points.append(
                {
                    "gpus": gpus,
                    "nodes": nodes,
                    "cap_mw": cap,
                    "clock_mhz_max": clock,
                    "neighbours": neighbours,
                    "steps_per_s": rate,
                    "relative_speed": {k: v / fastest for k, v in rate.items()},
                    "gpu_power_w": estimate([r[3] for r in readings]),
                }
            )
        windows = sum(len(readings) for readings in self.seen.values())
        return {
            "job": self.newest["job"],
            "predictor": name,
            "at_us": self.newest["until_us"],
            "gpu_type": self.newest["gpu_type"],
            "class": self.newest.get("workload"),
            "windows": windows,
            "basis": f"mean of {windows} windows of this job",
            "points": points,
        }


async def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nats", default="nats://127.0.0.1:4222", help="the NATS server")
    options.add_argument("--key", help="the file with the seed of its key; needs the package nkeys")
    options.add_argument("--cluster", default="main")
    options.add_argument("--name", default="python-mean", help="this predictor's name")
    options = options.parse_args()
    root, cluster, name = f"wattle.v1.{options.cluster}", options.cluster, options.name
    jobs = {}

    bus = await nats.connect(options.nats, name=name, nkeys_seed=options.key, max_reconnect_attempts=-1)
    await nats.micro.add_service(
        bus,
        name="wattle-predictor",
        version="1.0.0",
        description=f"predicts speed and power: {name}",
        metadata={"cluster": cluster, "predictor": name},
    )

    async def propose(job):
        surface = json.dumps(jobs[job].surface(name)).encode()
        await bus.publish(f"{root}.surface.proposed.{name}.{job}", surface)

    async def on_window(message):
        window = json.loads(message.data)
        job = window["job"]
        if job not in jobs and len(jobs) >= JOBS_MAX:
            del jobs[next(iter(jobs))]
        if jobs.setdefault(job, Job()).learn(window):
            await propose(job)

    async def on_champion(_):
        # A predictor was promoted, or the registry started: all jobs are requested.
        for job in [job for job, known in jobs.items() if known.newest]:
            await propose(job)

    await bus.subscribe(f"{root}.window.closed.*.*", cb=on_window)
    await bus.subscribe(f"$KV.wattle-v1-{cluster}-predictors.champion", cb=on_champion)
    print(f"{name} predicts for cluster {cluster}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
