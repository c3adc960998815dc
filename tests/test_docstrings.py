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
SECTIONS = ["Parameters", "Attributes", "Returns", "Raises", "Warns", "See Also"]
SECTIONS += ["Notes", "References", "Examples"]
HEADER = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
# What examples need beside the package.
NETWORKS = ["AmortisedPosterior", "amortise", "calibration", "compare", "predict", "sple", "sppe"]
NEEDS = {f"neural.{name}": ("torch", "sbi") for name in NETWORKS} | {
    "Release.from_nmf": ("pandas",),
    "Release.from_opendp": ("opendp",),
    "Release.from_opendp_summary": ("polars",),
}
# Of PyMC's and not for users: who builds a step or a variable passes them on.
PASSED_ON = {"args", "kwargs", "rng", "initial_point", "compile_kwargs", "blocked"}
PYMC = {"name", "dims", "initval", "observed", "total_size", "transform", "default_transform"}
OF_A_SOURCE = {"mechanisms", "step_methods", "distributions"}
WITHOUT_SOURCE = {"Mechanism", "CustomMechanism", "RandomRounding", "RecordSums"}


def _named():
    """Yield all public names, and the class that mechanisms are of."""
    for module in (dp, dp.studies, dp.neural):
        prefix = module.__name__.removeprefix("pymc_dp").lstrip(".") + "." * (module is not dp)
        found = {name: getattr(module, name) for name in module.__all__}
        yield from ((prefix + n, item) for n, item in found.items() if not inspect.ismodule(item))
    for name, item in vars(dp.thresholds).items():
        if inspect.isfunction(item) and not name.startswith("_"):
            yield f"thresholds.{name}", item
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
            known = vars(builtins) | function.__globals__
            yield from (known[name] for name in names if inspect.isclass(known.get(name)))


def _sections(text):
    title, *found = HEADER.split(text)
    return {"": title, **dict(zip(found[::2], found[1::2], strict=True))}


@pytest.mark.parametrize(("name", "item", "needs_example"), CASES)
def test_says_what_it_takes_gives_and_refuses(name, item, needs_example):
    text = inspect.getdoc(item)
    sections = _sections(text)
    assert re.match(r".+\.(\n\n|$)", text), "the summary is one line"
    order = [section for section in sections if section]
    assert order == sorted(order, key=SECTIONS.index), "numpydoc puts them in another order"

    law = inspect.isclass(item) and issubclass(item, pm.Distribution)
    taken = set(inspect.signature(item.dist if law else item).parameters)
    taken -= PASSED_ON | {"self", "cls"} | (PYMC if law else set())
    listed = sections.get("Parameters", "") + sections.get("Attributes", "")
    lines = " , ".join(line for line in listed.splitlines() if line[:1].strip())
    assert taken <= set(re.findall(r"\w+", lines)), "arguments that are not explained"
    for error in _raised(item):
        said = (cls.__name__ in sections.get("Raises", "") for cls in error.__mro__[:-3])
        assert any(said), f"{error.__name__} is not in Raises"
    if needs_example:
        assert ">>> " in sections.get("Examples", ""), "no example"
    if inspect.isclass(item) and item.__module__.split(".")[1] in OF_A_SOURCE:
        assert name in WITHOUT_SOURCE or ".. [1] " in sections.get("References", ""), "no source"


@pytest.mark.filterwarnings("default")  # the code is a user's, whose warnings are no errors
@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(case.values[0], text, id=case.id)
        for case in CASES
        if ">>> " in (text := inspect.getdoc(case.values[1]) or "")
    ],
)
def test_example_holds(name, text, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    missing = [package for package in NEEDS.get(name, ()) if find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    names = {"np": np, "pm": pm, "pt": pt, "dp": dp}
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=flags).run(example, out=said.append)
    assert not failed, "".join(said)
