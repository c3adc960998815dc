"""What serves one kind of release each: the core imports none of it, nor does one the other.

A plugin is a package that registers what it has: mechanisms, laws, steps, routes. Those in this
folder are found by themselves; one from outside is imported by its user, see docs/extending.md.
"""

from importlib import import_module
from pkgutil import iter_modules

for _plugin in iter_modules(__path__, f"{__name__}."):
    import_module(_plugin.name)
