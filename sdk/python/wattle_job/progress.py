"""Progress lines: one datagram of `key=value` words to the Unix socket that WATTLE_PROGRESS names.

The profiler's parser is common/src/progress.rs. Sending neither blocks nor raises.
"""

import re
import socket

LINE_LEN_MAX = 512
"""Longest line that the profiler accepts, bytes."""

STEP_MAX = 1 << 53
"""Largest number of steps that the profiler accepts."""

U32_MAX = (1 << 32) - 1

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

# Key and largest value, in the order of a line.
_KEYS = (
    ("step", STEP_MAX),
    ("epoch", U32_MAX),
    ("steps_per_epoch", STEP_MAX),
    ("steps_total", STEP_MAX),
    ("global_batch", U32_MAX),
)


def is_job_id(text):
    """Whether `text` is a valid job id."""
    return bool(_ID.match(text or ""))


def line(job, step, epoch=None, steps_per_epoch=None, steps_total=None, global_batch=None):
    """The line of these values, bytes. Raises ValueError where the profiler would refuse it."""
    if not is_job_id(job):
        raise ValueError("job={!r}: an id has 1 to 64 letters, digits, - and _".format(job))
    words = ["job=" + job]
    values = (step, epoch, steps_per_epoch, steps_total, global_batch)
    for (key, largest), value in zip(_KEYS, values):
        if value is None and key != "step":
            continue
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError, ArithmeticError):
            raise ValueError("{}={!r}: not a whole number".format(key, value)) from None
        if not 0 <= number <= largest:
            raise ValueError("{}={}: expected 0 to {}".format(key, number, largest))
        words.append("{}={}".format(key, number))
    return " ".join(words).encode("ascii")


def send(path, data):
    """Sends one datagram to the socket `path` without waiting; whether it was accepted.

    A missing, dead or overloaded receiver is no error. The socket exists only for the call, so nothing is
    inherited by child processes and no number of a closed file is used.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(data, path)
        return True
    except (OSError, ValueError, AttributeError, TypeError):
        # ValueError: a zero byte in the path. AttributeError: a system without Unix sockets.
        return False


def is_open(path):
    """Whether a process listens at the socket `path`. Sends nothing."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.connect(path)
        return True
    except (OSError, ValueError, AttributeError, TypeError):
        return False
