"""The readers of OpenDP, against OpenDP itself."""

import io
import math
import warnings
from functools import partial

import numpy as np
import pytest

import pymc_dp as dp

pytest.importorskip("opendp", reason="needs the extra [opendp]")
pl = pytest.importorskip("polars")

import opendp.prelude as od  # noqa: E402

od.enable_features("contrib", "honest-but-curious")

FLOATS = od.vector_domain(od.atom_domain(bounds=(0.0, 10.0)), size=50), od.symmetric_distance()
INTEGERS = od.vector_domain(od.atom_domain(T=int)), od.symmetric_distance()
MEAN = FLOATS >> od.t.then_mean()  # replacing one record changes it by 10 / 50
COUNT = INTEGERS >> od.t.then_count()
TABLE = INTEGERS >> od.t.then_count_by_categories([1, 2, 3], null_category=False)
TABLE2 = INTEGERS >> od.t.then_count_by_categories(
    [1, 2, 3], null_category=False, MO=od.L2Distance[float]
)
MAPS = (
    od.map_domain(od.atom_domain(T=str), od.atom_domain(T=int)),
    od.l01inf_distance(od.absolute_distance(T=int)),
)


def scalar_noise(T, constructor, **arguments):
    nan = {} if T in (int, "u32") else {"nan": False}
    return constructor(od.atom_domain(T=T, **nan), od.absolute_distance(T=T), **arguments)


def known_law(mechanism, at, statistic):
    return np.exp(mechanism.logcdf(at, statistic).eval())


@pytest.mark.by_day(
    "float-make_laplace-LaplaceMechanism", "int-make_gaussian-DiscreteGaussianMechanism"
)
@pytest.mark.parametrize(
    ("T", "constructor", "kind"),
    [
        (float, od.m.make_laplace, dp.LaplaceMechanism),
        (int, od.m.make_laplace, dp.GeometricMechanism),
        (int, od.m.make_geometric, dp.GeometricMechanism),
        (float, od.m.make_gaussian, dp.GaussianMechanism),
        (int, od.m.make_gaussian, dp.DiscreteGaussianMechanism),
        ("u32", od.m.make_laplace, None),  # clamped at zero
    ],
)
def test_law_is_that_of_the_draws(T, constructor, kind):
    measurement = scalar_noise(T, constructor, scale=2.5)
    statistic = 3.0 if T is float else 3
    draws = np.sort([measurement(statistic) for _ in range(4000)])
    release = dp.Release.from_opendp(measurement, draws)
    at = np.unique(draws[[40, 400, 1200, 2000, 2800, 3600, 3960]]).astype(float)
    cdf = known_law(release.mechanism, at, statistic)
    share = np.mean(draws <= at[:, None], axis=1)
    assert np.all(np.abs(share - cdf) < 4.5 * np.sqrt(np.maximum(cdf * (1 - cdf), 1e-3) / 4000))
    unclipped = release.mechanism if kind else release.mechanism.inner
    assert type(unclipped) is (kind or dp.GeometricMechanism)
    assert release.value.dtype == ("float64" if T is float else "int64")


@pytest.mark.parametrize(
    ("transformation", "noise", "d_in", "mechanism"),
    [
        (MEAN, od.m.then_laplace(0.7), 2, dp.LaplaceMechanism(0.7)),
        (MEAN, od.m.then_gaussian(0.7), 2, dp.GaussianMechanism(0.7)),
        (COUNT, od.m.then_laplace(3.0), 1, dp.GeometricMechanism(3.0)),
        (COUNT, od.m.then_gaussian(3.0), 1, dp.DiscreteGaussianMechanism(3.0)),
        (TABLE, od.m.then_laplace(3.0), 1, dp.GeometricMechanism(3.0)),
        (TABLE2, od.m.then_gaussian(3.0), 1, dp.DiscreteGaussianMechanism(3.0)),
    ],
)
def test_framework(transformation, noise, d_in, mechanism):
    measurement = transformation >> noise
    data = [4.0] * 50 if transformation is MEAN else [1, 2, 2, 3]
    value = measurement(data)
    release = dp.Release.from_opendp(
        measurement, value, d_in=d_in, sensitivity=transformation, name="z"
    )
    assert repr(release.mechanism) == repr(mechanism)
    assert np.array_equal(release.value, value)
    assert (release.name, release.source) == ("z", "OpenDP")
    privacy, loss = release.privacy, measurement.map(d_in)
    assert loss in (privacy.epsilon, privacy.rho)
    assert (privacy.rho is None) == (privacy.measure == "MaxDivergence")
    assert privacy.neighbouring == f"SymmetricDistance <= {d_in}"


def test_casts_of_the_measure_leave_the_noise():
    pure = COUNT >> od.m.then_laplace(3.0)
    for measurement in (od.c.make_pureDP_to_zCDP(pure), od.c.make_approximate(pure)):
        release = dp.Release.from_opendp(measurement, 4, d_in=1)
        assert repr(release.mechanism) == repr(dp.GeometricMechanism(3.0))
    assert math.isclose(release.privacy.epsilon, 1 / 3)
    assert release.privacy.delta is None
    zcdp = TABLE2 >> od.m.then_gaussian(3.0)
    approximate = od.c.make_fix_delta(od.c.make_zCDP_to_approxDP(zcdp), 1e-6)
    release = dp.Release.from_opendp(approximate, [1, 2, 3], d_in=1)
    assert repr(release.mechanism) == repr(dp.DiscreteGaussianMechanism(3.0))
    assert (release.privacy.epsilon, release.privacy.delta) == approximate.map(1)


def test_randomized_response():
    measurement = od.m.make_randomized_response_bool(0.75)
    release = dp.Release.from_opendp(measurement, [measurement(True), False], d_in=1)
    assert repr(release.mechanism) == repr(dp.RandomizedResponse(0.75))
    assert release.value.dtype == "int64"
    assert math.isclose(release.privacy.epsilon, math.log(3))


def test_randomized_response_of_categories_and_bits():
    measurement = od.m.make_randomized_response(["x", "y", "z"], 0.6)
    draws = [measurement("y") for _ in range(3000)]
    release = dp.Release.from_opendp(measurement, draws)
    assert repr(release.mechanism) == repr(dp.RandomizedResponse(0.6, 3))
    assert np.all(np.abs(np.bincount(release.value) / 3000 - [0.2, 0.6, 0.2]) < 0.05)
    bits = od.bitvector_domain(max_weight=4), od.discrete_distance()
    measurement = bits >> od.m.then_randomized_response_bitvec(f=0.3)
    draws = [measurement(np.packbits([1, 0, 0, 1, 0, 0, 0, 0]).tobytes()) for _ in range(3000)]
    release = dp.Release.from_opendp(measurement, draws)
    assert repr(release.mechanism) == repr(dp.RandomizedResponse(0.85))
    expected = np.array([0.85, 0.15, 0.15, 0.85, 0.15, 0.15, 0.15, 0.15])
    assert np.all(np.abs(release.value.mean(axis=0) - expected) < 0.03)
    assert dp.Release.from_opendp(measurement, draws[0]).value.shape == (8,)


@pytest.mark.parametrize("measure", ["max_divergence", "zero_concentrated_divergence"])
def test_selections(measure):
    measure, pure = getattr(od, measure)(), measure == "max_divergence"
    space = od.vector_domain(od.atom_domain(T=int)), od.linf_distance(T=int)
    noisy_max = od.m.make_noisy_max(*space, measure, scale=1.5)
    quantile = INTEGERS >> od.m.then_private_quantile(measure, [10, 20, 30], 0.3, scale=1.5)
    records = np.array([3, 10, 14, 22, 40, 41])
    below, above = ((f(records[:, None], [10, 20, 30])).sum(0) for f in (np.less, np.greater))
    for measurement, data, utilities in (
        (noisy_max, [1, 2, 4], [1.0, 2.0, 4.0]),
        (quantile, records.tolist(), -abs(0.7 * below - 0.3 * above)),
    ):
        release = dp.Release.from_opendp(measurement, [measurement(data) for _ in range(3000)])
        law = dp.NoisyMax("exponential", 1.5) if pure else dp.ExponentialMechanism(1 / 1.5)
        assert repr(release.mechanism) == repr(law)
        share = np.bincount(release.value, minlength=3) / 3000
        expected = [np.exp(law.logp(i, utilities).eval()) for i in range(3)]
        assert np.all(np.abs(share - expected) < 0.04)


def test_canonical_noise():
    space = od.atom_domain(T=float, nan=False), od.absolute_distance(T=float)
    measurement = space >> od.m.then_canonical_noise(2.0, (0.7, 1e-3))
    draws = np.sort([measurement(1.0) for _ in range(3000)])
    release = dp.Release.from_opendp(measurement, draws)
    cdf = known_law(release.mechanism, draws[::300], 1.0)
    assert np.all(np.abs(cdf - np.arange(0, 3000, 300) / 3000) < 0.045)


def test_compositions_are_lists_of_releases():
    count = INTEGERS >> od.t.then_count()
    noise = od.atom_domain(T=int), od.absolute_distance(T=int)
    both = od.c.make_composition([noise >> od.m.then_laplace(b) for b in (1.0, 2.0)])
    releases = dp.Release.from_opendp(count >> both, [5, 6], d_in=1, dims=None)
    assert [repr(one.mechanism) for one in releases] == [
        repr(dp.GeometricMechanism(b)) for b in (1.0, 2.0)
    ]
    assert [int(one.value) for one in releases] == [5, 6]
    assert np.allclose([one.privacy.epsilon for one in releases], [1.0, 0.5])


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_thresholds(noise):
    metric = {"laplace": od.l01inf_distance, "gaussian": od.l02inf_distance}[noise]
    space = MAPS[0], metric(od.absolute_distance(T=int))
    measurement = space >> getattr(od.m, f"then_{noise}_threshold")(2.0, 9)
    draws = [measurement({"a": 8, "b": 12}) for _ in range(3000)]
    release = dp.Release.from_opendp(measurement, draws[0], groups=["b", "a", "none"])
    assert release.coords == {"group": ("b", "a", "none")}
    assert np.isnan(release.value[2])
    kept = np.array([one["a"] for one in draws if "a" in one])
    assert kept.min() == 9  # a value at the threshold is kept
    at = np.exp(release.mechanism.logp(np.array([np.nan, 9.0, 10.0]), 8.0).eval())
    found = [1 - len(kept) / 3000, np.sum(kept == 9) / 3000, np.sum(kept == 10) / 3000]
    assert np.all(np.abs(found - at) < 4.5 * np.sqrt(at / 3000))
    assert np.exp(release.mechanism.logp(np.nan, 0.0).eval()) == 1.0


def asking(data, loss, **options):
    """Return a context of two queries."""
    one, loss = od.unit_of(contributions=1), od.loss_of(**loss)
    return od.Context.compositor(data, one, loss, split_evenly_over=2, **options)


def context(**loss):
    domain = od.vector_domain(od.atom_domain(T=float, nan=False))
    return asking([1.0, 2.5, 9.0, 4.0] * 10, loss, domain=domain)


@pytest.mark.parametrize(
    ("loss", "noise", "kinds", "expected"),
    [
        ({"epsilon": 1.0}, "laplace", (dp.LaplaceMechanism, dp.GeometricMechanism), 2.0),
        ({"rho": 0.4}, "gaussian", (dp.GaussianMechanism, dp.DiscreteGaussianMechanism), 2.5**0.5),
    ],
)
def test_context_query(loss, noise, kinds, expected):
    ctx = context(**loss)
    for query, kind, sensitivity in (
        (ctx.query().clamp((0.0, 10.0)).sum(), kinds[0], 10.0),
        (ctx.query().count(), kinds[1], 1.0),
    ):
        asked = getattr(query, noise)()
        release = dp.Release.from_opendp(asked, asked.release(), sensitivity=sensitivity)
        assert type(release.mechanism) is kind
        [scale] = (float(p.eval()) for p in release.mechanism.parameters)
        assert scale == asked.param()
        assert math.isclose(scale, sensitivity * expected, rel_tol=1e-6)
        [(which, total)] = loss.items()
        assert math.isclose(getattr(release.privacy, which), total / 2, rel_tol=1e-6)


def test_context_query_of_approximate_privacy():
    # Here query.param() says None.
    asked = context(epsilon=1.0, delta=1e-6).query().clamp((0.0, 10.0)).sum().gaussian()
    release = dp.Release.from_opendp(asked, asked.release())
    assert type(release.mechanism) is dp.GaussianMechanism
    assert release.privacy.measure == "Approximate(MaxDivergence)"
    assert release.privacy.epsilon <= 0.5
    assert release.privacy.delta == 5e-7
    # The noise of the conversion through zCDP is above that of the analytic Gaussian.
    least = dp.GaussianMechanism.from_epsilon_delta(0.5, 5e-7, 10.0).sigma.eval()
    assert least < release.mechanism.sigma.eval() < 1.2 * least


@pytest.mark.parametrize(
    ("make", "value", "match"),
    [
        (lambda: COUNT >> od.m.then_geometric(2.0, bounds=(0, 9)), 3, "clipped.0, 9.*statistic.cl"),
        (lambda: COUNT >> od.m.then_laplace(2.0) >> (lambda x: x), 3, "make_chain_pm .*changed"),
        (lambda: MEAN >> od.m.then_laplace(2.0), 3, r"releases floats \(f64\)"),
        (lambda: COUNT >> od.m.then_laplace(2.0), 3.0, r"releases whole numbers \(i32\)"),
        (
            lambda: scalar_noise(float, od.m.make_laplace, scale=2.0, k=-3),
            3.0,
            "multiples of 2..-3",
        ),
        (lambda: od.m.make_randomized_response([1, 2, 3], 0.5), 4, "4 is none of"),
        (lambda: MAPS >> od.m.then_laplace_threshold(2.0, 9), {"a": 9}, "groups= must name"),
        (
            lambda: od.c.make_composition([COUNT >> od.m.then_laplace(2.0)]),
            [3, 4],
            "list of their 1",
        ),
    ],
)
def test_refusals(make, value, match):
    with pytest.raises(ValueError, match=match):
        dp.Release.from_opendp(make(), value)


@pytest.mark.parametrize(
    ("T", "scale", "value"), [(int, 0.5, 2**53), (float, 1.0, 5e10), (float, 0.5, 0.0)]
)
def test_noise_is_noise_beside_a_large_value(T, scale, value):
    release = dp.Release.from_opendp(scalar_noise(T, od.m.make_laplace, scale=scale), value)
    assert release.mechanism.scale.eval() == scale
    kind = "Integer" if T is int else "Float"
    summary = summary_of(("x", "Sum", f"{kind} Laplace", scale))
    of_frame = dp.Release.from_opendp_summary(summary, pl.DataFrame({"x": [value]}))
    assert repr(of_frame.mechanism) == repr(release.mechanism)


@pytest.mark.parametrize(("T", "value"), [(int, 3), (float, 3.0)])
def test_no_noise_is_exact(T, value):
    with pytest.raises(ValueError, match="from_opendp: the value is exact"):
        dp.Release.from_opendp(scalar_noise(T, od.m.make_laplace, scale=0.0), value)


def test_a_fine_grid_is_read():
    measurement = scalar_noise(float, od.m.make_laplace, scale=2.0, k=-40)
    release = dp.Release.from_opendp(measurement, 3.0)
    assert repr(release.mechanism) == repr(dp.LaplaceMechanism(2.0))


def test_checks_the_sensitivity():
    measurement = MEAN >> od.m.then_laplace(0.7)
    # Among data sets of 50 no two are at distance 1: the loss of 4e-14 means nothing.
    with pytest.raises(ValueError, match=r"the scale is 0.7, .* d_in=2 under SymmetricDistance"):
        dp.Release.from_opendp(measurement, 4.0, d_in=1, sensitivity=0.2)
    with pytest.raises(ValueError, match=r"make it 0\.35"):
        dp.Release.from_opendp(measurement, 4.0, d_in=2, sensitivity=0.1)
    with pytest.raises(ValueError, match="give d_in"):
        dp.Release.from_opendp(measurement, 4.0, sensitivity=0.2)
    approximate = od.c.make_fix_delta(
        od.c.make_zCDP_to_approxDP(MEAN >> od.m.then_gaussian(0.7)), 1e-6
    )
    with pytest.raises(ValueError, match="Leave sensitivity= out"):
        dp.Release.from_opendp(approximate, 4.0, d_in=2, sensitivity=0.2)


def test_refuses_what_is_not_of_opendp():
    with pytest.raises(TypeError, match=r"a measurement or a query of OpenDP .*got float"):
        dp.Release.from_opendp(3.0, 4.0)
    measurement = COUNT >> od.m.then_laplace(2.0)
    del measurement.__opendp_dict__
    with pytest.raises(ValueError, match=r"does not say how .*sensitivity / epsilon"):
        dp.Release.from_opendp(measurement, 4)


# --- Polars -------------------------------------------------------------------------------------

PEOPLE = pl.LazyFrame(
    {"age": [20, 35, 70, 41] * 20, "pay": [1.0, 2.5, 3.0, 4.0] * 20, "town": ["Aa", "Bo"] * 40}
)
KEYS = pl.LazyFrame({"town": ["Aa", "Bo", "Ce"]})


def polars_context(**loss):
    margin = partial(od.polars.Margin, max_length=100)
    margins = [margin(max_groups=5), margin(by=["town"], max_groups=3)]
    return asking(PEOPLE, loss, margins=margins)


def length(**signed):
    with warnings.catch_warnings():
        # OpenDP announces another default of `signed`.
        warnings.simplefilter("ignore", FutureWarning)
        return od.len(**signed)


def sums():
    age, pay = pl.col.age.fill_null(0), pl.col.pay.fill_null(0.0).fill_nan(0.0)
    return [age.dp.sum((0, 90)).alias("age"), pay.dp.sum((0.0, 5.0)).alias("pay")]


def asked(query):
    return query.summarize(alpha=0.05), query.release().collect()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("loss", "whole", "real"),
    [
        ({"epsilon": 1.0}, dp.GeometricMechanism, dp.LaplaceMechanism),
        ({"rho": 0.5}, dp.DiscreteGaussianMechanism, dp.GaussianMechanism),
    ],
)
def test_polars_sums(loss, whole, real):
    summary, frame = asked(polars_context(**loss).query().select(length(), *sums()))
    scales = dict(summary.select("column", "scale").iter_rows())
    for column, kind in (("len", whole), ("age", whole), ("pay", real)):
        release = dp.Release.from_opendp_summary(summary, frame, column)
        expected = kind(scales[column])
        if column == "len":
            expected = expected.clipped(lower=0)
        assert repr(release.mechanism) == repr(expected)
        assert release.value == frame[column].item()
        assert (release.name, release.dims) == (column, None)
    assert scales["age"] > scales["len"]
    signed = asked(polars_context(**loss).query().select(length(signed=True)))
    release = dp.Release.from_opendp_summary(*signed)
    assert repr(release.mechanism) == repr(whole(signed[0]["scale"][0]))
    assert release.source == "OpenDP Polars: Frame Length"


def test_polars_groups_with_stated_keys():
    query = polars_context(epsilon=1.0).query().group_by("town").agg(length()).with_keys(KEYS)
    summary, frame = asked(query)
    # The noise is OpenDP's and has no seed: a zero would come in one run of fifty.
    frame = frame.with_columns(pl.col("len").clip(lower_bound=1))
    release = dp.Release.from_opendp_summary(summary, frame, "len", source="here")
    assert release.dims == ("town",)
    assert dict(zip(release.coords["town"], release.value, strict=True)) == dict(frame.iter_rows())
    assert release.source == "here"
    assert dp.Release.from_json(release.to_json()).coords == release.coords
    noise = dp.GeometricMechanism(summary["scale"][0])
    assert repr(release.mechanism) == repr(noise.clipped(lower=0))
    # A csv file keeps no types: without a zero it makes no difference, with one it has to be said.
    for read in (pl.read_csv, pytest.importorskip("pandas").read_csv):
        tables = [read(io.StringIO(table.write_csv())) for table in (summary, frame)]
        again = dp.Release.from_opendp_summary(*tables, "len")
        assert (again.coords, again.value.tolist()) == (release.coords, release.value.tolist())
        tables[1] = read(io.StringIO("town,len\nAa,0\nBo,3\nCe,9\n"))
        with pytest.raises(ValueError, match=r"the zeros of 'len' \(Frame Length\) were cut there"):
            dp.Release.from_opendp_summary(*tables, "len")
    renamed = dp.Release.from_opendp_summary(summary, frame, "len", dims="place")
    assert (renamed.dims, renamed.coords) == (("place",), None)


def test_polars_refusals():
    read = dp.Release.from_opendp_summary
    summary, frame = asked(polars_context(epsilon=1.0).query().select(length(), *sums()))
    with pytest.raises(ValueError, match=r"column=None: write one .*'len', 'age', 'pay'"):
        read(summary, frame)
    with pytest.raises(ValueError, match="column='wage'"):
        read(summary, frame, "wage")
    with pytest.raises(ValueError, match=r"what query.summarize.. returns"):
        read(frame, frame, "len")
    query = polars_context(epsilon=1.0).query().select(pl.col.age.fill_null(0).dp.mean((0, 90)))
    with pytest.raises(TypeError, match=r"query.release\(\).collect\(\) for the frame"):
        read(query.summarize(), query.release(), "age")
    with pytest.raises(TypeError, match="this is a Polars query"):
        dp.Release.from_opendp(query, 3.0)


# What OpenDP 0.16 said of these: column, aggregate, distribution and scale of the summary.
def summary_of(*rows):
    return pl.DataFrame(rows, ["column", "aggregate", "distribution", "scale"], orient="row")


def of_mean(law, scale, number=0.0, whole="Integer "):
    of_sum = ("x", "Sum", f"{whole}{law}", scale)
    return [of_sum, ("x", "Length", f"Integer {law}", number)]


LEN = ("len", "Frame Length", "Integer Laplace", 0.0)
BY_TOWN = pl.DataFrame({"town": ["Bo", "Aa"], "x": [38.25, 45.5], "len": [40, 20]})
AGE = pl.col.age.fill_null(0)
PAY = pl.col.pay.fill_null(0.0).fill_nan(0.0)
MEANS = {"age": AGE.dp.mean((0, 90)), "pay": PAY.dp.mean((0.0, 5.0))}


@pytest.mark.parametrize(
    ("law", "whole", "kind"),
    [
        ("Laplace", "Integer ", dp.GeometricMechanism),
        ("Gaussian", "Float ", dp.GaussianMechanism),
    ],
)
@pytest.mark.parametrize("by_town", [False, True])
def test_a_mean_over_a_public_length_is_read_by_its_sum(law, whole, kind, by_town):
    rows = of_mean(law, 180.0, whole=whole)
    frame = BY_TOWN if by_town else pl.DataFrame({"x": [41.3125]})
    summary = summary_of(*rows, LEN) if by_town else summary_of(*rows)
    advice = r"public number n of records.*lengths=" + (r"frame\['len'\]" if by_town else "...")
    with pytest.raises(ValueError, match=advice):
        dp.Release.from_opendp_summary(summary, frame, "x")
    lengths = frame["len"] if by_town else 80
    release = dp.Release.from_opendp_summary(summary, frame, "x", lengths=lengths)
    assert release.value.tolist() == ([1530.0, 910.0] if by_town else 3305.0)
    assert repr(release.mechanism) == repr(kind(180.0))


@pytest.mark.parametrize(
    ("rows", "value", "match"),
    [
        (of_mean("Laplace", 0.0), 41.5, "'x' .Sum and Length. is exact: noise of scale 0 is none"),
        (of_mean("Laplace", 2.2e-11, whole="Float "), 2.6, "is exact: .*contributions=2"),
        ([("x", "Sum", "Float Laplace", 2.2e-11)], 210.0, "'x' .Sum. is exact: noise of scale 2.2"),
        ([("x", *LEN[1:])], 80, "'x' .Frame Length. is exact: .* shape=n"),
        (of_mean("Laplace", 180.0, 2.0), 41.7, "Sum and Length.* no release with additive noise"),
        (
            [("x", "0.25-Quantile", "ExponentialMin", 2.0)],
            35,
            "0.25-Quantile. is a quantile, selected among candidates",
        ),
        ([("x", "0.25-Quantile", "GumbelMin", 0.0)], 35, "0.25-Quantile. is exact"),
    ],
)
def test_what_has_no_additive_noise(rows, value, match):
    asked = {"candidates": [35]} if "exact" in match else {}
    with pytest.raises(ValueError, match=match) as caught:
        dp.Release.from_opendp_summary(summary_of(*rows), pl.DataFrame({"x": [value]}), **asked)
    noisy_ratio = len(rows) == 2 and rows[1][3] > 0
    assert ("Of a mean, release the sum and the length" in str(caught.value)) == noisy_ratio


@pytest.mark.parametrize("position", [0, 1])
def test_polars_quantiles_are_positions_of_candidates(position):
    summary, candidates = summary_of(("x", "0.25-Quantile", "ExponentialMin", 2.0)), [25, 35, 45]
    frame = pl.DataFrame({"x": [candidates[position]]})
    release = dp.Release.from_opendp_summary(summary, frame, candidates=candidates)
    assert release.value == position
    # Its scores are 4 times those of the statistic.
    assert repr(release.mechanism) == repr(dp.NoisyMax("exponential", 0.5))


@pytest.mark.nightly
@pytest.mark.parametrize(("loss", "alpha"), [({"epsilon": 1.0}, 0.25), ({"rho": 0.1}, 0.3)])
def test_polars_quantiles_have_the_law_of_their_utilities(loss, alpha):
    candidates, ages, towns = [10, 20, 35, 50], np.array([20, 35, 70, 41] * 4), 400
    people = pl.LazyFrame({"age": np.tile(ages, towns), "town": np.repeat(range(towns), len(ages))})
    margin = od.polars.Margin(by=["town"], invariant="lengths", max_length=16, max_groups=towns)
    two, loss = od.unit_of(contributions=2), od.loss_of(**loss)
    ctx = od.Context.compositor(people, two, loss, split_evenly_over=1, margins=[margin])
    query = ctx.query().group_by("town").agg(AGE.dp.quantile(alpha, candidates))
    release = dp.Release.from_opendp_summary(*asked(query), "age", candidates=candidates)
    assert sorted(release.coords["town"]) == list(range(towns))
    below, above = (f(ages[:, None], candidates).sum(0) for f in (np.less, np.greater))
    utilities = -abs((1 - alpha) * below - alpha * above)
    expected = [np.exp(release.mechanism.logp(i, utilities).eval()) for i in range(4)]
    share = np.bincount(release.value, minlength=4) / towns
    assert np.all(np.abs(share - expected) < 4.5 * np.sqrt(0.25 / towns))
    assert 0.05 < max(expected) < 0.95


def test_a_sized_mean_of_one_contribution_is_exact():
    domain = od.vector_domain(od.atom_domain(T=float, nan=False), size=4)
    one, loss = od.unit_of(contributions=1), od.loss_of(epsilon=1.0)
    ctx = od.Context.compositor([31.0, 1, 4, 2], one, loss, split_evenly_over=1, domain=domain)
    query = ctx.query().clamp((0.0, 100.0)).mean().laplace()
    with pytest.raises(ValueError, match=r"from_opendp: the value is exact: .*contributions=2"):
        dp.Release.from_opendp(query, query.release())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("contributions", "select", "rows"),
    [
        (1, MEANS["age"], of_mean("Laplace", 0.0)),
        (1, MEANS["pay"], of_mean("Laplace", 2.220446e-11, whole="Float ")),
        (2, MEANS["age"], of_mean("Laplace", 90.0)),
        (2, AGE.dp.median([1, 50]), [("x", "0.5-Quantile", "ExponentialMin", 1.0)]),
        (2, AGE.dp.quantile(0.25, [1, 50]), [("x", "0.25-Quantile", "ExponentialMin", 1.0)]),
        (2, length(), [("x", *LEN[1:])]),
    ],
)
def test_opendp_still_says_so(contributions, select, rows):
    one, loss = od.unit_of(contributions=contributions), od.loss_of(epsilon=1.0)
    margins = [od.polars.Margin(invariant="lengths", max_length=100)]
    ctx = od.Context.compositor(PEOPLE, one, loss, split_evenly_over=1, margins=margins)
    summary = ctx.query().select(select.alias("x")).summarize()
    assert [row[1:3] for row in summary.rows()] == [row[1:3] for row in rows]
    if "Quantile" not in rows[0][1]:
        assert np.allclose(summary["scale"], [row[3] for row in rows], rtol=1e-6, atol=1e-15)


@pytest.mark.nightly
def test_polars_groups_below_a_threshold_are_refused():
    query = polars_context(epsilon=2.0, delta=1e-6).query().group_by("town").agg(length())
    with pytest.raises(ValueError, match=r"groups whose noisy count was below .*with_keys"):
        dp.Release.from_opendp_summary(*asked(query), "len")


@pytest.mark.nightly
def test_polars_keeps_counts_above_the_threshold():
    people = pl.LazyFrame({"town": [f"t{i}" for i in range(16) for _ in range(17)]})
    margin = od.polars.Margin(by=["town"], max_length=1000, max_groups=20)
    kept = []
    for _ in range(4):
        one, loss = od.unit_of(contributions=1), od.loss_of(epsilon=2.0, delta=1e-7)
        ctx = od.Context.compositor(people, one, loss, split_evenly_over=2, margins=[margin])
        summary, frame = asked(ctx.query().group_by("town").agg(length()))
        kept += frame["len"].to_list()
    assert summary["threshold"].to_list() == [17]
    assert min(kept) == 18


def test_polars_groups_that_a_threshold_left_out():
    summary = summary_of(("len", "Frame Length", "Integer Laplace", 1.0), ("x", *LEN[1:3], 2.0))
    summary = summary.with_columns(threshold=pl.Series([17, None], dtype=pl.UInt32))
    frame = BY_TOWN.with_columns(pl.col("len").cast(pl.UInt32), pl.col("x").cast(pl.Int64))
    read = partial(dp.Release.from_opendp_summary, summary, frame, groups=["Aa", "Bo", "Ce"])
    release = read("len")
    np.testing.assert_array_equal(release.value, [20, 40, np.nan])
    noise = dp.GeometricMechanism(1.0).suppressed(below=18, empty=True)
    assert repr(release.mechanism) == repr(noise)
    with pytest.raises(ValueError, match="'x' is there was decided by 'len'"):
        read("x")
