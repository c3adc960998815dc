"""`python -m pymc_dp.warm` compiles what pages and scripts need."""

import sys

import pytest

import pymc_dp as dp
from pymc_dp import warm

SCRIPT = """
import argparse, pymc as pm
from pymc_dp import sample
assert __name__ == "__main__"
argparse.ArgumentParser().parse_args()
import pymc_dp as dp
with pm.Model() as model:
    mu, sigma = pm.Normal("mu", 30, 20), pm.HalfNormal("sigma", 20)
    lead = pm.Normal("lead", mu, sigma, shape=43)
    dp.PrivateObservation("z", lead.mean(), dp.LaplaceMechanism(9.3), observed=34.3)
    try:
        sample(draws=10_000_000)
    except Exception:
        pass
raise AssertionError("nothing is run after the model was sampled")
"""


@pytest.mark.parametrize("page", warm.PAGES)
def test_a_page_is_run_up_to_the_cell_that_samples(page):
    code = warm.code_of(page)
    compile(code, page, "exec")
    assert code.count("dp.sample(") == 1
    assert "matplotlib" not in code


def test_a_script_is_run_with_few_draws(tmp_path, capsys, monkeypatch):
    script, original = tmp_path / "script.py", dp.sample
    script.write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", ["warm", str(script)])
    warm.main()
    assert f"{script}: up to its first dp.sample, " in capsys.readouterr().out
    assert dp.sample is original
    assert sys.argv == ["warm", str(script)]


def test_a_script_that_does_not_sample_is_named(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import pymc_dp as dp")
    with pytest.raises(ValueError, match=r"script\.py: nothing in it calls dp\.sample"):
        warm.warm([str(script)])


@pytest.mark.parametrize(("page", "why"), [
    ("nowhere", "no page 'nowhere'"), ("suppressed", "nothing in it calls dp.sample"),
])  # fmt: skip
def test_what_cannot_be_run_is_named(page, why):
    with pytest.raises(ValueError, match=why):
        warm.code_of(page)
