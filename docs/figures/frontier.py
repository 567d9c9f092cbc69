#!/usr/bin/env python3
"""Draws docs/figures/frontier.svg: mean completion time over energy for each policy.

The input is the JSON of one comparison, here of the first job order with coarse knob settings:

    wattle-lab compare powerflow-16 --data DIR --oracle --load 0.76 --world alone \
        --accounting above-idle --orders 1 --few-settings --json | docs/figures/frontier.py > docs/figures/frontier.svg

Each policy is drawn by its Pareto frontier over clocks, prices or floors. Energy is that of the GPUs
above their idle power, MWh; completion time is from submission to end, hours. The grey line is the
lower bound on completion time without sharing of GPUs. Only Python's standard library is needed.
"""

import json
import sys

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 46, 52
ENERGY_MAX_MWH, HOURS_MAX = 10.0, 50.0
POLICIES = [  # name, colour, label
    ("fifo", "#8c8c8c", "FIFO, fixed clock"),
    ("tiresias", "#c27ba0", "Tiresias"),
    ("srtf", "#e69138", "SRTF (oracle)"),
    ("powerflow", "#3d85c6", "PowerFlow"),
    ("wattle", "#2e7d32", "wattle"),
]


def frontier(points):
    """The points that no other point beats in both energy and time, by energy."""
    kept, best = [], float("inf")
    for energy, hours in sorted(points):
        if hours < best:
            kept.append((energy, hours))
            best = hours
    return kept


def main():
    case = json.load(sys.stdin)[0]
    low = 4.0

    def x(mwh):
        return LEFT + (mwh - low) / (ENERGY_MAX_MWH - low) * (WIDTH - LEFT - RIGHT)

    def y(hours):
        return HEIGHT - BOTTOM - hours / HOURS_MAX * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img" '
        'aria-label="Mean completion time over energy for five policies and the lower bound">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600" fill="#222">'
        f'{case["jobs"]} jobs on 16 nodes of 8 A100, load {case["load"]:.2f}, no GPU sharing</text>',
    ]
    for hours in range(0, int(HOURS_MAX) + 1, 10):
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(hours):.1f}" y2="{y(hours):.1f}" stroke="#e4e4e4"/>'
            f'<text x="{LEFT - 8}" y="{y(hours) + 4:.1f}" text-anchor="end" fill="#555">{hours}</text>'
        )
    for mwh in range(int(low), int(ENERGY_MAX_MWH) + 1):
        out.append(f'<text x="{x(mwh):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" fill="#555">{mwh}</text>')
    out.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle" fill="#222">'
        "energy above idle, MWh</text>"
        f'<text x="18" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" fill="#222" '
        f'transform="rotate(-90 18 {(TOP + HEIGHT - BOTTOM) / 2})">mean completion time, h</text>'
    )
    labels = []

    def draw(points, colour, label, dash=""):
        shown = [(e, h) for e, h in points if low <= e <= ENERGY_MAX_MWH and h <= HOURS_MAX]
        path = " ".join(f"{x(e):.1f},{y(h):.1f}" for e, h in shown)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"{dash}/>')
        if not dash:
            out.extend(f'<circle cx="{x(e):.1f}" cy="{y(h):.1f}" r="3" fill="{colour}"/>' for e, h in shown)
        labels.append([y(shown[-1][1]), x(shown[-1][0]), colour, label])

    for name, colour, label in POLICIES:
        runs = [run for run in case["policies"] if run["family"] == name and run["finished"] == run["jobs"]]
        draw(frontier((run["counted_kwh"] / 1e3, run["jct_s_mean"] / 3600) for run in runs), colour, label)
    bound = [(kwh / 1e3, seconds / 3600) for kwh, seconds in case["bounds"]["frontier"]]
    draw(frontier(bound), "#444444", "lower bound", ' stroke-dasharray="5 4"')
    # Labels at the right end of each line, pushed apart where they overlap.
    labels.sort()
    previous = 0.0
    for label_y, end_x, colour, label in labels:
        label_y = max(label_y + 4, previous + 16)
        previous = label_y
        out.append(f'<text x="{max(end_x + 10, WIDTH - RIGHT + 8):.1f}" y="{label_y:.1f}" fill="{colour}" font-weight="600">{label}</text>')
    out.append("</svg>")
    print("\n".join(out))


if __name__ == "__main__":
    main()
