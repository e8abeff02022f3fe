"""Training, the same for every method: deterministic, resumable to the bit, device-agnostic, careful with the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from discrete_cases import discrete_dataset
from frame_cases import random_frames
from safetensors.torch import save_file
from synthetic import synthetic_dataset

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.checkpoints import Checkpoint, CheckpointError
from brrcrl_lib.data.batch import KINDS, Source
from brrcrl_lib.methods.base import Method, config_for, create, methods
from brrcrl_lib.training import HELD_OUT_BATCHES, Trainer, export_model, fit, load_run, split

TINY = {"steps": 20, "batch_size": 16, "log_every": 5, "checkpoint_every": 10, "device": "cpu"}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "br_rcrl": [{"objective": "authors", "components": 2}, {"objective": "paper"}],
    "br_rcrl_joint": [
        {"objective": "monte_carlo"},
        {"objective": "distributional_td", "target_every": 7},
        {"objective": "distributional_td", "target_every": 7, "next_policy": "own"},
    ],
}
"""Settings that lead through other code; methods that are not listed have one way to learn."""
CASES = [
    pytest.param(name, kind, variant, id=f"{name}-{kind}-{number}")
    for name, method in methods().items()
    for kind in method.kinds
    for number, variant in enumerate(VARIANTS.get(name, [{}]))
]
VECTORS = [case for case in CASES if case.values[1] != "pixels"]


def source_of(kind: str) -> Source:
    return {"box": synthetic_dataset, "discrete": discrete_dataset, "pixels": random_frames}[kind]()


def tiny(name: str, kind: str, **options: Any) -> Any:
    """The smoke configuration, smaller still."""
    sizes = {"hidden": (8, 8)} if hasattr(methods()[name].Config, "hidden") else {}
    return config_for(name, "smoke", kind, **{**TINY, **sizes, "discount": None, **options})


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return Checkpoint.load(path / "checkpoint.safetensors").tensors


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


class Interrupted(Exception):
    """What happens to trainings."""


@pytest.mark.parametrize(("name", "kind", "variant"), VECTORS)
def test_an_interrupted_run_resumes_to_the_same_bits(
    name: str, kind: str, variant: dict, tmp_path: Path, monkeypatch
) -> None:
    """Every network and every optimiser, after an interruption at step 13 of 20 with a checkpoint at 10."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = tiny(name, kind, **variant)
    fit(config, source_of(kind), whole)

    def advance(self: Trainer, usual: Any = Trainer.advance) -> Any:
        if self.step == 13:
            raise Interrupted
        return usual(self)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Trainer, "advance", advance)
        fit(config, source_of(kind), parts)
    fit(config, source_of(kind), parts, resume=True)
    assert_same(tensors(whole), tensors(parts))
    assert (whole / "metrics.csv").read_text() == (parts / "metrics.csv").read_text()
    sections = {key.split("/")[0] for key in tensors(whole)}
    method = load_run(whole, "cpu").method
    assert "optimizers" not in vars(method) or config.weight_decay is not None, "playing needs none; they load slowly"
    assert sections == {*method.modules, "optimizer", "generator"}
    assert {key.split("/")[1] for key in tensors(whole) if key.startswith("optimizer/")} == set(method.optimizers)


@pytest.mark.parametrize(("name", "kind", "variant"), VECTORS)
def test_a_run_that_is_extended_equals_a_long_one_or_is_refused(name: str, kind: str, variant: dict, tmp_path) -> None:
    long, short = tmp_path / "long", tmp_path / "short"
    fit(tiny(name, kind, **variant, steps=10), source_of(kind), short)
    if not methods()[name].may_be_extended:
        with pytest.raises(CheckpointError, match="steps: 10 before, 20 now"):
            fit(tiny(name, kind, **variant), source_of(kind), short, resume=True)
        return
    fit(tiny(name, kind, **variant), source_of(kind), short, resume=True)
    fit(tiny(name, kind, **variant), source_of(kind), long)
    assert_same(tensors(long), tensors(short))


def test_kill_nine_and_resume_give_the_same_weights(tmp_path: Path) -> None:
    steps = 3_000
    settings = {**TINY, "negatives": 4, "hidden": (8, 8)}
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from pathlib import Path
from synthetic import synthetic_dataset
from brrcrl_lib.methods.br_rcrl import BrRcrlConfig
from brrcrl_lib.training import fit
fit(BrRcrlConfig(**{ {**settings, "steps": steps}!r}), synthetic_dataset(), Path({str(tmp_path / "killed")!r}))
"""
    root = Path(__file__).parent.parent.parent
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=root)
    checkpoint = tmp_path / "killed/checkpoint.safetensors"
    while not checkpoint.exists():
        assert process.poll() is None, "training ended before it could be killed"
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = Checkpoint.load(checkpoint).about["step"]
    assert 0 < reached < steps, "killed too late to show anything"
    config = methods()["br_rcrl"].Config(**{**settings, "steps": reached + 15})
    fit(config, synthetic_dataset(), tmp_path / "killed", resume=True)
    fit(config, synthetic_dataset(), tmp_path / "whole")
    assert_same(tensors(tmp_path / "whole"), tensors(tmp_path / "killed"))


@pytest.mark.parametrize(("name", "kind", "variant"), VECTORS)
def test_seeds_decide_everything(name: str, kind: str, variant: dict) -> None:
    config = tiny(name, kind, **variant, steps=12)  # two of them behind the warm-ups
    torch.manual_seed(1)
    one = fit(config, source_of(kind)).method.modules
    torch.manual_seed(2)  # the global generator must not matter
    two = fit(config, source_of(kind)).method.modules
    other = fit(replace(config, seed=1), source_of(kind)).method.modules
    for part in one:
        assert_same(one[part].state_dict(), two[part].state_dict())
        assert any(not torch.equal(a, b) for a, b in zip(one[part].parameters(), other[part].parameters(), strict=True))


@pytest.mark.parametrize(("name", "kind", "variant"), CASES)
def test_training_and_acting_never_look_at_a_value(name: str, kind: str, variant: dict) -> None:
    """On the meta device a tensor left on the CPU, or a Python branch on a value, raises."""
    source = source_of(kind)
    method = create(tiny(name, kind, **variant), source.facts())
    facts = method.facts
    method.modules = {part: module.to("meta") for part, module in method.modules.items()}
    method.device = torch.device("meta")
    method.optimizers = method.make_optimizers()
    if any("fused" in group for optimizer in method.optimizers.values() for group in optimizer.param_groups):
        for optimizer in method.optimizers.values():
            for group in optimizer.param_groups:
                group["fused"] = False  # the fused kernel has no meta version
    batch = source.sample(5, torch.Generator().manual_seed(0), method.needs).to("meta")
    for step in (0, 1):
        assert method.update(batch, step, None)["loss"].device.type == "meta"
    policy = method.policy(method.Act(), None)
    policy.reset(3)
    dtype = torch.uint8 if kind == "pixels" else torch.float32
    actions = policy.act(torch.zeros(3, *facts.observation_shape, dtype=dtype, device="meta"))
    assert actions.device.type == "meta" and len(actions) == 3


@pytest.mark.parametrize(("name", "kind", "variant"), CASES)
def test_a_run_loads_and_acts_as_it_did(name: str, kind: str, variant: dict, tmp_path: Path) -> None:
    source = source_of(kind)
    run = fit(tiny(name, kind, **variant, steps=2, batch_size=4), source, tmp_path)
    again = load_run(tmp_path, "cpu")
    assert (again.config, again.metrics, again.facts) == (run.config, run.metrics, run.facts)
    observations = source.sample(6, torch.Generator().manual_seed(0)).observations
    acts = []
    for one in (run, again):
        policy = one.policy(seed=3)
        policy.reset(6)
        acts.append(policy.act(observations))
    assert torch.equal(*acts)
    export_model(tmp_path, tmp_path / "small.safetensors")
    assert (tmp_path / "small.safetensors").stat().st_size < (tmp_path / "checkpoint.safetensors").stat().st_size / 3
    small = load_run(tmp_path / "small.safetensors", "cpu").policy(seed=3)
    small.reset(6)
    if kind == "box":
        torch.testing.assert_close(small.act(observations), acts[0], atol=0.05, rtol=0)
    assert small.act(observations).shape == acts[0].shape


@pytest.mark.parametrize(("name", "kind", "variant"), [case for case in VECTORS if case.values[0] in VARIANTS])
def test_learning_lowers_the_loss(name: str, kind: str, variant: dict) -> None:
    config = tiny(name, kind, **variant, steps=300, hidden=(32, 32), log_every=50, learning_rate=2e-3)
    run = fit(config, source_of(kind))
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"] - 0.02


# -- decay, averages, held-out episodes ----------------------------------------------------------------------------

SWITCHES: list[dict[str, Any]] = [
    {"weight_decay": 0.1},
    {"ema": 0.9},
    {"patience": 3},
    {"weight_decay": 0.1, "ema": 0.9, "patience": 3},
]


@pytest.mark.parametrize("switched", SWITCHES, ids=lambda switched: "+".join(switched))
@pytest.mark.parametrize(("name", "kind"), [("br_rcrl", "box"), ("br_rcrl_joint", "discrete")])
def test_an_interrupted_run_resumes_to_the_same_bits_with_each_switch(
    name: str, kind: str, switched: dict, tmp_path: Path, monkeypatch
) -> None:
    config = tiny(name, kind, held_out=0.2, checkpoint_every=5, **switched)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run = fit(config, source_of(kind), whole)

    def advance(self: Trainer, usual: Any = Trainer.advance) -> Any:
        if self.step == 13:
            raise Interrupted
        return usual(self)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Trainer, "advance", advance)
        fit(config, source_of(kind), parts)
    fit(config, source_of(kind), parts, resume=True)
    assert_same(tensors(whole), tensors(parts))
    assert (whole / "metrics.csv").read_text() == (parts / "metrics.csv").read_text()
    kept = {key.split("/")[0] for key in tensors(whole)} - {"optimizer", "generator", *run.method.modules}
    assert kept == {key for key, setting in (("ema", "ema"), ("best", "patience")) if setting in switched}
    # what plays is the same in memory, from disk, and (rounded) when shipped
    assert_same(run.model.state_dict(), load_run(whole, "cpu").model.state_dict())
    export_model(whole, tmp_path / "small.safetensors")
    small = load_run(tmp_path / "small.safetensors", "cpu").model.state_dict()
    for key, value in run.model.state_dict().items():
        torch.testing.assert_close(small[key], value, atol=2e-3, rtol=2e-3)


def history(config: Any, kind: str, monkeypatch) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    """A run, and the trained weights after each of its steps."""
    seen: list[dict[str, torch.Tensor]] = []

    def advance(self: Trainer, usual: Any = Trainer.advance) -> Any:
        found = usual(self)
        seen.append({name: value.clone() for name, value in self.method.model.state_dict().items()})
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", advance)
        return fit(config, source_of(kind)), seen


def test_averages_are_slow_averages_of_every_step(monkeypatch) -> None:
    """The plain mean of ten steps, then nine parts of what was and one of what is."""
    run, seen = history(tiny("br_rcrl", "box", ema=0.9), "box", monkeypatch)
    plain, same = history(tiny("br_rcrl", "box"), "box", monkeypatch)
    for name, played in run.model.state_dict().items():
        average = torch.stack([weights[name].double() for weights in seen[:10]]).mean(0)
        for weights in seen[10:]:
            average = 0.9 * average + 0.1 * weights[name].double()
        torch.testing.assert_close(played.double(), average, atol=1e-6, rtol=1e-5)
        assert torch.equal(seen[-1][name], same[-1][name]), "averaging must not change what is trained"
    assert any(not torch.equal(run.model.state_dict()[name], value) for name, value in plain.model.state_dict().items())


def test_weight_decay_is_adamws() -> None:
    """Against torch's own loop on the same batches, and against Adam where it is zero."""
    source = source_of("box")
    config = tiny("cloning", "box", weight_decay=3.0, held_out=0.0)
    literal = create(config, source.facts())
    optimizer = torch.optim.AdamW(literal.model.parameters(), lr=config.learning_rate, weight_decay=3.0)
    drawn = torch.Generator().manual_seed(config.seed)
    for _ in range(config.steps):
        optimizer.zero_grad()
        literal.loss(source.sample(config.batch_size, drawn), drawn)["loss"].backward()
        optimizer.step()
    found = fit(config, source).model.state_dict()
    for name, value in literal.model.state_dict().items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-5)
    without = (fit(replace(config, weight_decay=decay), source).model.state_dict() for decay in (0.0, None))
    zero, none = without
    for name in none:
        torch.testing.assert_close(zero[name], none[name], atol=1e-6, rtol=1e-5)
    with pytest.raises(KitError, match="td3_bc has optimisers of its own"):
        fit(tiny("td3_bc", "box", weight_decay=0.1), source)


@pytest.mark.parametrize(("patience", "last"), [(1, 20), (2, 25), (5, 30)])
def test_training_stops_where_the_held_out_loss_has_turned(patience: int, last: int, tmp_path, monkeypatch) -> None:
    """The held-out loss is made to fall until step 15 and to rise from then on; checks come every 5 of 30 steps."""
    config = tiny("br_rcrl", "box", steps=30, checkpoint_every=5, held_out=0.2, patience=patience)
    step = {"now": 0}

    def advance(self: Trainer, usual: Any = Trainer.advance) -> Any:
        step["now"] = self.step + 1
        return usual(self)

    kind = methods()["br_rcrl"]

    def loss(self: Any, batch: Any, drawn: Any, usual: Any = kind.loss) -> Any:
        parts = usual(self, batch, drawn)
        if torch.is_grad_enabled():
            return parts
        return {**parts, "return_nll": torch.tensor(abs(step["now"] - 15.0)), "loss": torch.tensor(-step["now"] * 1.0)}

    plain, seen = history(replace(config, patience=None), "box", monkeypatch)
    monkeypatch.setattr(Trainer, "advance", advance)
    monkeypatch.setattr(kind, "loss", loss)
    run = fit(config, source_of("box"), tmp_path)
    assert run.about["step"] == last and run.about["best"] == {"step": 15, "value": 0.0}
    assert_same(run.model.state_dict(), seen[14])
    rows = {row["step"]: row for row in load_run(tmp_path, "cpu").metrics}
    assert [rows[at]["held_out_return_nll"] for at in (5, 10, 15, 20)] == [10, 5, 0, 5]
    assert rows[20]["held_out_loss"] == -20 and "held_out_contrast" in rows[20]
    again = fit(config, source_of("box"), tmp_path, resume=True)  # a run that has stopped stays so
    assert again.about["step"] == last and len(plain.metrics) == 6
    assert_same(again.model.state_dict(), seen[14])
    with pytest.raises(CheckpointError, match="checkpoint_every: 5 before, 10 now"):
        fit(replace(config, checkpoint_every=10), source_of("box"), tmp_path, resume=True)


def test_what_is_watched_is_the_likelihood_of_held_out_returns() -> None:
    """The recorded number is -log p(R|s,a) of held-out transitions alone, and of none that were trained on."""
    dataset = synthetic_dataset()
    config = tiny("br_rcrl", "box", steps=10, held_out=0.3, patience=1)
    run = fit(config, dataset)
    held_out = split(config, dataset)[1]
    drawn = torch.Generator().manual_seed(0)
    values = []
    with torch.no_grad():
        for _ in range(HELD_OUT_BATCHES):
            batch = held_out.sample(config.batch_size, drawn)
            states = run.model.standardise(batch.observations)
            log_returns = run.model.returns.log_probs(run.model.returns.encode(states), batch.actions.unsqueeze(1))
            labels = run.model.buckets.encode(batch.returns)
            values.append(-log_returns[torch.arange(len(labels)), 0, labels].mean())
    assert run.metrics[-1]["held_out_return_nll"] == pytest.approx(float(torch.stack(values).mean()), abs=1e-5)


# -- bad input ---------------------------------------------------------------------------------------------------


def broken(kind: str) -> Any:
    """Observations that are not numbers, and statistics that are."""
    source: Any = source_of(kind)
    standard = source.standardisation()
    made = replace(source, observations=torch.full_like(source.observations, float("nan")))
    object.__setattr__(made, "standardisation", lambda: standard)
    return made


@pytest.mark.parametrize(("name", "kind"), [("br_rcrl", "box"), ("br_rcrl_joint", "discrete")])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(name: str, kind: str, tmp_path) -> None:
    fit(tiny(name, kind, steps=10, held_out=0.0), source_of(kind), tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(
        FloatingPointError, match=r"loss became nan at step 11 \(batch of transitions .*last good checkpoint is"
    ):
        fit(tiny(name, kind, held_out=0.0), broken(kind), tmp_path, resume=True)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_a_run_is_never_overwritten_or_mixed(tmp_path: Path) -> None:
    dataset = synthetic_dataset()
    fit(tiny("br_rcrl", "box", steps=10), dataset, tmp_path)
    with pytest.raises(FileExistsError, match="--resume"):
        fit(tiny("br_rcrl", "box"), dataset, tmp_path)
    for config, data, message in (
        (tiny("br_rcrl", "box", objective="paper"), dataset, "objective: authors before, paper now"),
        (tiny("br_rcrl", "box", discount=0.9), replace(dataset, discount=0.9), "discount: None before, 0.9 now"),
        (tiny("cloning", "box"), dataset, "method: br_rcrl before, cloning now"),
        (tiny("br_rcrl", "box"), replace(dataset, id="other-v0"), "dataset: test/synthetic-v0 before, other-v0 now"),
    ):
        with pytest.raises(CheckpointError, match=message):
            fit(config, data, tmp_path, resume=True)


def test_broken_checkpoints_are_named(tmp_path: Path) -> None:
    fit(tiny("br_rcrl", "box", steps=10), synthetic_dataset(), tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    (tmp_path / "half").mkdir()
    whole = path.read_bytes()
    (tmp_path / "half/checkpoint.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="corrupt or cut short"):
        load_run(tmp_path / "half")
    loaded = Checkpoint.load(path)  # maps the file, which is written anew below
    stored = Checkpoint({name: tensor.clone() for name, tensor in loaded.tensors.items()}, loaded.about)
    save_file(stored.tensors, path, metadata={"format": "0", "about": "{}"})
    with pytest.raises(CheckpointError, match="format 0"):
        load_run(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_run(tmp_path / "nowhere")
    for change, message in (
        ({"method": "br_rcl"}, "unknown method 'br_rcl'; did you mean 'br_rcrl'"),
        ({"config": {"steps": 10, "hope": 1}}, "does not fit this version"),
        ({"facts": {}}, "does not fit this version"),
    ):
        Checkpoint(stored.tensors, {**stored.about, **change}).save(path)
        with pytest.raises(KitError, match=message):
            load_run(tmp_path)
    Checkpoint(stored.tensors, {key: value for key, value in stored.about.items() if key != "method"}).save(path)
    with pytest.raises(CheckpointError, match="does not say which method"):
        load_run(tmp_path)


@pytest.mark.parametrize(("name", "kind", "message"), [
    ("br_rcrl", "discrete", "br_rcrl needs continuous actions; test/discrete-v0 has vectors and discrete actions"),
    ("br_rcrl_joint", "box", "br_rcrl_joint needs discrete actions; test/synthetic-v0 has vectors and a box"),
])  # fmt: skip
def test_data_that_a_method_cannot_take_is_refused(name: str, kind: str, message: str) -> None:
    with pytest.raises(KitError, match=message):
        fit(tiny(name, kind), source_of(kind))


@pytest.mark.parametrize(("options", "message"), [
    ({"discount": 0.9}, "test/synthetic-v0 was opened with discount 0.99 and the configuration says 0.9;"),
    ({"reward_clip": 1.0}, "test/synthetic-v0 was opened with reward_clip 0 and the configuration says 1;"),
])  # fmt: skip
def test_data_that_count_returns_otherwise_are_refused(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(KitError, match=message):
        fit(tiny("cloning", "box", **options), synthetic_dataset(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert len(fit(tiny("cloning", "box", discount=0.99, reward_clip=0.0), synthetic_dataset()).metrics) == 4


@pytest.mark.parametrize(("name", "options", "message"), [
    ("br_rcrl", {"objective": "author"}, "did you mean 'authors'"),
    ("br_rcrl", {"fusion": "latte"}, "did you mean 'late'"),
    ("br_rcrl", {"bucket_range": "papers"}, "did you mean 'paper'"),
    ("br_rcrl", {"steps": 0}, "steps must be at least 1"),
    ("br_rcrl", {"uniform_share": 1.2}, "uniform_share must lie in"),
    ("br_rcrl", {"hidden": (8,)}, "at least two layers"),
    ("br_rcrl", {"log_std_range": (2.0, -2.0)}, "log_std_range must rise"),
    ("br_rcrl", {"return_weight": -1.0}, "return_weight must be at least 0"),
    ("cloning", {"learning_rate": -1.0}, "learning_rate must lie in"),
    ("cloning", {"learning_rate": float("nan")}, "learning_rate must lie in"),
    ("cloning", {"held_out": 1.0}, "held_out must lie in"),
    ("cloning", {"top_share": 0.0}, "top_share must lie in"),
    ("cloning", {"seed": -1}, "seed must lie in"),
    ("cloning", {"weight_decay": -1.0}, "weight_decay must lie in"),
    ("cloning", {"ema": 1.0}, "ema must lie in"),
    ("cloning", {"patience": 0}, "patience must be at least 1"),
    ("cloning", {"patience": 2, "held_out": 0.0}, "set held_out above 0"),
    ("cloning", {"hidden": (8, 0)}, "at least one unit"),
    ("vanilla", {"buckets": 1}, "at least 2 buckets"),
    ("br_rcrl_joint", {"objective": "montecarlo"}, "did you mean 'monte_carlo'"),
    ("br_rcrl_joint", {"encoder": "naturecnn"}, "did you mean 'nature'"),
    ("br_rcrl_joint", {"next_policy": "clone"}, "did you mean 'cloned'"),
    ("br_rcrl_joint", {"target_every": 0}, "target_every must be at least 1"),
])  # fmt: skip
def test_wrong_settings_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(KitError, match=message):
        methods()[name].Config(**options)


# -- presets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", methods().values(), ids=lambda method: method.name)
def test_presets_hold_only_differences(method: type[Method]) -> None:
    """Each entry is a preset, a kind of data, or both; it names fields, and says nothing that was so anyway."""
    entries, defaults = method.Config.presets, method.Config()
    presets = ("smoke", "released", "paper")
    sizes = {*presets, *KINDS} | {f"{size} {kind}" for size in presets for kind in KINDS}
    assert set(entries) <= sizes
    for entry, differences in entries.items():
        size, _, kind = entry.partition(" ")
        for name, value in differences.items():
            before = [entries.get(less, {}).get(name) for less in ((size, kind) if kind else ())]
            assert value != getattr(defaults, name) or any(one not in (None, value) for one in before), (entry, name)


def test_the_paper_preset_has_the_papers_sizes() -> None:
    paper = config_for("br_rcrl", "paper", "box")
    assert (paper.steps, paper.batch_size, paper.negatives, paper.learning_rate) == (70_000, 512, 256, 5e-4)
    games = config_for("br_rcrl_joint", "paper", "pixels")
    sizes = (games.steps, games.batch_size, games.learning_rate, games.return_weight, games.target_every, games.buckets)
    assert sizes == (3_000_000, 32, 2.5e-4, 20.0, 8_000, 51)
    td = config_for("br_rcrl_joint", "paper", "pixels", objective="distributional_td")
    assert (td.penalty, games.penalty) == (0.5, 0.0)
    rival = config_for("vanilla", "paper", "pixels")
    assert (rival.steps, rival.batch_size, rival.encoder, rival.buckets) == (3_000_000, 32, "nature", 51)


def test_the_released_preset_follows_the_released_code() -> None:
    """As DEVIATIONS.md lists it; 40 epochs of 150,000 transitions in batches of 512 are 11,719 steps."""
    ours = config_for("br_rcrl", "released", "box")
    assert (ours.objective, ours.batch_size, ours.fusion, ours.bucket_range) == ("authors", 512, "early", "authors")
    assert ours.hidden == (256, 256, 256) and ours.learning_rate == 5e-4 and ours.share_of_uniform == 0.5
    assert 11_719 <= ours.steps <= 12_000
    games = config_for("br_rcrl_joint", "released", "pixels")
    assert (games.objective, games.penalty, games.batch_size) == ("distributional_td", 0.5, 32)
    assert (games.encoder, games.next_policy, games.return_weight) == ("nature", "cloned", 20.0)
