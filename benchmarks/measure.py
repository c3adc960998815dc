"""One side of a row in a process of its own: a cold call, then warm ones, each with its seed."""

import json
import logging
import multiprocessing
import os
import platform
import resource
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm

import pymc_dp as dp
from benchmarks.rows import OURS, ROWS

RESULTS = Path(__file__).parent / "results"
CONVERGED, SEEDS, COLD = 1.02, (1, 2, 3), 30.0  # COLD: seconds that the first call may take more
_LESS = 0.1  # of the draws, where a side had no warm call in time
# A new process begins from one that has imported all, and has sampled nothing.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["benchmarks.measure"])


def cpu() -> float:
    """Return the CPU seconds of this process and of its children."""
    of = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in of)  # os.times() counts hundredths


def call(sample, names, options) -> dict[str, Any]:
    """Sample once; return what is measured."""
    began, wall = cpu(), time.perf_counter()
    tree = sample(**options)
    seconds, wall = cpu() - began, time.perf_counter() - wall
    posterior = tree["posterior"]
    stats = tree["sample_stats"] if "sample_stats" in tree.children else {}
    chains = (posterior.sizes["chain"], posterior.sizes["draw"], -1)  # fewer when stopped
    each = [posterior[name].to_numpy().reshape(chains) for name in names]
    draws = np.moveaxis(np.concatenate(each, axis=2), 2, 0)
    found = {
        "seconds": seconds,
        # PyMC times sampling by the wall clock: its share of the call's CPU time.
        "sampling": posterior.attrs.get("sampling_time", np.nan) * seconds / wall,
        "ess": min(float(az.ess(x)) for x in draws),
        "rhat": max(float(az.rhat(x)) for x in draws),
        "chains": chains[0],
        "drawn": chains[1],
        "diverged": int(np.sum(stats["diverging"])) if "diverging" in stats else 0,
        "seed": options["random_seed"],
    }
    found["mean"] = [float(x.mean()) for x in draws]
    found["mcse"] = [float(az.mcse(x)) for x in draws]
    return found


def listen() -> list[str]:
    """Return a list that messages of PyMC's log are added to; they are not shown."""
    log, said = logging.getLogger("pymc"), list[str]()
    log.setLevel(logging.INFO)
    log.handlers = [handler := logging.Handler()]
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    return said


def last_route(said: list[str]) -> str:
    """Return the route that was taken last, as `dp.sample` says it; empty where it said none."""
    return next((text[7:] for text in reversed(said) if text.startswith("Route: ")), "")


def side(pipe, name: str, form: str, sampler: str, best: float, part: float = 1.0) -> None:
    """Send what each call gave, and at last why there are no more; a `part` of the draws."""
    warnings.simplefilter("ignore")
    row, said = ROWS[name], listen()
    draws = max(20, round(part * row.draws[form != OURS]))
    options: dict[str, Any] = dict(draws=draws, tune=min(draws, 1000), chains=2, cores=1)
    options |= dict(progressbar=False, compute_convergence_checks=False)
    sample = dp.sample
    if form != OURS:
        sample, options["nuts_sampler"] = pm.sample, sampler
    else:
        signal.signal(signal.SIGXCPU, interrupt)  # `dp.sample` returns the draws so far
    try:
        began = cpu()
        model = row.build(form)
        limit(row.limit + COLD)
        for seed in (0, *SEEDS):
            with model:
                found = call(sample, row.names, options | {"random_seed": seed})
            if not seed:
                found["seconds"] = cpu() - began
                limit(row.limit)
            elif options.get("target_accept"):
                found["target_accept"] = options["target_accept"]
            if found["diverged"] and form != OURS:
                options["target_accept"] = 0.9
            found["route"] = last_route(said) or sampler
            whole = found["chains"] == options["chains"] and found["drawn"] == draws
            found["stopped"] = stopped = not whole
            if not stopped or seed <= SEEDS[0]:  # after a whole warm call, a part says no more
                pipe.send(found)
            if stopped:
                return pipe.send(f"over {row.limit:.0f} CPU s, after {found['drawn']} draws")
            # The first warm call tells whether a form by hand is the best one.
            if seed and found["rhat"] >= CONVERGED and form != OURS:
                return pipe.send("did not converge")
            if seed and found["ess"] / found["seconds"] < best / 2:
                return pipe.send("slower than another form")
        pipe.send("")
    except KeyboardInterrupt:
        pipe.send(f"over {row.limit:.0f} CPU s")
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}".split("\n")[0][:200])


def limit(seconds: float) -> None:
    """Let this process have so many CPU seconds from now on."""
    used = sum(os.times()[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, resource.RLIM_INFINITY))


def interrupt(*_) -> None:
    """Interrupt this process at its limit; it ends a while later, if it is not done."""
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    limit(COLD)
    raise KeyboardInterrupt


def messages(target, *arguments, over: str) -> Iterator[Any]:
    """Run a function in a process of its own; yield what it sends, and at last why it ended."""
    here, there = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            yield here.recv()
    except EOFError:
        process.join()
        yield over if process.exitcode == -signal.SIGXCPU else "the process died"
    finally:
        process.join()


def measure(name: str, form: str, sampler: str = "nutpie", best: float = 0.0) -> dict[str, Any]:
    """Measure one side; what a side had before its limit stays."""
    over = f"over {ROWS[name].limit:.0f} CPU s"
    for part in (1.0, _LESS):
        calls = []
        for error in messages(side, name, form, sampler, best, part, over=over):
            if isinstance(error, str):  # a reason, empty where all calls were made
                break
            calls.append(error)
        stopped = error.startswith(over) or error == "the process died"  # as nutpie does there
        if len(calls) > 1 or not stopped:
            break
    if part < 1.0:
        error = "; ".join(filter(None, (error or over, "with a tenth of the draws")))
    return {"form": form, "sampler": sampler, "calls": calls, "error": error}


def rate(found: dict[str, Any], of: str = "seconds") -> float:
    """Return the median rate of the warm calls; 0 where not all of them ended and converged."""
    warm = found["calls"][1:]
    mixed = warm and all(c["rhat"] < CONVERGED and not c.get("stopped") for c in warm)
    return float(np.median([c["ess"] / c[of] for c in warm])) if mixed else 0.0


def run(name: str) -> dict[str, Any]:
    """Measure all sides of a row, and keep them in a file as they come."""
    row = ROWS[name]
    found: dict[str, Any] = machine() | {"row": name, "draws": row.draws, "paper": row.paper}
    found["sides"] = sides = []
    RESULTS.mkdir(exist_ok=True)

    def keep(**new) -> None:
        sides.append(new)
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")

    keep(**measure(name, OURS))
    for form in row.forms:
        keep(**measure(name, form, best=max(map(rate, sides[1:]), default=0.0)))
    best = max(sides[1:], key=rate, default=None)
    if best is not None and find_spec("numpyro") and rate(best):
        keep(**measure(name, best["form"], "numpyro", rate(best)))
    found["ended"] = True
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def is_measured(name: str) -> bool:
    """Whether a row was measured to its end at this commit."""
    place = RESULTS / f"{name}.json"
    if not place.exists():
        return False
    found = json.loads(place.read_text())
    return found["commit"] == machine()["commit"] and found.get("ended", False)


@cache  # the commit is that of the code when it was loaded
def machine() -> dict[str, Any]:
    """Say when, of which code, and on what."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [text.split(":")[1].strip() for text in lines if text.startswith("model name")]
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": git.stdout.strip(),
        "cpu": models[0] if models else platform.processor(),
        "versions": {name: version(name) for name in ("pymc", "pytensor", "nutpie", "numba")},
    }
