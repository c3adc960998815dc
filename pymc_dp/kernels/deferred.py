"""Compilation without machine code for functions that only other compiled functions call.

Numba optimises each function together with all functions that it calls, makes machine code of it,
and links it into its callers, where all of this is done again. Here a function stays as LLVM code
until its address is asked for, and code that is linked into a caller is optimised once, in there.
That halves the time to compile a graph; the results are the same.

This relies on a class of Numba that is not public, `CodeLibrary`. It is replaced only while a
function of this package is compiled, under Numba's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from typing import Any

from llvmlite import binding
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.sigutils import normalize_signature

_DYNAMIC = "numba.dynamic.globals"  # prefix of globals that cannot be kept on disk
# Environments of functions that have no machine code yet, by the names of their LLVM globals.
_ENVIRONMENTS: dict[str, Any] = {}


class DeferredLibrary(JITCodeLibrary):
    """Code that is optimised and compiled to machine code when its address is asked for."""

    def __init__(self, codegen, name):
        super().__init__(codegen, name)
        self._gathered: set[Any] = set()

    def add_linking_library(self, library):
        """Remember the library of a called function; it is linked in later, by `_gather`."""
        self._linking_libraries.append(library)

    def _gather(self):
        """Link in the libraries of all called functions."""
        while self._linking_libraries:  # deleted one by one: Ctrl-C may interrupt the loop
            library = self._linking_libraries[0]
            if library not in self._gathered:
                self._final_module.link_in(library._get_module_for_linking(), preserve=True)
                self._reload_init.update(library._reload_init)
                self._gathered.add(library)
            del self._linking_libraries[0]

    def _get_module_for_linking(self):
        if self._finalized or self._shared_module is not None:
            return super()._get_module_for_linking()
        self._gather()
        module = self._final_module.clone()
        for function in module.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = "linkonce_odr"
        self._shared_module = module
        return module

    def finalize(self):
        """Optimise, and make machine code."""
        self._gather()
        # The module for linking is not optimised: that is done in the callers.
        super().finalize()

    def _finalize_specific(self):
        super()._finalize_specific()
        codegen: Any = self._codegen
        for name in [n for n in _ENVIRONMENTS if codegen._engine.get_global_value_address(n)]:
            codegen.set_env(name, _ENVIRONMENTS.pop(name))

    def get_pointer_to_function(self, name):
        """Return the address of a function, for machine code; 0 if there is no such function."""
        if not self._finalized:
            try:
                if self._final_module.get_function(name).is_declaration:
                    return 0
            except NameError:
                return 0
        with global_compiler_lock:
            return super().get_pointer_to_function(name)

    @property
    def has_dynamic_globals(self):
        """Whether it has globals that cannot be kept on disk."""
        if self._finalized:
            return super().has_dynamic_globals
        self._gather()
        return any(v.name.startswith(_DYNAMIC) for v in self._final_module.global_variables)

    def serialize_using_object_code(self):
        """Serialize machine code, or bitcode where there is no machine code."""
        if self._finalized:
            return super().serialize_using_object_code()
        self._gather()
        return self.name, "bitcode", self._final_module.as_bitcode()

    @classmethod
    def _unserialize(cls, codegen, state):
        name, kind, data = state
        if kind != "bitcode":
            return super()._unserialize(codegen, state)
        library = codegen.create_library(name)
        library._final_module = binding.parse_bitcode(data)
        return library


@contextmanager
def deferred() -> Iterator[None]:
    """Compile without machine code for functions that only compiled code calls."""
    with global_compiler_lock:
        codegen: Any = cpu_target.target_context.codegen()
        if codegen._library_class is not JITCodeLibrary:  # nested
            yield
            return
        set_env = codegen.set_env

        def set_env_or_wait(name: str, environment: Any) -> None:
            if codegen._engine.get_global_value_address(name):
                set_env(name, environment)
            else:
                _ENVIRONMENTS[name] = environment

        codegen._library_class, codegen.set_env = DeferredLibrary, set_env_or_wait
        try:
            yield
        finally:
            del codegen._library_class, codegen.set_env  # uncovers the attributes of the class


class DeferringDispatcher(CPUDispatcher):
    """A compiled function; the functions that it calls get no machine code of their own."""

    def compile(self, sig):
        """Compile for a signature."""
        with deferred():
            return super().compile(sig)


class Callback(CFunc):
    """A C callback, whose machine code is kept on disk."""

    def _compile_uncached(self):
        with deferred():
            made = super()._compile_uncached()  # type: ignore[misc]
            made.library._ensure_finalized()
            return made


def callback(signature: Any, function: Any, cache: bool = True) -> Callback:
    """Compile as `numba.cfunc`; nothing is kept where numba finds no folder for it."""
    made = Callback(function, normalize_signature(signature), locals={}, options={})
    if cache:
        with suppress(RuntimeError):
            made.enable_caching()
    with deferred():
        made.compile()
    return made


class Kernel(DeferringDispatcher):
    """A compiled function in two versions: for Python, with machine code; for compiled code."""

    inside_cache: Any = None

    @cached_property
    def inside(self) -> Any:
        """The version that compiled code calls."""
        options = self.targetoptions | {"no_cpython_wrapper": True}
        made: Any = DeferringDispatcher(self.py_func, {}, options)
        if self.inside_cache is not None:
            made._cache = self.inside_cache
        return made

    def __reduce__(self):
        """Pickle a kernel of a module by its name."""
        if "<locals>" in self.py_func.__qualname__:
            return super().__reduce__()
        return _of_module, (self.py_func.__module__, self.py_func.__qualname__)

    def get_call_template(self, args, kws):
        """Return the type of a call by compiled code."""
        return self.inside.get_call_template(args, kws)

    def get_overload(self, sig):
        """Return the overload that compiled code calls."""
        return self.inside.get_overload(sig)


def _of_module(module: str, name: str) -> Any:
    return attrgetter(name)(import_module(module))


def deferring[F](function: F) -> F:
    """Make the function that Numba compiles for PyTensor, if any, a `DeferringDispatcher`."""
    compiled = getattr(getattr(function, "vm", None), "jit_fn", None)
    if isinstance(compiled, CPUDispatcher):
        compiled.__class__ = DeferringDispatcher
    return function
