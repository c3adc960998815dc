"""Random models: every rung that opens has the density that scipy gives, or is declined by name."""

import re
from collections import Counter

import numpy as np
import pymc as pm
import pytest
from pytensor.graph.replace import graph_replace
from rich.console import Console

import pymc_dp as dp
from pymc_dp.records import release_statistic
from tests.fuzz.grammar import MECHANISMS, average, random_spec, simpler

REFUSALS = (ValueError, NotImplementedError)
SIGMAS = 5.0
DOUBTFUL = 0.2  # of a standard error of a log density: nothing can be said
LEVELS = (0.25, 0.6, 0.9)  # quantiles of the prior


def differ(found, truth):
    """Return whether densities differ by more than a constant; None where that cannot be said."""
    values, errors = np.array([t[0] for t in truth]), np.array([t[1] for t in truth])
    own, own_errors = np.array([f[0] for f in found]), np.array([f[1] for f in found])
    # NaN says that a density was not found: no number, but none that is wrong.
    known = (errors < DOUBTFUL) & (own_errors < DOUBTFUL) & ~np.isnan(own)
    if np.any(known & np.isinf(own)):
        return True
    if known.sum() < 2:
        return None
    change = (own - values)[known]
    error = np.hypot(errors, own_errors)[known]
    return bool(np.any(np.abs(change - change[0]) > SIGMAS * np.hypot(error, error[0]) + 1e-6))


def of_marginal(model, spec, thetas):
    """Log densities of the releases given theta; no error."""
    [theta] = model.free_RVs
    value, transform = model.rvs_to_values[theta], model.rvs_to_transforms[theta]
    density = model.compile_fn(
        model.logp(vars=model.observed_RVs),
        inputs=[value],
        point_fn=False,
        on_unused_input="ignore",
    )
    inputs = theta.owner.inputs
    at = [t if transform is None else transform.forward(t, *inputs).eval() for t in thetas]
    return [(float(density(v)), 0.0) for v in at]


def of_statistics(model, spec, thetas, z, draws):
    """The same, averaged over draws of the statistics, which the model says how to draw."""
    theta = model["theta"]
    released = [rv for rv in model.observed_RVs if rv.name.startswith("z")]
    given_theta = theta.type()
    graphs = graph_replace([release_statistic(rv) for rv in released], {theta: given_theta})
    draw = pm.pytensorf.compile([given_theta], graphs, random_seed=1)
    found = []
    for t in thetas:
        sets = [draw(t) for _ in range(draws)]
        total = np.zeros(draws)
        for k, rv in enumerate(released):
            i = int(rv.name[1:])
            s = np.array([np.ravel(one[k]) for one in sets])
            logp = MECHANISMS[spec.releases[i].mechanism][1]
            total += logp(z[i], s).sum(-1)
        found.append(average(total))
    return found


def _kind(message):
    """Return what is alike in messages about other models."""
    return re.sub(r"'[^']*'|`[^`]*`|[-\d.]+", "_", message)[:60]


def check(spec, outcomes, draws):
    """Compare the rungs of a model with draws of its records."""
    z = spec.published()
    try:
        model = spec.build(z)
    except (TypeError, *REFUSALS) as error:
        if "'z" not in str(error):
            raise
        outcomes[f"refused: {_kind(str(error))}"] += 1
        return
    thetas = spec.prior.ppf(LEVELS)
    rng = np.random.default_rng(1)
    truth = None
    for rung in ("marginal", "statistics"):
        try:
            collapsed = dp.collapse(model, rung)
        except REFUSALS as error:
            if not ("'x'" in str(error) or "'z" in str(error)):
                raise
            outcomes[f"{rung} declined: {_kind(str(error))}"] += 1
            continue
        truth = truth or [spec.log_density(t, z, rng, 40 * draws) for t in thetas]
        if rung == "marginal" and [rv.name for rv in collapsed.free_RVs] == ["theta"]:
            found = of_marginal(collapsed, spec, thetas)
        else:
            found = of_statistics(collapsed, spec, thetas, z, draws)
        wrong = differ(found, truth)
        outcomes[f"{rung} " + {None: "doubtful", False: "agreed", True: "wrong"}[wrong]] += 1
        assert not wrong, (rung, found, truth)


def fault(spec, draws):
    """Return what is wrong with a model, or None."""
    try:
        check(spec, Counter(), draws)
    except Exception as error:  # whatever it is, a user would see it
        return error
    return None


def fuzz(first, count, draws):
    """Check models with these seeds; the first that fails is made as simple as it can be."""
    outcomes = Counter()
    for number in range(first, first + count):
        spec = random_spec(number)
        try:
            check(spec, outcomes, draws)
        except Exception:
            while smaller := next((s for s in simpler(spec) if fault(s, draws)), None):
                spec = smaller
            raise AssertionError(f"seed {number}, at its simplest {spec}") from fault(spec, draws)
    for what, times in sorted(outcomes.items()):
        Console().print(f"{times:6d} {what}", markup=False, highlight=False, soft_wrap=True)
    return outcomes


def test_rungs_of_random_models():
    outcomes = fuzz(0, 200, 300)
    assert outcomes["marginal agreed"] > 10
    assert outcomes["statistics agreed"] > 20


@pytest.mark.nightly
def test_rungs_of_many_random_models():
    first = int(np.random.default_rng().integers(2**32))
    Console().print("first seed", first)
    fuzz(first, 10_000, 1_000)
