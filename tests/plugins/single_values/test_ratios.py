"""Values divided by noisy numbers: densities by quadrature, slopes, draws, refusals."""

import numpy as np
import pymc as pm
import pytest
from scipy import integrate, stats

import pymc_dp as dp

Z, SCALE = np.array([0.7, 1.4, -0.2]), 2.0


def ratio_model(noisy=None, statistic=None, law=None):
    """Return a model of counts, or of values of another `law`, over a noisy base."""
    with pm.Model() as model:
        r = pm.Normal("r", 1, 0.5)
        base = pm.Poisson("base", 9, shape=3)
        now = (law or (lambda r: pm.Poisson("now", 9 * pm.math.exp(r - 1), shape=3)))(r)
        w = (noisy or (lambda b: pm.Laplace("w", b, 1.5)))(base)
        ratio = now / w if statistic is None else statistic(now, w)
        dp.PrivateObservation("ratio", ratio, dp.LaplaceMechanism(SCALE / w), observed=Z)
    return model


def given_divisor(z, w, rate):
    """Return the density of (now + noise) / w."""
    k = np.arange(200)
    return abs(w) * stats.poisson.pmf(k, rate) @ stats.laplace.pdf(z * w, k, SCALE)


def of_divisor(w):
    """Return the density of the noisy base."""
    k = np.arange(200)
    return stats.poisson.pmf(k, 9) @ stats.laplace.pdf(w, k, 1.5)


@pytest.mark.parametrize(
    "noisy", [None, lambda b: dp.PrivateObservation("w", b, dp.LaplaceMechanism(1.5))],
    ids=["pm.Laplace", "release"],
)  # fmt: skip
def test_values_are_integrated_out_given_the_noisy_number(noisy):
    """Density and slopes are those of scipy, for noisy numbers of both signs."""
    model = dp.collapse(ratio_model(noisy))
    assert [rv.name for rv in model.free_RVs] == ["r", "w"]
    point = {"r": np.array(1.2), "w": np.array([8.2, 5.3, -1.4])}
    truth = stats.norm.logpdf(1.2, 1, 0.5) + sum(
        np.log(given_divisor(z, w, 9 * np.exp(0.2)) * of_divisor(w))
        for z, w in zip(Z, point["w"], strict=True)
    )
    logp, slopes = model.compile_logp(), model.compile_dlogp()(point)
    np.testing.assert_allclose(logp(point), truth, rtol=1e-9)
    for i, (name, place) in enumerate([("r", ()), ("w", 0), ("w", 1), ("w", 2)]):
        beside = [{k: v.copy() for k, v in point.items()} for _ in range(2)]
        beside[0][name][place] -= 1e-6
        beside[1][name][place] += 1e-6
        low, high = map(logp, beside)
        np.testing.assert_allclose(slopes[i], (high - low) / 2e-6, rtol=1e-4)


def test_a_change_in_percent_and_a_law_without_closed_form():
    """The statistic may be any function; the general rule has slopes in the noisy number."""

    def student(r):
        return pm.StudentT("now", 4, 9 * r, sigma=2, shape=3)

    model = dp.collapse(ratio_model(statistic=lambda a, w: (a - w) / w, law=student))
    point = {"r": np.array(1.2), "w": np.array([8.2, 5.3, -3.4])}
    truth = stats.norm.logpdf(1.2, 1, 0.5)
    for z, w in zip(Z, point["w"], strict=True):
        inner = integrate.quad(
            lambda x, z=z, w=w: (
                stats.t.pdf(x, 4, 10.8, 2) * stats.laplace.pdf(z, (x - w) / w, SCALE / abs(w))
            ),
            -400, 400, points=[10.8, (z + 1) * w], limit=500,
        )[0]  # fmt: skip
        truth += np.log(inner * of_divisor(w))
    logp, slopes = model.compile_logp(), model.compile_dlogp()(point)
    np.testing.assert_allclose(logp(point), truth, rtol=1e-7)
    for place in range(3):
        step = np.zeros(3)
        step[place] = 1e-5
        low, high = (logp(point | {"w": point["w"] + s * step}) for s in (-1, 1))
        np.testing.assert_allclose(slopes[1 + place], (high - low) / 2e-5, rtol=1e-4)


def test_beside_the_published_base_a_ratio_is_a_plain_release():
    """An observed noisy number is data."""
    published = np.array([8.0, 6.5, -2.0])

    def release(base):
        return dp.PrivateObservation("w", base, dp.LaplaceMechanism(1.5), observed=published)

    model = dp.collapse(ratio_model(release))
    truth = stats.norm.logpdf(1.2, 1, 0.5) + sum(
        np.log(given_divisor(z, w, 9 * np.exp(0.2)) * of_divisor(w))
        for z, w in zip(Z, published, strict=True)
    )
    np.testing.assert_allclose(model.compile_logp()({"r": np.array(1.2)}), truth, rtol=1e-9)


def test_recovered_values_have_their_conditional_means():
    """Both values are drawn given the noisy number of the same draw."""
    import xarray as xr

    draws, w = 4_000, np.array([8.2, 5.0, 3.3])
    posterior = xr.Dataset({
        "r": (("chain", "draw"), np.full((1, draws), 1.2)),
        "w": (("chain", "draw", "w_dim_0"), np.broadcast_to(w, (1, draws, 3))),
    })  # fmt: skip
    tree = xr.DataTree.from_dict({"posterior": posterior})
    drawn = dp.recover(ratio_model(), idata=tree, random_seed=1)["posterior"]
    k = np.arange(200)
    for i in range(3):
        for name, rate, value, scale in (("base", 9, w[i], 1.5),
                                         ("now", 9 * np.exp(0.2), Z[i] * w[i], SCALE)):  # fmt: skip
            p = stats.poisson.pmf(k, rate) * stats.laplace.pdf(value, k, scale)
            p /= p.sum()
            sd = np.sqrt(p @ (k - p @ k) ** 2)
            mean = float(drawn[name][..., i].mean())
            assert abs(mean - p @ k) < 5 * sd / np.sqrt(draws)


def test_noise_that_is_estimated_is_refused():
    """Only a noisy number may divide noise, and steps that hold noise fixed decline."""
    with pm.Model():
        s, x = pm.HalfNormal("s"), pm.Normal("x", 0, 1, shape=3)
        with pytest.raises(TypeError, match="'s'"):
            dp.LaplaceMechanism(s)
        with pytest.raises(TypeError, match="depends on 's'"):
            dp.PrivateObservation("z", x / s, dp.LaplaceMechanism(1 / s), observed=Z)
    model = ratio_model()
    with model, pytest.raises(ValueError, match="divided by a noisy number"):
        dp.RecordMetropolis([model["now"]])
    drawn = {v.name for step in dp.steps(model) for v in step.vars}
    assert drawn.isdisjoint({"now", "w"})


def test_one_base_of_many_ratios():
    """As a vector of its own it is integrated out; as an entry of the counts it is refused."""
    z = np.array([0.7, 1.4])
    with pm.Model() as model:
        r = pm.Normal("r", 1, 0.5)
        w = pm.Laplace("w", pm.Poisson("base", 9, shape=1), 1.5, shape=1)
        x = pm.Poisson("x", 9 * r, shape=2)
        dp.PrivateObservation("z", x / w, dp.LaplaceMechanism(SCALE / w), observed=z)
    point = {"r": np.array(1.2), "w": np.array([8.2])}
    truth = stats.norm.logpdf(1.2, 1, 0.5) + np.log(of_divisor(8.2))
    truth += sum(np.log(given_divisor(value, 8.2, 10.8)) for value in z)
    np.testing.assert_allclose(dp.collapse(model).compile_logp()(point), truth, rtol=1e-9)
    with pm.Model() as model:
        c = pm.Poisson("c", 9, shape=3)
        w = pm.Laplace("w", c[0], 1.5)
        dp.PrivateObservation("z", c[1:] / w, dp.LaplaceMechanism(SCALE / w), observed=z)
    with pytest.raises(
        ValueError, match=r"release of 'c' is divided.*vector of its own"
    ) as refused:
        dp.sample(model, draws=2, tune=2)
    assert "Call dp.sample without step=" not in str(refused.value)


def test_ratios_are_drawn_from_the_prior():
    """The prior predictive has the ratios' median."""
    drawn = pm.sample_prior_predictive(4_000, model=ratio_model(), random_seed=1)
    ratios = drawn["prior_predictive"]["ratio"].to_numpy()
    rng = np.random.default_rng(0)
    r = rng.normal(1, 0.5, 100_000)
    now = rng.poisson(9 * np.exp(r - 1)) + rng.laplace(0, SCALE, r.size)
    w = rng.poisson(9, r.size) + rng.laplace(0, 1.5, r.size)
    assert stats.ks_2samp(ratios.reshape(-1, 3)[:, 0], now / w).pvalue > 1e-3
