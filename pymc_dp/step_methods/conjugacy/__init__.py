"""The conjugate families: every module of this package registers what it knows of one.

To add a pair, write a module that puts it into `CHILDREN` (and a new family into `FAMILIES`
and `PRIORS`); it is found by itself.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
