"""CPU seconds until the first posterior: ``python3 run.py bench first [PAGE ...]``.

Each how-to page's own code, up to its first `dp.sample`, in processes of its own: with empty caches
of compiled code, and once more with what that kept. Two run beside each other. What sampling itself
takes is a second call in the same process. ``--explain`` measures `dp.explain` in its place.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pymc_dp.warm import PAGES, code_of

ROOT = Path(__file__).resolve().parent.parent
RESULT = Path(__file__).parent / "results" / "first.json"
PLAIN = "plain PyMC"
_CHOSEN = (PLAIN, *PAGES)
_PLAIN = """
import numpy as np, pymc as pm
with pm.Model() as model:
    mu, sigma = pm.Normal("mu", 30, 20), pm.HalfNormal("sigma", 20)
    pm.Normal("lead", mu, sigma, observed=np.linspace(0.0, 60.0, 43))
    pm.sample(chains=2, random_seed=1, progressbar=False)
"""
# Calls are timed from inside: what is imported before, and what sampling takes once more.
_TIMED = """
import json, os, sys
def cpu(): return sum(os.times()[:4])
import pymc_dp as dp
found = {"import": cpu()}
original = dp.sample
def sample(*args, **kwargs):
    if %(explain)r:
        import pymc as pm
        began = cpu(); dp.explain(pm.modelcontext(None)); found["explain"] = cpu() - began
        raise SystemExit
    kwargs["progressbar"] = False
    began = cpu(); tree = original(*args, **kwargs); found["call"] = cpu() - began
    began = cpu(); original(*args, **kwargs); found["sampling"] = cpu() - began
    return tree
dp.sample = sample
import atexit
atexit.register(lambda: print("FIRST", json.dumps(found)))
"""


def once(page: str, cache: str, explain: bool = False) -> dict[str, float]:
    """Run a page in a fresh process whose caches are in a folder; return its CPU seconds."""
    code = _PLAIN if page == PLAIN else _TIMED % {"explain": explain} + code_of(page)
    kept = {
        "NUMBA_CACHE_DIR": f"{cache}/numba",
        "PYTENSOR_FLAGS": f"base_compiledir={cache}/graphs",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | kept,
        capture_output=True,
        text=True,
    )
    found = [line[6:] for line in done.stdout.splitlines() if line.startswith("FIRST ")]
    if done.returncode:
        raise RuntimeError(f"{page}: {done.stderr[-2000:]}")
    return json.loads(found[-1]) if found else {}


def timed(page: str, cache: str, explain: bool = False) -> dict[str, float]:
    """Run a page from a process that has no other children, which counts all of it."""
    call = f"""
import json, os
from benchmarks.first import once
found = once({page!r}, {cache!r}, {explain!r})
print(json.dumps(found | {{"total": sum(os.times()[2:4]) - found.get("sampling", 0.0)}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}  # type: ignore[dict-item]
    return json.loads(done.stdout)


def measure(page: str, explain: bool = False) -> dict[str, Any]:
    """Measure one page with empty caches, and with those that it has kept."""
    with tempfile.TemporaryDirectory() as cache:
        return {state: timed(page, cache, explain) for state in ("empty", "kept")}


def main(pages: list[str], explain: bool) -> None:
    """Measure pages, print a table, and keep all figures in a file as they come."""
    kind = "explain" if explain else "sample"
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    print("| model | empty | kept | of that sampling |\n|---|---|---|---|", flush=True)
    chosen = [page for page in pages or _CHOSEN if not (explain and page == PLAIN)]
    with ThreadPoolExecutor(2) as pool:
        for page, found in zip(
            chosen, pool.map(lambda p: measure(p, explain), chosen), strict=True
        ):
            kept.setdefault(kind, {})[page] = found
            RESULT.write_text(json.dumps(kept, indent=1) + "\n")
            of = "explain" if explain else "total"
            cells = [found[state].get(of, found[state].get("error")) for state in found]
            cells += [found["kept"].get("sampling", "")]
            texts = [f"{x:.1f}" if isinstance(x, float) else str(x) for x in cells]
            print(f"| {page} | {' | '.join(texts)} |", flush=True)
