"""Compiling without machine code for what only other compiled code calls.

Numba optimises each function that it compiles together with all that this calls, makes machine code
of it, and links it into the next, where all of that is done again. Here a function stays as it was
lowered until its address is asked for: what is linked into another function is optimised there,
once. That halves the time to compile a graph, and changes nothing of what it computes.

This builds on parts of Numba that are not public (`CodeLibrary`). They are taken in only while
something of this package is compiled, under Numba's lock.
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

_DYNAMIC = "numba.dynamic.globals"  # what cannot be kept on disk
_ENVIRONMENTS: dict[
    str, Any
] = {}  # of functions without machine code, by the names of their places


class DeferredLibrary(JITCodeLibrary):
    """Code that is optimised, and made machine code of, when it is asked for."""

    def __init__(self, codegen, name):
        super().__init__(codegen, name)
        self._gathered: set[Any] = set()

    def add_linking_library(self, library):
        """Take in what is called, as it is."""
        self._linking_libraries.append(library)

    def _gather(self):
        """Link in what is called."""
        while self._linking_libraries:  # Ctrl-C may come between two
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
        # The module for linking stays as it is: it is optimised where it is linked in.
        super().finalize()

    def _finalize_specific(self):
        super()._finalize_specific()
        codegen: Any = self._codegen
        for name in [n for n in _ENVIRONMENTS if codegen._engine.get_global_value_address(n)]:
            codegen.set_env(name, _ENVIRONMENTS.pop(name))

    def get_pointer_to_function(self, name):
        """Return an address, 0 if there is no such function; only the first needs machine code."""
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
        """Whether it holds what cannot be kept on disk."""
        if self._finalized:
            return super().has_dynamic_globals
        self._gather()
        return any(v.name.startswith(_DYNAMIC) for v in self._final_module.global_variables)

    def serialize_using_object_code(self):
        """Serialize machine code, or what there is of a function that only others call."""
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
    """Compile without machine code for what only other compiled code calls."""
    with global_compiler_lock:
        codegen: Any = cpu_target.target_context.codegen()
        if codegen._library_class is not JITCodeLibrary:  # in here already
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
            del codegen._library_class, codegen.set_env  # those of the class are back


class DeferringDispatcher(CPUDispatcher):
    """A compiled function, of which what it calls is compiled with it alone."""

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
    """A compiled function that is compiled apart for calls from Python, which need machine code."""

    inside_cache: Any = None

    @cached_property
    def inside(self) -> Any:
        """What compiled code calls."""
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
        """Tell the type of a call by compiled code."""
        return self.inside.get_call_template(args, kws)

    def get_overload(self, sig):
        """Return what is called by compiled code."""
        return self.inside.get_overload(sig)


def _of_module(module: str, name: str) -> Any:
    return attrgetter(name)(import_module(module))


def deferring[F](function: F) -> F:
    """Have a function of PyTensor compiled as `DeferringDispatcher`, if Numba compiles it."""
    compiled = getattr(getattr(function, "vm", None), "jit_fn", None)
    if isinstance(compiled, CPUDispatcher):
        compiled.__class__ = DeferringDispatcher
    return function
