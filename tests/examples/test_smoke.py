"""Examples whose models take long to compile, with draws from the prior in the place of a sampler.

All else of them runs by day, tables and pictures; by night they sample.
"""

import pymc as pm
import pytest
from matplotlib.image import imread
from pymc.testing import mock_sample

import pymc_dp as dp
from pymc_dp.examples import (
    cirrhosis,
    clamped_regression,
    glm,
    hospitals,
    naive_bayes,
    opendp_releases,
)

EXAMPLES = {
    "cirrhosis": (cirrhosis, ["--splits", "1", "--draws", "20"]),
    "clamped_regression": (clamped_regression, ["--method", "none", "--draws", "20"]),
    "glm": (glm, ["--study", "logistic", "--people", "30", "--draws", "20"]),
    "hospitals": (hospitals, ["--hospitals", "6", "--draws", "20"]),
    "naive_bayes": (naive_bayes, ["--method", "none", "--draws", "20"]),
    "opendp_releases": (opendp_releases, ["--draws", "20", "--epsilon", "30"]),
}


@pytest.mark.filterwarnings("ignore")  # what draws of a prior look like is no news
@pytest.mark.parametrize("name", EXAMPLES)
def test_all_but_the_sampling(name, tmp_path, monkeypatch, capsys):
    if name == "opendp_releases":
        pytest.importorskip("opendp", reason="needs the extra [opendp]")
    module, arguments = EXAMPLES[name]
    models = []

    def prior(model=None, *, draws, **kwargs):
        models.append(pm.modelcontext(model))
        return mock_sample(draws=draws, model=model, random_seed=1)

    monkeypatch.setattr(dp, "sample", prior)
    monkeypatch.setattr(pm, "sample", prior)
    pictures = {"cirrhosis": 3, "glm": 1, "hospitals": 1, "opendp_releases": 1}.get(name, 0)
    module.main([*arguments, *(["--output", str(tmp_path)] if pictures else [])])
    assert any(dp.reading.model.releases(model) for model in models)
    assert capsys.readouterr().out.count("\n") > 5
    made = [imread(path) for path in tmp_path.glob("*.png")]
    assert len(made) == pictures
    assert all(picture[..., :3].std() > 0.02 for picture in made)
