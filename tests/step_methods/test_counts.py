"""Exact updates of confidential counts, alone and along with their probabilities."""

import itertools

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.model.transform.conditioning import remove_value_transforms
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods import choose_steps
from pymc_dp.step_methods.counts import CountGibbs
from tests.agreement import counts_follow, has_moments, has_quantiles, values_follow
from tests.chains import SHORT, begun, chain, sampled, step_of
from tests.models import RECORD_CASES, RECORD_MODELS

LAPLACE, GAUSS = dp.LaplaceMechanism, dp.GaussianMechanism


def run(model, draws, *names):
    """Return what the steps of a collapsed model draw, in the model's own space."""
    model = remove_value_transforms(model)
    steps = [step_of(CountGibbs, model, *names)] if names else dp.steps(model)
    found = chain(steps, model.initial_point(), draws + 20)
    return {name: values[20:] for name, values in found.items()}


def beta_model(n, mechanism, z, statistic=lambda x: x.sum(), prior=lambda: pm.Beta("p", 1, 1)):
    with pm.Model() as model:
        x = pm.Bernoulli("x", prior(), shape=n)
        dp.PrivateObservation("z", statistic(x), mechanism, observed=z)
    return dp.collapse(model, "statistics")


# --- References -----------------------------------------------------------------------------------


def agrees(draws, expected, **options):
    has_moments(draws, expected["mean"], expected["sd"], **options)
    has_quantiles(draws, {float(q): x for q, x in expected.get("quantiles", {}).items()})


@pytest.mark.nightly
def test_admissions():
    case = RECORD_CASES["a_admissions_2x2"]
    draws = run(dp.collapse(RECORD_MODELS["a_admissions_2x2"](), "statistics"), 20_000)
    pi, counts = draws["pi"], draws["cell_counts"]
    assert np.all(counts.sum(axis=1) == case["inputs"]["N"])
    for j, name in enumerate(case["inputs"]["cell_order"]):
        agrees(pi[:, j], case["params"][name], least=0.7 * len(pi))
        agrees(counts[:, j], case["latent"][name])
    log_or = np.log(pi[:, 0] * pi[:, 3] / (pi[:, 1] * pi[:, 2]))
    agrees(log_or, case["params"]["log_or"])


def test_bernoulli_under_geometric_noise():
    case = RECORD_CASES["ii_bernoulli_geometric"]
    model = RECORD_MODELS["ii_bernoulli_geometric"]()
    draws = run(dp.collapse(model, "statistics"), 20_000)
    agrees(draws["p"], case["params"]["p"])
    has_moments(draws["x_count"], case["latent"]["count_mean"], case["latent"]["count_sd"])


# --- Mixing and extremes --------------------------------------------------------------------------


@pytest.mark.parametrize("n", [10**6, 10**9])
@pytest.mark.nightly
def test_draws_are_nearly_independent_where_noise_dominates(n):
    """Given the counts p would move by 0.05% of its posterior spread."""
    scale = 0.01 * n
    draws = run(beta_model(n, GAUSS(scale), 0.3 * n), 5000)
    has_moments(draws["p"], 0.3, 0.01, least=0.8 * 5000)


@pytest.mark.parametrize(
    ("n", "mechanism", "z"),
    [
        (1, LAPLACE(1.0), 0.7),
        (2, LAPLACE(1e9), 1.0),
        (2, LAPLACE(1e-6), 1.0),
        (40, LAPLACE(3.0), 1e9),
        (40, GAUSS(3.0), -300.0),
        (40, dp.RandomizedResponse(0.7).counted(40), 25.0),
        (40, LAPLACE(3.0).clipped(0, 10), 10.0),
    ],
)
@pytest.mark.by_day("1-mechanism0-0.7")
def test_extremes(n, mechanism, z):
    """Counts are uniform under p ~ Uniform(0, 1): their posterior is the noise's density."""
    model = beta_model(n, mechanism, z, prior=lambda: pm.Uniform("p", 0, 1))
    draws = run(model, 20_000)
    c = np.arange(n + 1)
    p = special.softmax(mechanism.logp(z, c.astype(float)).eval())
    counts_follow(np.bincount(draws["x_count"], minlength=n + 1), p)
    assert np.all((draws["p"] > 0) & (draws["p"] < 1))
    has_moments(draws["p"], p @ ((1 + c) / (n + 2)))


class CauchyMechanism(Mechanism):
    """Noise without a log-concave density, and without a word about it."""

    def noise_sample(self, rng, statistic):
        return pt.random.cauchy(as_float(statistic), 1.0, rng=rng, return_next_rng=True)

    def logp(self, value, statistic=0.0):
        return -pt.log1p((as_float(value) - as_float(statistic)) ** 2)

    def log_interval(self, lower, upper, statistic=0.0):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("statistic", "mechanism", "concave"),
    [
        (lambda c: c[9:], LAPLACE(1.0), True),
        (lambda c: c[9:] ** 2, LAPLACE(1.0), False),
        (lambda c: c[9:], CauchyMechanism(), False),
        (lambda c: c[9:] - c[8], dp.GeometricMechanism(1.0), True),
        (lambda c: c[9:], GAUSS(1.0).rounded().clipped(lower=0.0), True),
        (lambda c: c[:10].reshape((2, 5)), dp.NoisyMax("exponential", 1.0), True),
        (lambda c: abs(c[:10].reshape((2, 5)) - 3), dp.NoisyMax("exponential", 1.0), False),
    ],
    ids=["itself", "square", "Cauchy", "difference", "rounded", "selection", "distances"],
)
@pytest.mark.by_day("itself", "square")
def test_what_is_not_known_to_be_log_concave_is_listed(statistic, mechanism, concave):
    with pm.Model() as model:
        c = pm.Multinomial("c", 40, np.ones(11) / 11)
        dp.PrivateObservation("z", statistic(c), mechanism, observed=[3.0, 4.0])
    assert CountGibbs([c], model=model)._updates[0].concave is concave


@pytest.mark.parametrize(
    ("mechanism", "z"), [(dp.RandomRounding(5), 5), (dp.UniformMechanism(2.5), 7.3)], ids=str
)
def test_noise_with_ends_from_every_start(mechanism, z):
    """Where the start is impossible, and where what is tried on either side of it is."""
    with pm.Model() as model:
        c = pm.Binomial("c", 30, 0.3)
        dp.PrivateObservation("z", c, mechanism, observed=z)
    step, counts = CountGibbs([c], model=model), np.arange(31)
    draws = [step.step({"c": np.array(k)})[0]["c"] for k in counts[::3] for _ in range(40)]
    log_noise = mechanism.logp(z, counts.astype(float)).eval()
    p = special.softmax(stats.binom.logpmf(counts, 30, 0.3) + log_noise)
    counts_follow(np.bincount(draws, minlength=31), p)


def test_a_table_with_a_known_total_rounded_at_random():
    """Where counts start, most cells are impossible, and moves of two cells lead nowhere."""
    chances, total, z = [0.3, 0.3, 0.4], 9, np.array([9, 0, 0])
    with pm.Model() as model:
        c = pm.Multinomial("c", total, chances)
        dp.PrivateObservation("z", c, dp.RandomRounding(3), observed=z)
    step, point = CountGibbs([c], model=model, rng=1), model.initial_point()
    draws = []
    for _ in range(6000):
        point = step.step(point)[0]
        draws.append(point["c"] @ [100, 10, 1])
    tables = [t for t in itertools.product(range(10), repeat=3) if sum(t) == total]
    p = stats.multinomial.pmf(tables, total, chances)
    p *= np.maximum(0, 1 - np.abs(z - np.array(tables)) / 3).prod(axis=1)
    for value, share in zip(np.array(tables) @ [100, 10, 1], p / p.sum(), strict=True):
        assert abs(np.mean(np.array(draws) == value) - share) < 0.03


@pytest.mark.parametrize("noise", ["histogram", "margins"])
@pytest.mark.nightly
def test_many_cells(noise):
    """A flat table under Gaussian noise is a Gaussian on its total, far from the borders."""
    k, sigma = 12, 20.0
    n = 1000 * k
    z = 1000.0 + np.random.default_rng(3).normal(0, 40, k)
    slopes = np.eye(k) if noise == "histogram" else np.kron(np.eye(k // 2), np.ones((1, 2)))
    if noise == "margins":
        slopes, z = np.vstack([slopes, np.eye(k)]), np.r_[z.reshape(-1, 2).sum(1), z]
    with pm.Model() as model:
        x = pm.Categorical("x", pm.Dirichlet("pi", np.ones(k)), shape=n)
        counts = pt.eq(x[:, None], np.arange(k)).sum(0)
        statistic = counts if noise == "histogram" else pt.dot(pt.constant(slopes), counts)
        dp.PrivateObservation("z", statistic, GAUSS(sigma), observed=z)
    collapsed = dp.collapse(model, "statistics")
    draws = run(collapsed, 4000)["x_counts"]
    covariance = np.linalg.inv(slopes.T @ slopes / sigma**2)
    mean = covariance @ slopes.T @ z / sigma**2
    gain = covariance.sum(axis=0) / covariance.sum()
    mean += gain * (n - mean.sum())
    covariance -= np.outer(gain, covariance.sum(axis=0))
    has_moments(draws, mean, np.diag(covariance) ** 0.5, least=0.2 * 4000)
    assert np.all(draws.sum(axis=1) == n)


# --- Given the probabilities ----------------------------------------------------------------------


@pytest.mark.nightly
def test_probabilities_with_other_data_are_conjugate():
    with pm.Model() as model:
        p = pm.Beta("p", 2, 3)
        x = pm.Bernoulli("x", p, shape=30)
        pm.Binomial("y", 20, p, observed=12)
        dp.PrivateObservation("z", x.sum(), LAPLACE(2.0), observed=15.0)
    collapsed = dp.collapse(model, "statistics")
    assert {rv.name: s.__name__ for rv, s in choose_steps(Reading(collapsed)).items()} == {
        "p": "ConjugateGibbs",
        "x_count": "CountGibbs",
    }
    draws = run(collapsed, 20_000)
    c = np.arange(31)
    weight = stats.betabinom.pmf(c, 30, 14, 11) * stats.laplace.pdf(15, c, 2)
    has_moments(draws["p"], weight @ ((14 + c) / 55) / weight.sum())


@pytest.mark.nightly
def test_random_hyperparameters_are_read_from_the_point():
    with pm.Model() as model:
        a = pm.Gamma("a", 5, 1)
        x = pm.Bernoulli("x", pm.Beta("p", a, 2.0), shape=30)
        dp.PrivateObservation("z", x.sum(), LAPLACE(2.0), observed=15.0)
    collapsed = remove_value_transforms(dp.collapse(model, "statistics"))
    step = step_of(CountGibbs, collapsed, "p", "x_count")
    c = np.arange(31)
    for value in (0.5, 20.0):
        draws = chain(step, collapsed.initial_point() | {"a": np.array(value)}, 5000, seed=3)
        weight = stats.betabinom.pmf(c, 30, value, 2) * stats.laplace.pdf(15, c, 2)
        has_moments(draws["p"], weight @ ((value + c) / (value + 32)) / weight.sum())


# --- Models that were not collapsed, and pm.sample ------------------------------------------------


def test_pm_sample_assigns_it():
    model = beta_model(50, LAPLACE(2.0), 33.0)
    idata = sampled(model, draws=300, tune=50, random_seed=1)
    assert {rv.name: rv.tag.dp_step for rv in model.free_RVs} == dict.fromkeys(
        ["p", "x_count"], "CountGibbs"
    )
    p = idata["posterior"]["p"].values
    assert idata["posterior"]["x_count"].dtype.kind == "i"
    has_moments(p, 0.6538, limit=5, least=300)


def test_survives_pickling():
    model = beta_model(50, LAPLACE(2.0), 33.0)
    [step] = cloudpickle.loads(cloudpickle.dumps(dp.steps(model)))
    point, _ = begun(step).step(model.initial_point())
    assert 0 <= point["x_count"] <= 50


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("random_n", "'random_n': its number of trials depends on"),
        ("free", "'free': no release of it"),
        ("watched", "'watched': 'child', which is no release, depends on it"),
        ("q", "'q': it is neither a Binomial or Multinomial count nor"),
    ],
)
def test_refusals(name, match):
    with pm.Model() as model:
        n, q = pm.Poisson("n", 20), pm.Beta("q", 1, 1)
        pm.Binomial("free", 20, 0.5)
        watched = pm.Binomial("watched", 20, 0.5)
        pm.Poisson("child", watched + 1.0, observed=3)
        for i, released in enumerate((pm.Binomial("random_n", n, 0.5), watched, q)):
            dp.PrivateObservation(f"z{i}", released, LAPLACE(1.0), observed=3.0)
    with pytest.raises(ValueError, match=f"CountGibbs cannot update {match}"):
        step_of(CountGibbs, model, name)


def test_refuses_to_list_a_million():
    model = beta_model(10**6, LAPLACE(0.01), 0.2, lambda x: x.var())
    with pytest.raises(
        ValueError, match=r"'x_count': .* 'z' is not known to be log-concave .* too many to list"
    ):
        dp.steps(model)


# --- Tables of which overlapping sums were released -----------------------------------------------

ALPHA = np.array([0.3, 1.0, 2.5, 0.6, 1.0, 4.0, 0.2, 1.3])
MARGINS = [np.eye(8).reshape(8, 2, 2, 2).sum(axis=k + 1).reshape(8, 4).T for k in range(3)]
SEEN = np.vstack(MARGINS) @ [2.0, 0, 0, 1, 0, 1, 1, 0] + np.linspace(-0.8, 0.9, 12)


def margins(spelling, total=5):
    with pm.Model(coords={"cell": list("abcdefgh")}) as model:
        p = pm.Dirichlet("p", ALPHA, dims="cell")
        c = pm.Multinomial("c", total, p, dims="cell")
        if spelling == "matrix":
            dp.PrivateObservation("z", np.vstack(MARGINS) @ c, GAUSS(1.0), observed=SEEN)
        for k in range(3 if spelling == "axes" else 0):
            z = SEEN[4 * k : 4 * k + 4].reshape(2, 2)
            dp.PrivateObservation(f"z{k}", c.reshape((2, 2, 2)).sum(k), GAUSS(1.0), observed=z)
    return model


@pytest.mark.parametrize("spelling", ["matrix", "axes"])
def test_overlapping_margins_against_all_tables(spelling):
    model = margins(spelling)
    assert {type(step).__name__ for step in dp.steps(model)} == {"CountGibbs"}
    step = step_of(CountGibbs, model, "p", "c")
    assert step._updates[0].lattice.directions.shape[0] >= 7
    bars = np.array(list(itertools.combinations(range(12), 7)))
    tables = np.diff(bars, axis=1, prepend=-1, append=12) - 1
    log_chances = (special.gammaln(tables + ALPHA) - special.gammaln(tables + 1)).sum(axis=1)
    log_chances -= 0.5 * ((SEEN - tables @ np.vstack(MARGINS).T) ** 2).sum(axis=1)
    chances = special.softmax(log_chances)
    starts = tables[np.random.default_rng(7).choice(len(tables), size=2_000, p=chances)]
    first = model.initial_point()
    drawn = [step.step(first | {"c": start})[0] for start in starts]
    values_follow(np.array([d["c"] for d in drawn]), tables, chances)
    p = special.softmax([np.append(d["p_simplex__"], -d["p_simplex__"].sum()) for d in drawn], 1)
    mean = chances @ (tables + ALPHA) / (5 + ALPHA.sum())
    np.testing.assert_allclose(p.mean(axis=0), mean, atol=5 * p.std(axis=0).max() / 2_000**0.5)


@pytest.mark.parametrize("spelling", ["matrix", "axes"])
def test_overlapping_margins_are_sampled(spelling):
    found = dp.sample(margins(spelling), draws=20, tune=20, random_seed=1, **SHORT)["posterior"]
    assert found["c"].dims == found["p"].dims == ("chain", "draw", "cell")
    assert (found["c"].sum("cell") == 5).all()


@pytest.mark.parametrize("sums", [False, True], ids=["cells alone", "and a sum"])
def test_large_tables_move_with_their_probabilities_integrated_out(monkeypatch, sums):
    monkeypatch.setattr("pymc_dp.step_methods.counts._MAX_CELLS", 2)
    a, z = np.array([0.5, 1.0, 2.0]), np.array([4, -1, 3])
    with pm.Model() as model:
        y = pm.Multinomial("y", 6, pm.Dirichlet("p", a))
        dp.PrivateObservation("z", y, dp.GeometricMechanism(1.0), observed=z)
        if sums:
            dp.PrivateObservation("w", y[:2].sum(), LAPLACE(2.0), observed=4.5)
    drawn = run(model, 12_000, "y", "p")
    tables = np.array([t for t in itertools.product(range(7), repeat=3) if sum(t) == 6])
    log_p = (special.gammaln(tables + a) - special.gammaln(tables + 1)).sum(1)
    log_p -= np.abs(z - tables).sum(1) + sums * np.abs(4.5 - tables[:, :2].sum(1)) / 2
    values_follow(drawn["y"][::2], tables, special.softmax(log_p))
    has_moments(drawn["p"] - (drawn["y"] + a) / (6 + a.sum()), np.zeros(3))


EXACT = dp.CellKey([[1.0]])
# One for each change by -1, 0, 1 of a count of 0, 1, and of more.
KEYS = dp.CellKey([[0.0, 1.0, 0.0], [0.2, 0.5, 0.3], [0.3, 0.4, 0.3]])


def block_in_a_vector(c):
    return [c[:4].reshape((2, 2)).sum(1), c[:4].reshape((2, 2)).sum(0)]


def no_three_way(c):
    table = c.reshape((2, 2, 2))
    return [table.sum(axis) for axis in range(3)]


def a_wide_table(c):
    return [c.reshape((2, 3)).sum(1), c.reshape((2, 3)).sum(0)]


def test_a_joint_release_beside_noise_that_is_not_log_concave():
    with pm.Model() as model:
        c = pm.Multinomial("c", 30, np.ones(5) / 5)
        dp.PrivateObservation("a", c, dp.SphericalLaplace(2.0), observed=[6.0, 5, 7, 6, 6])
        noise = dp.StudentTMechanism(3.0, 1.0)
        dp.PrivateObservation("b", c, noise, observed=[5.0, 6, 7, 6, 6])
    dp.CountGibbs([c], model=model, rng=3)


@pytest.mark.parametrize(
    ("margins", "start", "integrated"),
    [
        (block_in_a_vector, [2, 1, 1, 2, 1, 0], True),
        (no_three_way, [2, 2, 3, 2, 2, 2, 2, 3], False),
        (a_wide_table, [2, 3, 2, 2, 2, 3], False),
    ],
)
def test_more_than_two_cells_move_where_sums_are_exact(margins, start, integrated):
    """Draws from the posterior keep it, and a chain comes to every table."""
    start, size = np.array(start), len(start)
    weights = np.linspace(1.0, 2.0, size)
    with pm.Model() as model:
        p = pm.Dirichlet("p", weights) if integrated else weights / weights.sum()
        c = pm.Multinomial("c", start.sum(), p, initval=start)
        dp.PrivateObservation("cells", c, KEYS, observed=start)
        for k, margin in enumerate(margins(c)):
            dp.PrivateObservation(f"m{k}", margin, EXACT, observed=margin.eval({c: start}))
    near = start + np.array(list(itertools.product([-1, 0, 1], repeat=size)))
    keep = (near >= 0).all(axis=1) & (near.sum(axis=1) == start.sum())
    given = pt.lvector()
    of = pytensor.function([given], [m.ravel() for m in margins(given)], mode="FAST_COMPILE")
    exact = [np.concatenate(of(x)) for x in (start, *near[keep])]
    states = near[keep][(np.array(exact[1:]) == exact[0]).all(axis=1)]
    prior = special.gammaln(states + weights) if integrated else states * np.log(weights)
    noise = KEYS.logp(start, states).eval()
    weight = special.softmax((prior - special.gammaln(states + 1) + noise).sum(axis=1))
    step = dp.CountGibbs([c, p] if integrated else [c], model=model, rng=3)
    point = model.initial_point()
    rng = np.random.default_rng(5)
    starts = states[rng.choice(len(states), size=1_000, p=weight)]
    drawn = np.array([step.step({**point, "c": x})[0]["c"] for x in starts])
    values_follow(drawn, states, weight)
    drawn = []
    for _ in range(300):
        point, _ = step.step(point)
        drawn.append(tuple(point["c"]))
    assert {*drawn} == {tuple(x) for x, w in zip(states, weight, strict=True) if w > 0.0}
