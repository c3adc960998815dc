"""Set up pymc_dp and run it: the only thing needed is a stock Python with pip.

    python3 run.py example [ARGS]   the worked blood-lead example
    python3 run.py test             lint, format and type checks, then the tests
    python3 run.py test ARGS        only pytest, with these arguments
    python3 run.py bench [ARGS]     the benchmarks
    python3 run.py python [ARGS]    the Python of the environment

The first call makes `.venv` beside this file and installs the pinned packages of
requirements.lock into it. Later calls start at once, until requirements.lock or
pyproject.toml changes.
"""

# Standard library only, and no syntax newer than Python 3.8: an interpreter too old for the
# package must still be able to find a newer one, or to say what is missing.
from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "pymc_dp-installed"
LOCK = ROOT / "requirements.lock"
WINDOWS = os.name == "nt"
PYTHON = VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")

OLDEST, TOO_NEW = (3, 12), (3, 15)  # PyMC 6 has the same limits
# The versions that the continuous integration runs come first.
NAMES = ("python3.13", "python3.12", "python3.14", "python3", "python")

CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
)
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
            [*command, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
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
    """Make `.venv` with pip in it."""
    python = find_python()
    lacking = subprocess.call([*python, "-c", "import ensurepip"], stderr=subprocess.DEVNULL)
    without_pip = ["--without-pip"] if lacking else []
    code = subprocess.call([*python, "-m", "venv", *without_pip, str(VENV)])
    if code == 0 and without_pip:
        # Debian and Ubuntu keep ensurepip in a package of its own; the system's pip can stand in.
        code = subprocess.call(
            [*python, "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "pip"]
        )
    if code:
        shutil.rmtree(VENV, ignore_errors=True)  # half an environment would mislead the next call
        stop(
            "could not make .venv (see above). On Debian and Ubuntu, install the python3-venv "
            "package, then give the same command again."
        )


def fingerprint() -> str:
    """Return what the installation depends on, as one hash."""
    digest = hashlib.sha256()
    # An editable install names the folder, so a moved or copied tree has to install again.
    digest.update(str(ROOT).encode())
    for path in (LOCK, ROOT / "pyproject.toml"):
        digest.update(b"\0" + path.read_bytes())
    return digest.hexdigest()


def set_up() -> None:
    """Make the environment agree with requirements.lock; do nothing if it already does."""
    wanted = fingerprint()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return
    if not PYTHON.exists():
        if VENV.exists() and any(VENV.iterdir()):
            stop(".venv is there but holds no working Python. Remove it and try again.")
        make_venv()
    elif not suits(version_of([str(PYTHON)])):
        stop(".venv holds a Python that does not run or is not 3.12 to 3.14. Remove it, try again.")
    if STAMP.exists():
        STAMP.unlink()  # from here until the end, what is installed is not known
    say("run.py: installing the packages of requirements.lock into .venv (once; a few minutes)")
    quiet = ("-qq", "--disable-pip-version-check")  # errors still show
    pip = [str(PYTHON), "-m", "pip"]
    if subprocess.call([*pip, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        subprocess.call([str(PYTHON), "-m", "ensurepip"])  # a .venv made without pip
    for what in (
        ["-r", str(LOCK)],
        # The lock has every dependency and the build backend, so nothing else may be fetched.
        ["--no-deps", "--no-build-isolation", "-e", str(ROOT)],
    ):
        if subprocess.call([*pip, "install", *quiet, *what], cwd=str(ROOT)):
            stop("the installation failed (see above); nothing was run.")
    STAMP.write_text(wanted)


def call(args: list[str], cwd: Path | None = None) -> int:
    """Run the environment's Python and return its exit status, as a shell would give it."""
    try:
        code = subprocess.call([str(PYTHON), *args], cwd=None if cwd is None else str(cwd))
    except KeyboardInterrupt:
        return 130
    return code if code >= 0 else 128 - code


def workers(args: list[str]) -> list[str]:
    """Return pytest's options for running in parallel."""
    chosen = any(arg.split("=")[0] in NO_WORKERS or arg[:2] == "-n" for arg in args)
    if chosen or (os.cpu_count() or 1) < MAX_WORKERS:
        return []
    # By file: tests of one file share compiled models.
    # The files with few tests are the long ones: in the order of the names, not the last.
    return ["-n", str(MAX_WORKERS), "--dist", "loadfile", "--no-loadscope-reorder"]


def test(args: list[str]) -> int:
    """Run the checks and the tests; with arguments, only pytest."""
    if args:
        return call(["-m", "pytest", *workers(args), *args], cwd=ROOT)
    failed, first = [], 0
    # All of them, also after a failure, so that one run shows everything there is to repair.
    for check in (*CHECKS, ("pytest", *workers(args))):
        say("run.py: " + " ".join(check))
        code = call(["-m", *check], cwd=ROOT)
        if code == 130:
            return code
        if code:
            failed.append(" ".join(check[:2]) if check[0] == "ruff" else check[0])
            first = first or code
    if failed:
        say("run.py: FAILED: " + ", ".join(failed))
    return first


def main(argv: list[str]) -> int:
    """Run one of the commands in the module's description."""
    command, args = (argv[0], argv[1:]) if argv else ("", [])
    if command not in ("example", "test", "bench", "python"):
        print(__doc__)
        return 0 if command in ("-h", "--help", "help") else 2
    set_up()
    if command == "python":
        return call(args)
    os.environ.setdefault("MPLBACKEND", "Agg")  # no window, and no display needed
    if command == "example":
        return call(["-m", "pymc_dp.examples.blood_lead", *args])
    if command == "bench":
        return call(["-m", "benchmarks", *args], cwd=ROOT)
    return test(args)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
