"""Pure numba functions (rng, state, parameters) -> state, free of PyMC.

Compiled code is kept on disk: beside the sources, or in the user's cache folder where these cannot
be written (the environment variable NUMBA_CACHE_DIR names another folder). Numba takes it for
current as long as the function's own file is unchanged; a caller would then go on running the old
code of a kernel in another file. So every function that is kept is compiled by `njit` below, and
kernels by `jit`. It keeps closures, too, if they hold numbers, and functions of which the same can
be said.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

_log = logging.getLogger("pymc.dp")
_FOLDER = Path(__file__).parent


def _hash(*sources: Path) -> str:
    # With their names: a function may move between files without a change of the bytes in all.
    contents = [(source.name, source.read_bytes()) for source in sources]
    return sha256(repr(contents).encode()).hexdigest()


KERNEL_VERSION = _hash(*sorted(_FOLDER.rglob("*.py")))


@functools.cache
def version_of(source: str) -> int:
    """Return the version of a file's compiled code: that of its own source and of all kernels.

    PyTensor keeps compiled graphs on disk, too; in their keys this number stands for what its
    own hash does not see.

    Parameters
    ----------
    source : str
        ``__file__`` of a module that calls kernels, or of a kernel.
    """
    return int(sha256((KERNEL_VERSION + _hash(Path(source))).encode()).hexdigest()[:15], 16)


def key_of(value: Any) -> str | None:
    """Return what names the code of a compiled function, or a number; None for anything else."""
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    function = getattr(value, "py_func", value)
    try:
        version = version_of(function.__code__.co_filename)
        held = [key_of(cell.cell_contents) for cell in function.__closure__ or ()]
        held.append(repr((function.__defaults__, function.__kwdefaults__)))
        held.append(repr(sorted(getattr(value, "targetoptions", {}).items())))
    # No function, one without a file, one of itself.
    except (AttributeError, OSError, ValueError, RecursionError):
        return None
    if None in held:
        return None
    source = (function.__module__, function.__qualname__, function.__code__.co_firstlineno)
    return sha256(repr((source, version, held)).encode()).hexdigest()


class KernelStore(IndexDataCacheFile):
    """Numba's files of one function, which several processes may write at once.

    Numba numbers the files of a function's signatures and writes the index first. Two processes
    then give one number to two signatures, and the index of one may name the code of the other.
    Here a file has its name from what it holds, and is written before the index.
    """

    def save(self, key, data):
        """Keep the code of one signature; what is of older sources goes."""
        known = self._load_index()
        if not known:
            pattern = escape(self._index_name.removesuffix(".nbi")) + ".*.nbc"
            for old in Path(self._cache_path).glob(pattern):
                with suppress(OSError):
                    old.unlink()
        name = self._data_name(int(sha256(repr(key).encode()).hexdigest()[:12], 16))
        self._save_data(name, data)
        self._save_index(known | {key: name})


class KernelCache(FunctionCache):
    """Numba's cache of one function, whose stamp is `version_of` its file.

    Of a closure, the files have what it holds in their names.
    """

    def __init__(self, function: Callable):
        super().__init__(function)
        self._key = key_of(function)
        if self._key is None:
            raise ValueError(f"{function.__qualname__} holds what has no name")
        base = self._impl.filename_base + f".{self._key[:20]}" * bool(function.__closure__)
        self._cache_file = KernelStore(
            self._cache_path, base, version_of(function.__code__.co_filename)
        )

    def _index_key(self, sig, codegen):
        # Numba pickles what a closure holds, which is another text in each process.
        return sig, codegen.magic_tuple(), self._key

    def load_overload(self, sig, target_context):
        """Load compiled code; where there is none, say once that it is being compiled."""
        try:
            found = super().load_overload(sig, target_context)
        except (OSError, EOFError, UnpicklingError):  # unreadable, or cut off by a full disk
            with suppress(OSError):
                Path(self._cache_file._index_path).unlink()
            found = None
        if found is None:
            _say_that_it_compiles()
        return found

    def save_overload(self, sig, data):
        """Keep compiled code, if the disk takes it."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _log.warning("Compiled code cannot be kept: %s", error)
            self.disable()


@functools.cache
def _say_that_it_compiles() -> None:
    _log.info("Compiling, once, for seconds or a few minutes: the code is kept on disk")


@functools.cache
def _say_that_nothing_is_kept() -> None:
    _log.warning(
        "No folder for compiled code can be written: name a writable one by NUMBA_CACHE_DIR"
    )


def njit(*args, cache: bool = False, **options):
    """Compile like `numba.njit`; with ``cache=True``, an edit of any kernel counts.

    Where no folder can be written, nothing is kept, and each process compiles what it needs; so it
    does of closures that hold anything but numbers and functions compiled from files.
    """

    def decorate(function: Callable):
        compiled = numba.njit(**options)(function)
        # NUMBA_DISABLE_JIT, for debugging, leaves a plain function.
        if cache and hasattr(compiled, "_cache"):
            try:
                compiled._cache = KernelCache(function)
            except RuntimeError:  # numba found no folder
                _say_that_nothing_is_kept()
            except ValueError:  # whoever calls it may keep it, as PyTensor does
                pass
        return compiled

    return decorate(*args) if args else decorate


# As kernels are compiled. No fastmath: infinite ends and compensated products need IEEE arithmetic.
jit = njit(cache=True, nogil=True, error_model="numpy")
part = njit(nogil=True, error_model="numpy")  # of a kernel, kept along with the whole
