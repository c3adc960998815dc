"""The OpenDP example: what leaves the clinic, the reference, and the command."""

import builtins
import json

import numpy as np
import pymc as pm
import pytest
from matplotlib.image import imread
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.examples import opendp_releases as example


def texts():
    releases = {
        "mean": dp.Release(127.5, dp.LaplaceMechanism(0.7)),
        "variance": dp.Release(240.0, dp.LaplaceMechanism(98.0)),
        "histogram": dp.Release(
            [31, 160, 150, 132, 108, 20],
            dp.GeometricMechanism(6.0),
            dims="class",
            coords={"class": example.CLASSES},
        ),
    }
    return {name: release.to_json() for name, release in releases.items()}


def test_statistics_of_the_model_are_those_of_the_records():
    model = example.build(texts())
    noise = {"mean": 0.7, "variance": 98.0, "histogram": 6.0}
    names = ["pressure", *noise]
    pressure, *drawn = pm.draw([model[name] for name in names], draws=20, random_seed=1)
    for records, *released in zip(pressure, *drawn, strict=True):
        clamped = records.clip(*example.RANGE)
        counts = np.histogram(records, [-np.inf, *example.EDGES, np.inf])[0]
        for z, s, scale in zip(released, (clamped.mean(), clamped.var(ddof=1), counts),
                               noise.values(), strict=True):  # fmt: skip
            assert np.all(np.abs(z - s) < 15 * scale)
    assert model.coords["class"] == example.CLASSES
    assert counts.sum() == example.PATIENTS


@pytest.mark.nightly
def test_reference_is_the_posterior_of_the_records():
    pressure = example.simulate(3)[:40]
    draws = example.non_private(pressure, 40_000, 1)

    def weight(sigma, mu, power=0.0):
        logp = stats.norm.logpdf(pressure, mu, sigma).sum() + 170
        prior = stats.norm.pdf(mu, *example.PRIOR[:2])
        prior *= stats.halfnorm.pdf(sigma, scale=example.PRIOR[2])
        return sigma**power * np.exp(logp) * prior

    m, s = pressure.mean(), pressure.std()
    box = (m - 3 * s, m + 3 * s, s / 2, 2 * s)
    total, first = (integrate.dblquad(weight, *box, args=(p,))[0] for p in (0, 1))
    error = draws[example.LABELS[1]].std() / 200
    assert abs(draws[example.LABELS[1]].mean() - first / total) < 4 * error
    assert abs(np.mean(draws[example.LABELS[2]]) - np.mean(pressure > example.HIGH)) < 0.15


@pytest.mark.nightly
def test_command(tmp_path, capsys):
    pytest.importorskip("opendp", reason="needs the extra [opendp]")
    found = example.main(["--draws", "300", "--epsilon", "30", "--output", str(tmp_path)])
    said = capsys.readouterr().out
    assert "mean off by (sd)" in said
    # With this little noise the releases say nearly what the records do.
    for name, reference in found["non-private"].items():
        ours = found["private"][name]
        assert abs(ours.mean() - reference.mean()) < 1.5 * reference.std()
        assert 0.7 < ours.std() / reference.std() < 1.7
    assert imread(tmp_path / "posteriors.png").std() > 0.02
    release = dp.Release.from_json((tmp_path / "histogram.json").read_text(encoding="utf-8"))
    assert release.coords == {"class": example.CLASSES}
    assert release.value.dtype == "int64"
    assert release.privacy.epsilon == pytest.approx(10)
    np.testing.assert_allclose(release.mechanism.scale.eval(), 2 / 10)
    assert json.loads((tmp_path / "mean.json").read_text())["mechanism"]["class"]


def test_without_opendp(monkeypatch):
    found = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("opendp"):
            raise ImportError(name)
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SystemExit, match=r'pip install "pymc-dp\[opendp\]"'):
        example.main([])
