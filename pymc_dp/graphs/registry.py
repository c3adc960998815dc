"""The one registry: things of a kind, found by a key, put in by the modules that know of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, cast


class Registry[K: Hashable, T](dict[K, T]):
    """Things of one kind by their keys, those of a lower `order` first.

    A module registers what it has; `load` finds the modules.

    Attributes
    ----------
    additions : int
        To all registries so far: what was read before one may be read in another way after it.
    """

    additions = 0

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[K, int] = {}

    def add(self, thing: T, *keys: K, order: int = 0) -> T:
        """Register a thing under each of these keys, or under itself; return it."""
        Registry.additions += 1
        for key in keys or (cast(K, thing),):
            self[key] = thing
            self._order[key] = order
        things = sorted(self.items(), key=lambda entry: self._order[entry[0]])
        self.clear()
        self.update(things)
        return thing

    def register(self, *keys: K, order: int = 0) -> Callable[[Any], Any]:
        """Register what is decorated under each of these keys, or under itself."""
        return lambda thing: self.add(thing, *keys, order=order)


def load(package: str) -> None:
    """Import every module of a package, so that what each registers is there."""
    for module in walk_packages(import_module(package).__path__, package + "."):
        import_module(module.name)


_OFFERED: dict[str, str] = {}  # public names, and the modules that they are imported from


def offer(package: str, **names: str) -> None:
    """Say which module of a package, a plugin, has a public name of `pymc_dp`.

    It is imported when the name is first asked for.
    """
    _OFFERED.update({name: f"{package}.{module}" for name, module in names.items()})


def offered(name: str) -> Any:
    """Import what a plugin offers under a name; an AttributeError where none does."""
    if name not in _OFFERED:
        raise AttributeError(f"pymc_dp has no {name!r}: no plugin offers it")
    return getattr(import_module(_OFFERED[name]), name)


def import_offered() -> None:
    """Import all that plugins offer, so that what each has to register is there."""
    for module in dict.fromkeys(_OFFERED.values()):
        import_module(module)
