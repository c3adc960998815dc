"""Registries of objects by key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import singledispatch
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, cast


class Registry[K: Hashable, T](dict[K, T]):
    """Objects of one kind by their keys, sorted by `order`.

    Modules register their own objects; `load` imports the modules.

    Attributes
    ----------
    additions : int
        Number of additions to all registries and abilities so far: one may change how a model is
        read.
    """

    additions = 0

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[K, int] = {}

    def add(self, thing: T, *keys: K, order: int = 0) -> T:
        """Register an object under each of the keys, or under itself; return it."""
        Registry.additions += 1
        for key in keys or (cast(K, thing),):
            if self._order.get(key, order) != order:
                del self[key]
            self[key] = thing
            self._order[key] = order
        for later in [key for key in self if self._order[key] > order]:
            self[later] = self.pop(later)
        return thing

    def register(self, *keys: K, order: int = 0) -> Callable[[Any], Any]:
        """Register the decorated object under each of the keys, or under itself."""
        return lambda thing: self.add(thing, *keys, order=order)


def ability(function: Callable[..., Any]) -> Any:
    """Dispatch as `functools.singledispatch`; what is registered counts as an addition."""
    dispatched = singledispatch(function)
    register = dispatched.register

    def counted(*arguments: Any) -> Any:
        Registry.additions += 1
        return register(*arguments)

    dispatched.register = counted  # type: ignore[assignment]
    return dispatched


def load(package: str) -> None:
    """Import every module of a package, so that each registers its objects."""
    for module in walk_packages(import_module(package).__path__, package + "."):
        import_module(module.name)
