"""A profiler's socket, a job's environment, and conditions with a deadline."""

import contextlib
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)

DEADLINE_S = 60
WORD = re.compile(r"(job=[A-Za-z0-9_-]{1,64}|(step|epoch|steps_per_epoch|steps_total|global_batch)=[0-9]{1,20})\Z")
LIMITS = {"step": 1 << 53, "steps_per_epoch": 1 << 53, "steps_total": 1 << 53,
          "epoch": (1 << 32) - 1, "global_batch": (1 << 32) - 1}


def parsed(data):
    """The values of a progress line; AssertionError if it breaks the contract of common/src/progress.rs."""
    assert len(data) <= 512, "a line of {} bytes".format(len(data))
    text = data.decode("ascii")
    words = text.split(" ")
    assert all(WORD.match(word) for word in words), text
    values = dict(word.split("=") for word in words)
    assert len(values) == len(words) and "job" in values and "step" in values, text
    for key, largest in LIMITS.items():
        if key in values:
            values[key] = int(values[key])
            assert values[key] <= largest, text
    return values


class Profiler:
    """A Unix datagram listener; every received line is checked."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)

    def lines(self):
        """All lines that have arrived."""
        found = []
        while select.select([self.socket], [], [], 0)[0]:
            found.append(parsed(self.socket.recv(1024)))
        return found

    def next(self):
        """The next line, with a deadline."""
        assert select.select([self.socket], [], [], DEADLINE_S)[0], "no line"
        return parsed(self.socket.recv(1024))

    def close(self):
        self.socket.close()


def until(what, condition):
    """Waits for a true value of `condition`."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        select.select([], [], [], 0.005)
    raise AssertionError("not within {} s: {}".format(DEADLINE_S, what))


@contextlib.contextmanager
def environment(**values):
    """os.environ with these variables, and without those that a job or another starter has set."""
    before = dict(os.environ)
    prefixes = ("WATTLE_", "PET_", "SLURM_", "OMPI_", "PMI_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
             "CUDA_VISIBLE_DEVICES")
    for name in before:
        if name.startswith(prefixes) or name in names:
            del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class InJob(unittest.TestCase):
    """A test in the environment of a job of one GPU, with a profiler."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.socket_path = os.path.join(self.folder.name, "p.sock")
        self.checkpoints = os.path.join(self.folder.name, "checkpoints")
        self.profiler = Profiler(self.socket_path)
        self.addCleanup(self.profiler.close)
        job = environment(WATTLE_JOB="train-7", WATTLE_ATTEMPT="2", WATTLE_PROGRESS=self.socket_path,
                          WATTLE_CHECKPOINT_DIR=self.checkpoints, CUDA_VISIBLE_DEVICES="0")
        job.__enter__()
        self.addCleanup(job.__exit__, None, None, None)

    def start(self, *command, variables=None, **options):
        """Starts a program in the folder of the test; it ends with the test at the latest."""
        values = dict(os.environ, PYTHONPATH=FOLDER, **(variables or {}))
        process = subprocess.Popen(command, env=values, cwd=self.folder.name, text=True,
                                   stdout=subprocess.PIPE, **options)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()
