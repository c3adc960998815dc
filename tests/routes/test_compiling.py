"""Compiling is part of what a route costs, while its code is not on disk."""

import logging

import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.graphs.stages import Stages, stage
from pymc_dp.routes import Plan, Route, compiling
from pymc_dp.routes.compiling import by_preference, compiling_seconds, run


@pytest.fixture(autouse=True)
def nothing_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "_FOLDER", tmp_path)


def route(name, rate, seconds, monkeypatch):
    monkeypatch.setitem(compiling.COMPILING, name, seconds)
    return Plan(rate, lambda **_: name, cost={f"{name} part": 1.0}), Route(
        name, "marginal", lambda _: None
    )


def test_a_route_that_saves_a_minute_and_half_is_taken_until_the_other_is_on_disk(monkeypatch):
    fast = route("fast", 1000.0, 400.0, monkeypatch)  # of 401 seconds
    simple = route("simple", 100.0, 10.0, monkeypatch)  # of 20
    assert [r.name for _, r in by_preference([simple, fast])] == ["simple", "fast"]
    plan, own = fast
    assert compiling_seconds(own, plan) == 400.0
    assert run(own, plan) == "fast"
    assert compiling_seconds(own, plan) == 0.0
    assert [r.name for _, r in by_preference([simple, fast])] == ["fast", "simple"]


def test_inverted_sums_take_longer(monkeypatch):
    plan, own = route("slices", 1.0, 10.0, monkeypatch)
    inverted = plan._replace(cost={"slices, inverted sum": 2.0})
    added = compiling.COMPILING["inverted sums"]
    assert compiling_seconds(own, inverted) - compiling_seconds(own, plan) == added > 0.0


@pytest.mark.parametrize(("rate", "seconds"), [(100.0, 75.0), (10.0, 5.0)])
def test_less_than_a_minute_or_half_is_no_reason(rate, seconds, monkeypatch):
    fast = route("fast", 1000.0, 130.0, monkeypatch)
    assert by_preference([route("simple", rate, seconds, monkeypatch), fast])[0] == fast


def test_how_long_it_may_take_is_said(monkeypatch, caplog):
    plan, own = route("slow", 1.0, 40.0, monkeypatch)
    plan = plan._replace(run=lambda **_: stage("Compiling"))
    with caplog.at_level(logging.INFO, logger="pymc.dp"), Stages(progressbar=False, quiet=False):
        run(own, plan)
    assert caplog.messages[0].startswith("Compiling, once, for some 40 s, 0.")


def test_explain_says_it():
    with pm.Model() as model:
        mu = pm.Normal("mu", 30, 20)
        lead = pm.Normal("lead", mu, 17, shape=43)
        dp.PrivateObservation("z", lead.mean(), dp.LaplaceMechanism(9.3), observed=34.3)
    [routes] = [
        rows for title, _, rows in dp.explain(model, details=True).tables if title == "Routes"
    ]
    assert [row[2] for row in routes if "takes it: compiles once, for some" in row[2]]
