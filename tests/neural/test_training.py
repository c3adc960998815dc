"""The losses on toys whose minimisers are known."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sbi")

import pymc_dp as dp  # noqa: E402
from pymc_dp.neural.density import build_density  # noqa: E402
from pymc_dp.neural.noise import Channel, Noise  # noqa: E402
from pymc_dp.neural.settings import Training  # noqa: E402
from pymc_dp.neural.training import Simulations, Trainer, atomic_loss, direct_loss  # noqa: E402

torch.set_num_threads(1)  # the fastest for tables and networks of this size

LIKELIHOOD = np.array([[0.8, 0.2], [0.2, 0.8], [0.5, 0.5]])  # of two releases, given three values
PROPOSAL = np.array([0.5, 0.3, 0.2])


def minimiser(atoms, draws=5, batch=32, steps=1200):
    """Fit a table of log q(theta | z) / p(theta) by the atomic loss; repeats abound."""
    torch.manual_seed(1)
    table = torch.zeros(3, 2, requires_grad=True)
    optimizer = torch.optim.Adam([table], lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    proposal, likelihood = torch.tensor(PROPOSAL), torch.tensor(LIKELIHOOD)

    def log_density(theta, z):
        return table[theta[:, 0].long(), z[:, 0].long()]

    for _ in range(steps):
        theta = torch.multinomial(proposal, batch, replacement=True)
        z = torch.multinomial(likelihood[theta], draws, replacement=True)
        loss = atomic_loss(
            log_density, theta[:, None].float(), z[..., None].float(), torch.zeros(batch), atoms
        )
        assert loss.shape == (batch, draws)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        schedule.step()
    return table.detach().numpy()


@pytest.mark.by_day("10")
@pytest.mark.parametrize("atoms", [2, 4, 10])
def test_atoms_of_the_own_simulation_are_left_out(atoms):
    """Parameters repeat within a batch, and M times each: the ratios come out as they must."""
    found = minimiser(atoms)
    np.testing.assert_allclose(
        np.exp(found - found[2]), LIKELIHOOD / LIKELIHOOD[2], rtol=0.12
    )  # the proposal has dropped out


def test_atomic_loss_divides_by_the_prior():
    def log_density(theta, z):
        return theta[:, 0] * 0.0

    theta, z = torch.tensor([[0.0], [1.0]]), torch.zeros(2, 1, 1)
    log_prior = torch.log(torch.tensor([0.25, 0.75]))
    loss = atomic_loss(log_density, theta, z, log_prior, 10)  # more atoms than there are
    np.testing.assert_allclose(loss[:, 0], -np.log([0.75, 0.25]), rtol=1e-5)


def test_direct_loss_pairs_each_release_with_its_own_parameter():
    def log_density(target, condition):
        return 10 * target[:, 0] + condition[:, 0]

    theta, z = torch.arange(3.0)[:, None], torch.arange(6.0).reshape(3, 2, 1)
    posterior = direct_loss(log_density, theta, z)
    likelihood = direct_loss(log_density, z, theta)
    np.testing.assert_allclose(posterior, -(10 * theta + z[..., 0]))
    np.testing.assert_allclose(likelihood, -(10 * z[..., 0] + theta))


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("estimator", ["maf", "nsf"])
def test_every_variable_of_a_flow_is_conditional(width, estimator):
    """With permutations at random, one network of two variables in sixteen would fail this."""
    rng = np.random.default_rng(1)
    target, condition = rng.normal(size=(50, width)), rng.normal(size=(50, 2))
    for seed in range(20):
        torch.manual_seed(seed)
        training = Training(estimator=estimator, num_transforms=2, hidden_features=10)
        density = build_density(target, condition, training)
        for weight in density.network.parameters():  # splines begin as the identity
            weight.data += 0.1 * torch.randn_like(weight)
        draws = []
        for given in ([[0.0, 0.0]], [[1.0, -1.0]]):
            torch.manual_seed(0)
            draws.append(density.sample(np.array(given), 10)[:, 0])
        assert np.all(draws[0] != draws[1])


def test_settings_are_checked():
    for name, value in [
        ("patience", 0),
        ("num_transforms", 1),
        ("learning_rate", -1.0),
        ("tolerance", -1.0),
        ("atoms", 1),
        ("validation", 1.0),
        ("averaging", 1.0),
        ("estimator", "mdn"),
    ]:
        with pytest.raises(ValueError, match=f"{name}="):
            Training(**{name: value})


def test_a_validation_loss_that_is_not_finite_names_the_simulation():
    """It left the network as it was before the training."""
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(60, 1))
    statistic = theta + rng.normal(size=(60, 2))
    held = np.arange(60) < 10
    statistic[3, 1] = 1e300
    data = Simulations(theta, statistic, np.zeros(60), np.zeros(60, int), held)
    noise = Noise([Channel("z", dp.LaplaceMechanism(1.0), (2,))], 2, rng)
    settings = Training(epoch_steps=2, batch_size=20, hidden_features=8, num_transforms=2)
    trainer = Trainer("posterior", noise, settings, rng, "cpu")
    with pytest.raises(RuntimeError, match=r"the validation loss is .* the statistic \[.*e\+300\]"):
        trainer.fit(data, 2)


def rounds_of(theta, number):
    theta = np.asarray(theta, float).reshape(-1, 1)
    count = len(theta)
    return Simulations(
        theta, 2 * theta, 3 * theta[:, 0], np.full(count, number), np.arange(count) < 3
    )


def test_the_box_is_around_the_parameters_of_the_later_rounds():
    rng = np.random.default_rng(1)
    data = rounds_of(np.linspace(-100, 100, 401), 0)
    data = data.joined(rounds_of([-50, 50], 1))
    late = np.append(np.linspace(2, 6, 4001), 1e6)  # one draw gone astray does not widen it
    data = data.joined(rounds_of(rng.permutation(late), 2))
    box = data.later_box(0)
    np.testing.assert_allclose([box.low, box.high], [[1], [7]], atol=0.02)
    found = data.within(box)
    inside = (data.theta[:, 0] >= box.low[0]) & (data.theta[:, 0] <= box.high[0])
    assert np.bincount(found.round).tolist() == [11, 0, 4001]
    np.testing.assert_array_equal(found.theta, data.theta[inside])
    np.testing.assert_array_equal(found.statistic, 2 * found.theta)
    np.testing.assert_array_equal(found.log_prior, 3 * found.theta[:, 0])
    np.testing.assert_array_equal(found.validation, data.validation[inside])


def trainer_of(**settings):
    rng = np.random.default_rng(1)
    noise = Noise([Channel("z", dp.LaplaceMechanism(1e-3), (1,))], 2, rng)
    settings = {"epoch_steps": 2, "batch_size": 20, "hidden_features": 8} | settings
    return Trainer("posterior", noise, Training(num_transforms=2, **settings), rng, "cpu")


def test_a_new_network_is_in_units_of_its_own():
    rng = np.random.default_rng(2)
    trainer = trainer_of()
    trainer.fit(rounds_of(rng.normal(0, 1, 60), 0), 1)
    wide = trainer.density
    near = rounds_of(rng.normal(5, 0.01, 60), 1)
    trainer.fit(near, 1)
    assert trainer.density.target is wide.target
    trainer.fit(near, 1, renew=True)
    np.testing.assert_allclose(trainer.density.target.center, 5, atol=0.01)
    np.testing.assert_allclose(trainer.density.condition.scale, 0.02, rtol=0.5)


def test_the_learning_rate_of_the_last_round_falls_to_zero(monkeypatch):
    rates = []
    step = torch.optim.Adam.step

    def recorded(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", recorded)
    # Whatever the loss does, it gains less than the tolerance: only the first epoch is a gain.
    trainer = trainer_of(patience=2, tolerance=1e6, learning_rate=1e-3)
    data = rounds_of(np.random.default_rng(2).normal(0, 1, 60), 0)
    losses, _ = trainer.fit(data, 9, last=True)
    assert len(losses) == 9
    # of epochs of two steps
    np.testing.assert_allclose(rates, 1e-3 * (1 + np.cos(np.pi * np.arange(18) / 18)) / 2)
    rates.clear()
    losses, _ = trainer.fit(data, 9)  # another round
    assert len(losses) == 3
    np.testing.assert_allclose(rates, 1e-3)


def test_a_posterior_decays_more_than_a_likelihood_unless_told():
    assert Training().decay("posterior") > Training().decay("likelihood") > 0
    assert Training(weight_decay=0.0).decay("posterior") == 0.0
