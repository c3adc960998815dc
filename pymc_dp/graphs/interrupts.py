"""Ctrl-C while compiled code runs: handled between calls, so that no draws are lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

from numba.core.serialize import _numba_unpickle

_PIECE = 0.1  # seconds


class Pieces:
    """A long loop in pieces of about 0.1 seconds, which another thread can stop."""

    def __init__(self) -> None:
        self.stop = threading.Event()

    def check(self) -> None:
        """Raise CancelledError if `stop` is set."""
        if self.stop.is_set():
            raise CancelledError

    def of(self, total: int) -> Iterator[slice]:
        """Yield slices of a number of draws, sized by the time that a draw takes."""
        done, size = 0, 1
        while done < total:
            self.check()
            size = min(size, total - done)
            began = time.perf_counter()
            yield slice(done, done + size)
            seconds = time.perf_counter() - began
            done += size
            size = max(1, min(2 * size, int(size * _PIECE / max(seconds, 1e-9))))


class Handler:
    """A handler of SIGINT in the main thread that may postpone the first signal.

    Numba runs Python code to wrap the arrays that compiled code returns. Python handles a pending
    signal there, where Numba does not look for an exception: it becomes a SystemError.

    Attributes
    ----------
    came : the number of signals.
    """

    def __init__(self, later: Callable[[FrameType | None], bool]):
        self._later, self.came = later, 0
        self._before: Any = None
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before

    def __enter__(self) -> Handler:
        """Install the handler."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Install the previous handler."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.came += 1
        if self.came > 1 or not self._later(frame):
            self._before(number, frame)

    def take(self) -> None:
        """Handle a postponed signal now."""
        if self.came == 1 and self._before is not None:
            self.came = 0
            self._before(signal.SIGINT, None)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt where code is missing because Ctrl-C ended its compilation.

    A compilation that C code has started cannot raise through C: the caller only finds, later, that
    the code is missing.
    """
    handler = Handler(lambda _: False)
    try:
        with handler:
            yield
    except RuntimeError as error:
        if handler.came:
            raise KeyboardInterrupt from error
        raise


def is_beside_compiled(frame: FrameType | None) -> bool:
    """Whether a frame of Python runs within a call of compiled code."""
    while frame is not None and frame.f_code is not _numba_unpickle.__code__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def between(function: Callable) -> Iterator[Callable]:
    """Yield a function that handles SIGINT between its calls of compiled code."""
    handler = Handler(lambda _: True)

    def call(*args, **kwargs):
        handler.take()
        return function(*args, **kwargs)

    try:
        with handler:
            yield call
    finally:
        handler.take()


def uninterrupted(function: Callable) -> Callable:
    """Have a function that calls compiled code handle SIGINT when it is done."""

    @wraps(function)
    def call(*args, **kwargs):
        with between(function) as once:
            return once(*args, **kwargs)

    return call
