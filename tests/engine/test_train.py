"""Training: deterministic, resumable to the bit, device-agnostic, and careful with what is on disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from brrcrl_lib.build import METHODS, TrainConfig, make_buckets, make_model
from brrcrl_lib.train import export_model, fit, load_run, training_step
from synthetic import synthetic_dataset

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.checkpoints import Checkpoint, CheckpointError
from brrcrl_lib.inference.optimizers import OPTIMIZERS, make_optimizer
from brrcrl_lib.inference.targets import Adaptive, Constant
from brrcrl_lib.inference.threshold import SOURCES
from brrcrl_lib.policies import BayesianPolicy, CloningPolicy, VanillaPolicy

TINY = {"steps": 20, "batch_size": 16, "negatives": 4, "hidden": (8, 8), "log_every": 5, "checkpoint_every": 10}


def tiny(**options) -> TrainConfig:
    return TrainConfig(**{**TINY, "device": "cpu", **options})


def weights(path: Path) -> dict[str, torch.Tensor]:
    return Checkpoint.load(path / "checkpoint.safetensors").tensors


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_twenty_steps_equal_ten_and_ten_resumed(dataset, tmp_path: Path, method: str) -> None:
    fit(tiny(method=method), dataset, tmp_path / "whole")
    fit(tiny(method=method, steps=10), dataset, tmp_path / "halves")
    fit(tiny(method=method), dataset, tmp_path / "halves", resume=True)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "halves"))
    assert (tmp_path / "whole/metrics.csv").read_text() == (tmp_path / "halves/metrics.csv").read_text()


def test_kill_nine_and_resume_give_the_same_weights(dataset, tmp_path: Path) -> None:
    steps = 3_000
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from synthetic import synthetic_dataset
from brrcrl_lib.build import TrainConfig
from brrcrl_lib.train import fit
config = TrainConfig(**{ {**TINY, "steps": steps, "device": "cpu"}!r})
fit(config, synthetic_dataset(), Path({str(tmp_path / "killed")!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"})
    checkpoint = tmp_path / "killed/checkpoint.safetensors"
    while not checkpoint.exists():
        assert process.poll() is None, "training ended before it could be killed"
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = Checkpoint.load(checkpoint).about["step"]
    assert 0 < reached < steps, "killed too late to show anything"
    end = reached + 15
    fit(tiny(steps=end), dataset, tmp_path / "killed", resume=True)
    fit(tiny(steps=end), dataset, tmp_path / "whole")
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def test_seeds_decide_everything(dataset) -> None:
    torch.manual_seed(1)
    one = fit(tiny(), dataset).model.state_dict()
    torch.manual_seed(2)  # the global generator must not matter
    two = fit(tiny(), dataset).model.state_dict()
    other = fit(tiny(seed=1), dataset).model.state_dict()
    assert_same(one, two)
    assert not torch.equal(one["prior.net.0.weight"], other["prior.net.0.weight"])


@pytest.mark.parametrize("options", [
    {"objective": "paper"}, {"fusion": "early"}, {"components": 2}, {"squash": True},
    {"return_weight": 0.0}, {"uniform_share": 1.0}, {"bucket_scheme": "paper_grid"}, {"bucket_range": "paper"},
    {"mixed_precision": True},
])  # fmt: skip
def test_every_switch_trains(dataset, options: dict) -> None:
    run = fit(tiny(**options), dataset)
    assert len(run.metrics) == 4
    assert all(value == value for row in run.metrics for value in row.values())


def test_learning_lowers_the_loss(dataset) -> None:
    for objective in ("paper", "authors"):
        run = fit(tiny(objective=objective, steps=300, hidden=(32, 32), log_every=50), dataset)
        assert run.metrics[-1]["loss"] < run.metrics[0]["loss"] - 0.3, objective


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("objective", ["paper", "authors"])
def test_training_never_looks_at_a_value(method: str, objective: str) -> None:
    """On the meta device a tensor left on the CPU, or a Python branch on a value, raises."""
    config = tiny(method=method, objective=objective, components=2)
    dataset = synthetic_dataset()
    buckets = make_buckets(config, dataset)
    model = make_model(config, 11, dataset.action_low, dataset.action_high, buckets).to("meta")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    indices = torch.zeros(16, dtype=torch.int64, device="meta")
    parts = training_step(config, model, optimizer, dataset.to("meta"), indices, None)
    assert parts["loss"].device.type == "meta"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("source", SOURCES)
def test_acting_never_looks_at_a_value(optimizer: str, source: str) -> None:
    dataset = synthetic_dataset()
    model = make_model(tiny(), 11, dataset.action_low, dataset.action_high, make_buckets(tiny(), dataset)).to("meta")
    observations = torch.zeros(3, 11, device="meta")
    for mode in ("best", "sample"):
        policy = BayesianPolicy(model, Adaptive(), make_optimizer(optimizer, samples=16), source, mode=mode)
        policy.reset(3)
        assert policy.act(observations).shape == (3, 3)
    assert CloningPolicy(model).act(observations).device.type == "meta"
    vanilla = make_model(tiny(method="vanilla"), 11, dataset.action_low, dataset.action_high, model.buckets).to("meta")
    policy = VanillaPolicy(vanilla, Constant(3.0))
    policy.reset(3)
    assert policy.act(observations).shape == (3, 3)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(dataset, tmp_path: Path) -> None:
    fit(tiny(steps=10), dataset, tmp_path / "run")
    before = (tmp_path / "run/checkpoint.safetensors").read_bytes()
    broken = replace(dataset, observations=dataset.observations.clone().fill_(float("nan")))
    standard = dataset.standardisation()
    object.__setattr__(broken, "standardisation", lambda: standard)
    with pytest.raises(
        FloatingPointError, match=r"loss became nan at step 11 \(batch of transitions .*last good checkpoint is"
    ):
        fit(tiny(), broken, tmp_path / "run", resume=True)
    assert (tmp_path / "run/checkpoint.safetensors").read_bytes() == before


def test_exported_weights_load_and_act_alike(dataset, tmp_path: Path) -> None:
    fit(tiny(), dataset, tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "small.safetensors")
    whole, small = load_run(tmp_path / "run", "cpu"), load_run(tmp_path / "small.safetensors", "cpu")
    assert (tmp_path / "small.safetensors").stat().st_size < (
        tmp_path / "run/checkpoint.safetensors"
    ).stat().st_size / 3
    actions = [CloningPolicy(run.model).act(dataset.observations[:9]) for run in (whole, small)]
    torch.testing.assert_close(*actions, atol=5e-3, rtol=0)
    assert whole.config == tiny() and whole.about["dataset"] == dataset.id


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"objective": "author"}, "did you mean 'authors'"),
    ({"method": "bayes"}, "did you mean 'bayesian'"),
    ({"fusion": "latte"}, "did you mean 'late'"),
    ({"bucket_range": "papers"}, "did you mean 'paper'"),
    ({"steps": 0}, "steps must be at least 1"),
    ({"uniform_share": 1.2}, "uniform_share must lie in"),
    ({"hidden": (8,)}, "at least two layers"),
])  # fmt: skip
def test_wrong_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**options)


def test_discrete_data_is_refused(dataset) -> None:
    discrete = replace(dataset, actions=torch.zeros(len(dataset), dtype=torch.int64))
    with pytest.raises(ValueError, match="discrete actions"):
        fit(tiny(), discrete)


def test_a_run_is_never_overwritten_or_mixed(dataset, tmp_path: Path) -> None:
    fit(tiny(steps=10), dataset, tmp_path)
    with pytest.raises(FileExistsError, match="--resume"):
        fit(tiny(), dataset, tmp_path)
    with pytest.raises(CheckpointError, match="objective: authors before, paper now"):
        fit(tiny(objective="paper"), dataset, tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="dataset: test/synthetic-v0 before, other-v0 now"):
        fit(tiny(), replace(dataset, id="other-v0"), tmp_path, resume=True)


def test_broken_checkpoints_are_named(dataset, tmp_path: Path) -> None:
    fit(tiny(steps=10), dataset, tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="corrupt or cut short"):
        load_run(tmp_path)
    path.write_bytes(whole)
    old = Checkpoint.load(path)
    from safetensors.torch import save_file

    save_file(old.tensors, path, metadata={"format": "0", "about": "{}"})
    with pytest.raises(CheckpointError, match="format 0"):
        load_run(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_run(tmp_path / "nowhere")


def test_presets_hold_only_differences() -> None:
    defaults = TrainConfig()
    assert with_preset(TrainConfig, "laptop") == defaults == with_preset(TrainConfig, "recorded")
    for preset, differences in TrainConfig.presets.items():
        config = with_preset(TrainConfig, preset)
        for name, value in differences.items():
            assert getattr(config, name) == value != getattr(defaults, name), f"{preset}.{name}"
    paper = with_preset(TrainConfig, "paper")
    assert (paper.steps, paper.batch_size, paper.negatives, paper.learning_rate) == (70_000, 512, 256, 5e-4)
