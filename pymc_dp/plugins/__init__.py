"""What serves one kind of release each: the core imports none of it, nor does one the other.

A plugin is a package that registers what it has: mechanisms, laws, steps, routes. Those in this
folder are found by themselves; one from outside is imported by its user, see docs/extending.md.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

PUBLIC: dict[str, Any] = {}  # what plugins list in `__all__`: names of `pymc_dp`

for _module in iter_modules(__path__, f"{__name__}."):
    _plugin = import_module(_module.name)
    PUBLIC |= {name: getattr(_plugin, name) for name in getattr(_plugin, "__all__", ())}
