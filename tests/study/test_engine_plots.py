"""What notebooks 05 and 06 compute and draw, held against closed forms, brute force and made-up cases."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from brrcrl_lib.base.devices import generator
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.inference.optimizers import CrossEntropy, DerivativeFree, Langevin, Problem
from brrcrl_lib.methods.base import config_for
from brrcrl_lib.methods.br_rcrl import Negatives, info_nce
from brrcrl_lib.nets import GaussianMixture
from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.study.analysis import held_out, prior, shipped_models
from brrcrl_lib.study.analysis import optimizer_race as compare
from brrcrl_lib.study.claims import objectives
from brrcrl_lib.study.figures import engine as engine_plots
from brrcrl_lib.training import Run, export_model, fit, split

BUCKETS = ReturnBuckets(0.0, 10.0, 10)


def quadratic(centre: torch.Tensor) -> Problem:
    """Energy |a - centre|^2 / 2 over [-1, 1]^m, with a standard normal prior."""
    box = torch.ones(len(centre))
    return Problem(
        energy=lambda actions: (actions - centre).square().sum(-1) / 2,
        sample_prior=lambda noise, uniform: noise.clamp(-1, 1).unsqueeze(0),
        low=-box,
        high=box,
    )


@pytest.fixture
def trained(dataset: OfflineDataset, tmp_path: Path) -> Run:
    config = config_for("br_rcrl", "smoke", "box", device="cpu", held_out=0.2)
    return fit(config, dataset, tmp_path / "run", preset="smoke")


# -- forecasts ---------------------------------------------------------------------------------------------------


def test_pit_is_the_share_of_the_forecast_below_the_outcome() -> None:
    uniform = torch.full((4, 10), 0.1)
    outcomes = torch.tensor([0.0, 2.5, 7.0, 10.0])
    forecast = held_out.Forecast(uniform, outcomes, torch.arange(4), BUCKETS)
    torch.testing.assert_close(forecast.pit, torch.tensor([0.0, 0.25, 0.7, 1.0]))
    torch.testing.assert_close(forecast.predicted, torch.full((4,), 5.0))
    assert forecast.coverage(0.5) == 0.5  # 2.5 and 7.0 lie between the quartiles, ends included


@pytest.mark.parametrize("overconfidence", [1.0, 3.0])
def test_coverage_tells_a_right_forecast_from_an_overconfident_one(overconfidence: float) -> None:
    rng = generator(0)
    probabilities = torch.randn(5000, 10, generator=rng).softmax(-1)
    label = torch.multinomial(probabilities, 1, generator=rng).squeeze(-1)
    outcomes = label + torch.rand(5000, generator=rng)
    claimed = probabilities.pow(overconfidence) / probabilities.pow(overconfidence).sum(-1, keepdim=True)
    covered = held_out.Forecast(claimed, outcomes, torch.arange(5000), BUCKETS).coverage(0.8)
    assert abs(covered - 0.8) < 0.02 if overconfidence == 1 else covered < 0.75  # Monte Carlo error 0.006


def test_reliability_of_a_clairvoyant_and_the_width_of_its_bars() -> None:
    label = torch.arange(10).repeat_interleave(20)
    perfect = torch.nn.functional.one_hot(label, 10).float()
    episodes = torch.arange(200) % 20
    noise = torch.arange(200) % 20 / 100.0 - 0.1  # the same for all steps of an episode
    forecast = held_out.Forecast(perfect, label + 0.5 + noise, episodes, BUCKETS)
    table = held_out.reliability(forecast, np.random.default_rng(0))
    np.testing.assert_allclose(table.predicted, np.arange(10) + 0.5, rtol=1e-5)
    np.testing.assert_allclose(table.actual, table.predicted - 0.005, atol=1e-4)
    standard_error = float(noise[:20].std(correction=0)) / 20**0.5
    np.testing.assert_allclose(table.high - table.low, 2 * 1.96 * standard_error, rtol=0.35)


def test_marginal_nll_of_the_training_data_is_their_entropy(dataset: OfflineDataset) -> None:
    buckets = dataset.buckets(4)
    shares = torch.bincount(buckets.encode(dataset.rtg), minlength=4) / len(dataset)
    entropy = float(-(shares * shares.log()).nansum())
    assert held_out.marginal_nll(buckets, dataset, dataset) == pytest.approx(entropy, abs=0.01)


# -- the prior ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [1, 3, 6])
def test_without_uniform_negatives_the_prior_is_the_square_root_of_the_data(dimensions: int) -> None:
    assert prior.contrast_widening(0.2, dimensions, 0.0) == pytest.approx(2**0.5, rel=1e-3)


@pytest.mark.parametrize("std", [0.05, 0.3])
def test_widening_equals_a_damped_fixed_point_iteration(std: float) -> None:
    a = np.linspace(-4, 4, 20001)
    p = np.exp(-0.5 * (a / std) ** 2)
    f = p / p.sum() / (a[1] - a[0])
    for _ in range(200):
        new = p / (0.5 * f + 0.5 * 0.5)  # uniform density on [-1, 1]
        f = np.sqrt(f * new / (new.sum() * (a[1] - a[0])))
        f /= f.sum() * (a[1] - a[0])
    ratio = np.sqrt((f * a**2).sum() / f.sum()) / std
    assert prior.contrast_widening(std, 1) == pytest.approx(ratio, rel=0.01)


def fitted_by_contrast(data: torch.Tensor, steps: int = 500) -> float:
    """Standard deviation of the Gaussian that InfoNCE, with half of the negatives uniform, fits to data [n, m]."""
    rng, box = generator(0), torch.ones(data.shape[1])
    mean, log_std = (
        torch.zeros(data.shape[1], requires_grad=True),
        torch.full((data.shape[1],), -1.0, requires_grad=True),
    )
    optimizer = torch.optim.Adam([mean, log_std], lr=0.02)
    seen = []
    for _ in range(steps):
        actions = data[torch.randint(len(data), (256,), generator=rng)]
        shape = (256, 1, data.shape[1])
        wide = GaussianMixture(mean.expand(shape), log_std.expand(shape), torch.zeros(256, 1), -box, box, squash=False)
        negatives = Negatives.draw(actions, 32, 0.5, rng).actions(wide)
        loss = info_nce(wide.log_prob(torch.cat([actions.unsqueeze(1), negatives], dim=1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(log_std.detach().mean())
    return float(torch.stack(seen[steps // 2 :]).mean().exp())


def test_the_widening_is_what_training_does_and_walls_add_to_it() -> None:
    noise = torch.randn(20_000, 3, generator=generator(1))
    free, walled = 0.1 * noise, (0.5 + 0.6 * noise).clamp(-1, 1)
    assert fitted_by_contrast(free) / 0.1 == pytest.approx(prior.contrast_widening(0.1, 3), rel=0.07)
    std = float(walled.std(0).mean())
    assert fitted_by_contrast(walled) / std > 1.2 * prior.contrast_widening(std, 3)


# -- optimisers --------------------------------------------------------------------------------------------------


def test_a_slice_holds_the_other_joints_still() -> None:
    problem = quadratic(torch.tensor([0.3, -0.2, 0.9]))
    inside = compare.slice_problem(problem, (0, 2), torch.tensor([9.0, 0.5, 9.0]))
    solution = CrossEntropy().minimise(inside, generator(0))
    torch.testing.assert_close(solution.actions, torch.tensor([[0.3, 0.9]]), atol=1e-2, rtol=0)
    assert float(solution.energies) == pytest.approx(0.7**2 / 2, abs=1e-3)


def test_the_grid_has_x_along_its_columns() -> None:
    problem = Problem(lambda a: a[..., 0] + 10 * a[..., 1], lambda n, u: n, torch.zeros(2), torch.ones(2))
    x, y, energy = compare.energy_grid(problem, 5)
    assert float(energy[0, 4]) == 1 and float(energy[4, 0]) == 10
    assert len(x) == len(y) == 5


def test_evaluations_are_counted() -> None:
    problem = quadratic(torch.zeros(3))
    assert compare.evaluations(CrossEntropy(50, 5), problem) == 50 * 6
    assert compare.evaluations(DerivativeFree(32, 2), problem) == 32 * 3
    assert compare.evaluations(Langevin(20, 4, 3), problem) == 20 + 4 + 2 * 3 * 4


def test_the_rule_takes_the_fastest_of_the_good_ones() -> None:
    names = ["cem (default)", "langevin", "dfo 65,536", "dfo 65,536, literal"]
    table = pd.DataFrame({"optimizer": names, "energy": [1.0, 1.1, 1.0, 1.0], "ms": [4.0, 2.0, 4000.0, 6000.0]})
    verdict = compare.verdict(table)
    assert verdict["picked"] == "cem (default)" and (verdict["times_faster"], verdict["than_literal"]) == (1000, 1500)
    told = compare.headline({"Hopper": verdict})
    assert "dfo 65,536, 1,000 times faster" in told and "(1,500 times faster than a literal" in told
    assert "literal" not in compare.headline({"Hopper": compare.verdict(table[:3])})  # where it was not timed
    worse = compare.verdict(table.assign(energy=[1.01, 1.1, 1.0, 1.0]))
    assert worse["picked"] == "dfo 65,536"
    assert "cem (default) (a), dfo 65,536 (b)" in compare.headline({"a": verdict, "b": worse})


def test_race_runs_on_a_model(trained: Run, dataset: OfflineDataset) -> None:
    table = compare.race(
        trained.model, dataset.observations[:2], 0.1, {"cem": CrossEntropy(16), "dfo": DerivativeFree(16)}
    )
    assert list(table.optimizer) == ["cem", "dfo"] and (table.ms > 0).all() and np.isfinite(table.energy).all()


# -- models and results ------------------------------------------------------------------------------------------


def test_shipped_models_are_found_and_missing_ones_named(trained: Run, tmp_path: Path) -> None:
    shelf = tmp_path / "models"
    for objective in ("authors", "paper"):
        export_model(tmp_path / "run", shelf / f"test-synthetic-{objective}.safetensors")
    assert shipped_models.available_models(shelf) == ["test-synthetic"]
    loaded, metrics = shipped_models.shipped_model("test/synthetic-v0", "authors", shelf)
    assert shipped_models.describe(loaded) == "40 steps of 64 transitions, 8 negatives, seed 0" and metrics.empty
    with pytest.raises(FileNotFoundError, match=r"there are: test-synthetic.*preset=laptop"):
        shipped_models.shipped_model("brrcrl/hopper/medium-v0", "authors", shelf)


def test_a_held_out_summary_of_a_trained_model(trained: Run, dataset: OfflineDataset) -> None:
    summary = held_out.held_out_summary(trained, dataset)
    assert all(np.isfinite(value) for value in summary.values()) and 0 <= summary["80% interval holds"] <= 1


def test_losses_stand_beside_what_knowing_nothing_costs(trained: Run, dataset: OfflineDataset) -> None:
    train, test = split(trained.config, dataset)
    table = held_out.loss_table({"released code": trained}, train, test)
    assert list(table.index) == list(engine_plots.PARTS)
    assert table["released code, held out"].to_dict() == pytest.approx(
        {part: held_out.losses_on(trained, test)[part] for part in engine_plots.PARTS}
    )
    box = float((dataset.action_high - dataset.action_low).log().sum())
    nothing = table["knows nothing"]
    assert nothing["contrast"] == pytest.approx(np.log(1 + trained.config.negatives))
    assert nothing["prior_nll"] == pytest.approx(box) and nothing["return_nll"] == nothing["value_nll"]


def test_an_action_that_every_return_allows_is_the_usual_one(trained: Run, dataset: OfflineDataset) -> None:
    """As delta goes to 1 the condition is met by everything, and the prior's mode is left."""
    bold, promised = held_out.moved_by_inference(trained, dataset, 0.01)
    timid, little = held_out.moved_by_inference(trained, dataset, 0.999)
    assert 0 <= timid < bold and abs(little) < abs(promised)


def test_results_are_named_by_what_was_trained_and_how_it_played() -> None:
    rows = [
        {"method": "br_rcrl", "objective": "authors", "clone": False},
        {"method": "br_rcrl", "objective": "authors", "clone": True},
        {"method": "br_rcrl", "objective": "paper", "clone": False},
        {"method": "cloning", "objective": None, "clone": None},
    ]
    table = pd.DataFrame([{**row, "dataset": "d", "train_seed": seed} for seed in (1, 0) for row in rows])
    labelled = objectives.label_results(table)
    wanted = ("cloning", "paper", "authors, mode", "authors")
    assert list(zip(labelled.policy, labelled.train_seed, strict=True)) == [
        (name, seed) for name in wanted for seed in (0, 1)
    ]


# -- figures -----------------------------------------------------------------------------------------------------


def test_every_seed_is_a_point() -> None:
    _, axis = plt.subplots()
    table = pd.DataFrame({"policy": ["cloning", "authors", "authors", "authors"], "return_mean": [10.0, 1.0, 2.0, 3.0]})
    engine_plots.draw_results(axis, table)
    axis.figure.canvas.draw()  # where seaborn sets points apart that would cover each other
    assert sorted(y for group in axis.collections for _, y in group.get_offsets().tolist()) == [1, 2, 3, 10]
    assert sorted(bar.get_height() for bar in axis.patches if bar.get_height() > 0) == [2, 10]  # the means
    assert [label.get_text().split() for label in axis.get_xticklabels()][-1] == ["released", "code"]
    plt.close("all")


def test_the_threshold_is_marked_where_the_tail_meets_delta() -> None:
    _, (left, right) = plt.subplots(1, 2)
    engine_plots.draw_threshold(left, right, BUCKETS, {"prior_samples": torch.full((10,), 0.1)}, 0.25)
    dots = [line.get_xydata()[0].tolist() for line in right.lines if line.get_marker() == "o"]
    assert dots == [[7.0, 0.25]]  # P(R >= 7) = 0.3, P(R >= 8) = 0.2
    plt.close("all")


def test_curves_show_each_part_of_the_loss_and_who_knows_nothing(trained: Run) -> None:
    _, axes = plt.subplots(1, 4)
    metrics = pd.DataFrame(trained.metrics)
    ignorant = dict(zip(engine_plots.PARTS, (1.0, 2.0, 3.0, 4.0), strict=True))
    engine_plots.draw_curves(axes, {"released code": metrics}, ignorant)
    for axis, part in zip(axes, engine_plots.PARTS, strict=True):
        curve, flat = axis.lines
        assert curve.get_xdata().tolist() == [10, 20, 30, 40]
        assert curve.get_ydata().tolist() == metrics[part].tolist() and set(flat.get_ydata()) == {ignorant[part]}
    plt.close("all")


def test_forecasts_are_drawn_as_they_are() -> None:
    _, (left, right) = plt.subplots(1, 2)
    table = pd.DataFrame({"predicted": [1.0, 2.0], "actual": [1.5, 1.0], "low": [1.0, 0.5], "high": [3.0, 2.0]})
    engine_plots.draw_reliability(left, {"paper text": table})
    (bars,) = left.containers
    assert bars.lines[0].get_xydata().tolist() == [[1.0, 1.5], [2.0, 1.0]]
    assert [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()] == [[1.0, 3.0], [0.5, 2.0]]
    outcomes = torch.tensor([0.0, 2.5, 7.0, 10.0])  # a quarter each at or below the quantiles 0, 0.25, 0.7 and 1
    forecast = held_out.Forecast(torch.full((4, 10), 0.1), outcomes, torch.arange(4), BUCKETS)
    engine_plots.draw_coverage(right, {"paper text": forecast})
    level, share = right.lines[1].get_data()
    assert share[np.searchsorted(level, [0.1, 0.5, 0.8, 1.0])].tolist() == [0.25, 0.5, 0.75, 1.0]
    plt.close("all")


def test_the_shape_of_a_prior_is_drawn_as_cumulative_shares(trained: Run, dataset: OfflineDataset) -> None:
    _, (left, right) = plt.subplots(1, 2)
    std, distance = prior.prior_shape(trained.model, dataset)
    states = trained.model.standardise(dataset.observations)
    torch.testing.assert_close(std, trained.model.prior(states).log_std[:, 0].exp().detach())
    torch.testing.assert_close(distance, (trained.model.prior(states).mode() - dataset.actions).abs().detach())
    engine_plots.draw_prior(left, right, {"paper text": (std, distance)})
    for axis, values in ((left, std), (right, distance)):
        x, y = axis.lines[0].get_data()
        assert x[1:].tolist() == sorted(values.flatten().tolist()) and (y[0], y[-1]) == (0, 1)
    plt.close("all")


def test_a_slice_of_energy_is_cut_off_and_shows_its_candidates() -> None:
    _, axis = plt.subplots()
    grid = compare.energy_grid(quadratic(torch.zeros(2)), 11)
    shading = engine_plots.draw_energy(axis, grid, ("hip", "knee"), depth=0.5)
    assert (shading.zmin, shading.zmax) == (0.0, 0.5) and float(grid[2].max()) == 1.0
    assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_xlim()) == ("hip", "knee", (-1.0, 1.0))
    engine_plots.draw_samples(axis, torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
    engine_plots.mark(axis, torch.tensor([-0.5, 0.5]), "here", "*", "white")
    assert np.allclose(axis.lines[0].get_xydata(), [[0.1, 0.2], [0.3, 0.4]])
    assert axis.lines[1].get_xydata().tolist() == [[-0.5, 0.5]] and axis.lines[1].get_label() == "here"
    plt.close("all")


def test_a_race_is_drawn_above_its_best() -> None:
    _, axis = plt.subplots()
    table = pd.DataFrame({"optimizer": ["cem", "langevin"], "energy": [1.0, 3.0], "ms": [4.0, 2.0]})
    engine_plots.draw_race(axis, table)
    points = [line.get_xydata()[0].tolist() for line in axis.lines]
    assert points == [[4.0, 1e-4], [2.0, 2.0]]  # a logarithmic axis has no zero
    assert [text.get_text() for text in axis.texts] == ["cem", "langevin"]
    plt.close("all")
