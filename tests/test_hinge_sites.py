"""The hinge as Gaussian sites: latents that rows depend on, updates, gradients, contrasts."""

import math

import numpy as np
import oracles
import pytest
import torch
from problems import HINGES, t64

from skgpsvm import _hinge_sites
from skgpsvm._hinge_sites import BinarySites, ContrastSites
from skgpsvm.likelihoods import BinaryHinge, MulticlassHinge


def touched_moments(hinge, n=40, seed=0):
    """Return codes, latent means, and moments of the latents on which each row depends."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    y = torch.randint(max(hinge.n_latents, 2), (n,), generator=generator)
    mean, var = 3 * uniform(n, hinge.n_latents) - 1.5, 0.05 + 2 * uniform(n, hinge.n_latents)
    active = hinge.active_latents(y, mean)
    return y, mean, var, mean.gather(1, active), var.gather(1, active)


def test_touched_latents_of_the_hard_contrast_are_the_true_class_and_the_hardest_other():
    hinge = ContrastSites(3, "hard")
    y, mean, *_ = touched_moments(hinge)
    active = hinge.active_latents(y, mean).numpy()
    assert not hinge.activates_all
    np.testing.assert_array_equal(active[:, 0], y)
    np.testing.assert_array_equal(active[:, 1], oracles.contrast(mean.numpy(), y.numpy()))
    for row, code, others in zip(active, y.tolist(), mean.numpy(), strict=True):
        order = [j for j in np.argsort(-others) if j != code]
        assert row[1:].tolist() == order[: hinge.n_contrasts]


@pytest.mark.parametrize(
    "hinge", [BinarySites(), ContrastSites(2, "hard"), *(ContrastSites(c, "soft") for c in (2, 12))]
)
def test_all_latents_are_touched_in_order_where_all_wrong_classes_are_contrasted(hinge):
    y, mean, *_ = touched_moments(hinge)
    assert hinge.activates_all
    assert (hinge.active_latents(y, mean) == torch.arange(hinge.n_latents)).all()


def test_all_wrong_classes_are_rivals_unless_the_contrast_is_hard():
    assert [ContrastSites(c, "soft").n_contrasts for c in (2, 3, 30)] == [1, 2, 29]
    assert ContrastSites(30, "hard").n_contrasts == 1


def test_all_wrong_classes_and_as_many_hardest_ones_have_the_same_sites():
    every = ContrastSites(4, "soft")
    y, mean, var, *_ = touched_moments(every)
    hardest = ContrastSites(4, "soft")
    hardest.activates_all = False
    active = hardest.active_latents(y, mean)
    expected = every.sites(y, mean, var)
    found = hardest.sites(y, mean.gather(1, active), var.gather(1, active))
    for name, part in vars(expected).items():
        part = part.gather(1, active) if part.ndim > 1 else part
        np.testing.assert_allclose(getattr(found, name), part, rtol=1e-12, atol=1e-14)


def test_loss_is_the_negative_expected_log_prob():
    for hinge, likelihood in (
        (BinarySites(), BinaryHinge()),
        (HINGES["hard"](), MulticlassHinge()),
    ):
        y, mean, var, *active = touched_moments(hinge)
        # The function is the same, called with differently gathered arguments.
        np.testing.assert_allclose(
            hinge.sites(y, *active).loss,
            -likelihood.expected_log_prob(y, mean, var),
            rtol=1e-14,
        )


def test_gradient_and_curvature_are_the_derivatives_of_the_loss(hinge):
    y, _, _, mean, var = touched_moments(hinge)
    mean.requires_grad_()
    sites = hinge.sites(y, mean, var)
    (gradient,) = torch.autograd.grad(sites.loss.sum(), mean, create_graph=True)
    curvature = [
        torch.autograd.grad(column.sum(), mean, retain_graph=True)[0][:, j]
        for j, column in enumerate(gradient.T)
    ]
    # The floor of 1e-12 of the violation's variance is relative to at least 0.05.
    np.testing.assert_allclose(sites.gradient.detach(), gradient.detach(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(sites.curvature.detach(), torch.stack(curvature, 1), atol=1e-9)
    # The same formulas without the curvature, in the same order.
    loss, slopes = hinge.loss_and_gradient(y, mean, var)
    assert torch.equal(loss, sites.loss)
    assert torch.equal(slopes, sites.gradient)


def test_update_is_the_natural_gradient_of_the_loss(hinge):
    y, _, _, mean, var = touched_moments(hinge)
    sites = hinge.sites(y, mean.requires_grad_(), var.requires_grad_())
    in_mean, in_var = torch.autograd.grad(sites.loss.sum(), (mean, var))
    # Identity 3 of section 8.2, for one row: eta2 gains -d/dv, eta1 gains -d/dm + 2 m d/dv.
    np.testing.assert_allclose(sites.precision.detach(), 2 * in_var, rtol=1e-9)
    np.testing.assert_allclose(
        sites.linear.detach(), (2 * mean * in_var - in_mean).detach(), rtol=1e-9, atol=1e-9
    )


def test_same_shift_of_every_class_changes_no_loss():
    hinge = HINGES["soft"]()
    y, _, _, mean, var = touched_moments(hinge)
    np.testing.assert_allclose(
        hinge.sites(y, mean + 3.7, var).loss, hinge.sites(y, mean, var).loss, rtol=1e-12
    )


@pytest.mark.parametrize("name", ["hard", "soft"])
def test_gradients_of_the_classes_cancel(name):
    hinge = HINGES[name]()
    y, _, _, mean, var = touched_moments(hinge)
    # Identity 2 of section 8.2.
    np.testing.assert_allclose(hinge.sites(y, mean, var).gradient.sum(1), 0, atol=1e-15)


def test_soft_contrast_is_below_the_maximum_and_tends_to_it(monkeypatch):
    y, mean, var, *_ = touched_moments(ContrastSites(4, "soft"))
    own, pair = y[:, None], ContrastSites(2, "soft")
    single = []
    for t in range(4):
        active = torch.cat([own, torch.full_like(own, t)], 1)
        loss = pair.sites(torch.zeros_like(y), mean.gather(1, active), var.gather(1, active)).loss
        single.append(loss.masked_fill(y == t, -torch.inf))
    largest = torch.stack(single).max(0).values
    for sharpness in (_hinge_sites._SHARPNESS, 20.0, 200.0):
        monkeypatch.setattr(_hinge_sites, "_SHARPNESS", sharpness)
        loss = ContrastSites(4, "soft").sites(y, mean, var).loss
        # log-mean-exp of three numbers: at most log 3 / sharpness below their maximum.
        assert (loss <= largest + 1e-14).all()
        assert (loss >= largest - math.log(3) / sharpness - 1e-14).all()


def test_soft_contrast_with_equal_rivals_is_the_hinge_of_either():
    soft, hard = ContrastSites(3, "soft"), ContrastSites(3, "hard")
    y, mean, var, *_ = touched_moments(soft)
    rivals = torch.stack([(y + 1) % 3, (y + 2) % 3], 1)
    for values in (mean, var):
        values.scatter_(1, rivals[:, 1:], values.gather(1, rivals[:, :1]))
    active = torch.stack([y, rivals[:, 0]], 1)
    both = soft.sites(y, mean, var)
    one = hard.sites(y, mean.gather(1, active), var.gather(1, active))
    np.testing.assert_allclose(both.loss, one.loss, rtol=1e-14)
    for name in ("linear", "precision", "gradient"):
        of_both, of_one = getattr(both, name), getattr(one, name)
        # The true class has the whole site, each of the two strongest wrong classes half of it.
        np.testing.assert_allclose(of_both.gather(1, y[:, None])[:, 0], of_one[:, 0], rtol=1e-14)
        for t in rivals.T:
            half = of_both.gather(1, t[:, None])[:, 0]
            np.testing.assert_allclose(half, of_one[:, 1] / 2, rtol=1e-14)


@pytest.mark.parametrize("n_classes", [3, 10])
def test_soft_loss_is_convex_in_means_and_deviations(n_classes):
    hinge = ContrastSites(n_classes, "soft")
    y, mean, var, *_ = touched_moments(hinge, n=200)
    _, other, far, *_ = touched_moments(hinge, n=200, seed=1)
    for share in (0.1, 0.5, 0.8):
        between = torch.lerp(mean, other, share), torch.lerp(var.sqrt(), far.sqrt(), share).square()
        chord = torch.lerp(hinge.loss(y, mean, var), hinge.loss(y, other, far), share)
        assert (hinge.loss(y, *between) <= chord + 1e-12).all()


def test_sites_stay_finite_far_from_and_exactly_on_the_margin(hinge):
    y = torch.zeros(6, dtype=torch.int64)
    own = t64([-1e8, -1.0, 0.5, 1.0, 30.0, 1e8])
    mean = -own[:, None] if hinge.n_latents == 1 else torch.stack([own] + [0 * own] * 2, 1)
    mean = mean[:, : hinge.active_latents(y, mean).shape[1]]
    for var in (0.0, 1e-300, 1.0):
        sites = hinge.sites(y, mean, torch.full_like(mean, var))
        assert all(torch.isfinite(part).all() for part in vars(sites).values())
        assert (sites.loss >= 0).all()
        assert (sites.precision > 0).all()
        assert (sites.curvature >= 0).all()
    # Far inside the margin, loss is V / (2 |E b|), with V of one or two latents of variance one.
    expected = (1 if hinge.n_latents == 1 else 2) / (2 * 29.0)
    np.testing.assert_allclose(sites.loss[4], expected, rtol=2e-3)


def test_steps_start_whole_and_are_constant_where_the_loss_is_smooth():
    assert [HINGES["soft"]().step(n) for n in (0, 1, 1000)] == [1.0, 0.7, 0.7]
    assert [HINGES["binary"]().step(n) for n in (0, 1, 1000)] == [1.0] * 3


def test_steps_of_the_hard_contrast_start_whole_and_shrink_so_that_their_sum_diverges():
    hinge = HINGES["hard"]()
    assert not hinge.smooth
    steps = np.array([hinge.step(n) for n in range(10000)])
    assert steps[0] == 1
    assert (np.diff(steps) <= 0).all()
    # Robbins and Monro: each decade adds the same to the sum of steps, but less to that of squares.
    tail = [steps[10**k : 10 ** (k + 1)] for k in (2, 3)]
    np.testing.assert_allclose(tail[0].sum(), tail[1].sum(), rtol=0.02)
    assert (tail[1] ** 2).sum() < 0.2 * (tail[0] ** 2).sum()
