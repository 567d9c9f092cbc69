#!/usr/bin/env python3
"""Prints how far the energy aim's search is from the frontier of a fine sweep of energy prices.

    docs/figures/aim_search.py wattle --jobs 1000 --load 0.8
    docs/figures/aim_search.py --no-later-than backfill,fifo --by 0%,3% wattle --jobs 1000 --load 0.8

After the options of this script come the program and options of `wattle simulate` without policy and aim.
The frontier is that of `wattle` at 0 and at 24 prices (--prices) up to the greatest, 1 s/J, linear between its
points.

Without --no-later-than the aim is --max-slowdown 5%, and its energy is compared with the frontier's at the
same mean completion time.

With --no-later-than each row of the table is one bound: the mean completion time that it allows, that of the
aim's run, the energy that this run saves, the most that the frontier allows at that bound, and the first as a
share of the second. Completion and energy are relative to a run of the baseline with the same options, so that
nodes sleep in both or in neither; a second table has the energy of GPUs above idle of the same runs. One sweep
serves all bounds. Only Python's standard library is needed.
"""

import argparse
import json
import subprocess
import sys

from aim import frontier, least_energy, percent


def prices(count):
    """0 and prices up to the greatest, at equal ratios, s/J."""
    return [0.0] + [1e-5 * (1 / 1e-5) ** (i / (count - 1)) for i in range(count)]


def simulated(program, options, policy="wattle"):
    command = [program, "simulate", *options, "--policy", policy, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)


def of(run, key="energy_kwh"):
    return run[key], run["jct_s_mean"]


def slowdown(program, options, sweep):
    energy, time = of(simulated(program, [*options, "--max-slowdown", "5%"])["policies"][0])
    free_energy, free_time = of(sweep[0])
    best = least_energy(frontier(map(of, sweep)), time)
    print(f"time aim          {free_energy:12.1f} kWh  {free_time:10.1f} s")
    print(f"energy aim        {energy:12.1f} kWh  {time:10.1f} s  {100 * (time / free_time - 1):+.2f} %")
    print(f"frontier there    {best:12.1f} kWh")
    print(f"the aim is above it by {100 * (energy / best - 1):+.2f} %")


def row(key, baseline, run, sweep, allowed_s, bound):
    """Cells of one bound for one kind of energy."""
    base, base_s = baseline[key], baseline["jct_s_mean"]
    energy, time = of(run, key)
    curve = frontier(of(point, key) for point in sweep)
    best = least_energy(curve, allowed_s)
    saved, most = 1 - energy / base, None if best is None else 1 - best / base
    # Where the frontier allows less than a tenth of a per cent, a share of it is chance.
    share = f"{100 * saved / most:.0f} %" if most is not None and most >= 0.001 else "-"
    cells = [*bound, percent(allowed_s / base_s - 1), percent(time / base_s - 1), percent(saved), percent(most), share]
    return "| " + " | ".join(cells) + " |"


def no_later(program, options, sweep, baselines, shares):
    runs = []
    for name in baselines:
        baseline = simulated(program, options, name)["policies"][0]
        for share in shares:
            done = simulated(program, [*options, "--no-later-than", name, "--by", share])
            # The bound is that of the baseline with nodes that stay awake.
            allowed_s = done["baseline"]["jct_s_mean"] * (1 + float(share.rstrip("%")) / 100)
            runs.append((baseline, done["policies"][0], allowed_s, (name, share)))
    for key, counted in [("energy_kwh", "nodes"), ("energy_kwh_above_idle", "GPUs above idle")]:
        print(f"| energy of {counted}, against | by | allowed | completion | saved | frontier | share |")
        print("|---|---|---|---|---|---|---|")
        for baseline, run, allowed_s, bound in runs:
            print(row(key, baseline, run, sweep, allowed_s, bound))
        print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = lambda text: text.split(",")
    parser.add_argument("--no-later-than", type=names, metavar="NAMES", help="baselines: backfill, fifo")
    parser.add_argument("--by", type=names, default=["0%"], metavar="SHARES", help="how much later than they")
    parser.add_argument("--prices", type=int, default=24, help="how many prices the frontier has beside 0")
    parser.add_argument("program")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    sweep = []
    for price in prices(given.prices):
        sweep.append(simulated(given.program, [*given.options, "--price", repr(price)])["policies"][0])
        energy, time = of(sweep[-1])
        print(f"price {price:.3g}: {energy:.1f} kWh, {time:.1f} s", file=sys.stderr)
    if given.no_later_than:
        no_later(given.program, given.options, sweep, given.no_later_than, given.by)
    else:
        slowdown(given.program, given.options, sweep)


main()
