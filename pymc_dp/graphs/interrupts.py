"""Ctrl-C while compiled code runs: taken in between calls and pieces, so that nothing is lost."""

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
    """A long loop in pieces of about 0.1 seconds, and an end of it when others say so."""

    def __init__(self) -> None:
        self.stop = threading.Event()

    def check(self) -> None:
        """End what calls it, if others said so."""
        if self.stop.is_set():
            raise CancelledError

    def of(self, total: int) -> Iterator[slice]:
        """Cut a number of draws; how long one takes is measured on the way."""
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
    """A handler of SIGINT, in the main thread, that may leave the first one for later.

    Around the arrays that compiled code returns, numba runs a function in Python. A signal that
    came before is handled there, where nothing looks for an exception: it becomes a SystemError.

    Attributes
    ----------
    came : how many signals there were.
    """

    def __init__(self, later: Callable[[FrameType | None], bool]):
        self._later, self.came = later, 0
        self._before: Any = None
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before

    def __enter__(self) -> Handler:
        """Begin."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what was there."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.came += 1
        if self.came > 1 or not self._later(frame):
            self._before(number, frame)

    def take(self) -> None:
        """Do now what was left for later."""
        if self.came == 1 and self._before is not None:
            self.came = 0
            self._before(signal.SIGINT, None)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt where code fails that Ctrl-C left undone.

    What compiles while C calls it can raise nothing through C: whoever waits for the code finds
    that it is not there.
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
    """Whether Python runs in the middle of a call of compiled code."""
    while frame is not None and frame.f_code is not _numba_unpickle.__code__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def between(function: Callable) -> Iterator[Callable]:
    """Make a function that calls compiled code, many times, take SIGINT in between."""
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
    """Make a function that calls compiled code take SIGINT when it is done."""

    @wraps(function)
    def call(*args, **kwargs):
        with between(function) as once:
            return once(*args, **kwargs)

    return call
