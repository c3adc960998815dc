"""Random models: every rung that opens has the density that scipy gives, or is declined by name."""

import warnings
from collections import Counter
from unittest import mock

import numpy as np
import pymc as pm
import pytensor
import pytest
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace

import pymc_dp as dp
from pymc_dp.graphs.questions import known_shape
from pymc_dp.laws.integrated import IntegratedReleaseRV
from pymc_dp.reading.model import Reading, release_statistic
from pymc_dp.step_methods import choose_steps
from tests.fuzz import grammar
from tests.fuzz.comparing import REFUSALS, SIGMAS, differ, fuzz, kind
from tests.fuzz.grammar import (
    AFTER,
    CHANGED,
    DATA,
    EACH,
    MECHANISMS,
    PARAMETERS,
    SUMS,
    Release,
    Spec,
    average,
)

# Compiling takes its time: of so many models one has its steps checked, and that of all records.
STEPS_EVERY, RECORDS_EVERY = 10, 200
LEVELS = ((0.25, 0.5), (0.6, 0.2), (0.9, 0.8))  # quantiles of the priors


def free_variables(model, spec):
    """Return the parameters in the order of the priors, then the latents: a copy has its own."""
    parameters = [model[name] for name in spec.priors]
    return parameters + [rv for rv in model.free_RVs if rv not in parameters]


def to_values(model, free):
    """Return the function from these variables to their value variables."""
    plain = {rv: rv.type() for rv in free}
    forward = [
        rv if (t := model.rvs_to_transforms[rv]) is None else t.forward(rv, *rv.owner.inputs)
        for rv in plain
    ]
    return pytensor.function(list(plain.values()), graph_replace(forward, plain))


def density_of(model, free):
    """Return the log density of the releases, a function of these variables."""
    values = to_values(model, free)
    logp = model.compile_fn(
        model.logp(vars=model.observed_RVs),
        inputs=[model.rvs_to_values[rv] for rv in free],
        point_fn=False,
        on_unused_input="ignore",
    )
    return lambda *point: logp(*values(*point))


def of_marginal(model, free, points):
    """Log densities of the releases given the parameters; no error."""
    density = density_of(model, free)
    return [(float(density(*point)), 0.0) for point in points]


def of_variances(model, spec, free, points, draws):
    """The same, averaged over the variances that make noise Normal."""
    variances = [rv for rv in free if rv.name not in spec.priors]
    drawn = [pm.draw(rv, 10 * draws, random_seed=4) for rv in variances]
    density = density_of(model, free)
    return [
        average(np.array([density(*point, *v) for v in zip(*drawn, strict=True)]))
        for point in points
    ]


def of_statistics(model, spec, points, z, draws):
    """The same, averaged over draws of the statistics, which the model says how to draw."""
    released = [rv for rv in model.observed_RVs if rv.name.startswith("z")]
    plain = {model[name]: model[name].type() for name in spec.priors}
    graphs = graph_replace([release_statistic(rv) for rv in released], plain, strict=False)
    draw = pm.pytensorf.compile(
        list(plain.values()), graphs, random_seed=1, on_unused_input="ignore"
    )
    found = []
    for point in points:
        sets = [draw(*point) for _ in range(draws)]
        total = np.zeros(draws)
        for k, rv in enumerate(released):
            i = int(rv.name[1:])
            s = np.array([np.ravel(one[k]) for one in sets])
            logp = MECHANISMS[spec.releases[i].mechanism][1]
            total += logp(z[i], s).sum(-1)
        found.append(average(total))
    return found


def statistics_of(x, name):
    """Return what a latent variable of a collapsed model is of the records."""
    match name.removeprefix("x_"):
        case "x":
            return x
        case "count":
            return x.sum(-1)
        case "counts":
            return np.stack([(x == k).sum(-1) for k in range(3)], -1)
        case "mean":
            return x.mean(-1)
        case "var":
            return x.var(-1, ddof=1)
    raise KeyError(name)


def check_steps(model, spec, z, outcomes, draws, made=None):
    """One transition of every step leaves the posterior as it is, where draws of it are known.

    The starts are records and parameters from the prior, weighted by scipy's density of the noise.
    Steps that were `made` for other data may refuse these. Returns the steps.
    """
    if made is None:
        chosen = {}
        for rv, step in choose_steps(Reading(model)).items():
            chosen.setdefault(step, []).append(model.rvs_to_values[rv])
        if spec.seed % RECORDS_EVERY != RECORDS_EVERY - 1:
            chosen.pop(dp.RecordMetropolis, None)
        made, changed = [], ""
        for cls, own in chosen.items():
            try:
                made.append(cls(own, model=model))
            except ValueError as error:
                if "'x'" not in str(error):
                    raise
                outcomes[f"step {cls.__name__} declined: {kind(str(error))}"] += 1
    else:
        changed = " after a change"
    if not made:
        return made
    rng = np.random.default_rng(2)
    parameters = spec.draw_prior(rng, 400 * draws)
    x = spec.draw(rng, parameters, 400 * draws)
    logs = spec.log_likelihood(z, x)
    weights = np.exp(logs - logs.max()) if logs.max() > -np.inf else np.zeros(len(logs))
    if not weights.sum() ** 2 > 2 * draws * (weights**2).sum():
        outcomes["steps doubtful" + changed] += 1
        return made
    picked = rng.choice(len(x), size=draws, p=weights / weights.sum())
    given = dict(zip(spec.priors, (p[picked] for p in parameters), strict=True))
    free = free_variables(model, spec)
    try:
        starts = [given[n] if n in given else statistics_of(x[picked], n) for n in map(str, free)]
    except KeyError:
        outcomes["steps of other statistics"] += 1
        return made
    values = to_values(model, free)
    back = model.compile_fn(
        model.replace_rvs_by_values(free),
        inputs=model.value_vars,
        on_unused_input="ignore",
    )
    names = [model.rvs_to_values[rv].name for rv in free]
    shapes = [known_shape(rv) for rv in free]  # of one count: (1,)
    starts = [np.reshape(s, (len(s), *d)) for s, d in zip(starts, shapes, strict=True)]
    for step in made:
        name = type(step).__name__ + changed
        try:
            step.setup_chain(np.random.default_rng(3), tune=0, draws=1)
        except ValueError as error:
            if not (changed and "has changed since the step was made" in str(error)):
                raise
            outcomes[f"step {name} refused"] += 1
            continue
        if isinstance(step, dp.RecordMetropolis):
            step.started, step.sweeps = True, 1  # from the records that are given
        changes = []
        for row in zip(*starts, strict=True):
            point = dict(zip(names, values(*row), strict=True))
            after, _ = step.step(dict(point))
            changes.append(functions(spec, back(after)) - functions(spec, row))
        changes = np.array(changes)
        error = changes.std(0) / np.sqrt(draws)
        same = np.abs(changes.mean(0)) <= SIGMAS * error + 1e-9
        moved = bool(changes.any())  # where a release leaves one possibility, it cannot
        what = "wrong" if not same.all() else "agreed" if moved else "stood still"
        outcomes[f"step {name} {what}"] += 1
        assert same.all(), (name, changes.mean(0), error)
    return made


def functions(spec, values):
    """Return bounded functions of parameters and records, of whose means one is the posterior's."""
    count = len(spec.priors)
    shares = [law.cdf(v) for (_, law), v in zip(spec.priors.values(), values, strict=False)]
    total = np.tanh([np.mean(v) / 2 for v in values[count:]])
    return np.array([*shares, *total, *np.multiply.outer(shares, total).ravel()])


def densities(model, spec, points, z, draws):
    """Log densities of the releases, and their errors, of a model without records."""
    free = free_variables(model, spec)
    if len(free) == len(spec.priors):
        return of_marginal(model, free, points)
    if all(isinstance(rv.owner.op, IntegratedReleaseRV) for rv in model.observed_RVs):
        return of_variances(model, spec, free, points, draws)
    return of_statistics(model, spec, points, z, draws)


def compare(what, found, truth, outcomes):
    """Count whether densities agree; stop where they do not."""
    wrong = differ(found, truth)
    outcomes[f"{what} " + {None: "doubtful", False: "agreed", True: "wrong"}[wrong]] += 1
    assert not wrong, (what, found, truth)


def set_data(model, values):
    """Give the public data of a model these values.

    Returns the names of those that are fixed, and whether any was changed.
    """
    names = [name for name in values if name in model.named_vars]
    frozen = [name for name in names if isinstance(model[name], Constant)]
    for name in names:
        if name not in frozen:
            model.set_data(name, np.asarray(values[name]))
    return frozen, len(names) > len(frozen)


def check(spec, outcomes, draws):
    """Compare the rungs and the steps of a model with draws of its records."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a variance of one record
        z = spec.published()
    if not all(np.isfinite(np.asarray(v, dtype=float)).all() for v in z):
        outcomes["no number"] += 1
        return
    try:
        model = spec.build(z)
    except (TypeError, *REFUSALS) as error:
        if "'z" not in str(error):
            raise
        outcomes[f"refused: {kind(str(error))}"] += 1
        return
    laws = [law for _, law in spec.priors.values()]
    points = [[law.ppf(q) for law, q in zip(laws, at, strict=False)] for at in LEVELS]
    rng = np.random.default_rng(1)
    truth = None
    rungs = (
        {"as written": lambda: model}
        if not spec.latent
        else {
            "marginal": lambda: dp.collapse(model, "marginal"),
            "statistics": lambda: dp.collapse(model, "statistics"),
        }
    )
    for rung, build in rungs.items():
        try:
            collapsed = build()
        except REFUSALS as error:
            if not ("'x'" in str(error) or "'z" in str(error)):
                raise
            outcomes[f"{rung} declined: {kind(str(error))}"] += 1
            continue
        truth = truth or [spec.log_density(p, z, rng, 40 * draws) for p in points]
        found = densities(collapsed, spec, points, z, draws)
        if differ(found, truth):  # few draws may have missed a rare value that the release needs
            found = densities(collapsed, spec, points, z, 100 * draws)
        compare(rung, found, truth, outcomes)
        made = None
        if rung == "statistics" and not spec.seed % STEPS_EVERY:
            made = check_steps(collapsed, spec, z, outcomes, draws)
        frozen, changed = set_data(collapsed, CHANGED)
        outcomes.update([f"{rung} with data frozen"] * bool(frozen))
        if changed and not frozen:
            with mock.patch.dict(DATA, CHANGED):
                other = [spec.log_density(p, z, rng, 40 * draws) for p in points]
            found = densities(collapsed, spec, points, z, draws)
            compare(f"{rung} with changed data", found, other, outcomes)
            if made is not None:
                with mock.patch.dict(DATA, CHANGED):
                    check_steps(collapsed, spec, z, outcomes, draws, made)
        set_data(collapsed, DATA)  # others may share them
    if spec.latent and (
        spec.seed % RECORDS_EVERY == RECORDS_EVERY - 1 or not spec.seed % STEPS_EVERY
    ):
        made = check_steps(model, spec, z, outcomes, draws)
        frozen, changed = set_data(model, CHANGED)
        if changed and not frozen:
            with mock.patch.dict(DATA, CHANGED):
                check_steps(model, spec, z, outcomes, draws, made)
        set_data(model, DATA)


def test_rungs_of_random_models():
    outcomes = fuzz(grammar, check, 0, 75, 100)
    assert outcomes["marginal agreed"] > 8
    assert outcomes["marginal doubtful"] < 3
    assert outcomes["statistics agreed"] > 4
    assert outcomes["step ConjugateGibbs agreed"] > 3


@pytest.mark.parametrize("after", AFTER, ids=str)
@pytest.mark.parametrize("reduce", SUMS[:2], ids=str)
def test_spellings_of_a_sum_of_normal_records(reduce, after):
    release = Release(((EACH[0], reduce, after),), "Gaussian(.7)")
    check(Spec("Normal(t, 1)", (0,), PARAMETERS[0], 3, (release,), 1), Counter(), 300)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_rungs_of_many_random_models(part, record_property):
    first = int(np.random.default_rng().integers(2**32))
    record_property("part and first seed", (part, first))  # printed at the end of the run
    with pytensor.config.change_flags(mode="FAST_COMPILE"):  # each is evaluated a few times
        outcomes = fuzz(grammar, check, first, 1_000, 300)
    record_property("outcomes", dict(sorted(outcomes.items())))
