"""Random models: every rung that opens has the density that scipy gives, or is declined by name."""

import warnings
from collections import Counter
from unittest import mock

import numpy as np
import pytensor
import pytest
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace

import pymc_dp as dp
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.reading.model import Reading, release_statistic
from pymc_dp.reading.sums import additive
from pymc_dp.step_methods import choose_steps
from tests.fuzz import designs, grammar, producers, single, sizes
from tests.fuzz.comparing import REFUSALS, SIGMAS, Densities, differ, fuzz, kind
from tests.fuzz.grammar import AFTER, CHANGED, DATA, EACH, PARAMETERS, SUMS, Release, Spec
from tests.reading.sums.test_reader import evaluate, near_means, reassemble

pytestmark = pytest.mark.filterwarnings("ignore:No safe default transform")  # of PyMC, of mixtures

# Compiling takes its time: of so many models one has its steps checked, and that of all records.
STEPS_EVERY, RECORDS_EVERY = 10, 200


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
    laws = zip(spec.priors.values(), values, strict=False)
    shares = np.concatenate([[], *(np.ravel(law.cdf(v)) for (_, law), v in laws)])
    parts = [np.ravel(v) if isinstance(spec, producers.Tables) else [np.mean(v)]
             for v in values[count:]]  # fmt: skip
    total = np.tanh(np.concatenate([[], *parts]) / 2)
    return np.concatenate([shares, total, np.multiply.outer(shares, total).ravel()])


def compare(what, found, spec, points, z, outcomes, draws):
    """Count whether a model has the density that it should have; stop where it does not."""
    for tried in (1, 30):  # few draws may have missed a rare value that the release needs
        rng = np.random.default_rng([spec.seed, tried])
        ours = [found.at(p, rng, 20 * tried * draws) for p in points]
        truth = [spec.log_density(p, z, rng, 40 * tried * draws) for p in points]
        wrong = differ(ours, truth, normalised=True)
        if not wrong:
            break
    outcomes[f"{what} " + {None: "doubtful", False: "agreed", True: "wrong"}[wrong]] += 1
    assert not wrong, (what, ours, truth)


def check_records(model, spec, points, outcomes):
    """Compare what the sweep over records reads of the statistics with their numbers."""
    x = spec.draw(np.random.default_rng(spec.seed), points[0], 1)
    values = {model["x"]: x.reshape(spec.frame.shape)}
    n = spec.frame.shape[0]
    for i, release in enumerate(spec.releases):
        graph = release_statistic(model[f"z{i}"])
        with np.errstate(invalid="ignore"):
            expected = release.array(x, spec.frame)[0]
            direct = evaluate(graph, {rv: pytensor.shared(v) for rv, v in values.items()})
            np.testing.assert_allclose(direct, expected, rtol=1e-10, atol=1e-10)
            try:
                read = additive(graph, {model["x"]: n})
            except REFUSALS as error:
                outcomes[f"records declined: {kind(str(error))}"] += 1
                continue
            found = reassemble(read, values, near_means(read, values), n)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        outcomes["records agreed"] += 1


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
    """Compare the rungs that open, and steps, with what numpy says; all else is refused by name."""
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # a variance of one record
        points, z = spec.tried()
    fine = (lambda v: ~np.isinf(v)) if hasattr(spec, "withholds") else np.isfinite
    if not all(fine(np.asarray(v, dtype=float)).all() for v in z):
        outcomes["no number"] += 1
        return
    stepped = isinstance(spec, Spec)
    try:
        model = spec.build(z)
    except (TypeError, *REFUSALS) as error:
        if "'z" not in str(error) or (isinstance(error, TypeError) and not stepped):
            raise
        outcomes[f"refused: {kind(str(error))}"] += 1
        return
    latent = getattr(spec, "latent", True)
    for rung in ("marginal", "statistics") if latent else ("as written",):
        try:
            collapsed = dp.collapse(model, rung) if latent else model
        except REFUSALS as error:
            if not any(name in str(error) for name in spec.named):
                raise
            outcomes[f"{rung} declined: {kind(str(error))}"] += 1
            continue
        if not {*spec.uses} <= {rv.name for rv in collapsed.free_RVs}:
            assert not stepped
            outcomes["parameters of one record integrated out"] += 1
            continue
        found, made = Densities(collapsed, spec.uses), None
        compare(rung, found, spec, points, z, outcomes, draws)
        if stepped and rung == "statistics" and not spec.seed % STEPS_EVERY:
            made = check_steps(collapsed, spec, z, outcomes, draws)
        frozen, changed = set_data(collapsed, CHANGED)
        outcomes.update([f"{rung} with data frozen"] * bool(frozen))
        if changed and not frozen:
            with mock.patch.dict(DATA, CHANGED):
                compare(f"{rung} with changed data", found, spec, points, z, outcomes, draws)
                if made is not None:
                    check_steps(collapsed, spec, z, outcomes, draws, made)
        set_data(collapsed, DATA)  # others may share them
    if isinstance(spec, designs.Design):
        check_records(model, spec, points, outcomes)
    if isinstance(spec, producers.Tables) and not spec.seed % 4:
        check_steps(model, spec, z, outcomes, draws)
    if spec.seed % 10 == 5:
        dp.explain(model, details=True)
    every = spec.seed % RECORDS_EVERY == RECORDS_EVERY - 1 or not spec.seed % STEPS_EVERY
    if stepped and latent and every:
        made = check_steps(model, spec, z, outcomes, draws)
        frozen, changed = set_data(model, CHANGED)
        if changed and not frozen:
            with mock.patch.dict(DATA, CHANGED):
                check_steps(model, spec, z, outcomes, draws, made)
        set_data(model, DATA)


@pytest.mark.parametrize(
    ("models", "count", "least"),
    [
        (grammar, 75, {"marginal": 9, "statistics": 5, "step ConjugateGibbs": 4}),
        (designs, 20, {"marginal": 3, "statistics": 3, "records": 11}),
        (sizes, 12, {"marginal": 6}),
        (producers, 30, {"marginal": 10}),
        (single, 12, {"marginal": 5, "as written": 1}),
    ],
)
def test_rungs_of_random_models(models, count, least):
    outcomes = fuzz(models, check, 0, count, 100)
    assert all(outcomes[f"{what} agreed"] >= number for what, number in least.items()), outcomes
    assert outcomes["marginal doubtful"] < 3


@pytest.mark.parametrize("after", AFTER, ids=str)
@pytest.mark.parametrize("reduce", SUMS[:2], ids=str)
def test_spellings_of_a_sum_of_normal_records(reduce, after):
    release = Release(((EACH[0], reduce, after),), "Gaussian(.7)")
    check(Spec("Normal(t, 1)", (0,), PARAMETERS[0], 3, (release,), 1), Counter(), 300)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize(
    ("models", "count", "draws"),
    [
        (grammar, 1_000, 300),
        (designs, 150, 200),
        (sizes, 150, 200),
        (producers, 150, 200),
        (single, 150, 1),
    ],
)
def test_rungs_of_many_random_models(models, count, draws, part, record_property):
    first = int(np.random.default_rng().integers(2**32))
    record_property("part and first seed", (part, first))  # printed at the end of the run
    with pytensor.config.change_flags(mode="FAST_COMPILE"):  # each is evaluated a few times
        outcomes = fuzz(models, check, first, count, draws)
    record_property("outcomes", dict(sorted(outcomes.items())))
