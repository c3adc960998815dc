"""The rows of the benchmark build in every form, and its table divides by what converged alone."""

import numpy as np
import pytest

from benchmarks.report import COLUMNS, line
from benchmarks.rows import OURS, ROWS


@pytest.mark.parametrize("name", ROWS)
def test_row_builds_in_every_form(name):
    row = ROWS[name]
    for form in (OURS, *row.forms):
        model = row.build(form)
        assert set(row.names) <= set(model.named_vars)
        assert model.potentials or model.observed_RVs


@pytest.mark.nightly
@pytest.mark.parametrize("name", ROWS)
def test_every_form_has_a_density_where_it_begins(name):
    for form in (OURS, *ROWS[name].forms):
        logps = ROWS[name].build(form).point_logps()
        assert np.isfinite(list(logps.values())).all(), form


def test_a_side_without_a_warm_call_shows_what_it_reached_and_has_no_ratio():
    late = side(OURS, 8, error="over 20 CPU s, after 50 draws")
    found = {"row": "a row", "paper": "", "sides": [late, side("fast", 8, 1.0)]}
    cells = line(found)
    assert cells[1:5] == ["a route (over 20 CPU s, after 50 draws)", "0.889", "8", "9.0"]
    assert cells[9:12] == ["", "", ""]


def side(form, rate, *rhats, error=""):
    calls = [dict(seconds=9.0, sampling=1.0, ess=rate, rhat=1.0)]
    for rhat in rhats:
        calls.append(dict(seconds=2.0, sampling=1.0, ess=2 * rate, rhat=rhat, mean=[0], mcse=[1]))
    calls = [c | {"route": "a route"} for c in calls]
    return {"form": form, "sampler": "nutpie", "calls": calls, "error": error}


@pytest.mark.parametrize(
    ("sides", "form", "ratio"),
    [
        ([side("slow", 4, 1.0, 1.0), side("fast", 8, 1.0, 1.01)], "fast, nutpie", "2 / 2 / 2"),
        ([side("slow", 4, 1.0, 1.0), side("fast", 8, 1.0, 1.02)], "slow, nutpie", "4 / 4 / 4"),
        ([side("fast", 8, 1.0, 1.5)], "fast, nutpie", ""),
        ([side("late", 8, error="over 20 CPU s")], "late, nutpie (over 20 CPU s)", ""),
    ],
)
def test_no_ratio_to_chains_that_disagree(sides, form, ratio):
    found = {"row": "a row", "paper": "", "sides": [side(OURS, 16, 1.0, 1.0), *sides]}
    cells = dict(zip(COLUMNS[5:], line(found)[5:], strict=True))
    assert cells["by hand: best form"] == form
    assert cells["ratio, call"] == cells["ratio, sampling"] == ratio
