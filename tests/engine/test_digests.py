"""Nothing moves that was measured: weights after 25 steps, and actions after that, are those on record.

Recorded results rest on these numbers, so a change of a digest is a change of every result, and must be explained in
CHANGELOG.md. Digests hold on CPUs that add up floating-point numbers in the same order (`probe` tells); on others
the norm of the weights and the sum of the actions are compared instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from discrete_cases import discrete_dataset
from frame_cases import small_store
from synthetic import synthetic_dataset

from brrcrl_lib.data.frame_source import FrameSource
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.methods.base import config_for
from brrcrl_lib.training import Run, fit

RECORDED = json.loads(Path(__file__).with_name("digests.json").read_text())
SIZES = {"steps": 25, "batch_size": 16, "hidden": (8, 8), "seed": 3, "device": "cpu"}
SQUASHED = {"objective": "paper", "squash": True, "uniform_share": 0.25, "return_weight": 0.0, "top_share": 0.5,
            "bucket_scheme": "paper_grid"}  # fmt: skip
BOX: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # name: (method, training, act)
    "br_rcrl/authors": ("br_rcrl", {"negatives": 4}, {}),
    "br_rcrl/paper": ("br_rcrl", {"negatives": 4, "objective": "paper"}, {"target": "max"}),
    "br_rcrl/early mixture": (
        "br_rcrl",
        {"negatives": 4, "fusion": "early", "components": 2},
        {"source": "value_model", "mode": "sample"},
    ),
    "br_rcrl/squash": ("br_rcrl", {"negatives": 4, **SQUASHED}, {"optimizer": "dfo", "samples": 64}),
    "vanilla/box": ("vanilla", {}, {"target": "dt_schedule"}),
    "vanilla/box adaptive": ("vanilla", {"held_out": 0.0}, {}),
    "cloning/box": ("cloning", {}, {}),
}
TD = {"objective": "distributional_td", "target_every": 5}
SETS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "br_rcrl_joint/monte_carlo": ("br_rcrl_joint", {}, {}),
    "br_rcrl_joint/td cloned": ("br_rcrl_joint", TD, {"target": "max", "mode": "sample", "epsilon": 0.2}),
    "br_rcrl_joint/td own": ("br_rcrl_joint", {**TD, "next_policy": "own", "action_penalty": 0.1}, {"clone": True}),
    "vanilla": ("vanilla", {}, {"target": "dt_schedule"}),
    "cloning": ("cloning", {}, {"mode": "sample"}),
}


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Of the values alone, whatever the tensors are called and in whichever order they come."""
    parts = sorted(hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest() for tensor in tensors)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def probe() -> str:
    """The digest of a matrix product and a convolution: equal on CPUs on which the digests below hold."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(64, 33, generator=generator), torch.randn(33, 17, generator=generator)
    frames = torch.randn(2, 4, 84, 84, generator=generator)
    filters = torch.randn(16, 4, 8, 8, generator=generator)
    return digest([(left @ right).softmax(-1).log(), torch.nn.functional.conv2d(frames, filters, stride=4)])


def check(name: str, run: Run, act: dict[str, Any], observations: torch.Tensor) -> None:
    policy = run.policy(run.method.Act(**act), seed=5)
    policy.reset(6)
    first = policy.act(observations[:6])
    policy.observe(torch.ones(6))
    actions = torch.cat([first, policy.act(observations[6:12])])
    weights = [weight.detach() for weight in run.model.parameters()]
    norm = float(torch.stack([weight.double().square().sum() for weight in weights]).sum().sqrt())
    expected = RECORDED[name]
    if probe() == RECORDED["probe"]:
        assert (digest(weights), digest([actions])) == (expected["weights"], expected["actions"])
    assert norm == pytest.approx(expected["norm"], rel=1e-4)
    if actions.is_floating_point():
        assert float(actions.double().sum()) == pytest.approx(expected["action_sum"], abs=0.1)


@pytest.mark.parametrize("name", BOX)
def test_a_box_of_actions(name: str) -> None:
    method, training, act = BOX[name]
    dataset = synthetic_dataset()
    run = fit(config_for(method, "laptop", "box", **{**SIZES, **training}), dataset)
    check(name, run, act, dataset.observations)


@pytest.mark.parametrize("name", SETS)
def test_a_discrete_set_of_actions(name: str) -> None:
    method, training, act = SETS[name]
    dataset = discrete_dataset()
    run = fit(config_for(method, "laptop", "discrete", **{**SIZES, **training}), dataset)
    check(f"{name}/vector", run, act, dataset.observations)


@pytest.fixture(scope="module")
def pong(tmp_path_factory) -> FrameStore:
    folder = tmp_path_factory.mktemp("pong")
    return small_store(folder / "frames", "pong", folder / "policies")


@pytest.mark.parametrize("name", SETS)
def test_frames_and_buttons(name: str, pong: FrameStore) -> None:
    method, training, act = SETS[name]
    source = FrameSource(FrameStore(pong.folder, discount=0.95, clip_rewards=True))
    run = fit(config_for(method, "laptop", "pixels", **{**SIZES, **training}), source)
    check(f"{name}/pixels", run, act, pong.observations(np.arange(40, 52)))
