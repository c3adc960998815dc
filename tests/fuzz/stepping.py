"""One transition of each step leaves the posterior as it is."""

import numpy as np
import pytensor
from pymc.pytensorf import reseed_rngs
from pytensor.graph.replace import graph_replace

import pymc_dp as dp
from pymc_dp.graphs.draws import compile_draws
from pymc_dp.ladder.check import Releases

PRIOR, DRAWS, SIGMAS = 20_000, 150, 5.0


def stepped(model, steps, seed):
    """Return what becomes of each step: right, undecided or wrong, and its name.

    The starts are draws of the prior, by the density of what was released.
    """
    rng, free = np.random.default_rng([seed, 2]), list(model.free_RVs)
    released = Releases(model, [], written=False)
    potentials = [p.sum() for p in model.potentials]
    draw, generators = compile_draws([], [*potentials, *released.drawn, *free])
    reseed_rngs(generators, int(rng.integers(2**63)))
    rows = [draw() for _ in range(PRIOR)]
    drawn = [np.array(v) for v in zip(*rows, strict=True)]
    own, drawn = sum(drawn[: len(potentials)]), drawn[len(potentials) :]
    count = len(released.drawn)
    logs = released.logs(released.inputs_of([], drawn[:count]), released.observed())
    logs = np.nan_to_num(logs.sum(axis=1) + own, nan=-np.inf)
    weights = np.exp(logs - logs.max()) if logs.max() > -np.inf else np.zeros(PRIOR)
    if not weights.sum() ** 2 > 2 * DRAWS * (weights**2).sum():
        return [("undecided", type(step).__name__) for step in steps]
    picked = rng.choice(PRIOR, size=DRAWS, p=weights / weights.sum())
    starts = [v[picked] for v in drawn[count:]]
    plain = {rv: rv.type() for rv in free}
    forward = [
        rv if (t := model.rvs_to_transforms[rv]) is None else t.forward(rv, *rv.owner.inputs)
        for rv in free
    ]
    to_values = pytensor.function([*plain.values()], graph_replace(forward, plain))
    back = model.compile_fn(
        model.replace_rvs_by_values(free), inputs=model.value_vars, on_unused_input="ignore"
    )
    names, found = [model.rvs_to_values[rv].name for rv in free], []
    for step in steps:
        step.setup_chain(np.random.default_rng(3), tune=0, draws=1)
        if isinstance(step, dp.RecordMetropolis):
            step.started, step.sweeps = True, 1  # from the records that are given
        changes = []
        for row in zip(*starts, strict=True):
            after, _ = step.step(dict(zip(names, to_values(*row), strict=True)))
            changes.append(_functions(back(after)) - _functions(row))
        changes = np.array(changes)
        off = np.abs(changes.mean(0)) > SIGMAS * changes.std(0) / np.sqrt(DRAWS) + 1e-9
        found.append(("wrong" if off.any() else "right", type(step).__name__))
    return found


def _functions(values):
    """Return bounded functions of values, of whose means one is the posterior's."""
    own = np.concatenate([np.tanh(np.ravel(v) / 2) for v in values])
    means = [np.tanh(np.mean(v) / 2) for v in values]
    return np.concatenate([own, np.multiply.outer(means, means).ravel()])
