"""Processes below this one that catch a signal, from Linux's /proc."""

import os
import signal

# srun waits for signals and forwards them to its tasks on all nodes; it blocks them for that.
_FORWARDS = ("srun",)


def _fields(text):
    """The fields of /proc/PID/stat after the name, which may contain spaces and brackets."""
    return text[text.rindex(")") + 1:].split()


def descendants(ancestor):
    """The processes below `ancestor`, without it."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/{}/stat".format(name), encoding="utf-8", errors="replace") as file:
                    parent = int(_fields(file.read())[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    found, open_ = [], [ancestor]
    while open_:
        below = children.get(open_.pop(), [])
        found += below
        open_ += below
    return found


def catches(pid, number):
    """Whether the process has a handler for the signal. Without one most signals end it."""
    try:
        with open("/proc/{}/status".format(pid), encoding="utf-8", errors="replace") as file:
            status = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return False
    bit = 1 << (number - 1)
    mask = status.get("SigCgt", "0")
    if status.get("Name", "").strip() in _FORWARDS:
        mask = status.get("SigBlk", "0") if not int(mask, 16) & bit else mask
    return bool(int(mask, 16) & bit)


def send_if_caught(pid, number):
    """Sends the signal to a process that catches it; whether it was sent."""
    if not hasattr(os, "pidfd_open"):
        if not catches(pid, number):
            return False
        try:
            os.kill(pid, number)
        except OSError:
            return False
        return True
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The handle is older than the look at /proc, so both are of one process.
        if not catches(pid, number):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
