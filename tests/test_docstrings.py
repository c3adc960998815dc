"""Every public name says what it takes, gives and refuses, and has an example that holds.

The example of a class serves its methods; constructors and readers have one each.
"""

import ast
import builtins
import doctest
import inspect
import re
import textwrap
from importlib.util import find_spec

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.mechanisms.base import Mechanism

# In the order of numpydoc.
SECTIONS = ["Parameters", "Attributes", "Returns", "Raises", "Notes", "References", "Examples"]
HEADER = re.compile(r"^(\w+)\n-{3,}$", re.MULTILINE)
# What examples need beside the package.
NEEDS = {"neural": ("torch", "sbi"), "from_nmf": ("pandas",), "from_opendp": ("opendp", "polars")}
# Of PyMC's and not for users: who builds a step or a variable passes them on.
PASSED_ON = {"args", "kwargs", "rng", "initial_point", "compile_kwargs", "blocked"}
PYMC = {"name", "dims", "initval", "observed", "total_size", "transform", "default_transform"}
WITHOUT_SOURCE = {"CustomMechanism", "RandomRounding", "RecordSums"}


def _named():
    """Yield all public names, and public members of classes that users hold in their hands."""
    for module in (dp, dp.studies, dp.neural, dp.thresholds):
        own = {n for n, f in vars(module).items() if inspect.isfunction(f) and n[0] != "_"}
        prefix = module.__name__.removeprefix("pymc_dp").lstrip(".").removeprefix("published.")
        for name in sorted({*getattr(module, "__all__", own)} - {"neural", "studies", "thresholds"}):
            yield f"{prefix}.{name}".lstrip("."), getattr(module, name)
    yield "Mechanism", Mechanism


def _members(owner):
    """Yield the methods that a class defines, but for those that mean what its base says."""
    for name, member in vars(owner).items():
        inherited = any(hasattr(base, name) for base in owner.__bases__)
        if not name.startswith("_") and not inherited and callable(getattr(owner, name)):
            yield name, member


def _cases():
    seen = set()
    for name, item in _named():
        yield pytest.param(name, item, True, id=name)
        of_ours = (Mechanism, dp.Release, dp.Privacy, dp.neural.AmortisedPosterior)
        if not (inspect.isclass(item) and issubclass(item, of_ours)):
            continue
        for owner in inspect.getmro(item):
            if owner in seen or not owner.__module__.startswith("pymc_dp"):
                continue
            seen.add(owner)
            for member, made in _members(owner):
                whole = isinstance(made, classmethod)
                case = f"{name if owner is item else owner.__name__}.{member}"
                yield pytest.param(case, getattr(owner, member), whole, id=case)


CASES = list(_cases())


def _raised(item):
    """Return the errors that a function, or what makes an object of a class, raises itself."""
    makers = {"__init__", "__post_init__", "dist"} & {*vars(item)} if inspect.isclass(item) else ()
    functions = [getattr(item, maker) for maker in makers] or [item] * (not inspect.isclass(item))
    for function in functions:
        if function.__code__.co_filename.endswith(".py"):  # not a data class's own
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
            calls = (n.exc for n in ast.walk(tree) if isinstance(n, ast.Raise))
            names = (e.func.id for e in calls if isinstance(e, ast.Call))
            yield from (vars(builtins).get(n) or function.__globals__[n] for n in names)


def _sections(text):
    title, *found = HEADER.split(text)
    return {"": title, **dict(zip(found[::2], found[1::2], strict=True))}


@pytest.mark.parametrize(("name", "item", "needs_example"), CASES)
def test_says_what_it_takes_gives_and_refuses(name, item, needs_example):
    text = inspect.getdoc(item)
    sections = _sections(text)
    first = text.split("\n\n")[0]
    assert first.endswith(".") and "\n" not in first, "the summary is one line"
    order = [section for section in sections if section]
    assert order == sorted(order, key=SECTIONS.index), "numpydoc puts them in another order"

    law = inspect.isclass(item) and issubclass(item, pm.Distribution)
    taken = set(inspect.signature(item.dist if law else item).parameters)
    taken -= PASSED_ON | {"self", "cls"} | (PYMC if law else set())
    listed = sections.get("Parameters", "") + sections.get("Attributes", "")
    lines = " , ".join(line for line in listed.splitlines() if line[:1].strip())
    assert not taken - set(re.findall(r"\w+", lines)), "arguments that are not explained"
    for error in _raised(item):
        said = (cls.__name__ in sections.get("Raises", "") for cls in error.__mro__[:-3])
        assert any(said), f"{error.__name__} is not in Raises"
    if needs_example:
        assert ">>> " in sections.get("Examples", ""), "no example"
    if needs_example and inspect.isclass(item) and name not in WITHOUT_SOURCE:
        assert inspect.isabstract(item) or is_data(item) or ".. [1]" in sections["References"]


def is_data(item):
    return item.__module__.startswith(("pymc_dp.published", "pymc_dp.neural"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(case.values[0], text, id=case.id)
        for case in CASES
        if ">>> " in (text := inspect.getdoc(case.values[1]) or "")
    ],
)
def test_example_holds(name, text):
    for part, packages in NEEDS.items():
        if part in name and not all(map(find_spec, packages)):
            pytest.skip(f"{packages} are not installed")
    names = {"np": np, "pm": pm, "pt": pt, "dp": dp}
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=flags).run(example, out=said.append)
    assert not failed, "".join(said)
