"""The SIR example: its simulator, its particle filter, the model, and what the command writes."""

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from matplotlib.image import imread
from pytensor.graph.replace import vectorize_graph
from scipy import integrate, linalg

from pymc_dp.examples import report, sir
from pymc_dp.examples import sir_simulator as simulator
from pymc_dp.graphs.questions import PLAIN_MODE
from tests.agreement import same_law
from tests.references import references

REFERENCE = references("neural")["sir"]
SEED = 3
BETA, GAMMA = 0.61, 0.049


def curves(seed, n, times, *, beta=BETA, gamma=GAMMA, **kwargs):
    rng = np.random.default_rng(seed)
    return simulator.simulate(rng, np.full(n, beta), gamma, times, **kwargs)


def event_by_event(rng, population, beta, gamma, times):
    """Gillespie's algorithm as in a textbook."""
    s, i, now, out = population - 1, 1, 0.0, []
    for time in times:
        while True:
            rates = np.array([beta * s * i / population, gamma * i])
            ahead = now + rng.exponential(1 / rates.sum()) if i else np.inf
            if ahead > time:  # the waiting time has no memory
                now = time
                break
            now = ahead
            if rng.random() < rates[0] / rates.sum():
                s, i = s - 1, i + 1
            else:
                i -= 1
        out.append(i)
    return out


def test_every_event_drawn_is_gillespies_algorithm():
    times = [1.0, 3.0, 6.0, 12.0]
    rng = np.random.default_rng(SEED)
    slow = np.array([event_by_event(rng, 60, 1.2, 0.4, times) for _ in range(1500)])
    fast = curves(SEED, 20_000, times, beta=1.2, gamma=0.4, population=60)
    same_law(slow, fast)


TIMES = np.array([10.0, 17.0, 34.0, 68.0])


@pytest.fixture(scope="module")
def exact():
    return curves(1, 3000, TIMES, population=20_000, exact_below=np.inf)


def test_steps_follow_the_law_of_the_events(exact):
    same_law(curves(2, 10_000, TIMES, population=20_000), exact)


@pytest.mark.parametrize("wrong", [{"beta": 1.1 * BETA}, {"gamma": 1.1 * GAMMA}], ids=str)
@pytest.mark.nightly
def test_wrong_simulators_are_found_out(exact, wrong):
    found = curves(2, 10_000, TIMES, population=20_000, **wrong)
    with pytest.raises(AssertionError):
        same_law(found, exact, level=1e-6)


def test_no_member_is_lost_or_won():
    rng = np.random.default_rng(SEED)
    for exact_below in (simulator.EXACT_BELOW, np.inf):
        s, i = 29_000, 1000
        for _ in range(300):
            before = s, i
            s, i = simulator.advance(rng, s, i, 1.5, 0.2, 30_000, 0.37, exact_below)
            assert 0 <= s <= before[0]
            assert i >= 0
            assert s + i <= sum(before)
        assert (s < 100) & (i == 0)  # it has burnt out


def test_an_epidemic_dies_out_as_often_as_a_branching_process():
    found = curves(SEED, 20_000, [5.0, 10.0], beta=1.0, gamma=0.5, population=10**7)
    growth = np.exp(0.5 * np.array([5.0, 10.0]))
    expected = 0.5 * (growth - 1) / (growth - 0.5)
    error = np.sqrt(expected * (1 - expected) / len(found))
    assert np.all(np.abs(np.mean(found == 0, axis=0) - expected) < 4 * error)


@pytest.mark.parametrize("beta", [0.3, 1.6])
def test_large_epidemics_follow_the_differential_equation(beta):
    population, infected, times = 10**8, 10**6, np.array([3.0, 9.0, 17.0, 40.0])

    def change(_, y):
        new = beta * y[0] * y[1] / population
        return [-new, new - 0.1 * y[1]]

    solution = integrate.solve_ivp(
        change, (0, 40), [population - infected, infected], t_eval=times, rtol=1e-9
    )
    found = curves(SEED, 50, times, beta=beta, gamma=0.1, population=population, infected=infected)
    np.testing.assert_allclose(found.mean(axis=0), solution.y[1], rtol=3e-3)


def test_the_generator_decides():
    a, b, c = (curves(seed, 5, TIMES, population=10**5) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert np.any(a != c)


def test_shapes():
    rng = np.random.default_rng(SEED)
    beta, gamma = np.full((4, 1), 0.5), np.full(3, 0.1)
    assert simulator.simulate(rng, beta, gamma, TIMES, population=763).shape == (4, 3, 4)
    assert simulator.simulate(rng, 0.5, 0.1, [0.0, 1.0], population=763)[0] == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"beta": np.nan}, "must be positive"),
        ({"gamma": 0.0}, "must be positive"),
        ({"times": [3.0, 1.0]}, "does not decrease"),
        ({"times": [-1.0]}, "from 0 on"),
        ({"infected": 101}, "from 0 to the population"),
    ],
)
def test_bad_input(change, said):
    good = {"beta": 1.0, "gamma": 0.5, "times": [1.0], "population": 100}
    with pytest.raises(ValueError, match=said):
        simulator.simulate(np.random.default_rng(1), **{**good, **change})


# ---------------------------------------------------------------------------------- likelihood


def generator_matrix(population, beta, gamma):
    states = [(s, i) for s in range(population) for i in range(population + 1 - s)]
    index = {state: k for k, state in enumerate(states)}
    q = np.zeros((len(states), len(states)))
    for (s, i), k in index.items():
        for to, rate in (((s - 1, i + 1), beta * s * i / population), ((s, i - 1), gamma * i)):
            if rate:
                q[k, index[to]] += rate
                q[k, k] -= rate
    return states, q


def test_likelihood_is_unbiased():
    population, beta, gamma, times = 7, 1.1, 0.5, np.array([0.5, 2.0, 5.0])
    released = np.array([6, 9, 5])
    log_mass = simulator.binomial_log_mass(released, 20, 2.0, population)
    states, q = generator_matrix(population, beta, gamma)
    law = np.array([float(state == (population - 1, 1)) for state in states])
    infected = np.array([i for _, i in states])
    for k, wait in enumerate(np.diff(times, prepend=0.0)):
        law = law @ linalg.expm(q * wait) * np.exp(log_mass[k, infected])
    rng, rates = np.random.default_rng(SEED), (np.full(20_000, rate) for rate in (beta, gamma))
    logs = simulator._log_likelihoods(rng, *rates, population, 1, times, log_mass, 10)
    estimates = np.exp(logs)
    error = estimates.std() / np.sqrt(len(estimates))
    assert abs(estimates.mean() - law.sum()) < 4 * error < 0.05 * law.sum()


def test_the_study_is_that_of_the_reference():
    study = sir.measles()
    assert study.released.tolist() == REFERENCE["counts"]["10"]
    for name, own in study.reference.items():
        k = REFERENCE["reference"]["10"]["names"].index(
            {"log β": "log_beta", "log γ": "log_gamma", "R₀": "R0"}[name]
        )
        assert own == tuple(REFERENCE["reference"]["10"][m][k] for m in ("mean", "sd"))


# Effective draws: 450 and 1,500.
@pytest.mark.parametrize(("draws", "tolerance"), [(600, 0.2), (2500, 0.1)])
@pytest.mark.nightly
def test_simulator_mechanism_and_priors_give_the_reference(draws, tolerance):
    study = sir.measles()
    rng = np.random.default_rng(SEED)
    weighted = sir.particles(study, rng, draws=draws, particles=50, rounds=4)
    assert weighted.ess > draws / 3
    found = report.moments(sir.quantities(weighted.resample(rng, 20_000)))
    for name, (mean, sd) in study.reference.items():
        assert abs(found[name][0] - mean) < tolerance * sd
        assert abs(found[name][1] / sd - 1) < tolerance


def test_a_release_that_cannot_be_is_named():
    study = sir.school(10.0, 1)
    impossible = np.full((10, 764), -np.inf)
    with pytest.raises(ValueError, match="impossible under all but 0 of 50"):
        simulator.posterior(study.epidemic, impossible, np.random.default_rng(1), draws=50)


# --------------------------------------------------------------------------------------- model


def test_privacy_loss_is_as_stated():
    for epsilon in (0.3, 10.0):
        mechanism = sir.school(epsilon, 1).mechanism
        assert 10 * mechanism.epsilon() == pytest.approx(epsilon)


@pytest.mark.nightly
def test_curve_of_the_model():
    study = sir.school(10.0, 1)
    model = cloudpickle.loads(cloudpickle.dumps(sir.build(study)))
    kwargs = {"compile_kwargs": {"mode": PLAIN_MODE}, "random_seed": SEED}
    with model:
        tree = pm.sample_prior_predictive(300, **kwargs)
    drawn = tree["prior"]["curve"].to_numpy()[0]
    assert drawn.shape == (300, 10)
    assert np.all(drawn[:, 0] == 1)
    rng = np.random.default_rng(SEED)
    rates = np.exp(rng.normal(study.epidemic.prior_mean, study.epidemic.prior_sd, (5000, 2)))
    expected = simulator.simulate(rng, *rates.T, study.epidemic.times, population=sir.BOYS)
    same_law(drawn[:, 5], expected[:, 5])


def test_a_batch_is_one_call():
    model = sir.build(sir.measles())
    batch = pt.constant(np.log(np.linspace(0.3, 0.9, 400)))
    curve = vectorize_graph(model["curve"], {model["log_beta"]: batch})
    drawn = pm.draw(curve, random_seed=SEED, mode=PLAIN_MODE)
    assert drawn.shape == (400, 10)
    early = drawn[:, 1]
    assert np.median(early[200:]) > 5 * np.median(early[:200])  # each row has its own rate


# ------------------------------------------------------------------------------------- command


def test_command(tmp_path, capsys):
    [[study, found]] = sir.main(
        ["--study", "school", "--method", "none", "--draws", "400", "--output", str(tmp_path)]
    )
    said = capsys.readouterr().out
    assert "Influenza in a boarding school, ε = 10" in said
    assert "privatised with seed 1" in said
    r0 = {method: sir.quantities(draws)["R₀"] for method, draws in found.items()}
    assert r0["particles"].std() > 1.5 * r0[sir.ALMOST].std()
    assert 3.0 < r0[sir.ALMOST].mean() < 4.5  # the literature has 3.7 or so
    low, high = np.quantile(r0["particles"], [0.005, 0.995])
    assert low < r0[sir.ALMOST].mean() < high
    axes = sir.picture([(study, found)], 1).axes
    assert len(axes) == 2
    assert all(ax.lines and ax.get_xlabel() for ax in axes)
    assert imread(tmp_path / "sir.png")[..., :3].std() > 0.05


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["sppe", "sple"])
@pytest.mark.nightly
def test_neural(method, capsys):
    pytest.importorskip("sbi")
    size = ["--rounds", "1", "--simulations", "100"]
    [[_, found]] = sir.main(["--study", "measles", "--no-particles", "--method", method, *size])
    assert list(found) == [method]
    assert np.all(np.isfinite(found[method]))
    assert method in capsys.readouterr().out
