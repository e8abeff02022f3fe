"""Discrete training: deterministic, resumable to the bit, device-agnostic, and careful with what is on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from brrcrl_lib.discrete.build import METHODS, DiscreteConfig, make_discrete_buckets, paper_range
from brrcrl_lib.discrete.data import VectorData
from brrcrl_lib.discrete.frames import FrameData
from brrcrl_lib.discrete.train import discrete_step, fit_discrete, initial_modules, load_discrete_run
from brrcrl_lib.train import export_model, fit, load_run
from discrete_cases import discrete_dataset
from synthetic import synthetic_dataset

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.checkpoints import Checkpoint, CheckpointError
from brrcrl_lib.returns import ReturnBuckets

TINY = {"steps": 20, "batch_size": 16, "hidden": (8, 8), "target_every": 7, "log_every": 5, "checkpoint_every": 10}
KINDS = [{"method": method} for method in METHODS] + [
    {"learner": "distributional_td"},
    {"learner": "distributional_td", "next_policy": "own"},
]


def tiny(**options) -> DiscreteConfig:
    return DiscreteConfig(**{**TINY, "device": "cpu", **options})


@pytest.fixture
def data() -> VectorData:
    return VectorData(discrete_dataset())


class Store:
    """Random frames with the face of a frame store."""

    folder, shape, discount, clip_rewards, action_count = Path("frames/pong-test"), (84, 84), 0.95, True, 6
    fingerprint = "0123456789ab"
    about: ClassVar = {"env": "ALE/Pong-v5"}

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.stacks = torch.randint(256, (12, 4, 84, 84), generator=generator, dtype=torch.uint8)
        self.frames = self.stacks[:11, -1].numpy()  # [steps, 84, 84]
        self.rtg = 2 * torch.rand(11, generator=generator) - 1

    def sample(self, batch_size: int, generator: torch.Generator, with_next: bool = False) -> SimpleNamespace:
        chosen = torch.randint(11, (batch_size,), generator=generator)
        return SimpleNamespace(
            observations=self.stacks[chosen], actions=chosen % 6, rtg=self.rtg[chosen], rewards=torch.ones(batch_size),
            dones=chosen == 10, indices=chosen, next_observations=self.stacks[chosen + 1] if with_next else None,
        )  # fmt: skip


def frame_data(config: DiscreteConfig) -> FrameData:
    return FrameData(Store(), with_next=config.bootstraps)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return Checkpoint.load(path / "checkpoint.safetensors").tensors


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_twenty_steps_equal_ten_and_ten_resumed(data, tmp_path: Path, kind: dict) -> None:
    fit_discrete(tiny(**kind), data, tmp_path / "whole")
    fit_discrete(tiny(**kind, steps=10), data, tmp_path / "halves")
    fit_discrete(tiny(**kind), data, tmp_path / "halves", resume=True)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "halves"))
    assert (tmp_path / "whole/metrics.csv").read_text() == (tmp_path / "halves/metrics.csv").read_text()


def test_the_slow_copy_is_renewed_on_time(data, tmp_path: Path) -> None:
    """With renewal every 7 steps, the copy after 20 steps is the model after 14: that of a run of 14 steps."""
    long, short = tmp_path / "long", tmp_path / "short"
    fit_discrete(tiny(learner="distributional_td"), data, long)
    fit_discrete(tiny(learner="distributional_td", steps=14), data, short)
    copy = Checkpoint.load(long / "checkpoint.safetensors").section("target")
    assert_same(copy, Checkpoint.load(short / "checkpoint.safetensors").section("model"))
    assert not torch.equal(copy["head.weight"], weights(long)["model/head.weight"])


def test_seeds_decide_everything(data) -> None:
    torch.manual_seed(1)
    one = fit_discrete(tiny(), data).model.state_dict()
    torch.manual_seed(2)  # the global generator must not matter
    assert_same(one, fit_discrete(tiny(), data).model.state_dict())
    assert not torch.equal(one["head.weight"], fit_discrete(tiny(seed=1), data).model.state_dict()["head.weight"])


@pytest.mark.parametrize("options", [
    {"bucket_scheme": "paper_grid"}, {"bucket_range": "paper"}, {"mixed_precision": True}, {"action_penalty": 0.5},
    {"return_weight": 0.0}, {"value_range": (0.0, 30.0)}, {"hidden": ()},
], ids=str)  # fmt: skip
def test_every_switch_trains(data, options: dict) -> None:
    for learner in ("monte_carlo", "distributional_td"):
        run = fit_discrete(tiny(learner=learner, **options), data)
        assert len(run.metrics) == 4
        assert all(value == value for row in run.metrics for value in row.values())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_learning_lowers_the_loss(data, kind: dict) -> None:
    run = fit_discrete(tiny(**kind, steps=300, hidden=(32, 32), log_every=50, learning_rate=3e-3), data)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"] - 0.02


@pytest.mark.parametrize("encoder", ["nature", "light"])
@pytest.mark.parametrize("learner", ["monte_carlo", "distributional_td"])
def test_frames_train_through_the_same_classes(tmp_path: Path, encoder: str, learner: str) -> None:
    config = tiny(encoder=encoder, learner=learner, steps=2, batch_size=4, bucket_range="paper")
    run = fit_discrete(config, frame_data(config), tmp_path)
    assert (run.model.buckets.low, run.model.buckets.high) == (-1.25, 1.25)  # Pong's own range
    again = load_discrete_run(tmp_path, "cpu")
    frames = Store().stacks[:3]
    torch.testing.assert_close(again.model(frames).logits, run.model(frames).logits)
    assert again.about["reward_clip"] == 1.0


def test_frames_are_standardised_by_the_data_unless_the_config_says_otherwise() -> None:
    store, config = Store(), tiny(learner="distributional_td")
    stacks = store.stacks[:2].float()
    mean = torch.from_numpy(store.frames).double().mean(0)
    std = (torch.from_numpy(store.frames) - mean).square().mean().sqrt()
    modules = initial_modules(config, frame_data(config))
    for name in ("model", "behaviour", "target"):
        encoder = modules[name].encoder
        expected = encoder.net(((stacks - mean) / std).float())
        torch.testing.assert_close(encoder(store.stacks[:2]), expected, atol=1e-5, rtol=1e-4)
    plain = initial_modules(tiny(standardise_frames=False), frame_data(config))["model"].encoder
    torch.testing.assert_close(plain(store.stacks[:2]), plain.net(stacks / 255))


class Ball(Store):
    """A bright ball of four pixels on a grey field: on the left half it means a return of -1, on the right of 1."""

    def __init__(self) -> None:
        places = torch.randint(83, (400, 2), generator=torch.Generator().manual_seed(0))
        field = torch.full((400, 84, 84), 87, dtype=torch.uint8)
        for frame, (row, column) in zip(field, places.tolist(), strict=True):
            frame[row : row + 2, column : column + 2] = 236
        self.frames, self.stacks = field.numpy(), field[:, None].expand(-1, 4, -1, -1)
        self.rtg = torch.where(places[:, 1] < 41, -1.0, 1.0)

    def sample(self, batch_size: int, generator: torch.Generator, with_next: bool = False) -> SimpleNamespace:
        chosen = torch.randint(400, (batch_size,), generator=generator)
        return SimpleNamespace(
            observations=self.stacks[chosen], actions=chosen % 2, rtg=self.rtg[chosen], dones=chosen < 0,
            rewards=torch.zeros(batch_size), indices=chosen, next_observations=None,
        )  # fmt: skip


def test_a_ball_is_found_sooner_without_the_background() -> None:
    """Frames divided by 255 give p(R), half and half, when standardised ones already give p(R|s)."""
    known = {}
    for standardise in (True, False):
        config = DiscreteConfig(
            steps=50, batch_size=32, log_every=10, device="cpu", standardise_frames=standardise, encoder="light"
        )
        known[standardise] = fit_discrete(config, FrameData(Ball(), False)).metrics[-1]["return_nll"]
    assert known[True] < 0.25 and known[False] > 0.5  # knowing nothing but p(R) costs log 2 = 0.69


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("pixels", [False, True])
def test_training_never_looks_at_a_value(data, kind: dict, pixels: bool) -> None:
    """On the meta device a tensor left on the CPU, or a Python branch on a value, raises."""
    config = tiny(**kind)
    source = frame_data(config) if pixels else data
    modules = {name: module.to("meta") for name, module in initial_modules(config, source).items()}
    trained = [weight for module in modules.values() for weight in module.parameters() if weight.requires_grad]
    batch = source.sample(5, torch.Generator().manual_seed(0)).to("meta")
    parts = discrete_step(config, modules, torch.optim.Adam(trained), batch, 0.95)
    assert parts["loss"].device.type == "meta"


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(data, tmp_path: Path) -> None:
    fit_discrete(tiny(steps=10), data, tmp_path / "run")
    before = (tmp_path / "run/checkpoint.safetensors").read_bytes()
    broken = VectorData(replace(data.dataset, observations=data.dataset.observations.clone().fill_(float("nan"))))
    broken.standardisation = data.standardisation  # type: ignore[method-assign]
    with pytest.raises(
        FloatingPointError, match=r"loss became nan at step 11 \(batch of transitions .*last good checkpoint is"
    ):
        fit_discrete(tiny(), broken, tmp_path / "run", resume=True)
    assert (tmp_path / "run/checkpoint.safetensors").read_bytes() == before


def test_vector_data_hands_out_whole_transitions(data) -> None:
    made = data.dataset
    batch = data.batch(torch.arange(len(made)))
    last = made.starts + made.lengths - 1
    torch.testing.assert_close(batch.next_observations[last], made.final_observations)
    inside = torch.ones(len(made), dtype=torch.bool)
    inside[last] = False
    torch.testing.assert_close(batch.next_observations[inside], made.observations[1:][inside[:-1]])
    # R_t = r_t + gamma R_{t+1}: what makes the two learners agree
    following = torch.where(inside, torch.roll(batch.returns, -1), 0)
    torch.testing.assert_close(batch.rewards + 0.95 * following, batch.returns)
    assert torch.equal(batch.done, made.terminations)
    drawn = data.sample(200, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.observations, made.observations[drawn.indices])


# -- loading and bad input -----------------------------------------------------------------------------------------


def test_runs_load_and_each_loader_names_the_other(data, tmp_path: Path) -> None:
    run = fit_discrete(tiny(), data, tmp_path / "run")
    again = load_discrete_run(tmp_path / "run", "cpu")
    assert again.config == run.config and again.metrics == run.metrics
    observations = data.dataset.observations[:9]
    torch.testing.assert_close(again.model(observations).logits, run.model(observations).logits)
    export_model(tmp_path / "run", tmp_path / "small.safetensors")
    small = load_discrete_run(tmp_path / "small.safetensors", "cpu")
    torch.testing.assert_close(small.model(observations).logits, run.model(observations).logits, atol=0.02, rtol=0)
    with pytest.raises(CheckpointError, match="load_discrete_run reads it"):
        load_run(tmp_path / "run")
    from brrcrl_lib.build import TrainConfig

    continuous = TrainConfig(steps=2, batch_size=4, negatives=2, hidden=(4, 4), device="cpu")
    fit(continuous, synthetic_dataset(), tmp_path / "continuous")
    with pytest.raises(CheckpointError, match="load_run reads it"):
        load_discrete_run(tmp_path / "continuous")


def test_a_run_is_never_overwritten_or_mixed(data, tmp_path: Path) -> None:
    fit_discrete(tiny(steps=10), data, tmp_path)
    with pytest.raises(FileExistsError, match="--resume"):
        fit_discrete(tiny(), data, tmp_path)
    with pytest.raises(CheckpointError, match="learner: monte_carlo before, distributional_td now"):
        fit_discrete(tiny(learner="distributional_td"), data, tmp_path, resume=True)


@pytest.mark.parametrize(("options", "message"), [
    ({"learner": "montecarlo"}, "did you mean 'monte_carlo'"),
    ({"method": "bayes"}, "did you mean 'bayesian'"),
    ({"encoder": "naturecnn"}, "did you mean 'nature'"),
    ({"next_policy": "clone"}, "did you mean 'cloned'"),
    ({"target_every": 0}, "target_every must be at least 1"),
    ({"return_weight": -1.0}, "return_weight must be 0 or more"),
    ({"buckets": 1}, "at least 2 buckets"),
])  # fmt: skip
def test_wrong_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**options)


def test_wrong_data_is_refused() -> None:
    with pytest.raises(ValueError, match="continuous actions"):
        VectorData(synthetic_dataset())
    with pytest.raises(ValueError, match="with_next=True"):
        fit_discrete(tiny(learner="distributional_td"), FrameData(Store(), with_next=False))
    with pytest.raises(ValueError, match="counted from 1"):
        VectorData(replace(discrete_dataset(), action_low=torch.tensor([1.0])))


def test_ranges(data) -> None:
    assert paper_range("ALE/Breakout-v5") == (0.0, 10.0) == paper_range(None)
    assert paper_range("ALE/Pong-v5") == paper_range("PongNoFrameskip-v4") == (-1.25, 1.25)
    low, high = paper_range("pong")
    # a point at least 35 decisions after the last one, forever: the largest return there can be
    assert high > sum(0.95 ** (35 * k) for k in range(100)) > 0.95 * high
    assert float(ReturnBuckets(low, high, 51, "paper_grid").lower_edges()[25]) == pytest.approx(0, abs=1e-6)
    own = make_discrete_buckets(tiny(), data)
    assert own.count_outside(data.rtg)[:2] == (0, 0) and own.high < 20
    assert (make_discrete_buckets(tiny(value_range=(1.0, 5.0)), data).high) == 5.0


def test_presets_hold_only_differences() -> None:
    defaults = DiscreteConfig()
    assert with_preset(DiscreteConfig, "laptop") == defaults == with_preset(DiscreteConfig, "recorded")
    for preset, differences in DiscreteConfig.presets.items():
        config = with_preset(DiscreteConfig, preset)
        for name, value in differences.items():
            assert getattr(config, name) == value != getattr(defaults, name), f"{preset}.{name}"
    paper = with_preset(DiscreteConfig, "paper")
    sizes = (paper.steps, paper.batch_size, paper.learning_rate, paper.return_weight, paper.target_every, paper.buckets)
    assert sizes == (3_000_000, 32, 2.5e-4, 20.0, 8_000, 51)
    td = with_preset(DiscreteConfig, "paper", learner="distributional_td")
    assert (td.penalty, paper.penalty) == (0.5, 0.0)


def test_about_tells_what_the_buckets_leave_out(data) -> None:
    about = fit_discrete(tiny(value_range=(0.0, 5.0)), data).about
    above = int((data.rtg > 5).sum())
    assert f"{above:,} above" in about["outside_buckets"] and above > 0
    assert about["max_return"] == pytest.approx(float(np.max(data.rtg.numpy())))
