#!/usr/bin/env python3
"""Recomputes the totals of `wattle saving` from its jobs and nodes.

    wattle saving --trace sacct.txt --json --jobs-csv jobs.csv > saving.json
    tests/saving/recompute.py saving.json jobs.csv

Energy of a schedule is that of its jobs above idle plus that of its nodes: time awake times power
awake, time asleep times power asleep. Totals are means over the seeds. For a sampled trace the
sample's energies are scaled so that its baseline equals that of all jobs (`baseline-all`). The
script fails where a total differs by more than 0.1 %. Only Python's standard library is needed.
"""

import collections
import csv
import json
import math
import sys

TOLERANCE = 1e-3


def totals(jobs, nodes, both):
    """Energy in kWh, and times in seconds over the jobs that complete in both schedules."""
    energy = math.fsum(float(job["energy_kwh"]) for job in jobs)
    energy += math.fsum(
        float(node["awake_s"]) * float(node["awake_w"]) + float(node["asleep_s"]) * float(node["asleep_w"])
        for node in nodes
    ) / 3.6e6
    done = [job for job in jobs if job["id"] in both]
    times = sorted(float(job["end_s"]) - float(job["submit_s"]) for job in done)
    waits = [float(job["end_s"]) - float(job["submit_s"]) - float(job["on_gpus_s"]) for job in done]
    return {
        "energy_kwh": energy,
        "jct_s_mean": math.fsum(times) / len(times),
        "jct_s_p95": times[-(-95 * len(times) // 100) - 1],
        "wait_s_mean": math.fsum(max(wait, 0.0) for wait in waits) / len(waits),
    }


def mean(dicts):
    return {key: math.fsum(d[key] for d in dicts) / len(dicts) for key in dicts[0]}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        claimed = json.load(file)
    rows = collections.defaultdict(lambda: ([], []))
    with open(sys.argv[2], encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows[row["schedule"], row["seed"]][row["kind"] == "node"].append(row)
    found = {"baseline": [], "wattle": []}
    for seed in [seed for schedule, seed in rows if schedule == "baseline"]:
        completed = [{job["id"] for job in rows[name, seed][0] if job["end_s"]} for name in found]
        both = completed[0] & completed[1]
        for name in found:
            found[name].append(totals(*rows[name, seed], both))
    found = {name: mean(of_seeds) for name, of_seeds in found.items()}
    for (schedule, _), (jobs, nodes) in rows.items():
        if schedule == "baseline-all":
            whole = totals(jobs, nodes, {job["id"] for job in jobs if job["end_s"]})
            scale = whole["energy_kwh"] / found["baseline"]["energy_kwh"]
            for of_schedule in found.values():
                of_schedule["energy_kwh"] *= scale
    found["saved"] = {"energy_kwh": found["baseline"]["energy_kwh"] - found["wattle"]["energy_kwh"]}
    worst = 0.0
    for name, values in found.items():
        for key, value in values.items():
            stated = claimed[name][key]
            error = abs(value - stated) / max(abs(value), abs(stated), 1e-6)
            worst = max(worst, error)
            print(f"{name:9}{key:12}{stated:18.6f}{value:18.6f}{100 * error:10.5f} %")
    print(f"greatest difference {100 * worst:.5f} %")
    sys.exit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
