"""Programs for jobs: `python3 -m wattle_job run|relay|show`."""

import argparse
import os
import re
import signal
import subprocess
import sys
import time

from . import processes, progress
from .job import Job
from .signals import DEFAULT, named

RUN = """Runs a program and passes the checkpoint signal on.

Wattle and Slurm send the signal to the first process of a job only. This command sends it to every process
below that has a handler for it, now or later, and to no other: torchrun, shells and the workers of data
loaders continue. After a checkpoint the exit code 0 of the program becomes --exit-code."""

RELAY = """Reports the steps that are written to standard input: one number, or words such as
`step=120 epoch=2`, per line. For programs in other languages; reading never delays the writer."""

AGAIN_S = 0.2
"""Time between two searches for processes that catch the signal, seconds: a worker that starts gets it too."""


def run(command, exit_code, names):
    """Runs the command; returns its exit code."""
    pending = set()

    def note(number, frame):
        pending.add(number)

    numbers = [named(name) for name in names]
    for number in numbers:
        signal.signal(number, note)
    # Ctrl-C reaches the program too, which decides.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, interrupt))
    except OSError as error:
        print("error: cannot start {}: {}".format(command[0], error.strerror), file=sys.stderr)
        return 126 if isinstance(error, PermissionError) else 127
    reached = set()
    while True:
        try:
            code = child.wait(timeout=AGAIN_S)
            break
        except subprocess.TimeoutExpired:
            for number in list(pending):
                _pass_on(number, child.pid, reached)
    if code < 0:
        return 128 - code
    # A program that never received the request has completed.
    return exit_code if code == 0 and reached else code


def _pass_on(number, child, reached):
    for pid in processes.descendants(os.getpid()):
        if (pid, number) not in reached and processes.send_if_caught(pid, number):
            reached.add((pid, number))
    if number == signal.SIGTERM and not any(sent == number for _, sent in reached):
        # No process writes a checkpoint, so the request is to end.
        reached.add((child, number))
        os.kill(child, number)


def relay(lines, job):
    """Reports each line of `lines`."""
    for line in lines:
        words = line.split()
        values = dict(word.split("=", 1) for word in words if "=" in word)
        if len(words) == 1 and words[0].isdigit():
            values["step"] = words[0]
        if not re.fullmatch("[0-9]{1,16}", values.get("step", "")):
            continue
        for key in ("steps_total", "steps_per_epoch", "global_batch"):
            if values.get(key, "").isdigit():
                setattr(job, key, int(values[key]))
        epoch = values.get("epoch", "")
        job.step(int(values["step"]), int(epoch) if epoch.isdigit() else None)
    job.close()


def show(job):
    """Prints what this process was granted."""
    size = job.size
    path = os.environ.get("WATTLE_PROGRESS")
    print("job             {}".format(job.id or "none: WATTLE_JOB is not set, nothing is reported"))
    print("attempt         {}".format(job.attempt))
    print("GPUs            {} ({} here)".format(size.gpus, size.gpus_here))
    print("nodes           {} (this is {})".format(size.nodes, size.node_rank))
    print("processes       {} (this is {})".format(size.processes, size.rank))
    print("checkpoints     {}".format(job.checkpoint_dir))
    print("progress        {}".format(_socket_state(path)))


def _socket_state(path):
    if not path:
        return "no socket: WATTLE_PROGRESS is not set"
    return "{} ({})".format(path, "a profiler listens" if progress.is_open(path) else "no profiler listens")


def main(arguments=None):
    """The command line."""
    parser = argparse.ArgumentParser(prog="python3 -m wattle_job", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    raw = argparse.RawDescriptionHelpFormatter
    running = commands.add_parser("run", help="run a program and pass the checkpoint signal on",
                                  description=RUN, formatter_class=raw)
    running.add_argument("--exit-code", type=int, default=0, help="exit code after a checkpoint (0)")
    running.add_argument("--signal", action="append", type=_signal, metavar="NAME",
                         help="signal that requests a checkpoint; repeatable ({})".format(", ".join(DEFAULT)))
    running.add_argument("program", nargs=argparse.REMAINDER, help="program and arguments, after --")
    relaying = commands.add_parser("relay", help="report steps from standard input",
                                   description=RELAY, formatter_class=raw)
    for key in ("steps-total", "steps-per-epoch", "global-batch"):
        relaying.add_argument("--" + key, type=int)
    commands.add_parser("show", help="print what this process was granted")
    options = parser.parse_args(arguments)
    if options.command == "run":
        program = options.program[1:] if options.program[:1] == ["--"] else options.program
        if not program:
            running.error("no program: python3 -m wattle_job run -- torchrun train.py")
        if not 0 <= options.exit_code <= 255:
            running.error("--exit-code {}: expected 0 to 255".format(options.exit_code))
        return run(program, options.exit_code, options.signal or DEFAULT)
    if options.command == "relay":
        # It ends with its input, which the program closes when it ends.
        job = Job(options.steps_total, options.steps_per_epoch, options.global_batch, signals=())
        for name in DEFAULT:
            signal.signal(named(name), signal.SIG_IGN)
        relay(sys.stdin, job)
        return 0
    show(Job(signals=()))
    return 0


def _signal(name):
    if named(name) is None:
        raise argparse.ArgumentTypeError("no signal is named " + name)
    return name


if __name__ == "__main__":
    sys.exit(main())
