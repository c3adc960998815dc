"""What holds for every registered mechanism. A new one joins by `register_mechanism` alone."""

import dataclasses
import itertools
import re
from functools import cache
from xml.etree import ElementTree

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_dp.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    MechanismExample,
    mechanism_examples,
    register_mechanism,
    registered_mechanisms,
)
from pymc_dp.mechanisms.arguments import as_float
from tests.mechanisms.noise import PYTHON, assert_law_of_draws, evaluate

EXAMPLES = list(mechanism_examples())
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


# By day the first of each kind; others of it have other numbers, or are composed of others.
KINDS = [re.sub(r"-?[\d.]+", "", repr(e.mechanism)) for e in EXAMPLES]
KINDS = ["composed" if len(re.findall("clipped|rounded", k)) > 1 else k for k in KINDS]
PARAMETERS = [
    pytest.param(
        e, id=repr(e.mechanism), marks=[pytest.mark.nightly] if KINDS[i] in KINDS[:i] else []
    )
    for i, e in enumerate(EXAMPLES)
]


@pytest.fixture(params=PARAMETERS, scope="module")
def example(request):
    return request.param


def density_points(example):
    """Points off the kinks, from the middle of each piece to its ends."""
    ends = np.asarray(example.pieces, dtype=float)
    fractions = np.array([0.013, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.987])
    return np.concatenate([a + (b - a) * fractions for a, b in itertools.pairwise(ends)] or [[]])


@cache
def likely_atoms(example, count=7):
    """The likeliest atoms, in increasing order."""
    atoms = np.asarray(example.atoms, dtype=float)
    if not len(atoms):
        return atoms
    logp = evaluate(example.mechanism.logp(atoms, example.statistic))
    return np.sort(atoms[np.argsort(-logp)[:count]])


def points_of(example):
    return np.sort(np.concatenate([likely_atoms(example), density_points(example)]))


def masses(example, lower, upper):
    """P(lower <= Z <= upper) from logp alone: a sum over atoms and a quadrature of the density."""
    mechanism = example.mechanism
    lower, upper = np.atleast_1d(lower)[:, None], np.atleast_1d(upper)[:, None]
    total = np.zeros(len(lower))
    atoms = np.asarray(example.atoms, dtype=float)
    if len(atoms):
        each = np.exp(evaluate(mechanism.logp(atoms, example.statistic)))
        total += np.where((atoms >= lower) & (atoms <= upper), each, 0.0).sum(axis=1)
    for a, b in itertools.pairwise(example.pieces):
        start = np.clip(lower, a, b)
        half = np.maximum(np.clip(upper, a, b) - start, 0.0)[..., None] / 120
        z = start[..., None] + half * (2 * np.arange(60)[:, None] + 1 + NODES)
        density = np.exp(evaluate(mechanism.logp(z, example.statistic)))
        total += (half * WEIGHTS * density).sum(axis=(1, 2))
    return total


def test_registered_classes_supply_examples():
    assert {LaplaceMechanism, GaussianMechanism} <= set(registered_mechanisms())
    by_entry = {cls for cls in registered_mechanisms() if not cls.statistic_ndim}
    assert {type(e.mechanism) for e in EXAMPLES} == by_entry
    with pytest.raises(TypeError, match="subclasses of Mechanism"):
        register_mechanism(dict, examples=list)
    same_name = type("LaplaceMechanism", (LaplaceMechanism,), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match=r"elsewhere.*files know another mechanism by this name"):
        register_mechanism(same_name, examples=list)


def test_example_is_complete(example):
    assert isinstance(example, MechanismExample)
    assert isinstance(example.mechanism, Mechanism)
    assert example.mechanism.is_discrete == (len(example.pieces) == 0)
    assert len(example.pieces) or len(example.atoms)


def withheld(example):
    """Probability that nothing is published."""
    if not example.mechanism.withholds:
        return 0.0
    return np.exp(evaluate(example.mechanism.logp(np.nan, example.statistic)))


def test_normalised(example):
    published = 1 - withheld(example)
    np.testing.assert_allclose(masses(example, -np.inf, np.inf), published, rtol=1e-11)
    everything = example.mechanism.log_interval(-np.inf, np.inf, example.statistic)
    np.testing.assert_allclose(np.exp(evaluate(everything)), published, rtol=1e-14)


def test_rates(example):
    """They give the log density but for a constant; its one parameter is a scale."""
    mechanism, s = example.mechanism, example.statistic
    if mechanism.rates is None:
        return
    lam, tau = evaluate(*map(pt.as_tensor, mechanism.rates))
    z = points_of(example)
    error = np.abs(z - s)
    expected = -lam * error - 0.5 * tau * error**2
    found = evaluate(mechanism.logp(z, s))
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-10, atol=1e-9)
    [scale] = mechanism.parameters
    twice = evaluate(*map(pt.as_tensor, mechanism.with_parameters(2.0 * scale).rates))
    np.testing.assert_allclose(twice, [lam / 2, tau / 4], rtol=1e-12)


def test_zero_outside_the_support(example):
    mechanism, s = example.mechanism, example.statistic
    outside = []
    if mechanism.is_discrete:
        atoms = likely_atoms(example)
        outside = list((atoms[:-1] + atoms[1:]) / 2)
        assert np.all(np.isneginf(evaluate(mechanism.log_interval(outside, outside, s))))
    outside += [-np.inf, np.inf]
    assert np.all(np.isneginf(evaluate(mechanism.logp(np.array(outside), s))))


def test_interval_is_the_mass_of_logp(example):
    mechanism, s = example.mechanism, example.statistic
    points = points_of(example)
    lower = np.concatenate([points[:-1], points[:-2], points[:1]])
    upper = np.concatenate([points[1:], points[2:], points[-1:]])
    expected = np.log(masses(example, lower, upper))
    actual = evaluate(mechanism.log_interval(lower, upper, s))
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


def test_atoms_are_intervals_of_one_point(example):
    mechanism, s = example.mechanism, example.statistic
    atoms = likely_atoms(example)
    single, logp = evaluate(mechanism.log_interval(atoms, atoms, s), mechanism.logp(atoms, s))
    np.testing.assert_array_equal(single, logp)
    inside = density_points(example)
    assert np.all(np.isneginf(evaluate(mechanism.log_interval(inside, inside, s))))


def test_reversed_interval_is_empty(example):
    points = points_of(example)
    for lower, upper in [(points[1:], points[:-1]), (np.inf, points), (points, -np.inf)]:
        if np.ndim(lower) and np.ndim(upper) and example.mechanism.is_discrete:
            lower, upper = lower + 1e-3, upper + 1e-3
        graph = example.mechanism.log_interval(lower, upper, example.statistic)
        assert np.all(np.isneginf(evaluate(graph)))


def test_logcdf(example):
    mechanism, s = example.mechanism, example.statistic
    points = np.concatenate([[-np.inf], points_of(example), [np.inf]])
    logcdf, below, above = evaluate(
        mechanism.logcdf(points, s),
        mechanism.log_interval(-np.inf, points, s),
        mechanism.log_interval(points, np.inf, s),
    )
    np.testing.assert_array_equal(logcdf, below)
    assert np.all(np.diff(logcdf) >= 0)
    assert np.all(np.diff(above) <= 0)
    assert np.isneginf(logcdf[0])
    published = 1 - withheld(example)
    np.testing.assert_allclose(np.exp(logcdf[-1]), published, rtol=1e-14)
    # The two sides share no more than the atom at the point.
    shared = np.isin(points, example.atoms)
    atom = np.where(shared, np.exp(evaluate(mechanism.logp(points, s))), 0.0)
    np.testing.assert_allclose(np.exp(logcdf) + np.exp(above), published + atom, rtol=1e-12)


def test_icdf_inverts_the_cdf(example):
    mechanism, s = example.mechanism, example.statistic
    points = points_of(example)
    try:
        graph = mechanism.icdf(pt.exp(mechanism.logcdf(points, s)), s)
    except NotImplementedError:
        pytest.skip("no quantile function")
    p = np.exp(evaluate(mechanism.logcdf(points, s)))
    # Beyond, the distribution function itself no longer tells the points apart.
    resolved = (p > 1e-300) & (p < 1 - 1e-6)
    quantiles = evaluate(graph)
    np.testing.assert_allclose(quantiles[resolved], points[resolved], rtol=1e-8, atol=1e-12)
    # A quantile is the smallest value with at least that probability.
    p = np.linspace(0.001, 0.999, 57)
    z = mechanism.icdf(p, s)
    at, before, mass_at = evaluate(
        mechanism.logcdf(z, s), mechanism.log_interval(z, np.inf, s), mechanism.logp(z, s)
    )
    assert np.all(np.exp(at) >= p - 1e-12)
    assert np.all(1 - np.exp(before) <= p + 1e-12)
    assert np.all(np.isfinite(mass_at))
    ends = evaluate(mechanism.icdf(np.array([-0.1, 1.1, np.nan]), s))
    assert np.all(np.isnan(ends))


def test_draws_follow_the_cdf(example):
    mechanism, s = example.mechanism, example.statistic
    n = 20_000
    rng = pytensor.shared(np.random.default_rng(2))
    next_rng, draw = mechanism.noise_sample(rng, pt.full((n,), s))
    assert next_rng.type == rng.type
    draws = evaluate(draw)
    assert np.all(np.isfinite(evaluate(mechanism.logp(draws, s))))
    edges = points_of(example)
    # What is withheld stands below everything.
    draws, p = np.nan_to_num(draws, nan=-1e9), withheld(example)
    assert_law_of_draws(draws, edges, p + np.exp(evaluate(mechanism.logcdf(edges, s))))


def test_shapes_broadcast(example):
    mechanism, s = example.mechanism, example.statistic
    rng = pytensor.shared(np.random.default_rng(3))
    vector = np.full(4, s)
    wide = mechanism.with_parameters(*(pt.full((4,), p) for p in mechanism.parameters))
    point = points_of(example)[0]
    for one, statistic, shape in [
        (mechanism, s, ()),
        (mechanism, vector, (4,)),
        (wide, s, (4,) if mechanism.parameters else ()),
        (wide, np.full((3, 1), s), (3, 4 if mechanism.parameters else 1)),
    ]:
        draw = evaluate(one.noise_sample(rng, statistic)[1])
        assert draw.shape == shape
        if not len(example.atoms) and shape:
            assert (
                len(np.unique(draw, equal_nan=False)) == draw.size
            )  # every component has noise of its own
        logp, interval = evaluate(
            one.logp(point, statistic), one.log_interval(point - 1, point + 1, statistic)
        )
        assert logp.shape == interval.shape == shape
    column = np.full((2, 1), point)
    assert evaluate(wide.logp(column, s)).shape == (2, 4 if mechanism.parameters else 1)
    assert evaluate(mechanism.logp(column, vector)).shape == (2, 4)


def test_attainable(example):
    """No value that can be published is refused as an observation."""
    mechanism = example.mechanism
    assert np.all(evaluate(mechanism.attainable(points_of(example))))
    assert not np.any(evaluate(mechanism.attainable(np.array([-np.inf, np.inf]))))


def test_integer_values(example):
    """Releases and statistics may come as integers."""
    mechanism = example.mechanism
    s = round(example.statistic)
    value = np.arange(s - 3, s + 4)
    as_integer, as_float = evaluate(
        mechanism.logp(value, s), mechanism.logp(value.astype(float), float(s))
    )
    np.testing.assert_array_equal(as_integer, as_float)


def test_with_parameters(example):
    mechanism, s = example.mechanism, example.statistic
    points = points_of(example)
    symbols = [p.type() for p in mechanism.parameters]
    again = mechanism.with_parameters(*symbols)
    assert type(again) is type(mechanism)
    assert again.parameters == tuple(symbols)
    interval = again.log_interval(points - 1, points + 1, s)
    graphs = [again.logp(points, s), interval, again.logcdf(points, s)]
    f = pytensor.function(symbols, graphs, mode=PYTHON)
    interval = mechanism.log_interval(points - 1, points + 1, s)
    expected = evaluate(mechanism.logp(points, s), interval, mechanism.logcdf(points, s))
    for a, b in zip(f(*(p.eval() for p in mechanism.parameters)), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="parameters, got"):
        mechanism.with_parameters(*symbols, 1.0)
    assert (repr(again) != repr(mechanism)) == bool(symbols)


def test_gradients_match_finite_differences(example):
    mechanism, s = example.mechanism, example.statistic
    z, s_, low, high = pt.vector("z"), pt.vector("s"), pt.vector("low"), pt.vector("high")
    symbols = [pt.vector(f"p{i}") for i, _ in enumerate(mechanism.parameters)]
    m = mechanism.with_parameters(*symbols)
    atoms, inside = likely_atoms(example), density_points(example)
    inside = inside[np.abs(inside) < 1e3]  # a small step can be made there
    points = np.concatenate([atoms, inside])
    n = len(points)
    # Ends that no atom and no kink can meet when they are moved a little.
    ends = np.concatenate([atoms + 0.0137, inside])
    variables = [z, s_, low, high, *symbols]
    values = [points, np.full(n, s), ends - 0.0211, ends + 0.631]
    values += [np.full(n, p.eval()) for p in mechanism.parameters]
    logp, interval = m.logp(z, s_), m.log_interval(low, high, s_)
    zero = {"disconnected_inputs": "ignore", "return_disconnected": "zero"}
    outputs = [logp, interval]
    for graph in (logp, interval):
        outputs += pt.grad(graph.sum(), variables, **zero)
    f = pytensor.function(variables, outputs, mode=PYTHON, on_unused_input="ignore")
    base = f(*values)
    compared = 0
    for which in (0, 1):
        for i, value in enumerate(values):
            if i == 1 and not example.smooth_in_statistic:
                continue
            analytic = base[2 + which * len(values) + i]
            alive = np.isfinite(base[which])
            assert np.all(np.isfinite(analytic[alive]))
            size = np.abs(points - s) if i < 4 else np.minimum(np.abs(points - s), np.abs(value))
            step = 1e-5 * np.maximum(size, 1e-2)
            up, down = (
                f(*values[:i], value + sign * step, *values[i + 1 :])[which] for sign in (1, -1)
            )
            # The value of an atom, or the bound at which it lies, cannot move; nor can a bound
            # that is rounded over a half.
            with np.errstate(invalid="ignore"):
                ok = alive & np.isfinite(up) & np.isfinite(down) & (np.abs(up - down) < 0.1)
            numeric = (up[ok] - down[ok]) / (2 * step[ok])
            scale = 1 + np.abs(base[which][ok]) * 1e-9 / step[ok]
            np.testing.assert_allclose(
                analytic[ok] / scale, numeric / scale, rtol=2e-4, atol=2e-5, err_msg=f"{which} {i}"
            )
            compared += ok.sum()
    assert compared > 2 * n


def test_far_away(example):
    """Nothing is lost or undefined when the statistic is nowhere near the release."""
    mechanism = example.mechanism
    if not example.smooth_in_statistic:
        pytest.skip("the statistic has a bounded range")
    points = points_of(example)
    s = pt.vector("s")
    cell = mechanism.log_interval(points[:, None] - 0.6, points[:, None] + 0.6, s)
    tails = [mechanism.log_interval(-np.inf, points[:, None], s)]
    tails += [mechanism.log_interval(points[:, None], np.inf, s)]
    graphs = [mechanism.logp(points[:, None], s), cell, *tails]
    grads = [pt.grad(graph.sum(), s) for graph in graphs]
    f = pytensor.function([s], graphs + grads, mode=PYTHON)
    results = f(np.array([-1e9, -1e5, -1e3, 1e3, 1e5, 1e9]))
    for values in results[: len(graphs)]:
        assert not np.any(np.isnan(values))
        assert np.all(values[:, :] <= 50)
    assert np.all(np.isfinite(results[0]))
    assert np.all(np.isfinite(results[2]))
    for values in results[len(graphs) :]:
        assert np.all(np.isfinite(values))


def test_dist(example):
    mechanism, s = example.mechanism, example.statistic
    points = points_of(example)
    rv = mechanism.dist(np.full(len(points), s))
    actual = evaluate(pm.logp(rv, points), pm.logcdf(rv, points))
    expected = evaluate(mechanism.logp(points, s), mechanism.logcdf(points, s))
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    p = np.linspace(0.01, 0.99, len(points))
    try:
        expected = evaluate(mechanism.icdf(p, s))
    except NotImplementedError:
        pass
    else:
        np.testing.assert_array_equal(evaluate(pm.icdf(rv, p)), expected)
    draws = pm.draw(rv, draws=5, random_seed=1, mode=PYTHON)
    assert draws.shape == (5, len(points))
    assert np.all(np.isfinite(evaluate(mechanism.logp(draws, s))))


def test_pickles(example):
    mechanism, s = example.mechanism, example.statistic
    again = cloudpickle.loads(cloudpickle.dumps(mechanism))
    assert repr(again) == repr(mechanism)
    points = points_of(example)
    np.testing.assert_array_equal(*evaluate(mechanism.logp(points, s), again.logp(points, s)))


def test_frozen(example):
    with pytest.raises(AttributeError):
        example.mechanism.scale = 3.0


def test_fields_build_it_again(example):
    """They are checked: noise is public and known, and within its bounds."""
    mechanism = example.mechanism
    fields = {field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)}
    assert repr(mechanism.from_fields(**fields)) == repr(mechanism)
    own = [name for name in mechanism.parameter_names if fields[name] is not None]
    for i, name in enumerate(own):
        with pytest.raises(TypeError, match=r"public and known, never estimated.*pm\.Data"):
            mechanism.from_fields(**fields | {name: pm.Normal.dist()})
        for value in (np.nan, np.inf, -np.inf, -1.0, 0.0, 0.5):
            changed = [*mechanism.parameters]
            changed[i] = value
            wrong = mechanism.with_parameters(*changed).wrong_parameter()
            if wrong is not None and "another order than they were" not in wrong:
                with pytest.raises(ValueError, match=f"{type(mechanism).__name__}: "):
                    mechanism.from_fields(**fields | {name: value})


def test_repr_builds_it_again(example):
    mechanism = example.mechanism
    again = eval(repr(mechanism), {cls.__name__: cls for cls in registered_mechanisms()})
    for a, b in zip(again.parameters, mechanism.parameters, strict=True):
        np.testing.assert_allclose(a.data, b.data, rtol=1e-13)


RULES = ({"below": 5}, {"above": 5}, {"below": 8, "above": 2}, {"below": 2, "above": 8})
WITHHELD = [
    MechanismExample(LaplaceMechanism(4.0).suppressed(**rule, by=by, empty=empty), 4.0)
    for rule, by, empty in itertools.product(RULES, (None, LaplaceMechanism(0.5)), (False, True))
]


@pytest.mark.parametrize("example", [*EXAMPLES, *WITHHELD], ids=lambda e: repr(e.mechanism))
def test_html(example):
    """It is well-formed, names the class, and says what repr says."""
    table = ElementTree.fromstring(example.mechanism._repr_html_())
    assert table.find("caption").text == type(example.mechanism).__name__
    text = repr(example.mechanism)
    for name, value in ([cell.text for cell in row] for row in table.iter("tr")):
        own = f".{value}" if name == "then" else value if name == "noise" else f"{name}={value}"
        assert own in text or "at sensitivity 1" in name or name in ("epsilon", "written")


def test_log_concave_in_the_statistic(example):
    """Where the mechanism says so."""
    mechanism, middle = example.mechanism, example.statistic
    if not mechanism.log_concave:
        return
    s, z = pt.dvector("s"), pt.dscalar("z")
    # What is printed may have gaps where something is withheld.
    other = mechanism.logp(z * np.nan, s)
    if not mechanism.withholds:
        other = mechanism.log_interval(z, z + 3.0, s)
    functions = [
        pytensor.function([z, s], graph, mode=PYTHON) for graph in (mechanism.logp(z, s), other)
    ]
    statistic = np.floor(middle) + np.arange(-40.0, 41.0)
    for value in np.unique(np.round(np.linspace(middle - 20, middle + 20, 17))):
        for function in functions:
            with np.errstate(all="ignore"):
                found = function(value, statistic)
            finite = np.flatnonzero(found > -np.inf)
            if finite.size < 3:
                continue
            assert finite[-1] - finite[0] == finite.size - 1, "possible statistics have a gap"
            found = found[finite]
            excess = found[:-2] + found[2:] - 2 * found[1:-1]
            assert np.all(excess <= 1e-9 * (1 + abs(found[1:-1])))


def test_log_concavity_is_not_taken_for_granted():
    class Cauchy(Mechanism):
        def noise_sample(self, rng, statistic):
            raise NotImplementedError

        def logp(self, value, statistic=0.0):
            return -pt.log1p((as_float(value) - statistic) ** 2)

        log_interval = logp

    assert not Cauchy().log_concave
    assert not Cauchy().clipped(0, 1).log_concave
    assert LaplaceMechanism(1.0).clipped(lower=0).rounded(1).log_concave
    claimed = [e.mechanism.log_concave for e in WITHHELD]
    assert claimed == [bool(k in (0, 2, 4, 6, 8)) for k in range(16)]


def test_only_mechanisms_of_users_read_outside():
    """What was compiled for a model with one of ours is kept, a plugin's too."""
    outside = {
        type(e.mechanism).__name__ for e in mechanism_examples() if e.mechanism.reads_outside
    }
    assert outside <= {"CustomMechanism"}
