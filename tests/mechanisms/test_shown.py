"""Releases as Jupyter shows them, and as PyMC prints the models that they are in."""

from xml.etree import ElementTree

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.model_graph import model_to_mermaid
from pymc.printing import str_for_dist

import pymc_dp as dp

NOISE = dp.LaplaceMechanism(2.333)


LAYERED = dp.GaussianMechanism(2.0).clipped(0, 9).rounded()
PRIVACY = dp.Privacy(unit="a <b>", epsilon=0.5)
HIDDEN = dp.GeometricMechanism(2.0).suppressed(below=10)
CASES = {"name": "a & b", "dims": "town", "coords": {"town": ["<i>", "Bb"]}, "privacy": PRIVACY}
SHOWN = [
    (dp.GaussianMechanism(2.0), {"sigma": "2.0", "rho": "0.125"}),
    (dp.UniformMechanism(2.0), {"half_width": "2.0", "delta": "0.25"}),
    (dp.LaplaceMechanism(pt.dscalar("b<")), {"scale": "b<"}),
    (dp.NoisyMax("gumbel", scale=2.0), {"written": "NoisyMax('gumbel', scale=2.0)"}),
    (LAYERED, {"noise": "GaussianMechanism", "sigma": "2.0", "rho": "0.125", "then": "rounded(0)"}),
    (PRIVACY, {"unit": "a <b>", "epsilon": "0.5"}),
    (
        dp.Release([34, np.nan], HIDDEN, **CASES),
        {"value": "[34., nan]", "entries": "town 2", "mechanism": repr(HIDDEN)}
        | {"withheld": "1 of 2", "town": "<i>, Bb", "privacy": "unit=a <b>, epsilon=0.5"},
    ),
]


@pytest.mark.parametrize(("shown", "cells"), SHOWN)
def test_html(shown, cells):
    table = ElementTree.fromstring(shown._repr_html_())
    named = " a & b" if isinstance(shown, dp.Release) else ""
    assert table.find("caption").text == type(shown).__name__ + named
    own = dict([cell.text for cell in row] for row in table.iter("tr"))
    assert {name.removesuffix(" at sensitivity 1"): text for name, text in own.items()} == cells


def test_models_print_what_was_released():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x, u = pm.Normal("x", mu, 1, shape=10), pm.Normal("u", shape=3)
        dp.PrivateObservation("mean", x.mean(), NOISE, observed=1.0)
        dp.PrivateObservation("layered", x.sum(), LAYERED, observed=1.0)
        y = pm.Normal("y", mu, 1, shape=9)
        dp.PrivateObservation("bounded", y.mean(), NOISE, observed=1.0, bounds=(0, 9))
        dp.PrivateObservation(
            "entries", u[:2], dp.LaplaceMechanism([1.0, 2.0]), observed=[1.0, 2.0]
        )
        own = pm.Poisson.dist(pm.math.exp(mu))
        dp.PrivateObservation("own", own, dp.GeometricMechanism(0.5), observed=1)
        dp.PrivateObservation("chosen", u, dp.ExponentialMechanism(1.0), observed=2)
        sums = dp.RecordSums("sums", pm.Normal.dist(mu, 1), n=pm.Poisson("n", 40))
        dp.PrivateObservation("of_sums", sums, NOISE, observed=1.0)
        pm.Deterministic("unnamed", NOISE.dist(mu) + 1)
    laws = {
        "mean": "Laplace(f(x), 2.33)",
        "layered": "RoundedClippedGaussian(f(x), 0, 9, 2)",
        "bounded": "Laplace(f(y), 2.33)",
        "entries": "Laplace(f(u), <constant>)",
        "own": "IntegratedGeometricMechanism(f(mu), 0.5)",
        "chosen": "ExponentialMechanism(u, 1)",  # no pm.Exponential
        "sums": "RecordSums(Normal(mu, 1), n)",
        "of_sums": "Laplace(sums, 2.33)",
    }
    printed = dict(line.split(" ~ ") for line in model.str_repr().split("\n") if " ~ " in line)
    assert {k.strip(): v for k, v in printed.items() if k.strip() in laws} == laws
    graph = model_to_mermaid(model)
    for name, law in laws.items():
        assert f"{name} ~ {law.split('(')[0]}]" in graph
    latex = model._repr_latex_()
    assert r"\operatorname{RoundedClippedGaussian}(f(\text{x}),~0,~9,~2)" in latex
    assert "unnamed = Deterministic(f(<Laplace>))" in model.str_repr()


def test_collapsed_models_print_what_is_left():
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        x = pm.Normal("x", mu, sigma, shape=10)
        dp.PrivateObservation("z", x.mean(), NOISE, observed=1.0)
    for to, law in {
        "statistics": "Laplace(x_mean, 2.33)",
        "marginal": "IntegratedLaplace(f(mu), f(sigma), 2.33)",
    }.items():
        rung = dp.collapse(model, to=to)
        named = {*rung.free_RVs, *rung.observed_RVs}
        assert str_for_dist(rung["z"], named_vars=named) == f"z ~ {law}"
        assert f"z ~ {law.split('(')[0]}]" in model_to_mermaid(rung)
