#!/usr/bin/env python3
"""Prints how far the energy aim's search is from the frontier of a fine sweep of energy prices.

    docs/figures/aim_search.py wattle --jobs 1000 --load 0.8

The first argument is the program, the others are options of `wattle simulate` without policy and aim.
The frontier is that of `wattle` at 0 and at 24 prices from 1e-5 to 0.3 s/J, linear between its points.
The energy of the aim's run is compared with the frontier's at the same mean completion time. Only
Python's standard library is needed.
"""

import json
import subprocess
import sys

from aim import frontier, least_energy

PRICES = [0.0] + [1e-5 * (0.3 / 1e-5) ** (i / 23) for i in range(24)]


def simulated(program, options):
    command = [program, "simulate", *options, "--policy", "wattle", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    run = json.loads(done.stdout)["policies"][0]
    return run["energy_kwh"], run["jct_s_mean"]


def main():
    program, options = sys.argv[1], sys.argv[2:]
    sweep = [simulated(program, [*options, "--price", repr(price)]) for price in PRICES]
    energy, time = simulated(program, [*options, "--max-slowdown", "5%"])
    free_energy, free_time = sweep[0]
    best = least_energy(frontier(sweep), time)
    print(f"time aim          {free_energy:12.1f} kWh  {free_time:10.1f} s")
    print(f"energy aim        {energy:12.1f} kWh  {time:10.1f} s  {100 * (time / free_time - 1):+.2f} %")
    print(f"frontier there    {best:12.1f} kWh")
    print(f"the aim is above it by {100 * (energy / best - 1):+.2f} %")


main()
