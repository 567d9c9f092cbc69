#!/usr/bin/env python3
"""Draws docs/figures/surface.svg: predicted and measured speed and power of a job over power caps.

    docs/figures/surface.py [FOLDER_WITH_BINARIES] > docs/figures/surface.svg

Runs `wattle up` with one simulated V100 seven times, 60 times faster than real time: without a cap of the
site, and with each cap in CAPS_W. Each runs the same job alone. The prediction is the surface of the run
without a cap, from windows at the default cap only; the measured values are the windows of the other runs.
Needs nats-server; takes about two minutes.
"""

import html
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runs import STYLE, text

ROOT = Path(__file__).resolve().parents[2]
CAPS_W = [100, 125, 150, 175, 200, 225]
WORKLOAD = "eaco-resnet50"
# Measured time of a run, and the longest wait for it in wall time, seconds.
SPAN_S, DEADLINE_S = 480, 120
WIDTH, HEIGHT, TOP, BOTTOM = 760, 322, 66, 250


def measured(programs, cap):
    """The explanation of the job on a system of its own, once it was measured for SPAN_S at one setting."""
    with tempfile.TemporaryDirectory() as state:
        env = {**os.environ, "XDG_STATE_HOME": state, "PATH": f"{programs}:{os.environ['PATH']}"}
        site = ["--gpu-cap-w", str(cap)] if cap else []
        command = ["wattle", "up", "--simulated", "1x1:v100", "--rate", "60", "--policy", "fifo", *site]
        up = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            up.stdout.readline()
            training = ["--", "wattle-simjob", "--workload", WORKLOAD, "--steps", "100000"]
            subprocess.run(["wattle", "submit", "--job", "one", "--workload", WORKLOAD, *training], env=env, check=True, stdout=subprocess.DEVNULL)
            end = time.monotonic() + DEADLINE_S
            while time.monotonic() < end:
                time.sleep(1)
                shown = subprocess.run(["wattle", "explain", "one", "--json"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                explained = json.loads(shown.stdout) if shown.returncode == 0 else {"measured": []}
                longest = max(explained["measured"], key=lambda setting: setting["span_s"], default=None)
                if longest and longest["span_s"] > SPAN_S and longest["steps_per_s"]:
                    return explained, longest
            sys.exit(f"no measurement at {cap or 'the default'} W within {DEADLINE_S} s")
        finally:
            up.terminate()
            up.wait()


def panel(left, title, most, predicted, readings, unit):
    """One quantity over caps: the band of the 90 % interval, the mean, and the measured values."""
    right = left + 290
    x = lambda watts: left + (watts - 90) / 170 * (right - left)
    y = lambda value: BOTTOM - value / most * (BOTTOM - TOP)
    out = [text(left, TOP - 12, title, "ink", "start", 13, "600")]
    for step in range(6):
        value = most * step / 5
        out.append(f'<line x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>')
        out.append(text(left - 6, y(value) + 4, f"{value:g}", anchor="end"))
    for watts in (100, 150, 200, 250):
        out.append(text(x(watts), BOTTOM + 18, str(watts)))
    out.append(text((left + right) / 2, BOTTOM + 38, "power cap, W", "ink"))
    line = lambda key: [f"{x(cap):.1f},{y(estimate[key]):.1f}" for cap, estimate in predicted]
    out.append(f'<polygon points="{" ".join(line("high") + line("low")[::-1])}" class="power" stroke="none"/>')
    out.append(f'<polyline points="{" ".join(line("mean"))}" fill="none" class="limit"/>')
    for cap, value in readings:
        out.append(f'<circle cx="{x(cap):.1f}" cy="{y(value):.1f}" r="4" class="ink"><title>measured at {cap} W: {value:.4g} {html.escape(unit)}</title></circle>')
    return out


def main():
    programs = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target" / "debug").resolve()
    first, default = measured(programs, None)
    runs = [(cap, measured(programs, cap)[1]) for cap in CAPS_W] + [(250, default)]
    points = {
        (point["cap_mw"] or 250_000) / 1000: point
        for point in first["surface"]["points"]
        if point["gpus"] == 1 and not point["neighbours"] and point["clock_mhz_max"] is None and point["steps_per_s"]
    }
    curve = lambda key: sorted((cap, point[key]) for cap, point in points.items())
    windows = first["surface"]["windows"]
    title = f"Predicted after {windows} windows at 250 W, and measured at each cap"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" role="img" aria-label="{html.escape(title)}">',
        STYLE,
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        text(40, 24, title, "ink", "start", 15, "600"),
        *panel(60, "speed, steps/s", 1.5, curve("steps_per_s"), [(cap, run["steps_per_s"]) for cap, run in runs], "steps/s"),
        *panel(440, "power of the GPU, W", 250, curve("gpu_power_w"), [(cap, run["gpu_power_w"]) for cap, run in runs], "W"),
        text(WIDTH - 16, HEIGHT - 10, f"{WORKLOAD} on one simulated V100. Line: predicted mean; band: 90 % interval; dots: measured", "soft", "end", 12),
        "</svg>",
    ]
    print("\n".join(out))


if __name__ == "__main__":
    main()
