"""Random models: each is refused by name, or has the density of Monte Carlo over its records."""

import numpy as np
import pytest

from pymc_dp.ladder.check import Releases
from tests.fuzz.judging import judge, run
from tests.fuzz.models import AFTER, NOISE, Choices, numbers, simplest, write


def test_models_of_the_day():
    counts, bad = run(0, 30)
    assert not bad, "\n".join(bad)
    assert counts["right"] >= 3


# What random models have found: the law of theta, what follows, what becomes of it, and its text.
FOUND = [
    ("shape=2", 'x = pm.Normal.dist(theta.mean(), 1, shape=4); s = pt.sqrt(x.astype("uint8"))',
     "dp.LaplaceMechanism(b)", "refused", "can wrap around"),
    ("", "x = pm.Logistic.dist(theta, 0.5, shape=3); s = pt.ge(x, 1) * x",
     "dp.LaplaceMechanism(b)", "refused", "cannot be solved"),
    ("", 'x = pm.Normal("x", theta, 1, shape=1); s = x.sum() + one', "dp.LaplaceMechanism(b)",
     "right", ""),
    ("", 'x = pm.Poisson("x", 2, shape=()); s = x.sum(axis=0)',
     "dp.GeometricMechanism(b)", "refused", "no records to integrate out"),
    ("", 'n = pm.Binomial("n", 8, 0.6); x = pm.Normal("x", theta, 1, shape=n); '
     "s = pt.stack([x.sum(), (x > 1).sum()])", "dp.LaplaceMechanism(b)", "refused", "several sums"),
    ("", 'n = pm.Poisson("n", 5); x = pm.HurdlePoisson("x", 0.6, pt.exp(theta), shape=n); '
     "s = x.sum()", "dp.GeometricMechanism(b)", "refused", "what is summed over"),
    ("", 'n = pm.DiscreteUniform("n", 2, 7); x = pm.Poisson("x", pt.exp(theta), shape=n); '
     "s = (1 / (1 + x**2)).sum()", "dp.GaussianMechanism(b)", "refused", "what is summed over"),
    ("", 'x = pm.Weibull("x", 1.5, pt.exp(theta), shape=n); s = (x - x.mean()).sum()',
     "dp.LaplaceMechanism(b)", "refused", "is the same whatever"),
    ("", 'm = pm.Poisson("n", 5, shape=2); '
     'x = dp.RecordSums("x", pm.Bernoulli.dist(logit_p=theta), m, shape=2); '
     "s = pt.concatenate([m, x])", "dp.LaplaceMechanism(b)", "right", ""),
]  # fmt: skip


def text_of(own, lines, noise):
    lines = lines.replace("; ", "\n").replace("\ns = ", "\nrelease('z0', ")
    return f'n = 4\ntheta = pm.Normal("theta", 0, 1, {own})\n{lines}, "{noise}", 1.0)'


@pytest.mark.parametrize(("own", "lines", "noise", "word", "said"), FOUND)
def test_what_was_found(own, lines, noise, word, said):
    found = judge(text_of(own, lines, noise), 1)
    assert found[0] == word, found
    assert said in str(found[1])


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("reduce", ["x.sum()", "x.mean()", "pt.dot(pt.ones_like(x), x)"])
def test_spellings_of_a_sum_of_normal_records(reduce, after):
    s = after.format(s=f"({reduce})")
    found = judge(text_of("", f'x = pm.Normal("x", theta, 1, shape=n); s = {s}', NOISE[1]), 1)
    assert found[0] in ("right", "refused"), found


def test_a_wrong_density_is_found(monkeypatch):
    text = """n = 4
theta = pm.Normal("theta", 0, 1)
x = pm.Normal("x", theta, 1, shape=n)
release("z0", x.sum(), "dp.LaplaceMechanism(b)", 1.0)"""
    assert judge(text, 0)[0] == "right"
    right = Releases.log_density

    def off(self, *arguments):
        found, error = right(self, *arguments)
        return found + (0.0 if self.is_drawn else 0.1), error

    monkeypatch.setattr(Releases, "log_density", off)
    assert judge(text, 0)[0] == "wrong"


def test_the_plainest_text_that_fails():
    seed = next(s for s in range(99) if "astype" in write(Choices(s)))
    text = simplest(seed, lambda text, _: "astype" in text)
    assert text.count("\n") == 4
    assert "astype('int64')" in text


def test_numpy_reads_a_text_too():
    text = 'n = 3\nx = pm.Normal("x", 0, 1, shape=n)\nrelease("z0", (w * x)[::-1], "", 1)'
    [found] = numbers(text, {"x": np.arange(3.0)}, 3)
    np.testing.assert_array_equal(found, [-2.0, 2.0, 0.0])


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_models_of_the_night(part, record_property):
    first = int(np.random.default_rng().integers(2**32))
    record_property("part and first seed", (part, first))
    counts, bad = run(first, first + 50)
    record_property("outcomes", dict(counts))
    assert not bad, "\n".join(bad)
