"""Compiled code on disk is that of the sources, and a folder that cannot be written is no error."""

import math
import os
import pickle
import pkgutil
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pymc_dp import kernels
from pymc_dp.graphs.products import multiply
from pymc_dp.kernels.deferred import DeferredLibrary
from pymc_dp.kernels.functions.count_masses import log_binomial

FOLDER = Path(kernels.__file__).parent
LOG = 'import logging\nlogging.basicConfig(level="INFO", format="%(message)s")\n'
CALL = """
from pymc_dp.kernels.caller import log_count_mass
print(log_count_mass(3.0, 4.0, 10.0, 0.2)[0])
"""


@pytest.fixture
def package(tmp_path):
    """Copy a kernel and its callee, which lies in a subfolder, to a package of their own."""
    package = tmp_path / "pymc_dp"
    (package / "kernels" / "functions").mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in ("__init__.py", "deferred.py", "keys.py", "linked.py"):
        shutil.copy(FOLDER / name, package / "kernels")
    shutil.copy(FOLDER / "functions" / "count_masses.py", package / "kernels" / "functions")
    caller = (FOLDER / "functions" / "reported_counts.py").read_text()
    (package / "kernels" / "caller.py").write_text(caller)
    return package


def call(package, code=CALL, **environment):
    """Call a kernel in a process of its own; return its value and what was logged."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_CACHE"))}
    run = subprocess.run(
        [sys.executable, "-c", LOG + code],
        env=known | {"PYTHONPATH": str(package.parent)} | environment,
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(run.stdout), run.stderr


def test_a_caller_sees_the_edit_of_a_kernel_in_another_file(package):
    before, said = call(package)
    assert said.count("Compiling") == 1
    assert call(package) == (before, "")  # from disk, and nothing to say
    callee = package / "kernels" / "functions" / "count_masses.py"
    source, first_line = callee.read_text(), "    if n < 12.0:\n"
    assert source.count(first_line) == 1
    callee.write_text(
        source.replace(first_line, "    if n >= 0.0:\n        return 1.0\n" + first_line)
    )
    after, said = call(package)
    assert "Compiling" in said
    assert after != pytest.approx(before)
    callee.write_text(source)
    assert call(package)[0] == before


def test_where_the_sources_cannot_be_written_the_users_folder_is_used(package, tmp_path):
    for folder in (package / "kernels", package / "kernels" / "functions"):
        (folder / "__pycache__").touch()  # no folder of that name can be made, even by root
    cache = tmp_path / "user"
    value, said = call(package, XDG_CACHE_HOME=str(cache))
    assert said.count("Compiling") == 1
    assert any(cache.rglob("*.nbc"))
    assert call(package, XDG_CACHE_HOME=str(cache)) == (value, "")

    nowhere = tmp_path / "file"
    nowhere.touch()
    again, said = call(package, XDG_CACHE_HOME=str(nowhere))
    assert again == value
    assert said.count("NUMBA_CACHE_DIR") == 1


def test_two_processes_that_write_at_once_keep_their_own_code(tmp_path):
    one, other = (kernels.KernelStore(str(tmp_path), "f-1", 7) for _ in range(2))
    one._load_index = other._load_index = dict  # both looked before either wrote
    write = one._save_index

    def interrupted(known):
        write(known)
        other.save("of integers", "code of integers")

    one._save_index = interrupted
    one.save("of floats", "code of floats")
    found = kernels.KernelStore(str(tmp_path), "f-1", 7)
    kept = {key: found.load(key) for key in ("of floats", "of integers")}
    assert kept["of integers"] == "code of integers"
    assert kept["of floats"] in ("code of floats", None)
    found.save("of strings", "code of strings")
    assert found.load("of integers") == "code of integers"


def test_code_of_other_versions_goes_when_nothing_has_used_it_for_long(tmp_path):
    for version in ("old", "recent"):
        kernels.KernelStore(str(tmp_path), f"f.py312-{version}", 1).save("of floats", version)
    for path in tmp_path.glob("f.py312-old*"):
        os.utime(path, (0, 0))
    kernels.KernelStore(str(tmp_path), "f.py312-new", 1).save("of floats", "new")
    found = [
        kernels.KernelStore(str(tmp_path), f"f.py312-{version}", 1).load("of floats")
        for version in ("old", "recent", "new")
    ]
    assert found == [None, "recent", "new"]


@pytest.mark.nightly
def test_a_full_disk_is_no_error_and_leaves_no_old_code(package):
    before, _ = call(package)
    callee = package / "kernels" / "functions" / "count_masses.py"
    callee.write_text(callee.read_text().replace("    if n < 12.0:", "    if n < 12.5:"))
    full = """
import numba.core.caching as caching
def full(*arguments):
    raise OSError("No space left on device")
caching.IndexDataCacheFile._save_data = full
"""
    again, said = call(package, full + CALL)
    assert again == before
    assert "No space left on device" in said
    again, said = call(package)
    assert (again, said.count("Compiling")) == (before, 1)  # what is on disk was not taken


@pytest.mark.nightly
def test_a_damaged_file_is_no_error(package):
    before, _ = call(package)
    for path in package.rglob("*.nbi"):
        path.write_bytes(b"")
    assert call(package)[0] == before


def test_closures_are_kept_by_what_they_hold(package):
    (package / "kernels" / "maker.py").write_text("""
from pymc_dp.kernels import njit
from pymc_dp.kernels.functions.count_masses import log_binomial

@njit
def half(x):
    return 0.5 * x

@njit
def twice(x):
    return 2.0 * x

def make(function, number):
    @njit
    def inner(x):
        return function(x) + number

    @njit(cache=True)
    def outer(x):
        return 100.0 * inner(x)

    return outer
""")

    def run(made):
        start = "from pymc_dp.kernels.maker import half, make, njit, twice\n"
        return call(package, f"{start}print(make({made})(3.0))")

    functions = {"half, 1": 250.0, "twice, 1": 700.0, "half, 2": 350.0}
    compiling = "Compiling, once, for seconds or a few minutes: the code is kept on disk\n"
    for said in (compiling, ""):
        for made, value in functions.items():
            assert run(made) == (value, said)
    source = package / "kernels" / "maker.py"
    source.write_text(source.read_text().replace("0.5 * x", "0.25 * x"))
    assert run("half, 1")[0] == 175.0
    # Of what it does not call it knows nothing, nor of lines and comments.
    callee = package / "kernels" / "functions" / "count_masses.py"
    callee.write_text(callee.read_text().replace("    if n < 12.0:", "    if n < 12.5:"))
    source.write_text("# changed\n" + source.read_text())
    assert run("half, 1") == (175.0, "")
    # Without a name of their own, compiled in each process: nothing says that it is kept.
    for _ in range(2):
        assert run("njit(eval('lambda x: x')), 1") == (400.0, "")


KEYS = """
import hashlib, importlib, pkgutil, sys
import pymc_dp
from numba.core.dispatcher import Dispatcher
from pymc_dp.kernels import key_of
found = []
for module in pkgutil.walk_packages(pymc_dp.kernels.__path__, "pymc_dp.kernels."):
    importlib.import_module(module.name)
for name, module in sorted(sys.modules.items()):
    if name.startswith("pymc_dp"):
        kernels = {k: v for k, v in vars(module).items() if isinstance(v, Dispatcher)}
        found += [(name, k, key_of(v)) for k, v in kernels.items()]
assert len(found) > 300
assert not [name for *name, key in found if key is None]
print(int(hashlib.sha256(repr(found).encode()).hexdigest()[:12], 16))
"""


def test_every_kernel_has_a_key_and_the_same_one_in_each_process():
    keys = [call(FOLDER.parent, KEYS, PYTHONHASHSEED=seed)[0] for seed in "12"]
    assert keys[0] == keys[1]


def test_makers_of_kernels_have_keys():
    makers = [
        getattr(import_module(module.name), name)
        for module in pkgutil.walk_packages(kernels.__path__, "pymc_dp.kernels.")
        for name in vars(import_module(module.name))
        if name.startswith(("make_", "_make_", "by_", "stepwise"))
    ]
    assert len(makers) > 10
    assert not [make.__qualname__ for make in makers if kernels.key_of(make) is None]


def test_keys_see_what_is_read_and_how_errors_are_caught():
    scope = {"__name__": "users", "math": math}

    def function(text, **read):
        code = compile(text, "users.py", "exec")
        exec(code, own := scope | read)
        return own["f"]

    plain = """
def f(x):
    try:
        y = g(x)
        z = h(y)
    except ValueError:
        return 0
    else:
        return y + z
"""
    other = plain.replace("        z = h(y)\n", "").replace(
        "return y", "z = h(y)\n        return y"
    )
    keys = {
        kernels.key_of(function(text, g=abs, h=abs, c=c) if "g(x)" in text else function(text, c=c))
        for text in (plain, other, "def f(x): return x + c", "def f(x): return x - c")
        for c in (1.0, 2.0)
    }
    assert len(keys) == 6  # what does not read c does not depend on it
    changing = function("def f(x): return x + c", c=1.0)
    before = kernels.key_of(changing)
    changing.__globals__["c"] = 2.0
    assert kernels.key_of(changing) != before
    assert kernels.key_of(function("def f(x): return x + c", c=object())) is None
    assert kernels.joined("one", None) is None


def test_kernels_of_a_module_pickle():
    for kernel in (multiply, log_binomial):
        assert pickle.loads(pickle.dumps(kernel)) is kernel


LINKED = """
import math
from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import linked

SHIFT = 1.0

@linked("Tuple((float64, float64[::1]))(float64[::1], float64)")
def callee(x, power):
    if power < 0.0:
        raise ValueError("negative")
    return x[0] ** power + SHIFT, x * 2.0

@linked("float64(float64)")
def wrong(x):
    return x.nothing

@jit
def caller(x, power):
    if power == 7:
        return wrong(x[0])
    number, twice = callee(x, power=power)
    return number + twice[0]
"""
ASKED = """
import numpy as np
from pymc_dp.kernels.linking import callee, caller
x = np.array([3.0])
print(caller(x, %s))
print("compiled", len(callee.inside.overloads), file=__import__("sys").stderr)
"""


def test_what_calls_a_linked_kernel_sees_its_edits_and_its_errors(package):
    source = package / "kernels" / "linking.py"
    source.write_text(LINKED)
    compiling = "Compiling, once, for seconds or a few minutes: the code is kept on disk\n"
    assert call(package, ASKED % "2") == (16.0, compiling + "compiled 1\n")
    assert call(package, ASKED % "2") == (16.0, "compiled 1\n")  # loaded when it was called
    source.write_text(LINKED.replace("SHIFT = 1.0", "SHIFT = 5.0"))
    assert call(package, ASKED % "2")[0] == 20.0
    raised = (
        "try: caller(x, -1)\nexcept ValueError as error: print(-1.0 * (str(error) == 'negative'))"
    )
    assert call(package, ASKED.replace("print(caller(x, %s))", raised))[0] == -1.0
    # One that is not called is not compiled; one that cannot be compiled stops nothing else.
    cannot = (
        "try: caller(x, 7)\nexcept RuntimeError as error: print(-2.0 * ('wrong' in str(error)))"
    )
    value, said = call(package, ASKED.replace("print(caller(x, %s))", cannot))
    assert (value, "compiled 0" in said, "nothing" in said) == (-2.0, True, True)


def test_ctrl_c_between_two_that_are_linked_loses_and_doubles_none():
    class Module:
        def __init__(self):
            self.linked = []

        def link_in(self, module, preserve):
            if module == "second" and "again" not in self.linked:
                self.linked.append("again")
                raise KeyboardInterrupt
            self.linked.append(module)

    class Callee:
        def __init__(self, name):
            self._get_module_for_linking, self._reload_init = lambda: name, {name}

    library = object.__new__(DeferredLibrary)
    library._final_module, library._gathered, library._reload_init = Module(), set(), set()
    library._linking_libraries = [Callee(name) for name in ("first", "second", "third")]
    with pytest.raises(KeyboardInterrupt):
        library._gather()
    library._gather()
    assert library._final_module.linked == ["first", "again", "second", "third"]
    assert library._reload_init == {"first", "second", "third"}
