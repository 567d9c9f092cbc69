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
        replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def replace(part, path):
    """Gives the written file or folder `part` the name `path`, so that it is complete after a power failure.

    A file is replaced in one step. A folder that is there is removed after it was renamed to `path.old`.
    """
    if os.path.isdir(part):
        for folder, _, names in os.walk(part):
            for name in names:
                _sync(os.path.join(folder, name))
            _sync(folder)
        old = path + ".old"
        if os.path.exists(path):
            remove(old)
            os.replace(path, old)
        os.replace(part, path)
        remove(old)
    else:
        _sync(part)
        os.replace(part, path)
    with contextlib.suppress(OSError):
        _sync(os.path.dirname(os.path.abspath(path)))


def _sync(path):
    entry = os.open(path, os.O_RDONLY)
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
