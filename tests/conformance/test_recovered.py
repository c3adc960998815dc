"""What a recovered name means: statistics of the records themselves, whatever multiple of them was
released and whatever was added; all else is the value that the noise was added to."""

from typing import Any, NamedTuple

import arviz_base as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp

N, G = 8, np.array([0, 0, 0, 1, 1, 2, 2, 2])
MEMBER = np.eye(3)[G].T
THIRD = np.array([0.2, 0.5, 0.9])


def in_groups(x):
    return pt.zeros(3)[G].inc(x)


def parts(x):
    return pt.stack([x.sum(), x[:4].sum()])


TWO = np.stack([np.ones(N), np.arange(N) < 4])  # `parts`, as a matrix

# Of one sum; all have to be the same statistic in results.
ALL = {
    "2s+3": lambda x: 2.0 * x.sum() + 3,
    "shifted records": lambda x: (x - 20.0).sum(),
    "mean times n": lambda x: x.mean() * N + 1,
    "a mean": lambda x: x.mean() - 20,
    "1-x": lambda x: (1.0 - x).sum(),
    "dot": lambda x: pt.dot(np.full(N, -0.5), x) + 7,
}
# The same of entries that are linear in the records.
EACH = {
    "2s+3": lambda s: lambda x: 2.0 * s(x) + 3,
    "shifted records": lambda s: lambda x: s(x - 20.0),
    "multiples": lambda s: lambda x: s(x) / 7 * 14 - 1,
    "by entry": lambda s: lambda x: s(x) * np.arange(2, 2 + s(x).type.shape[0]) - 5,
    "1-x": lambda s: lambda x: s(1.0 - x),
    "negative": lambda s: lambda x: 4 - s(3.0 * x),
}


class Case(NamedTuple):
    """Records, parameters, the name in results, the statistic, spellings; of a narrow noise."""

    records: Any
    theta: dict[str, Any]
    name: str
    statistic: Any  # of records, rows of draws
    spellings: dict[str, Any]
    narrow: float = 1e-4


def each(s):
    return {name: make(s) for name, make in EACH.items()}


def sums_by_group(x):
    return x @ MEMBER.T


def normal(x="x"):
    return pm.Normal(x, pm.Normal("mu"), 1.0, shape=N)


def of_unknown_number():
    n = pm.Poisson("n", 9)
    dp.PrivateObservation("count", n, dp.LaplaceMechanism(0.01), observed=float(N))
    return pm.Normal("x", pm.Normal("mu"), 1.0, shape=n)


def last(x):
    return x.sum(axis=-1)


def by_group(law):
    return lambda: law("x", pm.Uniform("p", shape=3)[G], shape=N)


CASES = {
    "joint": Case(normal, {"mu": 1.0}, "x_sum", lambda x: x @ TWO.T, each(parts)),
    "groups": Case(
        lambda: pm.Normal("x", pm.Normal("m", shape=3)[G], 1.0, shape=N),
        {"m": THIRD}, "x_sum", sums_by_group, each(in_groups),
    ),
    "one by one": Case(normal, {"mu": 1.0}, "x", lambda x: x, each(lambda x: x)),
    "ones by group": Case(
        by_group(pm.Bernoulli), {"p": THIRD}, "x_count", sums_by_group, each(in_groups)
    ),
    "ones of several chances": Case(by_group(pm.Bernoulli), {"p": THIRD}, "x_sum", last, ALL),
    "ones": Case(
        lambda: pm.Bernoulli("x", pm.Uniform("p"), shape=N), {"p": 0.3}, "x_count", last, ALL
    ),
    "counts": Case(
        lambda: pm.Poisson("x", pm.HalfNormal("r"), shape=N), {"r": 2.0}, "x_sum", last, ALL
    ),
    "gamma": Case(
        lambda: pm.Gamma("x", 2, pm.HalfNormal("r"), shape=N), {"r": 2.0}, "x_sum", last, ALL
    ),
    "mean": Case(normal, {"mu": 1.0}, "x_mean", lambda x: x.mean(axis=-1), ALL),
    "variance": Case(
        normal, {"mu": 1.0}, "x_var", lambda x: x.var(axis=-1, ddof=1),
        {
            "2v+3": lambda x: 2 * x.var(ddof=1) + 3,
            "ddof=0": lambda x: x.var(),
            "shifted": lambda x: (x - 20).var(ddof=1) - 20,
            "squares": lambda x: ((x - x.mean()) ** 2).sum() + 1,
            "1-x": lambda x: (1 - x).var(),
            "negative": lambda x: 4 - (3 * x).var(),
        },
    ),
    "inverted": Case(
        lambda: pm.Beta("x", 2.0, pm.HalfNormal("b"), shape=N),
        {"b": 2.0}, "x_sum", last, ALL, narrow=0.02,
    ),
    "inverted by group": Case(
        lambda: pm.Beta("x", 2.0, pm.HalfNormal("b", shape=3)[G], shape=N),
        {"b": 1 + THIRD}, "x_sum", sums_by_group, each(in_groups), narrow=0.02,
    ),
    "unknown number": Case(
        of_unknown_number, {"mu": 1.0}, "x_sum", last,
        {k: f for k, f in ALL.items() if k not in ("mean times n", "dot")}
        | {"n mean": lambda x: 2 * x.mean() * x.shape[0], "scaled": lambda x: (x / 4 - 5).sum()},
    ),
    "weighted": Case(
        normal, {"mu": 1.0}, "z_confidential", lambda x: x @ np.arange(1.0, N + 1)[:, None] + 3,
        {"X'y": lambda x: pt.dot(np.arange(1.0, N + 1)[None], x) + 3},
    ),
}  # fmt: skip
SLOW = "ones", "unknown number"  # code is compiled for each, or each draw inverted
SPELLINGS = [
    pytest.param(case, s, marks=[pytest.mark.nightly] if case in SLOW and i else [])
    for case, found in CASES.items()
    for i, s in enumerate(found.spellings)
]


@pytest.mark.parametrize(("name", "spelling"), SPELLINGS)
def test_noise_that_says_all_leaves_the_statistic_of_the_records(name, spelling):
    case, rng = CASES[name], np.random.default_rng(1)
    records = rng.uniform(0.2, 0.8, N)
    if name.startswith(("ones", "counts")):
        records = rng.binomial(1, 0.5, N)
    with pm.Model() as model:
        z = case.spellings[spelling](x := case.records())
        released = z.eval({x: records})
        dp.PrivateObservation("z", z, dp.GaussianMechanism(case.narrow), observed=released)
    theta = {k: np.broadcast_to(v, (1, 2, *np.shape(v))) for k, v in case.theta.items()}
    posterior = az.from_dict({"posterior": theta})
    found = dp.recover(model, posterior, random_seed=1)["posterior"][case.name].values[0]
    expected = np.broadcast_to(case.statistic(records), found.shape)
    assert (found.dtype.kind == "i") == (records.dtype.kind == "i")
    np.testing.assert_allclose(found, expected, atol=40 * case.narrow)


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("noise", [dp.GaussianMechanism, dp.GeometricMechanism])
def test_dims_coords_and_whole_numbers(collapsed, noise):
    coords = {"region": ["n", "s"], "age": [20, 40, 60]}
    with pm.Model(coords=coords) as model:
        rate = pm.HalfNormal("rate", dims="age")
        cases = pm.Poisson("cases", rate, dims=("region", "age"))
        x = pm.Normal("x", rate[:, None], 1, shape=(3, 4))
        z = np.ones((2, 3))
        dp.PrivateObservation(
            "z", cases, noise(1.0), observed=z.astype(int), dims=("region", "age")
        )
        dp.PrivateObservation("s", x.sum(axis=1) + 5, dp.LaplaceMechanism(1.0), observed=z[0],
                              dims="age")  # fmt: skip
    given = az.from_dict({"posterior": {"rate": np.ones((1, 4, 3))}})
    of = dp.collapse(model) if collapsed else model
    found = dp.recover(of, given, random_seed=1)["posterior"]
    assert found["cases"].dims == ("chain", "draw", "region", "age")
    assert found["cases"].dtype == "int64"
    assert list(found["cases"].coords["region"].values) == coords["region"]
    assert found["x_sum"].dims == ("chain", "draw", "age")
    assert list(found["x_sum"].coords["age"].values) == coords["age"]


def test_latents_of_the_statistics_rung_have_the_names_of_what_is_recovered():
    for name in ("joint", "groups", "weighted", "ones by group", "counts", "mean"):
        case = CASES[name]
        with pm.Model() as model:
            z = next(iter(case.spellings.values()))(case.records())
            released = np.zeros(z.type.shape)
            dp.PrivateObservation("z", z, dp.GaussianMechanism(1.0), observed=released)
        assert case.name in dp.collapse(model, "statistics").named_vars
