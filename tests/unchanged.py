"""What is read, decided and drawn of many models, in one file, to compare another state with.

    python -m tests.unchanged write     writes tests/data/unchanged.json
    python -m tests.unchanged [NAMES]   says what is no longer as it was there

Moves and rewrites of the package must not change it; what changes on purpose is written anew, and
the commit says why.
"""

import json
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
from rich.console import Console

import pymc_dp as dp
from tests.conformance.test_decisions import decisions
from tests.models import MODELS

PLACE = Path(__file__).parent / "data" / "unchanged.json"
REFUSALS = (ValueError, NotImplementedError, TypeError, pm.SamplingError)
STEPPED = ("gaussian", "poisson", "bernoulli", "table", "factorization", "normal")


def flat(values):
    """Return the first few numbers of each."""
    return {str(k): np.ravel(v).astype(float)[:6].tolist() for k, v in values.items()}


def first_draws(sample):
    """Return the first draws of a sampler, or why it draws nothing."""
    try:
        tree = sample(draws=3, tune=0, chains=1, cores=1, random_seed=1, progressbar=False)
    except REFUSALS as error:
        return str(error)
    return flat(tree.posterior.data_vars)


def found_of(name):
    """Return what there is to say of one model."""
    found = decisions(MODELS[name], 0, density=True)
    model = MODELS[name]()
    found["sample"] = first_draws(lambda **kwargs: dp.sample(model, **kwargs))
    if name in STEPPED:
        with model:
            found["steps drawn"] = first_draws(
                lambda **kwargs: pm.sample(step=dp.steps(), **kwargs)
            )
    return found


def differences(before, now, where=""):
    """Yield where two findings differ; numbers may by rounding."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from differences(before.get(key), now.get(key), f"{where}/{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for k, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, f"{where}/{k}")
    elif isinstance(before, float | int) and isinstance(now, float | int):
        if not np.isclose(before, now, rtol=1e-9, atol=1e-12, equal_nan=True):
            yield f"{where}: {before!r} -> {now!r}"
    elif before != now:
        yield f"{where}:\n    {before!r}\n    {now!r}"


def main(arguments):
    """Write or compare; the number of models that differ is the exit status."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    write = arguments == ["write"]
    before = {} if write else json.loads(PLACE.read_text())
    names = [*MODELS]
    if arguments and not write:
        names = [name for name in names if name in arguments]
    found, changed = {}, 0
    for name in names:
        # As the file has it: keys are text, tuples lists.
        with pytensor.config.change_flags(mode="FAST_COMPILE"):  # each is evaluated a few times
            found[name] = json.loads(json.dumps(found_of(name), default=str))
        lines = [] if write else list(differences(before[name], found[name]))
        changed += bool(lines)
        Console(soft_wrap=True).print(
            f"{name}: {'changed' if lines else 'as before'}",
            *lines,
            sep="\n  ",
            markup=False,
            highlight=False,
        )
    if write:
        PLACE.write_text(json.dumps(found, indent=1) + "\n")
    return changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
