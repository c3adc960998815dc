"""How time and memory grow: ``python3 run.py bench growth [KIND ...]``.

Eight kinds of models at three sizes, a decade apart: CPU seconds for each draw of a warm call,
tuning included, and the largest memory of the process. The exponent is the slope of log time over
log size from the second size to the third, where a constant part weighs least.
"""

import json
import math
import resource
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pymc as pm

import pymc_dp as dp
from benchmarks import rows
from benchmarks.measure import RESULTS, cpu, last_route, limit, listen, machine, messages
from benchmarks.rows import OURS

FILE = RESULTS / "growth.json"
DRAWS, LIMIT = 50, 200.0  # draws and tuning draws of each of two chains; CPU seconds of a size


def table(form: str, cells: int) -> None:
    """Release the counts of a table, with ten persons a cell."""
    rng = np.random.default_rng(31)
    counts = rng.multinomial(10 * cells, rng.dirichlet(np.ones(cells)))
    p = pm.Dirichlet("p", np.ones(cells))
    z = rows.noisy(rng, "Geometric", 2.0, counts)
    rows.publish(form, "Geometric", 2.0, pm.Multinomial("counts", 10 * cells, p), z)


def areas(form: str, n: int) -> None:
    """Release counts by area, see `rows.areas`."""
    rows.areas(form, shape=(n // 10, 10))


# What a size counts, the builder, and the three sizes.
KINDS: dict[str, tuple[str, Callable[..., None], tuple[int, int, int]]] = {
    "records": ("records", partial(rows.clamped, n=0), (1_000, 10_000, 100_000)),
    "groups": ("groups", partial(rows.means, J=0), (50, 500, 5_000)),
    "clinics": ("groups", partial(rows.clinics, J=0), (4, 40, 400)),
    "reports": ("persons", partial(rows.answers, n=0), (10_000, 100_000, 1_000_000)),
    "counts by area": ("areas", partial(areas, n=0), (1_000, 10_000, 100_000)),
    "regression rows": ("rows", partial(rows.regression, d=3, n=0), (1_000, 10_000, 100_000)),
    "tables": ("cells", partial(table, cells=0), (100, 1_000, 10_000)),
    "noisy rows": ("rows", partial(rows.rows, n=0), (1_000, 10_000, 100_000)),
}


def measure(pipe, kind: str, size: int) -> None:
    """Send the CPU seconds of a draw, the largest memory in MB and the route; or an error."""
    warnings.simplefilter("ignore")
    said, (_, write, _) = listen(), KINDS[kind]
    name = list(write.keywords)[-1]  # type: ignore[attr-defined]
    limit(LIMIT)
    try:
        model = rows.built(partial(write, **{name: size}), OURS)
        options = dict(draws=DRAWS, tune=DRAWS, chains=2, cores=1, progressbar=False)
        for seed in (0, 1):  # the second call is warm
            began = cpu()
            dp.sample(model, random_seed=seed, compute_convergence_checks=False, **options)
            seconds = (cpu() - began) / (4 * DRAWS)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        pipe.send({"seconds": seconds, "memory": memory, "route": last_route(said)})
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}".split("\n")[0][:120]})


def main(kinds: Sequence[str]) -> None:
    """Measure kinds, and keep them in a file as they come."""
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    for kind in kinds or KINDS:
        found[kind] = machine() | {"sizes": {}}
        for size in KINDS[kind][2]:
            first, *_ = messages(measure, kind, size, over=f"over {LIMIT:.0f} CPU s")
            of_size = {"error": first} if isinstance(first, str) else first
            found[kind]["sizes"][size] = of_size
            FILE.write_text(json.dumps(found, indent=1) + "\n")
        found = json.loads(FILE.read_text())
        print(_line(kind, found[kind]), end="", flush=True)


def _line(kind: str, of_kind) -> str:
    sizes = of_kind["sizes"]
    measured = {int(n): one for n, one in sizes.items() if "error" not in one}
    cells = [
        f"{one['seconds'] * 1000:.3g} ms, {one['memory']:.0f} MB"
        if "error" not in (one := sizes[n])
        else one["error"]
        for n in sizes
    ]
    exponent = ""
    if len(measured) > 1:
        (a, first), (b, last) = sorted(measured.items())[-2:]
        exponent = f"{math.log(last['seconds'] / first['seconds']) / math.log(b / a):.2f}"
    route = next((one["route"] for one in measured.values()), "")
    counted = ", ".join(f"{int(n):,}" for n in sizes)
    name = f"{kind} ({counted} {KINDS[kind][0]})"
    return f"| {' | '.join([name, route, *cells, exponent])} |\n"


def report() -> str:
    """Return what was measured in Markdown; nothing where nothing was."""
    if not FILE.exists():
        return ""
    found = json.loads(FILE.read_text())
    head = "\n## Growth\n\n" + " ".join(str(__doc__).split("\n\n")[1].split("\n")) + "\n\n"
    head += "| kind (sizes) | route | smallest | middle | largest | exponent |\n"
    head += "| --- | --- | --- | --- | --- | --- |\n"
    return head + "".join(_line(kind, found[kind]) for kind in KINDS if kind in found)
