"""The folder of a job's checkpoints, and writing a file that is complete or absent."""

import contextlib
import os
import shutil

FALLBACK = "checkpoints"
"""The folder outside of Wattle, below the working folder."""


def checkpoint_dir(fallback=FALLBACK):
    """The folder of this job's checkpoints, the same for every attempt; `fallback` outside of Wattle."""
    return os.environ.get("WATTLE_CHECKPOINT_DIR") or fallback


@contextlib.contextmanager
def writing(path):
    """Gives a path to write to; on success the written file replaces `path` in one step.

    A process that is killed meanwhile leaves the previous file as it was. The folder is created if it is
    missing.
    """
    path = os.path.abspath(path)
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    part = "{}.{}.part".format(path, os.getpid())
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    with contextlib.suppress(OSError):
        # The new name survives a power failure.
        entry = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(entry)
        finally:
            os.close(entry)


def remove(path):
    """Removes a file or folder, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
