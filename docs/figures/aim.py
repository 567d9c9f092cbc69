#!/usr/bin/env python3
"""Prints the table of docs/measurements/aim-and-budgets.md: the energy aim against FIFO and the lower bound.

The input is the JSON of comparisons that contain fifo and wattle, for example:

    wattle-lab compare powerflow-16 --data DIR --load 0.46,0.76 --world alone --policy fifo,wattle \
        --orders 1 --few-settings --json | docs/figures/aim.py

Energy and completion times of one case are compared with FIFO at the highest clock. The energy aim is
the least energy on the frontier of wattle's energy prices within --max-slowdown of its price 0. The last
two columns are the saving of that frontier and the most that the lower bound permits at FIFO's mean
completion time. Only Python's standard library is needed.
"""

import argparse
import json
import sys


def frontier(points):
    """The points that no other point beats in both energy and time, by energy."""
    kept, best = [], float("inf")
    for energy, time in sorted(points):
        if time < best:
            kept.append((energy, time))
            best = time
    return kept


def least_energy(curve, time):
    """The least energy at this completion time on a decreasing curve; None above it everywhere."""
    before = None
    for energy, at in curve:
        if at <= time:
            if before is None:
                return energy
            share = (before[1] - time) / (before[1] - at)
            return before[0] + share * (energy - before[0])
        before = (energy, at)
    return None


def percent(value):
    return "-" if value is None else f"{100 * value:+.1f} %"


def row(case, slowdown):
    def points(family):
        return [
            (run["knob"], run["counted_kwh"], run["jct_s_mean"])
            for run in case["policies"]
            if run["family"] == family and run["order"] == 0
        ]

    _, fifo_kwh, fifo_s = max(points("fifo"))
    wattle = points("wattle")
    _, _, fastest_s = min(wattle)
    curve = frontier((kwh, time) for _, kwh, time in wattle)
    within_s = fastest_s * (1 + slowdown)
    aim_kwh = least_energy(curve, within_s)
    # At the end of the curve the run of least energy is faster than the bound on the slowdown.
    aim_s = min(within_s, curve[0][1])
    own = least_energy(curve, fifo_s)
    bound = least_energy([tuple(point) for point in case["bounds"]["frontier"]], fifo_s)
    change = lambda kwh: None if kwh is None else kwh / fifo_kwh - 1
    cells = [
        f"{case['scenario']}, {case['accounting']}",
        f"{case['load']:.2f}",
        percent(change(aim_kwh)),
        percent(aim_s / fifo_s - 1),
        percent(change(own)),
        percent(change(bound)),
    ]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--max-slowdown", type=float, default=0.05)
    slowdown = parser.parse_args().max_slowdown
    print("| scenario, energy | load | energy aim: energy | completion | energy at FIFO's completion | lower bound there |")
    print("|---|---|---|---|---|---|")
    for case in json.load(sys.stdin):
        print(row(case, slowdown))


if __name__ == "__main__":
    main()
