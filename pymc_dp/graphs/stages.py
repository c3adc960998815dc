"""A line that shows the stage before the first draw, and the time so far."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any

from rich.console import Console

from pymc_dp.kernels import ANNOUNCED

_log = logging.getLogger("pymc.dp")
_REWRITING = logging.getLogger("pytensor.graph.rewriting.basic")

DRAWING = "Tuning and drawing"
_TICK, _LOGGED = 0.2, 10.0  # seconds between lines, where they move and in a log
_CURRENT: ContextVar[Stages | None] = ContextVar("_CURRENT", default=None)


def stage(what: str = "") -> None:
    """Show the stage that begins in the line of `dp.sample`; an empty one takes the line away."""
    if (current := _CURRENT.get()) is not None:
        current.say(what)


def expect_compiling(seconds: float) -> None:
    """Set how many CPU seconds the next compilation may take; 0 if all code is on disk."""
    if (current := _CURRENT.get()) is not None:
        current.compiling = seconds


def _is_said(_: logging.LogRecord) -> bool:
    current = _CURRENT.get()
    return current is None or not current.quiet


_log.addFilter(_is_said)


class Stages:
    """A line that shows the current stage, while this context is open.

    In a terminal and in a notebook the line is updated as time passes, and removed before other
    output. In a script each stage is logged, and logged again every 10 s.

    Parameters
    ----------
    progressbar : bool
        Whether the line may be updated; if not, stages are logged.
    quiet : bool
        Whether nothing is shown or logged, as in PyMC.
    """

    def __init__(self, *, progressbar: bool, quiet: bool):
        self.quiet = quiet
        self._began = self._said = time.perf_counter()
        self._now, self.compiling = "", 0.0
        self._over, self._lock = threading.Event(), threading.RLock()
        self._handlers = list(logging.getLogger("pymc").handlers)
        self._show: Any = None
        if not quiet:
            console = Console(stderr=True)
            self._show = self._to_log
            if progressbar and console.is_jupyter:
                self._show = _to_notebook()
            elif progressbar and console.is_terminal:
                self._show = _to_terminal

    def __enter__(self) -> Stages:
        """Show the line."""
        self._token, self._announced = _CURRENT.set(self), ANNOUNCED.set(True)
        _REWRITING.addFilter(self._is_news)
        if self._moves:
            for handler in self._handlers:
                handler.addFilter(self._before_others)
        if self._show is not None:
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line."""
        _REWRITING.removeFilter(self._is_news)
        _CURRENT.reset(self._token)
        ANNOUNCED.reset(self._announced)
        if self._show is not None:
            self._over.set()
            self._thread.join()
        if self._moves:
            for handler in self._handlers:
                handler.removeFilter(self._before_others)
            self.say("")

    @property
    def _moves(self) -> bool:
        return self._show not in (None, self._to_log)

    def say(self, what: str) -> None:
        """Show the stage that begins."""
        if what in ("", DRAWING):  # the estimate is for code that is compiled before the draws
            self.compiling = 0.0
        if what == "Compiling" and self.compiling:
            what = f"Compiling, once, for some {self.compiling:.0f} s"
        with self._lock:
            if self._show is not None and what != self._now:
                self._now = what
                self._write()
                self._said = time.perf_counter()

    def _write(self) -> None:
        seconds = time.perf_counter() - self._began
        self._show(f"{self._now}, {seconds:.1f} s so far" if self._now else "")

    def _tick(self) -> None:
        between = _TICK if self._moves else _LOGGED
        while not self._over.wait(_TICK):
            with self._lock:
                if self._now and time.perf_counter() - self._said >= between:
                    self._write()
                    self._said = time.perf_counter()

    def _to_log(self, line: str) -> None:
        if line:
            _log.info("%s", line)

    def _is_news(self, _: logging.LogRecord) -> bool:
        """Whether a record of PyTensor is about anything but two rewrites that fail without harm.

        One joins two slices of a long vector, and overflows int8. The other takes a slice of an op
        with several outputs as if it had one. For each PyTensor logs a traceback, in several
        records.
        """
        error = sys.exc_info()[1]
        of_slices = isinstance(error, OverflowError) and "out of bounds for int8" in str(error)
        beside = isinstance(error, AttributeError) and "'list' object has no" in str(error)
        return not (of_slices or beside)

    def _before_others(self, record: logging.LogRecord) -> bool:
        """Remove the line before a message; before one of PyMC, until the next stage."""
        with self._lock:
            if self._now:
                self._show("")
            if record.name != _log.name:
                self._now = ""
        return True


def _to_terminal(line: str) -> None:
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()


def _to_notebook():
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda line: handle.update({"text/plain": line}, raw=True)
