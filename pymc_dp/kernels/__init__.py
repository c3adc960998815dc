"""Pure numba functions (rng, state, parameters) -> state, free of PyMC.

Compiled code is kept on disk: beside the sources, or in the user's cache folder where the folder of
the sources cannot be written (the environment variable NUMBA_CACHE_DIR names another folder). Numba
itself takes the code of a function for current as long as the file of that function is unchanged: a
caller would go on running the old code of a kernel in another file, and an edit of a file would
discard the code of all functions in it. So functions whose code is kept are compiled by `njit`
below, and kernels by `jit`: `keys.key_of` names the file of a function on disk. Closures are kept,
too, if everything that they hold has a key.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from glob import escape
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from re import sub
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.registry import CPUDispatcher

from pymc_dp.kernels.deferred import Kernel
from pymc_dp.kernels.keys import joined, key_of, version_of

__all__ = ["jit", "joined", "key_of", "njit", "part", "version_of"]

_log = logging.getLogger("pymc.dp")

# Whether the caller reports compilation itself, so that nothing is logged here.
ANNOUNCED: ContextVar[bool] = ContextVar("ANNOUNCED", default=False)
# Code of these packages may be compiled into a kernel: their versions are part of the cache's
# stamp.
_STAMP = tuple(version(name) for name in ("numpy", "scipy", "pytensor"))
_LONG = 60 * 24 * 3600.0  # seconds without use, after which code of other versions is deleted


class KernelStore(IndexDataCacheFile):
    """Numba's files of one function, which several processes may write at once.

    Numba numbers the files of a function's signatures and writes the index first. Two processes
    then give one number to two signatures, and the index of one may name the code of the other.
    Here a file is named by the signature that it holds the code of, and is written before the
    index.
    """

    def save(self, key, data):
        """Keep the code of one signature; delete old, unused code of other versions."""
        known = self._load_index()
        if not known:
            pattern = escape(self._index_name.rpartition("-")[0]) + "-*"
            for old in Path(self._cache_path).glob(pattern):
                with suppress(OSError):
                    if time.time() - old.stat().st_mtime > _LONG:
                        old.unlink()
        name = self._data_name(int(sha256(repr(key).encode()).hexdigest()[:12], 16))
        self._save_data(name, data)
        self._save_index(known | {key: name})

    def load(self, key):
        """Load the code of one signature, and touch its files: they are in use."""
        if (name := self._load_index().get(key)) is None:
            return None
        with suppress(OSError):
            for file in (self._index_path, self._data_path(name)):
                Path(file).touch()
            return self._load_data(name)
        return None  # another process has deleted it


class KernelCache(FunctionCache):
    """Numba's cache of one function, whose files are named by its key."""

    def __init__(self, function: Callable, name: str = ""):
        super().__init__(function)
        self._function, self._name = function, name
        # A linked kernel is called at its address: its machine code is kept, not only its bitcode.
        self.is_called_apart = False
        self._key: str | None = None

    def _named(self) -> bool:
        """Name the files on first use, since keys take time; return False if there is no key."""
        if self._key is None:
            self._key = key_of(self._function)
            if self._key is None:  # the caller may keep it in a cache of its own, as PyTensor does
                self.disable()
                return False
            python = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
            name = sub(r"[^\w.]", "", self._function.__qualname__)
            base = f"{self._function.__module__}.{name}.{python}{self._name}-{self._key[:20]}"
            self._cache_file = KernelStore(self._cache_path, base, _STAMP)
        return self._enabled

    def _index_key(self, sig, codegen):
        # Numba would add a pickle of the closure's cells, which differs between processes.
        return sig, codegen.magic_tuple(), self._key

    def load_overload(self, sig, target_context):
        """Load compiled code; where there is none, say once that it is being compiled."""
        if not self._named():
            return None
        try:
            overload = super().load_overload(sig, target_context)
        except (OSError, EOFError, UnpicklingError):  # unreadable, or cut off by a full disk
            with suppress(OSError):
                Path(self._cache_file._index_path).unlink()
            overload = None
        if overload is None:
            _say_that_it_compiles()
        return overload

    def save_overload(self, sig, data):
        """Keep compiled code, if the disk takes it."""
        if not self._named():
            return
        if self.is_called_apart:
            data.library._ensure_finalized()
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _log.warning("Compiled code cannot be kept: %s", error)
            self.disable()


def _say_that_it_compiles() -> None:
    if not ANNOUNCED.get():
        _say_once()


@functools.cache
def _say_once() -> None:
    _log.info("Compiling, once, for seconds or a few minutes: the code is kept on disk")


@functools.cache
def _say_that_nothing_is_kept() -> None:
    _log.warning(
        "No folder for compiled code can be written: name a writable one by NUMBA_CACHE_DIR"
    )


def njit(*args, cache: bool = False, **options):
    """Compile like `numba.njit`; with ``cache=True``, an edit of a called function recompiles it.

    Where no folder can be written, or where a function has no key, nothing is kept and each process
    compiles the functions that it needs. No function may call itself.
    """

    def decorate(function: Callable):
        compile_: Any = numba.njit
        made = compile_(no_cfunc_wrapper=True, **options)(function)
        # NUMBA_DISABLE_JIT, for debugging, leaves a plain function.
        if not isinstance(made, CPUDispatcher):
            return made
        compiled: Any = made
        compiled.__class__ = Kernel
        if cache:
            try:
                compiled._cache = KernelCache(function)
                compiled.inside_cache = KernelCache(function, "-inside")
            except RuntimeError:  # numba found no folder
                _say_that_nothing_is_kept()
        return compiled

    return decorate(*args) if args else decorate


# The decorator of kernels. No fastmath: infinite ends and compensated products need IEEE
# arithmetic.
jit = njit(cache=True, nogil=True, error_model="numpy")
part = njit(
    nogil=True, error_model="numpy"
)  # for a function inside a kernel, which keeps the code of both
