"""Where chains of NUTS begin, and those that stand still."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from pytensor import wrap_py

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.stages import Stages
from pymc_dp.routes import Plan, nutpie_model, nuts_chains
from pymc_dp.routes import starts as tested
from pymc_dp.routes.starts import NotFinite, SearchOver, find_centers
from tests.chains import QUIET

# --- Densities in numpy ---------------------------------------------------------------------------


def laplace_tails(scale):
    """The log density of a Normal mean, and of the log of a spread, with tails of Laplace noise."""

    def density(q):
        gap = q - np.array([3e4 * scale, -2.0])
        root = np.sqrt(1.0 + (gap / [scale, 0.1]) ** 2)
        return -root.sum(), -gap / [scale, 0.1] / [scale, 0.1] / root

    return density


@np.errstate(over="ignore")
def funnel(q):
    """Fifty effects of a spread exp(q[0]), whose density is largest where they are all equal."""
    v, x = q[0], q[1:]
    precision = np.exp(-2.0 * v)
    value = -0.5 * precision * x @ x - x.size * v - 0.5 * v**2 - 0.5 * ((x - 2.0) ** 2).sum()
    slope = np.concatenate(
        [[precision * x @ x - x.size - v], -precision * x - (x - 2.0)],
    )
    return value, slope


def correlated(q):
    """A Normal law of ten entries with strong correlations, away from zero."""
    root = np.random.default_rng(0).normal(size=(10, 10))
    slope = -np.linalg.solve(root @ root.T + 0.05 * np.eye(10), q - 5.0)
    return 0.5 * (q - 5.0) @ slope, slope


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e6])
def test_the_center_is_where_the_data_are(scale):
    density = laplace_tails(scale)
    [center] = tested.find_centers(density, np.zeros(2), [1, 1])
    spreads = np.array([scale, 0.1])
    assert np.all(abs(center.point - [3e4 * scale, -2.0]) < 3 * spreads)
    assert np.all((center.widths > spreads) & (center.widths < 8 * spreads))
    rng = np.random.default_rng(1)
    starts = np.array([tested.draw_start(density, center, rng) for _ in range(64)])
    fall = center.log_density - np.array([density(q)[0] for q in starts])
    assert fall.max() < 14.0
    assert np.all(starts.std(axis=0) > spreads)  # wider than what is sampled


def test_a_narrow_funnel_is_no_center():
    for center in tested.find_centers(funnel, np.zeros(51), [1, 50]):
        assert center.point[0] > -1.0  # the mode is at minus infinity, nearly
        assert np.isfinite(center.log_density)


def test_spreads_do_not_fall_into_their_funnel():
    """Thirty effects of spread exp(q[0]) = .5, each known to .3: without a bound they end equal."""
    known = np.random.default_rng(3).normal(0.0, 0.5, 30)

    def density(q):
        spread, z = np.exp(q[0]), q[1:] / np.exp(q[0])
        gap = (known - q[1:]) / 0.3
        value = -0.5 * (z @ z + gap @ gap) - z.size * q[0] - 0.5 * spread**2 + q[0]
        of_log = z @ z - z.size - spread**2 + 1.0
        return value, np.concatenate([[of_log], -z / spread + gap / 0.3])

    start, sizes = np.concatenate([[0.0], np.zeros(30)]), [1, 30]
    spreads = np.arange(31) == 0
    best, *_ = tested.find_centers(density, start, sizes, spreads)
    assert np.exp(best.point[0]) > 0.1
    assert np.corrcoef(best.point[1:], known)[0, 1] > 0.9


def test_there_is_a_center_in_each_mode():
    """Else all chains would be in one of them, and R-hat have nothing to say."""

    def density(q):
        gap = q[0] ** 2 - 25.0
        return -0.5 * gap**2, np.array([-2.0 * gap * q[0]])

    found = tested.find_centers(density, np.zeros(1), [1])
    assert {round(float(center.point[0])) for center in found} == {-5, 5}


@pytest.mark.parametrize(("density", "sizes", "most"), [
    (lambda q: (-0.5 * q @ q, -q), [1] * 10, 70), (correlated, [1] * 10, 125),
    (laplace_tails(1e-3), [1, 1], 200), (funnel, [1, 50], 400),
], ids=["Normal", "correlated", "far", "funnel"])  # fmt: skip
def test_the_search_is_short(density, sizes, most):
    """A density of large data takes 25 ms: jumps in each search took 280 to 1000."""
    asked = []
    tested.find_centers(lambda q: asked.append(q) or density(q), np.zeros(sum(sizes)), sizes)
    assert len(asked) < most * len(sizes)


@pytest.mark.parametrize(
    ("bad", "what"), [(np.nan, "log density"), (np.inf, "log density"), (None, "gradient")]
)
def test_a_density_without_values_is_no_density(bad, what):
    def density(q):
        value, slope = -0.5 * q @ q, -q
        if q[0] > 0.3:
            value, slope = (value, slope * np.nan) if bad is None else (bad, slope)
        return value, slope

    center = tested.Center(np.zeros(2), 0.0, np.ones(2))
    with pytest.raises(NotFinite, match=rf"{what}.* has no value at a = "):
        tested.check_finite(density, center, ["a", "b"])


def test_what_the_model_does_not_allow_is_no_fault():
    def density(q):
        return (-0.5 * q @ q if q[0] < 0.3 else -np.inf), -q

    tested.check_finite(density, tested.Center(np.zeros(2), 0.0, np.ones(2)), ["a", "b"])


# --- Chains that stand still ----------------------------------------------------------------------


def tree_of(moves, step_sizes):
    """A result: of each chain whether it moves, and its step size."""
    rng = np.random.default_rng(1)
    x = np.where(np.array(moves)[:, None], rng.normal(size=(len(moves), 10)), 1.0)
    steps = np.repeat(np.array(step_sizes)[:, None], 10, axis=1)
    coords = {"chain": range(len(moves)), "draw": range(10)}
    parts = {"posterior": {"x": x}, "sample_stats": {"step_size": steps}}
    return xr.DataTree.from_dict(
        {
            name: xr.Dataset({k: (("chain", "draw"), v) for k, v in own.items()}, coords)
            for name, own in parts.items()
        }
    )


@pytest.mark.parametrize(
    ("moves", "steps", "found"),
    [
        ([1, 1, 1], [0.1, 0.2, 1e-223], [2]),
        ([1, 0, 1], [0.1, 0.2, 0.3], [1]),
        ([1, 1], [0.1, np.nan], [1]),
        ([0], [0.1], [0]),
        ([1, 1], [0.1, 1e-6], []),
    ],
)
def test_chains_that_stand_still(moves, steps, found):
    assert nuts_chains.standing_still(tree_of(moves, steps), ["x"]) == found


@pytest.fixture
def model():
    with pm.Model() as model:
        pm.Normal("x")
    return model


@pytest.mark.parametrize(
    ("again", "says"),
    [
        ("moves", ""),
        ("stands", "Chain 2 stood still, and again when begun anew"),
        ("Ctrl-C", "Chain 2 stood still, and to begin anew was interrupted"),
        ("Ctrl-C, some draws", "Chain 2 stood still, and to begin anew was interrupted"),
    ],
)
def test_they_are_begun_anew_once(model, monkeypatch, caplog, again, says):
    """And are named if they stand still once more, in `sample_stats`, too; no draw is lost."""
    asked = []

    def draw(center, rngs):
        asked.append(len(rngs))
        if again == "Ctrl-C" and len(asked) > 1:
            raise KeyboardInterrupt
        good = len(asked) > 1 and again != "stands"
        tree = tree_of([1] * (len(rngs) - 1) + [good], [0.1] * len(rngs))
        return tree.isel(draw=slice(4)) if good and again != "moves" else tree

    sampler = nuts_chains.Sampler(lambda q: (-0.5 * q @ q, -q), draw)
    monkeypatch.setattr(nuts_chains, "_of_pymc", lambda *args, **kwargs: sampler)
    with caplog.at_level(logging.INFO, "pymc.dp"):
        tree = nuts_chains.sample_nuts(model, chains=3, draws=10, nuts_sampler="pymc")
    assert asked == [3, 1]
    assert "Begun anew, having stood still: chain 2" in caplog.text
    assert ("Chain 2 stood still" in caplog.text) == bool(says)
    assert says in caplog.text
    assert dict(tree["posterior"].sizes) == {"chain": 3, "draw": 10}
    stands = np.zeros((3, 10), dtype=bool)
    stands[2] = True
    if says:
        np.testing.assert_array_equal(tree["sample_stats"]["stands_still"], stands)
    else:
        assert "stands_still" not in tree["sample_stats"]
        assert np.unique(tree["posterior"]["x"].values[2]).size > 1


# --- As pm.sample ---------------------------------------------------------------------------------


@wrap_py(itypes=[pt.dscalar], otypes=[pt.dscalar])
def without_gradient(x):
    return np.asarray(-((x - 3.0) ** 2))


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
@pytest.mark.parametrize("backend", [None, "numba"])
def test_a_variable_without_a_gradient_has_another_step(backend, caplog):
    with pm.Model() as model:
        pm.Potential("p", without_gradient(pm.Normal("x")))
    few = {"draws": 6, "tune": 3, "chains": 2, "cores": 1} | QUIET | {"quiet": False}
    with caplog.at_level(logging.INFO, "pymc"):
        tree = nuts_chains.sample_nuts(model, usual_accept=0.9, backend=backend, **few)
    assert tree["posterior"]["x"].shape == (2, 6)
    assert "No density with a gradient" in caplog.text
    assert "Slice: [x]" in caplog.text
    with pytest.raises(ValueError, match="requires all variables to be differentiable"):
        nuts_chains.sample_nuts(model, nuts_sampler="nutpie", backend=backend, **few)


def test_threads_call_a_density_one_by_one():
    """Functions of PyTensor keep their arguments: two threads at once get each other's."""
    kept = np.zeros(1)

    def function(q):
        kept[:] = q
        time.sleep(0.002)
        return kept[0], kept

    density = nuts_chains._quiet(function)
    points = np.arange(16.0)[:, None]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(density, points))
    np.testing.assert_array_equal([value for value, _ in found], points[:, 0])
    np.testing.assert_array_equal([slope for _, slope in found], points)


class Taken(Exception):
    """Says which runner was taken, and with which arguments."""


@pytest.fixture
def taken(model, monkeypatch):
    """Return a function that names the runner of some arguments, and what it is given."""

    def runner(name):
        def run(*args, **kwargs):
            raise Taken(name, kwargs)

        return run

    for name in ("_of_nutpie", "_of_pymc"):
        monkeypatch.setattr(nuts_chains, name, runner(name))

    def call(**kwargs):
        with pytensor.config.change_flags(mode="NUMBA"), pytest.raises(Taken) as found:
            nuts_chains.sample_nuts(model, **kwargs)
        return found.value.args

    return call


@pytest.mark.parametrize(("given", "runner"), [
    ({"return_inferencedata": True}, "_of_nutpie"), ({"idata_kwargs": {}}, "_of_nutpie"),
    ({"backend": "numba"}, "_of_nutpie"), ({"init": "auto"}, "_of_nutpie"),
    ({"callback": None, "nuts": {}, "random_seed": [1, 2]}, "_of_nutpie"),
    ({"return_inferencedata": False}, "_of_pymc"), ({"idata_kwargs": {"a": 1}}, "_of_pymc"),
    ({"backend": "c"}, "_of_pymc"), ({"nuts_sampler": "pymc"}, "_of_pymc"),
])  # fmt: skip
def test_values_that_are_the_default_choose_nothing(taken, given, runner):
    assert taken(**given)[0] == runner


@pytest.mark.parametrize(("given", "nuts"), [
    ({}, {"target_accept": 0.9}), ({"target_accept": 0.8}, {"target_accept": 0.8}),
    ({"nuts": {"target_accept": 0.7}}, {"target_accept": 0.7}),
    ({"nuts": {"maxdepth": 5}, "target_accept": 0.8}, {"maxdepth": 5, "target_accept": 0.8}),
])  # fmt: skip
def test_there_is_one_target(taken, given, nuts):
    """Of the user, before that of a route; and what they wrote stays as it is."""
    before = dict(given.get("nuts", {}))
    assert taken(usual_accept=0.9, **given)[1]["nuts"] == nuts
    assert given.get("nuts", {}) == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"target_accept": 0.9, "nuts": {"target_accept": 0.8}}, "target_accept is given twice"),
        ({"random_seed": -1}, "random_seed=-1 is negative"),
    ],
)
def test_what_pymc_refuses_is_refused(model, given, says):
    for sample in (pm.sample, nuts_chains.sample_nuts):
        match = says if sample is nuts_chains.sample_nuts else None
        with pytest.raises(ValueError, match=match):
            sample(model=model, draws=1, tune=1, **given, **QUIET)


@pytest.mark.parametrize(
    ("draws", "quiet", "says"), [(99, False, True), (99, True, False), (100, False, False)]
)
def test_few_draws_are_named_as_by_pymc(monkeypatch, caplog, draws, quiet, says):
    pytest.importorskip("nutpie")
    monkeypatch.setattr(nutpie_model, "compile_model", lambda *args: None)
    for name in ("with_data", "density_of"):
        monkeypatch.setattr(nutpie_model, name, lambda compiled: compiled)
    nuts_chains._of_nutpie(pm.Model(), [], draws=draws, quiet=quiet)
    assert (f"Only {draws} samples per chain." in caplog.text) == says


@pytest.mark.parametrize(("long", "times"), [(0.0, 1), (60.0, 0)])
def test_a_long_search_is_named_once(model, monkeypatch, caplog, long, times):
    monkeypatch.setattr(nuts_chains, "_LONG", long)
    sampler = nuts_chains.Sampler(lambda q: (-0.5 * q @ q, -q), lambda *_: tree_of([1], [0.1]))
    monkeypatch.setattr(nuts_chains, "_of_pymc", lambda *args, **kwargs: sampler)
    with caplog.at_level(logging.INFO, "pymc.dp"), Stages(progressbar=False, quiet=False):
        nuts_chains.sample_nuts(model, chains=1, draws=10, nuts_sampler="pymc")
    assert caplog.text.count("Looking for where the data are") == times


# --- Models whose release is far from where PyMC starts -------------------------------------------


def mean_and_variance():
    mu, s2 = pm.Flat("mu"), pm.Uniform("s2", 0, 0.4975)
    x = pm.Normal("x", mu, pt.sqrt(s2), shape=200)
    noise = dp.LaplaceMechanism(0.005)
    dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], noise, observed=[0.5, 0.04])


def gamma_rate():
    x = pm.Gamma("x", 2.0, pm.HalfNormal("rate"), shape=300)
    dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(10.0), observed=1e5)


def count():
    x = pm.Bernoulli("x", pm.Uniform("p"), shape=10**6)
    dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(3.0), observed=12.0)


def clamped():
    x = pm.Normal("x", pm.Flat("mu"), pm.HalfNormal("s", 5), shape=100)
    dp.PrivateObservation("z", x.clip(0, 50).sum(), dp.LaplaceMechanism(5.0), observed=3000.0)


def design():
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = pm.Normal("y", X @ pm.Flat("b", shape=3), pm.HalfNormal("s", 5), shape=200)
    released = pt.concatenate([X.T @ y, (y**2).sum()[None]])
    noise = dp.LaplaceMechanism([0.5, 0.5, 0.5, 5.0])
    dp.PrivateObservation("z", released, noise, observed=[200.0, -3000.0, 10.0, 60000.0])


def unknown_size():
    n = pm.Poisson("n", pm.Gamma("r", 2, 0.01))
    x = pm.Normal("x", pm.Flat("mu"), pm.HalfNormal("s", 1), shape=n)
    dp.PrivateObservation("count", n, dp.GeometricMechanism(1.0), observed=150)
    dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(1.0), observed=5000.0)


def tiny_rate():
    """PyMC's start is a mode of its own: the prior's, where the noise's tail is flat."""
    x = pm.Exponential("x", pm.Gamma("rate", 1, 1), shape=400)
    dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(2e6), observed=4e8)


def effects_of_dims():
    x = pm.Normal("x", pm.Normal("theta", 0, 20, dims="k")[np.repeat([0, 1, 2], 20)], 1, shape=60)
    released = [x[20 * k : 20 * k + 20].mean() for k in range(3)]
    dp.PrivateObservation("z", released, dp.LaplaceMechanism(0.5), observed=[1.0, 2.0, 3.0])


def centred():
    """The density is without bound where all effects are equal."""
    mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
    rate = pt.exp(pm.Normal("theta", mu, tau, shape=8))
    z = [4, 9, 1, 6, 3, 7, 12, 5]
    dp.PrivateObservation("z", pm.Poisson.dist(rate), dp.GeometricMechanism(3.0), observed=z)


MODELS = [
    mean_and_variance, gamma_rate, count, clamped, design, unknown_size, tiny_rate, effects_of_dims,
    centred,
]  # fmt: skip
# Where the data are, by any estimate.
THERE = {
    mean_and_variance: ("mu", 0.5), gamma_rate: ("rate", 2e-5), count: ("p", 1.2e-5),
    unknown_size: ("mu", 5000 / 150), tiny_rate: ("rate", 1e-6),
}  # fmt: skip


@pytest.mark.compiled
@pytest.mark.parametrize("build", MODELS)
def test_no_chain_stands_still(build, night, monkeypatch, caplog):
    """From PyMC's own starts one of 16 chains of the first model never moved."""
    seen: list = []
    still = nuts_chains.standing_still
    monkeypatch.setattr(
        nuts_chains, "standing_still", lambda tree, names: seen.append(tree) or still(tree, names)
    )
    with pm.Model(coords={"k": list("abc")}) as model:
        build()
    chains, length = (64, 500) if night else (8, 60)
    options = {"chains": chains, "tune": length, "draws": length, "random_seed": 1} | QUIET
    with caplog.at_level(logging.INFO, "pymc.dp"):
        tree = dp.sample(model, nuts_sampler="nutpie", **options)
    assert "Route: NUTS on the" in caplog.text or build is centred  # which is as written
    assert len(seen) == 1
    assert "Begun anew" not in caplog.text
    if build in THERE:
        name, about = THERE[build]
        assert 0.5 * about < np.median(tree["posterior"][name]) < 2.0 * about
    for rv in tree["posterior"].data_vars.values():
        own = rv.values.reshape(chains, length, -1)
        assert all(np.unique(chain).size > length // 4 for chain in own)
        # All chains are in one place.
        middle, spread = np.median(own, axis=(0, 1)), np.quantile(own, [0.16, 0.84], axis=(0, 1))
        assert np.all(abs(np.median(own, axis=1) - middle) < 3.0 * (spread[1] - spread[0]))


# --- Routes whose density has no value ------------------------------------------------------------


def test_the_next_best_route_is_taken_with_a_word(monkeypatch, caplog):
    """And with `rung=` it is an error with the reason."""
    from pymc_dp import routes

    def refuse(**kwargs):
        raise NotFinite("its log density has no value at mu = 1")

    def other(**kwargs):
        return tree_of([1], [0.1])

    found = [
        routes.Route("first", "marginal", lambda _: Plan(2.0, refuse)),
        routes.Route("second", "records", lambda _: Plan(1.0, other)),
    ]
    monkeypatch.setattr(routes, "ROUTES", found)
    with pm.Model() as model:
        mean_and_variance()
    with caplog.at_level(logging.WARNING, "pymc.dp"):
        dp.sample(model)
    assert "Not taken: first, its log density has no value at mu = 1" in caplog.text
    with pytest.raises(ValueError, match=r"no route on the rung 'marginal' .* first: its"):
        dp.sample(model, rung="marginal")
    assert issubclass(NotFinite, Declined)


def test_a_model_as_written_without_an_open_route_says_why(monkeypatch):
    from pymc_dp import routes

    def refuse(_):
        raise Declined("of its own reason")

    def mistaken(_):
        raise ValueError("the user's mistake")

    shut = routes.Route("first", routes.AS_WRITTEN, refuse)
    limited = routes.Route(
        "second", routes.AS_WRITTEN, lambda _: Plan(1.0, None), arguments=frozenset({"draws"})
    )
    monkeypatch.setattr(routes, "ROUTES", [shut, limited])
    with pm.Model() as model:
        dp.PrivateObservation("z", pm.Normal("mu"), dp.GaussianMechanism(1.0), observed=0.3)
    with pytest.raises(NotImplementedError, match="second: it does not take tune"):
        dp.sample(model, tune=9)
    monkeypatch.setattr(routes, "ROUTES", [shut])
    with pytest.raises(NotImplementedError, match="first: of its own reason"):
        dp.sample(model)
    wrong = routes.Route("third", routes.AS_WRITTEN, mistaken)
    monkeypatch.setattr(routes, "ROUTES", [shut, wrong])
    with pytest.raises(NotImplementedError, match="third: the user's mistake"):
        dp.sample(model)


def test_a_search_that_is_ended_begins_at_the_best_so_far():
    asked = []

    def density(q):
        asked.append(q)
        if len(asked) > most:
            raise SearchOver
        return -0.5 * float(((q - 3.0) ** 2).sum()), 3.0 - q

    for most in (0, 1, 5, 40, 10_000):
        asked.clear()
        best, *_ = find_centers(density, np.zeros(2), [2])
        assert np.isfinite(best.point).all()
        assert len(asked) <= most + 1 or most == 10_000
    np.testing.assert_allclose(best.point, 3.0, atol=0.1)


def test_no_jump_looks_behind_where_a_density_is_lost():
    asked = []

    def density(q):
        asked.append(float(q[0]))
        return -0.5 * float((q**2).sum()), -q

    find_centers(density, np.zeros(1), [1])
    assert max(map(abs, asked)) < 200.0  # a jump of 256 widths would be farther
