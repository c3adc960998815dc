"""The conjugate families: every module of this package registers what it knows of one.

To add a pair, write a module that calls `register_child` (and `register_family` and
`register_prior` for a new family); it is found by itself.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
