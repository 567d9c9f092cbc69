"""Signals that request a checkpoint: each sets a flag, which is read between two steps."""

import logging
import os
import signal
import weakref

LOG = logging.getLogger("wattle_job")

DEFAULT = ("USR1", "TERM")
"""The signal of `--checkpoint-signal USR1`, and the one that announces the end in any case."""


def named(name):
    """The signal of a name such as USR1 or SIGUSR1, or None."""
    if isinstance(name, int):
        return signal.Signals(name)
    name = name.upper()
    return getattr(signal, name if name.startswith("SIG") else "SIG" + name, None)


class CheckpointRequest:
    """Whether a checkpoint was requested.

    A forked process, such as a worker of a data loader, has the previous handler of TERM again, so its
    parent can end it.
    """

    def __init__(self):
        self.requested = False
        self._previous = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_Forked(self))
        # One object, so that it can be compared.
        self._handler = self._handle

    def _handle(self, number, frame):
        self.requested = True
        previous = self._previous.get(number)
        # Ctrl-C's default handler raises KeyboardInterrupt, which would end the program.
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)

    def listen(self, names=DEFAULT):
        """Sets the handlers; a handler of the program that was set before is still called.

        Returns whether all are set. Python permits handlers in the main thread only: elsewhere none is set,
        and a warning is logged.
        """
        for name in names:
            number = named(name)
            if number is None:
                LOG.warning("no signal is named %r; checkpoints on it are not written", name)
                return False
            try:
                if signal.getsignal(number) is self._handler:
                    continue
                previous = signal.signal(number, self._handler)
                if not callable(previous):
                    # Calls of C libraries continue after the signal instead of failing with EINTR.
                    signal.siginterrupt(number, False)
            except (ValueError, OSError, RuntimeError) as error:
                LOG.warning(
                    "no checkpoint on %s: %s; call listen() of the Job in the main thread",
                    number.name, error,
                )
                return False
            self._previous[number] = previous
        return True

    def close(self, numbers=None):
        """Sets the previous handlers again, where no other handler was set meanwhile; of these signals only,
        if any are given."""
        for number, previous in list(self._previous.items()):
            if numbers is not None and number not in numbers:
                continue
            try:
                if signal.getsignal(number) is self._handler and previous is not None:
                    signal.signal(number, previous)
                del self._previous[number]
            except (ValueError, OSError, RuntimeError):
                pass


class _Forked:
    """Runs in each forked process, as long as the request exists."""

    def __init__(self, request):
        self._request = weakref.ref(request)

    def __call__(self):
        request = self._request()
        if request is not None:
            request.close((signal.SIGTERM,))
