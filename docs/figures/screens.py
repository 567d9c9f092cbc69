#!/usr/bin/env python3
"""Captures the screens of docs/operating.md from a running system.

Usage: docs/figures/screens.py [FOLDER_WITH_BINARIES]

Runs `wattle up` with simulated GPUs and the trace of the demo, executes each command of the page in a
terminal of 80 columns, and replaces the text of its block. Needs tmux and nats-server.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operating.md"
BLOCK = re.compile(r"(```console\n\$ (wattle [^\n]*)\n)(.*?)(```)", re.S)
# The day of the capture, as the page states it.
DAY = re.compile(r"(screens\.py\) on )\d{4}-\d\d-\d\d")
TRACE = "deploy/demo/trace.csv"
# Wall seconds until the demo has running, queued and ended jobs.
WARM_UP_S = 75
# A job on both nodes, for `wattle logs`.
PAIR = ["--job", "pair", "--gpus", "8", "--workload", "eaco-resnet50", "--checkpoint-signal", "USR1"]


def wait(what, condition, seconds=60):
    """Waits until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"waited {seconds} s for: {what}")
        time.sleep(0.2)


def on_screen(server, wattle, command, env):
    """The text of a terminal of 80x24 in which a full-screen command runs."""
    name = "wattle-screen"
    variables = [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
    tmux = ["tmux", "-L", server]
    command = command.replace("wattle", str(wattle), 1)
    subprocess.run(
        [*tmux, "new", "-d", "-x", "80", "-y", "24", "-s", name, *variables, command], check=True
    )
    time.sleep(3)
    shown = subprocess.run(
        [*tmux, "capture-pane", "-p", "-t", name], check=True, capture_output=True, text=True
    ).stdout
    subprocess.run([*tmux, "send-keys", "-t", name, "q"], check=True)
    ended = lambda: subprocess.run([*tmux, "has", "-t", name], capture_output=True).returncode != 0
    wait(f"{command} ends after its key", ended)
    return shown.rstrip() + "\n"


def main():
    binaries = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target" / "debug").resolve()
    wattle = binaries / "wattle"
    for program in ("tmux", "nats-server"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: install it")
    with tempfile.TemporaryDirectory() as state:
        env = {"XDG_STATE_HOME": state, "PATH": f"{binaries}:{os.environ['PATH']}", "USER": "ada"}
        all_env = {**os.environ, **env}
        log = open(Path(state) / "up.log", "w+")
        up = subprocess.Popen(
            [wattle, "up", "--simulated", "2x4:v100", "--rate", "60", "--trace", TRACE],
            cwd=ROOT, env=all_env, stdout=log, stderr=log,
        )
        try:
            text = lambda: Path(log.name).read_text()
            wait("`wattle up` is ready", lambda: " is up: " in text())
            time.sleep(WARM_UP_S)
            simjob = str(binaries / "wattle-simjob")
            training = [simjob, "--workload", "eaco-resnet50", "--steps", "3000"]
            subprocess.run(
                [wattle, "submit", *PAIR, "--", *training], env=all_env, check=True,
                capture_output=True,
            )
            page = PAGE.read_text()

            def text_of(command):
                done = subprocess.run(
                    ["bash", "-c", command], env=all_env, capture_output=True, text=True
                )
                return done.stdout + done.stderr

            def capture(block):
                command = block.group(2).split("  #")[0].rstrip()
                if " top" in command:
                    shown = on_screen(f"wattle-{up.pid}", wattle, command, env)
                else:
                    if "logs" in command:
                        # The last command of the page: until then the pair may wait.
                        subprocess.run(
                            [wattle, "logs", "-f", "pair"], env=all_env, check=True,
                            capture_output=True,
                        )
                    shown = text_of(command)
                    # A usual screen: several jobs run, none starts or stops.
                    while command == "wattle jobs" and (
                        "starting" in shown or "stopping" in shown or shown.count(" running ") < 3
                    ):
                        time.sleep(0.5)
                        shown = text_of(command)
                return block.group(1) + shown.replace(state, "/tmp").rstrip() + "\n" + block.group(4)

            page = DAY.sub(lambda day: day.group(1) + time.strftime("%Y-%m-%d"), page)
            PAGE.write_text(BLOCK.sub(capture, page))
        finally:
            up.terminate()
            up.wait()


if __name__ == "__main__":
    main()
