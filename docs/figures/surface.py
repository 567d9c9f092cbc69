#!/usr/bin/env python3
"""Prints the table of docs/concepts.md: predicted and measured speed and power of a job over power caps.

    docs/figures/surface.py [FOLDER_WITH_BINARIES]

Runs `wattle up` with one simulated V100 seven times, 60 times faster than real time: without a cap of the
site, and with each cap in CAPS_W. Each runs the same job alone. The prediction is the surface of the run
without a cap, from windows at the default cap only; the measured values are the windows of the other runs.
Needs nats-server; takes about two minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CAPS_W = [100, 125, 150, 175, 200, 225]
WORKLOAD = "eaco-resnet50"
# Measured time of a run, and the longest wait for it in wall time, seconds.
SPAN_S, DEADLINE_S = 480, 120


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


def interval(point, digits):
    """The mean with its 90 % interval."""
    mean, low, high = (f"{point[key]:.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def main():
    programs = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target" / "debug").resolve()
    first, default = measured(programs, None)
    runs = [(cap, measured(programs, cap)[1]) for cap in CAPS_W] + [(250, default)]
    points = {
        (point["cap_mw"] or 250_000) / 1000: point
        for point in first["surface"]["points"]
        if point["gpus"] == 1 and not point["neighbours"] and point["clock_mhz_max"] is None and point["steps_per_s"]
    }
    print(f"After {first['surface']['windows']} windows at 250 W of {WORKLOAD} on one simulated V100:\n")
    print("| power cap | predicted speed, steps/s | measured | predicted power, W | measured |")
    print("|---|---|---|---|---|")
    for cap, run in runs:
        point = points[cap]
        speed, power = interval(point["steps_per_s"], 2), interval(point["gpu_power_w"], 0)
        print(f"| {cap} W | {speed} | {run['steps_per_s']:.2f} | {power} | {run['gpu_power_w']:.0f} |")


if __name__ == "__main__":
    main()
