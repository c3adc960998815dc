"""Set up pymc_dp and run it: the only thing needed is a stock Python with pip.

    python3 run.py example [ARGS]   the worked blood-lead example
    python3 run.py example NAME     another one of docs/examples, with ARGS behind it
    python3 run.py test             lint, format and type checks, then the tests of the day
    python3 run.py test ARGS        only pytest, with these arguments
    python3 run.py test --changed   only the tests that can see what differs from the last commit,
                                    or from --changed=COMMIT
    python3 run.py docs             the site, into docs/_build/html: open index.html there
    python3 run.py bench [ROW ...]  the benchmark: all models or those named; --report, its table
    python3 run.py python [ARGS]    the Python of the environment

    test --night [ARGS]             all tests, with every graph compiled as users have it
    COMMAND --neural [ARGS]         with torch, for neural estimation; --night implies it
    COMMAND --test [ARGS]           with the tools of the tests, for example for `python -m ruff`

The first call makes `.venv` beside this file. A call installs the pinned packages that its command
needs and that are not there yet: those of requirements.lock, for `test` those of
requirements-test.lock, for `docs` those of requirements-docs.lock, for --neural those of
requirements-neural.lock. Later calls start at once, until one of these files or pyproject.toml
changes.
"""

# Standard library only, and no syntax newer than Python 3.8: an interpreter too old for the
# package must still be able to find a newer one, or to say what is missing.
from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
RUN, TEST, DOCS, NEURAL = (
    "requirements%s.lock" % part for part in ("", "-test", "-docs", "-neural")
)
OPTIONS = ("--night", "--neural", "--test")  # of ours, beside the commands
WINDOWS = os.name == "nt"
PYTHON = VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")

OLDEST, TOO_NEW = (3, 12), (3, 15)  # PyMC 6 has the same limits
# The versions that the continuous integration runs come first.
NAMES = ("python3.13", "python3.12", "python3.14", "python3", "python")

CHECKS = {
    "ruff check": ("-m", "ruff", "check", "."),
    "ruff format": ("-m", "ruff", "format", "--check", "."),
    "mypy": ("-m", "mypy"),
    # Who may import whom; it is a command only.
    "lint-imports": ("-c", "from importlinter.cli import lint_imports_command as run; run()"),
}
# Folders of tests that have processes of their own, because compiling and torch keep memory. The
# kernels, and what is little else, come first: the others load them from disk.
KERNELS, NETWORKS = (("kernels",), ("distributions", "laws")), ("neural",)
MODELS = (("conformance",), ("fuzz", "ladder", "reading"), ("routes", "step_methods"))
LARGE = "plugins/single_values"  # compiles as much as all other plugins
USERS = {"inversion": ("unknown_sizes",)}  # plugins that import another one
# Each worker compiles its own models, so more of them cost memory before they save time.
MAX_WORKERS = 2
# With these the caller has chosen, or wants the output or control of the one test process.
NO_WORKERS = ("-n", "--numprocesses", "--dist", "--pdb", "--trace", "-s", "--capture", "no:xdist")


def say(message: str) -> None:
    """Print one line of our own, ahead of what a child prints next."""
    print(message, flush=True)


def stop(message: str) -> None:
    """Leave with an explanation."""
    sys.exit("run.py: " + message)


def version_of(command: list[str]) -> tuple[int, ...] | None:
    """Return the (major, minor) version of an interpreter, or None if it does not run."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        # A version manager's placeholder may be on PATH and still fail: only running it tells.
        done = subprocess.run(
            [*command, "-c", code], stdout=subprocess.PIPE, stderr=DEVNULL, timeout=60
        )
        return tuple(int(part) for part in done.stdout.split()) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def suits(version: tuple[int, ...] | None) -> bool:
    """Tell whether the package can run on this version."""
    return version is not None and OLDEST <= version < TOO_NEW


def find_python() -> list[str]:
    """Return the command of an interpreter that the package can run on."""
    if suits(sys.version_info[:2]):
        return [sys.executable]
    candidates = [[found] for found in map(shutil.which, NAMES) if found]
    # What pyenv has installed can be run in full even where its placeholders refuse to.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for minor in ("3.13", "3.12", "3.14"):
        candidates += [[str(path)] for path in pyenv.glob("versions/%s.*/bin/python" % minor)]
    if WINDOWS:
        candidates += [["py", "-3.13"], ["py", "-3.12"], ["py", "-3.14"]]
    for command in candidates:
        if suits(version_of(command)):
            return command
    return stop(
        "pymc_dp needs Python 3.12, 3.13 or 3.14. This is Python {}.{}, and PATH has no newer one "
        "that runs. Install one (for example from python.org, your system's packages, pyenv or "
        "conda), then give the same command again.".format(*sys.version_info[:2])
    )


def make_venv() -> None:
    """Make `.venv`, without a pip: another's can install into it."""
    if subprocess.call([*find_python(), "-m", "venv", "--without-pip", str(VENV)]):
        shutil.rmtree(VENV, ignore_errors=True)  # half an environment would mislead the next call
        stop(
            "could not make .venv (see above). On Debian and Ubuntu, install the python3-venv "
            "package, then give the same command again."
        )


def find_pip() -> list[str]:
    """Return the command of a pip that installs into `.venv`."""
    own = [str(PYTHON), "-m", "pip"]
    for command in (own, [*find_python(), "-m", "pip", "--python", str(PYTHON)]):
        # Running it tells as well whether it is new enough to have --python.
        if not subprocess.call([*command, "--version"], stdout=DEVNULL, stderr=DEVNULL):
            return command
    # Debian and Ubuntu keep ensurepip in a package of its own.
    if subprocess.call([str(PYTHON), "-m", "ensurepip"], stdout=DEVNULL):
        stop(
            "there is neither uv nor pip to install with. On Debian and Ubuntu, install the "
            "python3-pip or python3-venv package, then give the same command again."
        )
    return own


def stamp_of(lock: str) -> Path:
    """Return the file that says for which state of a lock its packages were installed."""
    return VENV / ("installed-" + lock)


def fingerprint(lock: str) -> str:
    """Return what the installation of a lock depends on, as one hash."""
    digest = hashlib.sha256((ROOT / lock).read_bytes())
    if lock == RUN:  # with which the package itself is installed
        # An editable install names the folder, so a moved or copied tree has to install again.
        digest.update(str(ROOT).encode() + b"\0" + (ROOT / "pyproject.toml").read_bytes())
    return digest.hexdigest()


def is_current(lock: str) -> bool:
    """Tell whether the packages of a lock, as it is now, are installed."""
    stamp = stamp_of(lock)
    return PYTHON.exists() and stamp.exists() and stamp.read_text() == fingerprint(lock)


def install(what: list[str]) -> bool:
    """Run one installation with uv, or with pip where that is missing or fails."""
    # The locks have every dependency and the build backend, so nothing else may be fetched.
    what = ["--no-deps", *what]
    uv = shutil.which("uv")
    if uv:
        command = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), *what]
        if subprocess.call(command, cwd=str(ROOT)) == 0:
            return True
        say("run.py: uv failed (see above); trying pip, which may be set up for another index")
    # Errors still show. Python compiles what is imported, a small part of it all, by itself.
    quiet = ("-qq", "--disable-pip-version-check", "--no-compile")
    return subprocess.call([*find_pip(), "install", *quiet, *what], cwd=str(ROOT)) == 0


def set_up(locks: list[str]) -> None:
    """Install the packages of these locks that are not installed; remove none."""
    missing = [lock for lock in locks if not is_current(lock)]
    if not missing:
        return
    if not PYTHON.exists():
        if VENV.exists() and any(VENV.iterdir()):
            stop(".venv is there but holds no working Python. Remove it and try again.")
        make_venv()
    elif not suits(version_of([str(PYTHON)])):
        stop(".venv holds a Python that does not run or is not 3.12 to 3.14. Remove it, try again.")
    for lock in missing:
        if stamp_of(lock).exists():
            stamp_of(lock).unlink()  # from here until the end, what is installed is not known
    names = " and ".join(missing)
    say("run.py: installing the packages of %s into .venv (once; a minute or more)" % names)
    whats = [[part for lock in missing for part in ("-r", lock)]]
    if RUN in missing:
        whats.append(["--no-build-isolation", "-e", str(ROOT)])
    for what in whats:
        if not install(what):
            stop("the installation failed (see above); nothing was run.")
    for lock in missing:
        stamp_of(lock).write_text(fingerprint(lock))


def call(args: list[str], cwd: Path | None = None) -> int:
    """Run the environment's Python and return its exit status, as a shell would give it."""
    try:
        code = subprocess.call([str(PYTHON), *args], cwd=None if cwd is None else str(cwd))
    except KeyboardInterrupt:
        return 130
    return code if code >= 0 else 128 - code


def check(args: tuple[str, ...]) -> tuple[int, str]:
    """Run the environment's Python and return its exit status and what it printed."""
    done = subprocess.run(
        [str(PYTHON), *args], cwd=str(ROOT), stdout=PIPE, stderr=STDOUT, text=True
    )
    return done.returncode, done.stdout


def workers(args: list[str] | tuple[str, ...]) -> list[str]:
    """Return pytest's options for running in parallel."""
    chosen = any(arg.split("=")[0] in NO_WORKERS or arg[:2] == "-n" for arg in args)
    if chosen or (os.cpu_count() or 1) < MAX_WORKERS:
        return []
    # Neighbours share what they compile: those of a kernel stay with one worker, and of the others
    # a worker that is done takes from the other's end.
    kernels = any(arg == "tests/" + name for arg in args for group in KERNELS for name in group)
    return ["-n", str(MAX_WORKERS), "--dist", "loadfile" if kernels else "worksteal"]


def parts(neural: bool) -> list[tuple[str, ...]]:
    """Return the files and folders of each run of pytest."""
    tests = ROOT / "tests"
    found = {f.relative_to(tests).parts[0] for f in tests.rglob("test_*.py")}
    plugins = {
        "plugins/" + f.relative_to(tests).parts[1] for f in tests.glob("plugins/*/**/test_*.py")
    }
    rest = sorted(found.difference(*KERNELS, *MODELS, NETWORKS, ["plugins"]))
    groups = [*KERNELS, *MODELS, (LARGE,), sorted(plugins - {LARGE}), rest] + [NETWORKS] * neural
    return [tuple("tests/" + name for name in group) for group in groups]


def seeing(changed: list[str]) -> list[str]:
    """Return the tests that can see a change in some files; all where it is one of the core."""
    tests = set()
    for name in changed:
        folder = name.split("/")
        if name.startswith("tests/") and name.endswith(".py"):
            if not folder[-1].startswith("test_"):
                return ["tests"]
            tests.add(name)
        elif name.startswith("pymc_dp/plugins/") and len(folder) > 3:
            # Suites run over all that is registered; nothing else knows of a plugin.
            tests |= {"tests/plugins/" + of for of in (folder[2], *USERS.get(folder[2], ()))}
            tests |= {"tests/conformance", "tests/fuzz"}
        elif name.startswith(("pymc_dp/neural/", "pymc_dp/studies/")):
            tests.add("tests/" + folder[1])
        elif name.startswith("docs/examples/"):
            tests.add("tests/examples")
        elif folder[0] == "docs" or name.endswith(".md"):
            tests.add("tests/test_docs.py")
        elif folder[0] == "benchmarks":
            tests.add("tests/test_benchmarks.py")
        elif name.endswith(".py") or folder[0] == "pyproject.toml":
            return ["tests"]
    return sorted(name for name in tests if (ROOT / name).exists())


def changed_since(commit: str) -> list[str]:
    """Return the files that differ from a commit, new ones too."""
    ask = (["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"])
    found = [subprocess.check_output(["git", *own], cwd=str(ROOT), text=True) for own in ask]
    return "".join(found).split()


def test(args: list[str], night: bool, neural: bool) -> int:
    """Run the checks and the tests; with arguments, only pytest."""
    pytest = ("pytest", *(["--night"] if night else []))
    since = [arg for arg in args if arg.split("=")[0] == "--changed"]
    if since:
        args = [arg for arg in args if arg not in since]
        args += seeing(changed_since(since[-1].partition("=")[2] or "HEAD"))
        if not args:
            say("run.py: no test can see what changed")
            return 0
        say("run.py: " + " ".join(args))
    if args:
        return call(["-m", *pytest, *workers(args), *args], cwd=ROOT)
    codes = {}  # type: dict[str, int]
    # All of them, also after a failure, so that one run shows everything there is to repair. The
    # checks have one process each, and run beside the first tests.
    with ThreadPoolExecutor(1) as beside:
        checks = {name: beside.submit(check, command) for name, command in CHECKS.items()}
        for part in parts(neural):
            command = ["-m", *pytest, *workers(part), *part]
            say("run.py: " + " ".join(command[1:]))
            code = call(command, cwd=ROOT)
            if code == 130:
                return code
            codes["pytest .. " + part[-1]] = code
            for name in list(checks):
                codes[name], output = checks.pop(name).result()
                say("run.py: " + name + "\n" + output.rstrip())
    failed = [name for name, code in codes.items() if code]
    first = next(filter(None, codes.values()), 0)
    if not neural:
        say("run.py: tests/neural was left out: python3 run.py test --neural installs torch for it")
    if failed:
        say("run.py: FAILED: " + ", ".join(failed))
    return first


def example(args: list[str]) -> list[str]:
    """Return the script of an example, that of blood lead if none is named, and its arguments."""
    named = args and not args[0].startswith("-")
    name, rest = (args[0], args[1:]) if named else ("blood_lead", args)
    scripts = {path.stem: str(path) for path in sorted((ROOT / "docs" / "examples").glob("*.py"))}
    for helper in ("report", "sir_simulator"):  # what they import
        del scripts[helper]
    if name not in scripts:
        stop("there is no example %r: write one of %s" % (name, ", ".join(scripts)))
    return [scripts[name], *rest]


def docs(args: list[str]) -> int:
    """Build the site, and follow the links within it."""
    site = ROOT / "docs" / "_build" / "html"
    os.environ["PYTHONUTF8"] = "1"  # the pages are, on Windows too
    build = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--jobs", "2"]
    return call([*build, *args, str(ROOT / "docs"), str(site)]) or call(
        [str(ROOT / "docs" / "links.py"), str(site)]
    )


def main(argv: list[str]) -> int:
    """Run one of the commands in the module's description."""
    command, args = (argv[0], argv[1:]) if argv else ("", [])
    if command not in ("example", "test", "docs", "bench", "python"):
        if command not in ("", "-h", "--help", "help"):
            say("run.py: there is no command %r\n" % command)
        print(__doc__)
        return 0 if command in ("-h", "--help", "help") else 2
    testing = command == "test"
    if testing:
        own = [arg for arg in args if arg in OPTIONS]
        args = [arg for arg in args if arg not in OPTIONS]
    else:  # what comes after the first argument belongs to what is run
        own = list(takewhile(OPTIONS.__contains__, args))
        args = args[len(own) :]
    night = "--night" in own
    if command == "example":
        args = example(args)
    locks = [RUN]
    if testing or "--test" in own:
        locks.append(TEST)
    if command == "docs":
        locks.append(DOCS)
    neural = night or "--neural" in own
    if neural:
        locks.append(NEURAL)
    set_up(locks)
    # Not compiled by the installation, the packages would otherwise be compiled at every start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if command == "python":
        return call(args)
    if command == "docs":  # whose pages show their pictures
        return docs(args)
    os.environ.setdefault("MPLBACKEND", "Agg")  # no window, and no display needed
    if command == "example":
        return call(args)
    if command == "bench":
        return call(["-m", "benchmarks", *args], cwd=ROOT)
    return test(args, night, neural)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
