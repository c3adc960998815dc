"""The ladder: what collapses and what is refused, and `explain` and `recover` on its rungs."""

import io
import logging
import tracemalloc

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from arviz_base import from_dict
from pymc.initial_point import make_initial_point_fn
from pytensor.compile.mode import Mode
from pytensor.graph.replace import graph_replace
from rich.console import Console
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.ladder import collapse as ladder
from pymc_dp.laws.moments.one_column import OneColumn
from pymc_dp.reading.frozen import read
from pymc_dp.reading.model import Reading
from pymc_dp.routes import routes
from pymc_dp.routes.coordinates import standardised
from pymc_dp.step_methods import choose_steps
from tests.agreement import follows, has_moments
from tests.models import posterior, refuses
from tests.references import legendre

Z = np.array([34.3, 2224.8])
NOISE = np.array([9.3, 900.0])
LAPLACE, GAUSS = dp.LaplaceMechanism, dp.GaussianMechanism
PLAIN = Mode(linker="py", optimizer="fast_compile")
RUNGS = ("statistics", "marginal")


def priors():
    return pm.Normal("mu", 30, 20), pm.InverseGamma("sigma2", 3, 600)


def lead(n=43):
    mu, sigma2 = priors()
    return pm.Normal("lead", mu, pt.sqrt(sigma2), shape=n)


def both(x):
    return [x.mean(), x.var(ddof=1)]


@pytest.fixture
def in_model():
    with pm.Model() as model:
        yield model


# --- Refusals -------------------------------------------------------------------------------------


def release(statistic, mechanism=None, observed=0.0, **options):
    mechanism = mechanism or LAPLACE(1.0)
    dp.PrivateObservation("z", statistic, mechanism, observed=observed, **options)


def taken():
    pm.Normal("lead_mean")
    return lead().mean()


def transformed(law, transform):
    """What may cut the support, also where the records would be integrated out by inversion."""
    return (
        lambda: release(law("x", 5.0, shape=20, transform=transform).clip(0, 1).mean()),
        "marginal", "'x' has the transform .* may cut its support", NotImplementedError,
    )  # fmt: skip


def other(records):
    return lambda: release(pt.exp((records() ** 2).mean()))


HALF, LOG = pm.distributions.transforms.Interval(0.0, 0.5), pm.distributions.transforms.log
REFUSED = {  # a model, the rung, the reason, the error
    "another rung": (
        lambda: release(lead().mean()), "records",
        "to='records': write to='statistics' or to='marginal'", ValueError,
    ),
    "no release": (
        lead, "marginal", r"nothing to collapse: declare .* dp\.PrivateObservation", ValueError
    ),
    "no records": (
        lambda: release(pm.Normal("s")), "marginal", "no records to integrate out", ValueError
    ),
    "another statistic": (
        lambda: release(pt.sort(lead())[20]), "marginal",
        "the statistic of the release 'z'( of 'lead')?: `SortOp`", NotImplementedError,
    ),
    "circular": (
        other(lambda: pm.VonMises("x", 0, 1, shape=9)), "marginal",
        "'x' (follow VonMises|live on a circular support)", NotImplementedError,
    ),
    "not identical": (
        other(lambda: pm.Normal("x", np.arange(9.0), 1)), "marginal",
        "'x' are not identically|not linear in 'x'", NotImplementedError,
    ),
    "an array": (
        other(lambda: pm.Normal("x", 0, 1, shape=(3, 2, 2))), "marginal",
        "'x' have 3 dimensions", NotImplementedError,
    ),
    "a logarithm": transformed(pm.Normal, LOG),
    "an interval": transformed(pm.Exponential, HALF),
    "an interval of uniform records": transformed(
        lambda name, upper, **kwargs: pm.Uniform(name, 0, upper, **kwargs), HALF
    ),
    "a taken name": (
        lambda: release(taken()), "statistics",
        "already has a variable 'lead_mean': rename", ValueError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(in_model, case):
    build, rung, match, error = REFUSED[case]
    build()
    refuses(in_model, match, rung, error=error)


def moved():
    return pm.Normal("lead", pm.Normal("mu") + pm.Normal("shift"), pm.HalfNormal("s"), shape=43)


def two_bounded(x):
    for name, statistic, noise, z in zip("ab", both(x), NOISE, Z, strict=True):
        dp.PrivateObservation(name, statistic, LAPLACE(noise), observed=z, bounds=(0, 135))


def processed(name, mechanism, bounds):
    return (
        lambda: release(both(lead()), mechanism, Z, bounds=bounds),
        f"the release 'z'.*{name}Mechanism.*[Uu]se to='statistics'",
    )


CLIPPED, ROUNDED = LAPLACE(NOISE).clipped(0, 5000), LAPLACE(NOISE).rounded(1)
STATISTICS_ONLY = {
    "a mixed entry": (
        lambda: release((x := lead()).mean() + x.var(ddof=1)),
        "'z' depends on both the mean and the variance .*'lead'.*Use to='statistics'",
    ),
    "separate bounded releases": (
        lambda: two_bounded(lead()),
        r"bounded records 'lead' have several releases \('a', 'b'\).*'statistics'",
    ),
    "bounds, other parameters": (
        lambda: release(both(moved()), LAPLACE(NOISE), Z, bounds=(0, 135)),
        "'lead' are bounded, and their mean and variance are not each a simple function",
    ),
    "clipped, bounded": processed("Clipped", CLIPPED, (0, 135)),
    "rounded, bounded": processed("Rounded", ROUNDED, (0, 135)),
}


@pytest.mark.parametrize("case", STATISTICS_ONLY)
def test_is_for_the_statistics_rung(in_model, case):
    build, match = STATISTICS_ONLY[case]
    build()
    refuses(in_model, match, "marginal")
    dp.collapse(in_model, "statistics")


@pytest.mark.parametrize("child", ["variable", "potential"])
def test_refuses_another_child(in_model, child):
    x = lead()
    dp.PrivateObservation("z", both(x), LAPLACE(NOISE), observed=Z)
    if child == "variable":
        pm.Normal("echo", x[0], 1, observed=2.0)
    else:
        pm.Potential("echo", -(x[0] ** 2))
    refuses(in_model, "records 'lead' cannot be integrated out: 'echo'")


def started(kind, start, **where):
    """A model of each kind of rung, with starting values on what `where` names."""
    given = {name: {"initval": start} for name in where}
    with pm.Model(coords={"who": range(6)}) as model:
        mean = pm.Normal("mean", 0.5, 1, **given.get("mean", {}))
        options = {"dims": "who"} | given.get("x", {})
        match kind:
            case "normal" | "bounded":
                x = pm.Normal("x", mean, pm.HalfNormal("s"), **options)
            case "latent":  # moved in coordinates of its own
                each = pm.Normal("each", mean, pm.HalfNormal("s"), shape=3)
                x = pm.Normal("x", each[[0, 0, 1, 1, 2, 2]], 1, **options)
            case "counts":
                x = pm.Bernoulli("x", pm.math.sigmoid(mean), **options)
            case "clamped":
                x = pm.Exponential("x", pt.exp(mean), **options)
            case "sizes":
                n = pm.Poisson("n", 9, **given.get("x", {}))
                dp.PrivateObservation("n_z", n, LAPLACE(1.0), observed=6.0)
                x = pm.Normal("x", mean, 1, shape=n)
        match kind:
            case "clamped":
                released = x.clip(0, 1).sum()
            case "latent":
                released = x.reshape((3, 2)).sum(axis=1)
            case _:
                released = x.sum()
        z = np.ones(released.type.shape)
        bounds = (0, 2) if kind == "bounded" else None
        dp.PrivateObservation("z", released, LAPLACE(1.0), observed=z, bounds=bounds)
    return model


def open_routes(model):
    plans = routes(read(model, ""))
    return {route.name: plan.rate for route, plan in plans if not isinstance(plan, Declined)}


STARTS = {"prior": "prior", "support_point": "support_point", "number": 1.0}


@pytest.mark.parametrize(
    ("kind", "start"),
    [("normal", start) for start in (*STARTS, "symbolic")]
    + [(kind, "number") for kind in ("bounded", "latent", "counts", "clamped", "sizes")],
)
def test_initval_is_carried_over(kind, start):
    """The same routes are open; what stays starts there, what goes is said; the model is kept."""
    value = pt.constant(0.5) + 0.5 if start == "symbolic" else STARTS[start]
    model = started(kind, value, mean=True)
    before = dict(model.rvs_to_initial_values)
    assert open_routes(model) == open_routes(started(kind, None))
    for rung in ("marginal", "statistics"):
        try:
            on = dp.collapse(model, rung)
        except NotImplementedError:
            continue
        mean = make_initial_point_fn(model=on, return_transformed=False)(3)["mean"]
        if start in ("number", "symbolic"):
            assert mean == pytest.approx(1.0)
        else:
            assert (mean == 0.5) == (start == "support_point")
    assert model.rvs_to_initial_values == before
    reading = read(model, "")
    moved, _ = standardised(reading, ladder.collapsed(reading, "marginal"))
    assert moved.rvs_to_initial_values[moved["mean"]] is not None


@pytest.mark.parametrize("kind", ["normal", "latent", "counts", "clamped"])
def test_initval_of_what_goes_is_dropped_and_said(kind, caplog):
    value = np.ones(6, dtype=int if kind == "counts" else float)
    model = started(kind, value, x=True)
    assert open_routes(model) == open_routes(started(kind, None))
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        on = dp.collapse(model)
    assert [r.message for r in caplog.records] == [
        "Integrated out, so that its starting value is not used: 'x'"
    ]
    assert "x" not in on.named_vars


def test_two_releases_of_one_statistic_are_for_the_statistics_rung(in_model):
    x = lead()
    dp.PrivateObservation("a", both(x), LAPLACE(NOISE), observed=Z)
    dp.PrivateObservation("b", 2 * x.mean(), LAPLACE(1.0), observed=60.0)
    match = "the mean of the records 'lead' is released more than once .*'a', 'b'.*'statistics'"
    refuses(in_model, match, "marginal")
    model = dp.collapse(in_model, "statistics")
    point = model.initial_point()
    point["lead_mean"] = np.array(31.0)
    logps = model.point_logps(point)
    np.testing.assert_allclose(logps["b"], stats.laplace.logpdf(60, 62, 1), atol=0.006)


def test_a_matrix_of_statistics_is_for_the_statistics_rung(in_model):
    x = lead()
    rows = pt.stack([pt.stack([x.mean(), x.sum()]), pt.stack([x.var(ddof=1), 1 - x.mean()])])
    observed = np.array([[30.0, 1300.0], [900.0, -30.0]])
    dp.PrivateObservation("z", rows, LAPLACE([1.0, 100.0]), observed=observed)
    refuses(in_model, "'z' has 2 dimensions", "marginal")
    model = dp.collapse(in_model, "statistics")
    point = {"lead_mean": np.array(33.0), "lead_var_log__": np.log(800.0)}
    point = {**model.initial_point(), **point}
    graph = model.logp(vars=[model["z"]], sum=False)
    found = model.compile_fn(graph, inputs=model.value_vars, mode=PLAIN, on_unused_input="ignore")
    expected = stats.laplace.logpdf(observed, [[33, 43 * 33], [800, -32]], [1.0, 100.0])
    np.testing.assert_allclose(found(point)[0], expected)


# --- What the collapsed models are ----------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    with pm.Model(coords={"stat": ["mean", "var"], "group": range(3)}) as model:
        pm.Normal("before", 0, 1, dims="group")
        mu, sigma2 = priors()
        pm.Deterministic("sd", pt.sqrt(sigma2))
        x = pm.Normal("lead", mu, pt.sqrt(sigma2), shape=43)
        pm.Deterministic("largest", x.max())
        pm.Deterministic("of_largest", model["largest"] + mu)
        after = pm.Normal("after", mu, 1)
        value, scale = pm.Data("value", Z, dims="stat"), pm.Data("scale", NOISE)
        dp.PrivateObservation("z", both(x), LAPLACE(scale), observed=value, dims="stat")
        pm.Normal("public", after, 1, observed=[1.0, 2.0])
    return model


@pytest.fixture(scope="module")
def collapsed(model):
    return {to: dp.collapse(model, to) for to in RUNGS}


def test_variables(collapsed):
    free = {to: [rv.name for rv in m.free_RVs] for to, m in collapsed.items()}
    kept = ["before", "mu", "sigma2", "after"]
    assert free["marginal"] == kept
    assert free["statistics"][:4] == kept
    assert set(free["statistics"][4:]) == {"lead_mean", "lead_var"}
    for m in collapsed.values():
        assert {rv.name for rv in m.observed_RVs} == {"z", "public"}
        assert [d.name for d in m.deterministics] == ["sd"]
        assert {d.name for d in m.data_vars} == {"value", "scale"}
        assert m.named_vars_to_dims["before"] == ("group",)
        assert m.named_vars_to_dims["z"] == ("stat",)
        assert not any(hasattr(rv.tag, "dp_release") for rv in m.basic_RVs)


def test_a_law_reads_its_records_once(model, monkeypatch):
    reads, read_column = [], OneColumn.read
    monkeypatch.setattr(OneColumn, "read", lambda *args: reads.append(1) or read_column(*args))
    reading = Reading(model)
    ladder.collapsed(reading, "marginal")
    ladder.collapsible(reading)
    assert reads == [1]


def test_the_original_is_left_alone(model, collapsed):
    assert [rv.name for rv in model.free_RVs] == ["before", "mu", "sigma2", "lead", "after"]
    assert model["lead"].tag.dp_release == "z"
    assert collapsed["marginal"]["mu"] is not model["mu"]


def test_data_are_copied(model, collapsed):
    for m in collapsed.values():
        assert m["value"] is not model["value"]
        pm.set_data({"value": [1.0, 2.0]}, model=m)
        np.testing.assert_array_equal(model["value"].get_value(), Z)
        pm.set_data({"value": Z}, model=m)


def test_order_is_that_of_the_model():
    """Parameters declared after others stay there, whatever the graph's order is."""
    with pm.Model() as model:
        sigma2 = pm.InverseGamma("sigma2", 3, 600)
        extra = pm.Normal("extra")
        mu = pm.Normal("mu", 30, 20)
        x = pm.Normal("lead", mu, pt.sqrt(sigma2), shape=43)
        dp.PrivateObservation("z", both(x), LAPLACE(NOISE), observed=Z, bounds=(0, 135))
        pm.Normal("y", extra, 1, observed=0.0)
    for to in RUNGS:
        names = [rv.name for rv in dp.collapse(model, to).free_RVs]
        assert names[:3] == ["sigma2", "extra", "mu"], to


def test_statistics_rung_equals_a_hand_written_model(model):
    n = 43
    with pm.Model() as plain:
        mu, sigma2 = priors()
        x = pm.Normal("lead", mu, pt.sqrt(sigma2), shape=n)
        statistic = [x.sum(), 2 * x.var(ddof=0) + 1]
        dp.PrivateObservation("z", statistic, LAPLACE(NOISE), observed=Z)
    with pm.Model() as written:
        mu, sigma2 = priors()
        mean = pm.Normal("lead_mean", mu, pt.sqrt(sigma2 / n))
        var = pm.Gamma("lead_var", (n - 1) / 2, (n - 1) / (2 * sigma2))
        location = pt.stack([n * mean, 2 * (n - 1) / n * var + 1])
        pm.Laplace("z", location, NOISE, observed=Z)
    found = dp.collapse(plain, "statistics")
    assert {v.name for v in found.value_vars} == {v.name for v in written.value_vars}
    rng = np.random.default_rng(2)
    for _ in range(3):
        point = {
            "mu": np.array(30 + rng.normal()),
            "sigma2_log__": np.array(6.5 + rng.normal()),
            "lead_mean": np.array(31 + rng.normal()),
            "lead_var_log__": np.array(7 + rng.normal()),
        }
        ours, theirs = found.point_logps(point, 8), written.point_logps(point, 8)
        assert ours.keys() == theirs.keys()
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-10)


@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSS])
def test_bounded_marginal_rung_is_the_integral_of_the_statistics_rung(mechanism):
    n, (lo, hi) = 5, (0.0, 135.0)
    with pm.Model() as model:
        x = lead(n)
        statistic = [1 - 2 * x.mean(), 4 + 3 * x.var(ddof=1)]
        observed = [1 - 2 * Z[0], 4 + 3 * Z[1]]
        scale = NOISE * np.array([2.0, 3.0])
        dp.PrivateObservation("z", statistic, mechanism(scale), observed=observed, bounds=(lo, hi))
    mu, sigma2 = 60.0, 1400.0
    noise = stats.laplace if mechanism is LAPLACE else stats.norm

    def of_mean(a):
        return stats.norm.pdf(a, mu, np.sqrt(sigma2 / n)) * noise.pdf(Z[0], a, NOISE[0])

    def of_variance(v):
        law = stats.gamma((n - 1) / 2, scale=2 * sigma2 / (n - 1))
        return law.pdf(v) * noise.pdf(Z[1], v, NOISE[1])

    # Gauss-Legendre by pieces between the kinks.
    total = 0.0
    # A released mean cuts the range of the mean at a variance of this size.
    kink = 1.25 * (Z[0] - lo) * (hi - Z[0])
    vs, ws = legendre([0, 500, Z[1], 3500, kink, 1.25 * 67.5**2], 80)
    for v, wv in zip(vs, ws * of_variance(vs), strict=True):
        half = np.sqrt(max(67.5**2 - 0.8 * v, 0))
        ends = 67.5 - half, 67.5 + half
        a, wa = legendre([*ends, *np.clip([Z[0], 60], *ends)], 80)
        total += wv * (wa @ of_mean(a))
    collapsed = dp.collapse(model)
    z = collapsed["z"]
    graph = collapsed.logp(vars=[z], jacobian=False)
    value = pm.compile(
        [collapsed["mu"], collapsed["sigma2"]], graph_of(collapsed, graph), mode=PLAIN,
        on_unused_input="ignore",
    )(mu, sigma2)  # fmt: skip
    np.testing.assert_allclose(value, np.log(total / 6), atol=2e-6)  # of a release times 2 and 3


def graph_of(model, graph):
    """Write a graph of value variables in terms of the untransformed variables."""
    forward = {}
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        value = model.rvs_to_values[rv]
        forward[value] = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
    return graph_replace([graph], forward, strict=False)[0]


def test_bounded_marginal_cuts_the_priors():
    with pm.Model() as model:
        dp.PrivateObservation("z", both(lead(5)), LAPLACE(NOISE), observed=Z, bounds=(0, 100))
    marginal = dp.collapse(model)
    prior = {name: marginal.compile_fn(
        graph_of(marginal, marginal.logp(vars=[marginal[name]], jacobian=False)),
        inputs=[marginal["mu"], marginal["sigma2"]], point_fn=False, mode=PLAIN,
        on_unused_input="ignore",
    ) for name in ("mu", "sigma2")}  # fmt: skip
    expected = {
        "mu": stats.norm.logpdf(60, 30, 20),
        "sigma2": stats.invgamma.logpdf(1400, 3, scale=600),
    }
    for name, value in expected.items():  # the same densities, not renormalised
        np.testing.assert_allclose(prior[name](60.0, 1400.0), value, rtol=1e-6)
    rng = np.random.default_rng(1)
    logp = marginal.compile_logp(mode=PLAIN)
    for _ in range(5):  # NUTS meets no wall
        point = {v.name: rng.normal(0, 3, ()) for v in marginal.value_vars}
        assert np.isfinite(logp(point))


def test_nothing_of_the_size_of_the_records_is_allocated():
    tracemalloc.start()
    try:
        with pm.Model() as model:
            x = lead(10**9)
            pm.Deterministic("total", x.sum())
            dp.PrivateObservation("z", both(x), LAPLACE(NOISE), observed=Z)
        collapsed = [dp.collapse(model, to) for to in RUNGS]
        chosen = choose_steps(Reading(model)), choose_steps(Reading(collapsed[0]))
        explained = dp.explain(model, details=True)
        for m in collapsed:
            m.initial_point()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**26
    assert "n = 1000000000" in explained.tables[0][2][0][1]
    assert len(chosen[0]) == 3
    assert len(chosen[1]) == 4


# --- explain --------------------------------------------------------------------------------------


def test_explain(model):
    explained = dp.explain(model, details=True)
    text = str(explained)
    for part in (
        "mean of lead, variance of lead (n = 43)",
        "LaplaceMechanism(scale=scale)",
        "RecordMetropolis",
        "TruncatedGammaMixtureGibbs",
        "Metropolis on the records",
    ):
        assert part in text, part
    assert "drop these Deterministics of the records: largest, of_largest" in " ".join(text.split())
    assert repr(explained) == text
    console = Console(file=io.StringIO(), width=140)
    console.print(explained)
    assert "TwoSidedGibbs" in console.file.getvalue()
    html = explained._repr_html_()
    assert html.count("<table>") == 3
    assert ">TwoSidedGibbs</td>" in html
    steps = {(r[0], r[1]): r[2] for r in explained.tables[2][2]}
    assert steps["statistics", "before"] == "NUTS"
    assert steps["records", "lead"] == "RecordMetropolis"


def test_explain_says_why_a_rung_is_shut(in_model):
    x = lead()
    dp.PrivateObservation("a", x.mean() * 2 + 1, LAPLACE(1.0), observed=61.0)
    dp.PrivateObservation("b", [x.mean(), x.var()], GAUSS(NOISE), observed=Z, bounds=None)
    explained = dp.explain(in_model, details=True)
    releases = explained.tables[0][2]
    assert releases[0] == ["a", "2 × mean of lead + 1 (n = 43)", "LaplaceMechanism(scale=1.0)", "-"]
    state = {row[1]: row[2] for row in explained.tables[1][2]}
    assert "released more than once" in state["NUTS on the marginal"]
    assert state["Gibbs on the statistics"].startswith("open")


def test_explain_is_shown_once_in_jupyter(in_model, monkeypatch):
    """Jupyter asks for text beside HTML; rich would display it by itself, as an empty cell."""
    shown = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *args: shown.append(args))
    dp.PrivateObservation("z", lead().mean(), LAPLACE(1.0), observed=61.0)
    assert "mean of lead" in repr(dp.explain(in_model, details=True))
    assert not shown


def test_explain_escapes_html(in_model):
    x = pm.Normal("<b>", 0, 1, shape=3)
    dp.PrivateObservation("z", x.mean(), LAPLACE(1.0), observed=0.0, bounds=(-1, 1))
    html = dp.explain(in_model, details=True)._repr_html_()
    assert "<b>" not in html
    assert "mean of &lt;b&gt;" in html
    assert "[-1, 1]" in html


def test_explain_other_models(collapsed):
    text = str(dp.explain(collapsed["marginal"], details=True))
    assert "integrated out: lead_mean, lead_var" in text
    text = str(dp.explain(collapsed["statistics"], details=True))
    assert "TwoSidedGibbs" in text
    with pm.Model() as plain:
        pm.Normal("x")
    with pytest.raises(ValueError, match=r"nothing to explain: .* no dp\.PrivateObservation"):
        dp.explain(plain, details=True)


def test_explain_noise_that_is_an_op_of_several_outputs(in_model):
    """The intervals of discrete Gaussian noise; a random number of trials leads there."""
    c = pm.Multinomial("c", 50, pm.Dirichlet("p", np.ones(4)))
    e = pm.Multinomial("e", c.reshape((2, 2)).sum(axis=0), np.ones((2, 2)) / 2, shape=(2, 2))
    noise = dp.DiscreteGaussianMechanism(3.0).rounded(base=5)
    dp.PrivateObservation("b", e, noise, observed=[[15, 15], [15, 5]])
    assert "RecordMetropolis" in str(dp.explain(details=True))


def test_explain_a_statistic_that_is_not_read(in_model):
    dp.PrivateObservation("z", lead().std(), LAPLACE(1.0), observed=1.0)
    text = " ".join(str(dp.explain(in_model, details=True)).split())
    assert "sqrt" in text
    assert "NUTS" in text


# --- recover --------------------------------------------------------------------------------------

K = 4000


def close(drawn, density, low, high, kinks=()):
    """Compare draws with a density, and with its mean."""
    grid = np.unique(np.r_[np.linspace(low, high, 40_001), kinks])
    values = density(grid)
    follows(drawn, (grid, values))
    mean = integrate.trapezoid(values * grid, grid) / integrate.trapezoid(values, grid)
    has_moments(drawn.ravel(), mean)


@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSS])
def test_recover(mechanism):
    n, mu, sigma2 = 12, 35.0, 900.0
    with pm.Model() as model:
        x = lead(n)
        scale = np.array([2.0, 1.0]) * NOISE
        statistic = [1 - 2 * x.mean(), x.var(ddof=1)]
        dp.PrivateObservation("z", statistic, mechanism(scale), observed=[1 - 2 * Z[0], Z[1]])
    tree = posterior(K, mu=mu, sigma2=sigma2)
    found = dp.recover(model, tree, random_seed=1).posterior
    assert set(found) == {"mu", "sigma2", "lead_mean", "lead_var"}
    assert set(tree.posterior) == {"mu", "sigma2"}  # a copy
    assert found["lead_mean"].dims == ("chain", "draw")
    noise = stats.laplace if mechanism is LAPLACE else stats.norm
    close(
        found["lead_mean"].to_numpy(),
        lambda s: stats.norm.pdf(s, mu, np.sqrt(sigma2 / n)) * noise.pdf(s, Z[0], NOISE[0]),
        -20,
        90,
        [Z[0]],
    )
    close(
        found["lead_var"].to_numpy(),
        lambda s: (
            stats.gamma.pdf(s, (n - 1) / 2, scale=2 * sigma2 / (n - 1))
            * noise.pdf(s, Z[1], NOISE[1])
        ),
        0,
        8000,
        [Z[1]],
    )
    again = dp.recover(dp.collapse(model), tree, random_seed=1).posterior
    np.testing.assert_array_equal(again["lead_mean"], found["lead_mean"])
    other = dp.recover(model, tree, random_seed=2).posterior
    assert not np.array_equal(other["lead_mean"], found["lead_mean"])


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.by_day("False")
def test_recover_bounded(separate):
    n, mu, sigma2, lo, hi = 5, 60.0, 1400.0, 0.0, 100.0
    with pm.Model() as model:
        x = lead(n)
        statistic, noise, z = (x.mean(), 9.3, 80.0) if separate else (both(x), NOISE, Z)
        dp.PrivateObservation("z", statistic, LAPLACE(noise), observed=z, bounds=(lo, hi))
    found = dp.recover(model, posterior(K, mu=mu, sigma2=sigma2), random_seed=1).posterior
    ybar, var = (found[name].to_numpy().ravel() for name in ("lead_mean", "lead_var"))
    assert np.all((n - 1) / n * var <= (ybar - lo) * (hi - ybar) + 1e-9)
    z0 = 80.0 if separate else Z[0]
    a = np.linspace(0.01, 99.99, 1501)
    v = np.linspace(0.5, 1.25 * 50**2, 1501)
    grid_a, grid_v = np.meshgrid(a, v, indexing="ij")
    logs = stats.norm.logpdf(grid_a, mu, np.sqrt(sigma2 / n)) - np.abs(grid_a - z0) / 9.3
    logs += stats.gamma.logpdf(grid_v, (n - 1) / 2, scale=2 * sigma2 / (n - 1))
    if not separate:
        logs -= np.abs(grid_v - Z[1]) / NOISE[1]
    weight = np.exp(logs) * (0.8 * grid_v <= (grid_a - lo) * (hi - grid_a))
    weight /= weight.sum()
    for drawn, axis, w in ((ybar, a, weight.sum(1)), (var, v, weight.sum(0))):
        has_moments(drawn, w @ axis)
        follows(drawn, (axis, w))


def test_recover_dist_and_parameters_that_vary():
    values = np.array([1.0, 6.0])
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 2)
        statistic = pm.Exponential.dist(rate, shape=2)
        dp.PrivateObservation("z", statistic, LAPLACE(1.5), observed=values)
    rates = np.tile([0.3, 2.0], (2, K // 2))  # alternating from draw to draw
    tree = from_dict({"posterior": {"rate": rates}})
    found = dp.recover(model, tree, random_seed=1).posterior["z_confidential"]
    assert found.shape == (2, K, 2)
    assert found.dims == ("chain", "draw", "z_confidential_dim_0")
    for i, rate in enumerate((0.3, 2.0)):
        for j in range(2):
            close(
                found.to_numpy()[:, i::2, j],
                lambda s, r=rate, z=values[j]: np.exp(-r * s - np.abs(s - z) / 1.5),
                0,
                60,
                [values[j]],
            )


def test_recover_needs_the_parameters_and_something_to_recover(model):
    with pytest.raises(ValueError, match=r"needs the result of sampling: dp\.recover"):
        dp.recover(model)
    with pytest.raises(ValueError, match="has no sigma2: every free variable"):
        dp.recover(model, posterior(K, mu=1.0))
    with pm.Model() as plain:
        dp.PrivateObservation("z", pm.Normal("s"), LAPLACE(1.0), observed=0.0)
    with pytest.raises(ValueError, match="nothing was integrated out"):
        dp.recover(plain, posterior(K, s=1.0))


def test_predict_records():
    with pm.Model() as model:
        dp.PrivateObservation("z", both(lead(5)), LAPLACE(NOISE), observed=Z, bounds=(0, 100))
    tree = posterior(K, mu=60.0, sigma2=1400.0)
    new = dp.predict_records(model, tree, size=2, random_seed=1)
    assert new.name == "lead"
    assert new.shape == (2, K // 2, 2)
    sd = np.sqrt(1400.0)
    law = stats.truncnorm(-60 / sd, 40 / sd, loc=60, scale=sd)
    follows(new, law)
    with pytest.raises(ValueError, match="needs a model with one vector of released records"):
        dp.predict_records(dp.collapse(model), tree)
    with pytest.raises(ValueError, match="needs the result"):
        dp.predict_records(model)


@pytest.mark.parametrize("statistic", [lambda x: x.mean(), lambda x: x.clip(0, 2).sum()])
def test_a_density_of_several_values_has_one_for_each(statistic):
    with pm.Model() as model:
        x = pm.Normal("x", 0.5, 1.0, shape=15)
        dp.PrivateObservation("z", statistic(x), dp.LaplaceMechanism(1.0), observed=1.0)
    release, values = dp.collapse(model)["z"], np.array([1.0, 2.0, 3.0])
    several = pm.logp(release, pt.constant(values)).eval(mode=PLAIN_MODE)
    each = [pm.logp(release, pt.constant(z)).eval(mode=PLAIN_MODE) for z in values]
    np.testing.assert_allclose(several, each, rtol=1e-12)
