"""Pictures of studies hold the numbers of the study."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

import pymc_dp as dp
from tests.studies.test_studies import SMALL, TRUTH, build


@pytest.fixture(scope="module")
def study():
    return dp.studies.privacy_utility(
        build, [0.1, 1.0, 10.0], truth=TRUTH, grid={"n": [20, 40]}, replicates=8, **SMALL
    )


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def drawn(collection, quantity, parameter):
    """Return the lines of a panel."""
    plots = collection.viz["plot"].to_dataset() if "plot" in collection.viz.children else None
    target = (plots["value"] if plots is not None else collection.viz["plot"]).sel(
        quantity=quantity, parameter=parameter
    )
    axes = target.item()
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
    return axes, [line.get_ydata() for line in lines]


def test_curves_are_those_of_the_study(study):
    collection = dp.plot_privacy(study)
    for quantity in ("length", "rmse", "coverage"):
        for parameter in ("mu", "sigma2"):
            axes, lines = drawn(collection, quantity, parameter)
            wanted = study[quantity].sel(parameter=parameter).transpose("n", "epsilon").to_numpy()
            for own in wanted:
                assert any(np.allclose(own, line) for line in lines)
            assert axes.get_xscale() == "log"
    coverage, _ = drawn(collection, "coverage", "mu")
    assert any(np.allclose(line.get_ydata(), 0.95) for line in coverage.get_lines())


def test_another_axis_and_few_panels(study):
    collection = dp.studies.plot_coverage(
        study.sel(epsilon=1.0), x="n", quantities=["length"], var_names=["mu"]
    )
    axes = plt.gcf().axes
    assert len(axes) == 1
    assert axes[0].get_xlabel() == "n"
    assert axes[0].get_ylabel() == "mean interval length"
    assert collection is not None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"x": "k"}, "x='k': the grid of the study has"),
        ({"quantities": ["power"]}, "'power' is none of"),
    ],
)
def test_bad_arguments_are_named(study, kwargs, message):
    with pytest.raises(ValueError, match=message):
        dp.studies.plot_coverage(study, **kwargs)
    with pytest.raises(ValueError, match="no axis of numbers"):
        dp.studies.plot_coverage(study.isel(n=0, epsilon=0))


def test_calibration_takes_one_cell(study):
    with pytest.raises(ValueError, match=r"a study of dp\.studies\.calibration is needed"):
        dp.studies.plot_calibration(study)
    found = dp.studies.calibration(build, grid={"epsilon": [1.0, 2.0]}, replicates=30, **SMALL)
    with pytest.raises(ValueError, match="select one value of 'epsilon'"):
        dp.studies.plot_calibration(found)
    dp.studies.plot_calibration(found.sel(epsilon=1.0))
    assert len(plt.gcf().axes) == 2
