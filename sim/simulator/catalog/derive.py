#!/usr/bin/env python3
"""Prints the derived files of this folder from the public data they come from.

    derive.py DATA gavel|generator

DATA holds gavel/isolated.csv (stanford-futuredata/gavel, MIT) and traces/philly_jobs.csv.gz (the
jobs of Microsoft's Philly traces as a table, CC-BY-4.0; Jeon et al., ATC'19). Only the standard
library.
"""
import collections
import csv
import gzip
import math
import statistics
import sys

DATA = sys.argv[1] if len(sys.argv) > 2 else sys.exit(__doc__)


def gavel():
    print("""# Steps a second of Gavel's job types alone, the GPUs of one job within as few nodes as may be, to three
# digits. Source: stanford-futuredata/gavel, simulation throughputs (MIT). Printed by derive.py.
job_type,gpus,v100,p100""")
    rates = collections.defaultdict(dict)
    for r in csv.DictReader(open(f"{DATA}/gavel/isolated.csv", newline="")):
        if r["consolidated"] == "1":
            batch = f" (batch size {r['batch_size']})" if r["batch_size"] else ""
            rates[r["model"] + batch, r["num_gpus"]][r["gpu"]] = float(r["steps_per_s"])
    by_gpu_type = [(job, rate) for job, rate in rates.items() if rate["v100"] > 0]
    # In the order of the V100's rows.
    for (kind, gpus), rate in sorted(by_gpu_type, key=lambda row: int(row[0][1])):
        print(f"{kind},{gpus},{rate['v100']:.3g},{rate['p100']:.3g}")


DAY = 86_400
# The days in which all virtual clusters were recorded: the first jobs stand alone over weeks, and
# the last days have gaps.
FIRST_DAY, END_DAY = 20, 100
# Jobs of one virtual cluster on as many GPUs, each at most so long after the last, are a campaign.
CAMPAIGN_GAP_S = 60
# Classes of GPU counts that share distributions of durations and of campaign sizes, by upper bound.
CLASSES = [1, 2, 4, 8, 128]
# Where distributions are tabulated, as standard normal scores; between them the logarithm is linear.
SHARES = [.01, .05, .1, .2, .3, .4, .5, .6, .7, .8, .85, .9, .925, .95, .97, .98, .99, .995, .998, .999]
NORMAL = statistics.NormalDist()
SCORES = [-3.5] + [NORMAL.inv_cdf(p) for p in SHARES] + [4.0]


def table(values):
    """A distribution at SCORES."""
    values = sorted(values)
    at = [values[0]] + [values[min(int(p * len(values)), len(values) - 1)] for p in SHARES] + [values[-1]]
    return at


def mean_of(at):
    """The mean of a tabulated distribution, as the generator draws it."""
    steps, total = 4_000, 0.0
    for i in range(steps):
        z = NORMAL.inv_cdf((i + .5) / steps)
        k = max(0, min(len(SCORES) - 2, sum(z > s for s in SCORES) - 1))
        w = min(1.0, max(0.0, (z - SCORES[k]) / (SCORES[k + 1] - SCORES[k])))
        total += math.exp(math.log1p(at[k]) * (1 - w) + math.log1p(at[k + 1]) * w) - 1
    return total / steps


def class_of(gpus):
    return next(i for i, most in enumerate(CLASSES) if gpus <= most)


def generator():
    jobs = []
    with gzip.open(f"{DATA}/traces/philly_jobs.csv.gz", "rt", newline="") as f:
        for r in csv.DictReader(f):
            at, gpus = float(r["submit_s"]), int(r["num_gpus"])
            if FIRST_DAY * DAY <= at < END_DAY * DAY and gpus > 0 and float(r["duration_s"]) > 0:
                jobs.append((at, float(r["duration_s"]), gpus, r["vc"]))
    jobs.sort()
    # Normal scores of the durations in each class: what is alike is measured on them.
    score = {}
    for c in range(len(CLASSES)):
        ranked = sorted((d, i) for i, (_, d, g, _) in enumerate(jobs) if class_of(g) == c)
        for rank, (_, i) in enumerate(ranked):
            score[i] = NORMAL.inv_cdf((rank + .5) / len(ranked))
    last, campaigns = {}, []
    for i, (at, _, gpus, vc) in enumerate(jobs):
        own = last.get((vc, gpus))
        if own is None or at - jobs[own[-1]][0] > CAMPAIGN_GAP_S:
            own = last[vc, gpus] = []
            campaigns.append(own)
        own.append(i)
    days = END_DAY - FIRST_DAY
    starts = [jobs[c[0]][0] for c in campaigns]
    hours = collections.Counter(int(at % DAY // 3600) for at in starts)
    per_day = collections.Counter(int(at // DAY) for at in starts)
    weekday = [statistics.mean(per_day[d] for d in range(FIRST_DAY, END_DAY) if d % 7 == w) for w in range(7)]
    rest = [math.log(per_day[d] / weekday[d % 7]) for d in range(FIRST_DAY, END_DAY)]
    mean = len(campaigns) / days
    sizes = collections.Counter(jobs[c[0]][2] for c in campaigns)
    by_vc = collections.defaultdict(list)
    for c in campaigns:
        by_vc[jobs[c[0]][3]].append(c)
    inside = [score[a] * score[b] for c in campaigns for a, b in zip(c, c[1:])]
    alike = sum(inside) / sum(score[a] ** 2 / 2 + score[b] ** 2 / 2 for c in campaigns for a, b in zip(c, c[1:]))
    pairs = [(a, b) for own in by_vc.values() for a, b in zip(own, own[1:])]
    same = sum(jobs[a[0]][2] == jobs[b[0]][2] for a, b in pairs) / len(pairs)
    chance = sum((n / len(campaigns)) ** 2 for n in sizes.values())
    again = [(score[a[0]], score[b[0]]) for a, b in pairs if jobs[a[0]][2] == jobs[b[0]][2]]
    between = statistics.correlation(*zip(*again))
    gaps = [jobs[b][0] - jobs[a][0] for c in campaigns for a, b in zip(c, c[1:])]
    lengths = [[len(c) for c in campaigns if class_of(jobs[c[0]][2]) == k] for k in range(len(CLASSES))]
    hourly = collections.Counter(int(at // 3600) for at, _, _, _ in jobs)
    counts = [hourly[h] for h in range(FIRST_DAY * 24, END_DAY * 24)]
    line = lambda values, digits: "[" + ", ".join(f"{v:.{digits}g}" for v in values) + "]"
    print(f"""# What `wattle simulate` draws jobs from where it has no trace: distributions of the jobs of
# Microsoft's Philly traces (CC-BY-4.0; Jeon et al., ATC'19), days {FIRST_DAY} to {END_DAY}. Printed by derive.py.
# A campaign: jobs of one virtual cluster on as many GPUs, each at most {CAMPAIGN_GAP_S} s after the last. The
# table names no users; a virtual cluster stands for one. Distributions stand at standard normal
# scores; between them the logarithm of 1 + value is linear.
scores = {line(SCORES, 5)}

[arrivals] # of campaigns
per_day = {mean:.1f}
hour = {line([hours[h] * 24 / len(campaigns) for h in range(24)], 3)}
weekday = {line([w / mean for w in weekday], 3)}
# The logarithm of a day's level beside its weekday's: deviation, and correlation with the day before.
day_deviation = {statistics.pstdev(rest):.3f}
day_correlation = {statistics.correlation(rest[:-1], rest[1:]):.3f}

[campaigns]
# Seconds from one of its jobs to the next.
gap_s = {line(table(gaps), 3)}
# How much of the variance of a duration's score is the campaign's.
alike = {alike:.3f}

[users]
shares = {line(sorted((len(own) / len(campaigns) for own in by_vc.values()), reverse=True), 3)}
# How often the next campaign is of the same kind, on as many GPUs, beyond chance; and how alike the
# durations of two such campaigns then are.
repeats = {(same - chance) / (1 - chance):.3f}
alike = {min(between / alike, 1):.3f}

[sizes] # of campaigns
gpus = {sorted(sizes)}
shares = {line([sizes[g] / len(campaigns) for g in sorted(sizes)], 3)}
""")
    classes = [[j for j in jobs if class_of(j[2]) == c] for c in range(len(CLASSES))]
    print("# By GPUs: how many jobs a campaign has, and how long they last, in seconds.")
    for most, own, length in zip(CLASSES, classes, lengths):
        print(f"[[classes]]\ngpus_max = {most}\nlength = {line(table(length), 4)}")
        print(f"seconds = {line(table([d for _, d, _, _ in own]), 4)}\n")
    print(f"""# The moments of the same jobs, for comparison; nothing is drawn from them.
[moments]
jobs_per_day = {len(jobs) / days:.0f}
gpus_mean = {statistics.mean(j[2] for j in jobs):.3f}
single_share = {sum(j[2] == 1 for j in jobs) / len(jobs):.3f}
gpu_seconds_mean = {statistics.mean(j[1] * j[2] for j in jobs):.0f}
# Of the number of jobs in an hour: deviation over mean.
hourly_variation = {statistics.pstdev(counts) / statistics.mean(counts):.2f}
# Of the durations in each class: median and mean.
duration_median_s = {line([statistics.median(d for _, d, _, _ in own) for own in classes], 4)}
duration_mean_s = {line([statistics.mean(d for _, d, _, _ in own) for own in classes], 4)}""")


{"gavel": gavel, "generator": generator}[sys.argv[2]]()
