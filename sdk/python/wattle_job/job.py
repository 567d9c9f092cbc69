"""One attempt of a job: its steps, its checkpoint requests, its size."""

import atexit
import logging
import os
import sys
import time
import weakref

from . import checkpoint, progress
from .signals import DEFAULT, CheckpointRequest
from .size import Size

LOG = logging.getLogger("wattle_job")

REPORT_EVERY_S = 0.5
"""Least time between two reports, seconds."""

EPOCH_EVERY_S = 0.05
"""The same if an epoch has ended in between: the profiler closes a window there."""

AGREE_EVERY_S = 1.0
"""Time between two agreements of several processes about a checkpoint, seconds."""

AGREE_STEPS_MAX = 1000

RETRY_S = 10.0
"""Time after a failed checkpoint until `step` requests it again, seconds."""


class Job:
    """One attempt of a job.

    steps_total, steps_per_epoch    steps of the whole job and of an epoch, if they are known
    global_batch                    samples of one step over all GPUs
    first_step                      completed steps of the checkpoint from which this attempt resumes
    exit_code                       exit code after a checkpoint: 0, or the one that the job's Slurm comment
                                    declares (`exit=85`)
    signals                         names of the signals that request a checkpoint
    agree                           for several processes: a function of a list of numbers that returns the
                                    largest value of each over all processes. All processes then get the
                                    request after the same step. `wattle_job.pytorch` has one.
    report_every_s                  least time between two reports, seconds

    Outside of Wattle (without WATTLE_JOB) it reports nothing and sets no signal handler. No method raises
    because of a missing or slow profiler.
    """

    def __init__(self, steps_total=None, steps_per_epoch=None, global_batch=None, first_step=0,
                 exit_code=0, signals=DEFAULT, agree=None, report_every_s=REPORT_EVERY_S):
        environment = os.environ.get
        self.id = environment("WATTLE_JOB") or None
        self.attempt = _attempt(environment("WATTLE_ATTEMPT"))
        self.size = Size.of()
        self.checkpoint_dir = checkpoint.checkpoint_dir()
        self.steps_total = steps_total
        self.steps_per_epoch = steps_per_epoch
        self.global_batch = global_batch
        self.exit_code = exit_code
        self.agree = agree
        self.completed = first_step
        self.epoch = None
        self.reports_sent = 0
        self.reports_lost = 0
        self._every_s = report_every_s
        self._socket = environment("WATTLE_PROGRESS") if self.size.rank == 0 and self.id else None
        self._due = self._epoch_due = 0.0
        self._reported = None
        self._warned = False
        self._request = CheckpointRequest()
        self._agreed = False
        self._retry_at = 0.0
        self._countdown = self._interval = 1
        self._agreed_at = (time.monotonic(), first_step)
        self._pid = os.getpid()
        if self._socket is not None and not progress.is_job_id(self.id):
            LOG.warning("WATTLE_JOB=%r is no job id; steps are not reported", self.id)
            self._socket = None
        self._signals = signals
        if self.id is not None:
            self.listen()
            atexit.register(_report_at_exit, weakref.ref(self))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def listen(self):
        """Sets the signal handlers; whether they are set. Only needed if the Job was made in another thread
        than the main one."""
        return self.id is not None and self._request.listen(self._signals)

    def step(self, step=None, epoch=None):
        """Reports that `step` steps are completed since the job's beginning, over all attempts; without
        `step`, one more than before. `epoch` is the number of completed epochs.

        Returns whether a checkpoint is requested: then write it and call `exit`. Call it after each step, in
        every process.
        """
        if step is None:
            self.completed += 1
        elif step.__class__ is int:
            self.completed = step
        else:
            self.completed = self._whole(step)
        if self._socket is not None:
            now = time.monotonic()
            try:
                if epoch is not None and epoch != self.epoch:
                    self.epoch = epoch
                    self._due = min(self._due, self._epoch_due)
            except Exception as error:  # a comparison of the framework's own types
                self._warn("epoch=%r: %s", epoch, error)
            if now >= self._due:
                self._report(now)
        if self.agree is None:
            return self._request.requested and time.monotonic() >= self._retry_at
        return self._agree()

    def write(self, name, function):
        """Calls `function(path)` to write the file `name` in the folder of checkpoints; whether it is complete.

        An error, such as a full disk, is logged and not raised: the file stays as it was, and `step` requests
        the checkpoint again ten seconds later. With several processes each must get the same result;
        `wattle_job.pytorch` has a method for that.
        """
        try:
            with self.writing(name) as path:
                function(path)
            return True
        except Exception as error:
            self.not_written(error)
            return False

    def not_written(self, error):
        """Records a failed checkpoint: training continues, and the request is repeated."""
        LOG.warning("no checkpoint is written, training continues: %s", error)
        self._retry_at = time.monotonic() + RETRY_S
        self._agreed = False
        # Counted in steps where several processes agree, so all request it again after the same step.
        self._countdown = int(self._interval * RETRY_S / AGREE_EVERY_S)

    @property
    def checkpoint_requested(self):
        """Whether a checkpoint is requested; with `agree`, as of the last agreement."""
        return self._request.requested if self.agree is None else self._agreed

    def request_checkpoint(self):
        """Requests a checkpoint of this process, like the signal: for tests and time limits."""
        self._request.requested = True

    def path(self, name):
        """The path of a file in the folder of checkpoints."""
        return os.path.join(self.checkpoint_dir, name)

    def writing(self, name):
        """As `wattle_job.writing`, for a file in the folder of checkpoints."""
        return checkpoint.writing(self.path(name))

    def report(self):
        """Sends a report now, whatever the time since the last one; whether it was accepted."""
        return self._socket is not None and self._report(time.monotonic())

    def exit(self):
        """Reports the last step and ends the process with `exit_code` (SystemExit)."""
        self.close()
        sys.exit(self.exit_code)

    def exit_if_requested(self):
        """The same if a checkpoint is requested; for frameworks whose loop has returned."""
        if self.checkpoint_requested:
            self.exit()

    def close(self):
        """Reports the last step and sets the previous signal handlers again."""
        if self._socket is not None and self._reported != (self.completed, self.epoch):
            self.report()
        self._request.close()

    def _report(self, now):
        self._due = now + self._every_s
        self._epoch_due = now + min(EPOCH_EVERY_S, self._every_s)
        try:
            data = progress.line(self.id, self.completed, self.epoch, self.steps_per_epoch,
                                 self.steps_total, self.global_batch)
        except ValueError as error:
            self._warn("a step is not reported: %s", error)
            self.reports_lost += 1
            return False
        if progress.send(self._socket, data):
            self._reported = (self.completed, self.epoch)
            self.reports_sent += 1
            return True
        self.reports_lost += 1
        return False

    def _agree(self):
        if self._agreed:
            return True
        self._countdown -= 1
        if self._countdown > 0:
            return False
        now, (then, completed) = time.monotonic(), self._agreed_at
        step_s = (now - then) / max(self.completed - completed, 1)
        self._agreed_at = (now, self.completed)
        try:
            requested, step_s = self.agree([float(self._request.requested), step_s])
            # Equal in all processes, so all agree after the same step again.
            self._interval = max(1, min(AGREE_STEPS_MAX, int(AGREE_EVERY_S / max(step_s, 1e-6))))
            self._countdown = self._interval
            self._agreed = requested > 0
        except Exception as error:  # a failed collective must not end the training
            LOG.warning("no agreement about checkpoints, none is written on request: %s", error)
            self.agree = _never
        return self._agreed

    def _whole(self, step):
        try:
            return int(step)
        except (TypeError, ValueError, OverflowError, ArithmeticError):
            self._warn("step=%r is not a whole number; it is counted as one more step", step)
            return self.completed + 1

    def _warn(self, text, *values):
        if not self._warned:
            self._warned = True
            LOG.warning(text, *values)


def _never(values):
    """The agreement after a failed one."""
    return [0.0, AGREE_EVERY_S]


def _attempt(text):
    """The number of this start of the job, from 1."""
    text = text or ""
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def _report_at_exit(reference):
    job = reference()
    # A forked process does not report for its parent.
    if job is not None and job._pid == os.getpid():
        job.close()
