"""Spoiled checkpoints and metrics, full disks, settings out of reach: one sentence each, and nothing is lost."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call
from minari_cases import made_up_episodes, write
from synthetic import synthetic_dataset

from brrcrl_lib import cli
from brrcrl_lib.base.devices import pick_device
from brrcrl_lib.base.environments import make_env
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.tensors import load_tensors, save_tensors
from brrcrl_lib.checkpoints import Checkpoint
from brrcrl_lib.evaluate import environment_for
from brrcrl_lib.methods.base import config_for
from brrcrl_lib.methods.br_rcrl import BrRcrlAct
from brrcrl_lib.training import export_model, fit, load_run

CONFIG = config_for("br_rcrl", "smoke", "box", steps=4, hidden=(8, 8), log_every=2, checkpoint_every=2, device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    fit(CONFIG, synthetic_dataset(), folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def spoil(run: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> None:
    """Change what a checkpoint says about itself, or its tensors, in place."""
    path = run / "checkpoint.safetensors"
    metadata, tensors = load_tensors(path)
    about = json.loads(metadata["about"])
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(about, tensors)
    save_tensors(path, tensors, {**metadata, "about": json.dumps(about)})


def weight(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return next(value for name, value in tensors.items() if name.startswith("model/") and value.is_floating_point())


def resume(run: Path) -> None:
    fit(replace(CONFIG, steps=6), synthetic_dataset(), run, resume=True)


@pytest.mark.parametrize(("change", "message"), [
    (lambda about, _: about.clear(), r"\(about\) lacks the field 'dataset'"),
    (lambda about, _: about.update(facts=[]), "the field 'facts' must be an object"),
    (lambda about, _: about.update(step="4"), "the field 'step' must be a whole number"),
    (lambda about, _: about.update(method=["x"]), "the field 'method' must be"),
    (lambda about, _: about.update(best={"step": 1}), "lacks the field 'value'"),
    (lambda about, _: about["facts"].pop("discount"), "does not fit this version .*lacks the field 'discount'"),
    (lambda about, _: about["facts"].update(env="os:X-v0"), "the field 'env' must be"),
    (lambda about, _: about["facts"].update(return_range=[0, float("nan")]), "the field 'return_range' must be"),
    (lambda about, _: about["facts"].update(action_high=[1.0]), "neither a box of actions nor how many"),
    (lambda about, _: about["facts"].update(observation_shape=[17]), "has other weights than br_rcrl"),
    (lambda about, _: about["config"].update(hidden="wide"), "does not fit this version"),
    (lambda about, _: about["config"].update(steps="many"), "does not fit this version"),
    (lambda about, _: about["config"].update(hidden=[10**9, 10**9]), "has other weights than br_rcrl"),
    (lambda about, _: about["config"].update(hidden=[10**15, 10**15]), "networks that cannot be built"),
    (lambda _, tensors: weight(tensors).fill_(float("nan")), "not a number"),
])  # fmt: skip
def test_a_model_with_wrong_metadata_or_weights_is_not_loaded(run: Path, change: Any, message: str) -> None:
    spoil(run, change)
    with pytest.raises(KitError, match=message):
        load_run(run)


def test_actions_without_bounds_are_no_fault_of_a_model(run: Path) -> None:
    spoil(run, lambda about, _: about["facts"].update(action_low=[-float("inf")] * 3, action_high=[float("inf")] * 3))
    assert load_run(run).facts.action_high == (float("inf"),) * 3


def drop(tensors: dict[str, torch.Tensor], beginning: str) -> None:
    for name in [name for name in tensors if name.startswith(beginning)]:
        del tensors[name]


@pytest.mark.parametrize(("change", "message"), [
    (lambda tensors: drop(tensors, "optimizer/"), "its optimisers are missing"),
    (lambda tensors: tensors.pop("generator"), "generator"),
    (lambda tensors: tensors.update(generator=torch.zeros(3, dtype=torch.uint8)), "RNG state"),
    (lambda tensors: drop(tensors, min(name for name in tensors if name.startswith("model/"))), "Missing key"),
    (lambda tensors: tensors.update({"optimizer/adam/0/exp_avg": torch.zeros(3, 3)}), "no state of a weight"),
    (lambda tensors: tensors.pop("optimizer/adam/0/exp_avg"), "the state of some weights is missing"),
    (lambda tensors: tensors.update({"optimizer/adam/0/exp_avg/more": torch.zeros(3)}), "too many values"),
    (lambda tensors: tensors.update({"optimizer/adam/999/step": torch.zeros(())}), "out of range"),
])  # fmt: skip
def test_a_run_goes_on_from_its_whole_state_or_not_at_all(run: Path, change: Any, message: str) -> None:
    spoil(run, lambda _, tensors: change(tensors))
    with pytest.raises(KitError, match=rf"holds no state of br_rcrl from which to go on \(.*{message}"):
        resume(run)


def test_an_export_is_played_and_never_continued(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "other" / "checkpoint.safetensors")
    assert load_run(tmp_path / "other" / "checkpoint.safetensors").config.hidden == (8, 8)
    with pytest.raises(KitError, match="its optimisers are missing, as in an export"):
        resume(tmp_path / "other")


@pytest.mark.parametrize("content", [b"\xff\x00", b"", b"steps,loss\n1,2\n", b"step,loss\n1,x\n", b"step\ninf\n",
                                     b"step,loss\n1,2,3\n"])  # fmt: skip
def test_metrics_that_are_no_table_are_named(run: Path, content: bytes) -> None:
    (run / "metrics.csv").write_bytes(content)
    for use in (load_run, resume):
        if content:
            with pytest.raises(KitError, match=r"metrics\.csv is no table of metrics"):
                use(run)
        else:
            use(run)


def test_games_are_presented_as_this_kit_can(run: Path) -> None:
    facts = replace(load_run(run).facts, play={"frame_skip": 0})
    with pytest.raises(KitError, match="frame_skip must be"):
        environment_for(facts)
    with pytest.raises(KitError, match="a way that this kit does not know"):
        environment_for(replace(facts, play={"colour": True}))


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu:7", "meta", "cuda:99", "xla", "", "cpu:-1"])
def test_devices_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(KitError, match="device"):
        pick_device(name)
    assert pick_device("cpu") == torch.device("cpu") and pick_device("cpu:0").type == "cpu"


def test_a_share_that_leaves_next_to_nothing_is_refused() -> None:
    with pytest.raises(KitError, match="held_out must lie in"):
        replace(CONFIG, held_out=0.99999999)


@pytest.mark.parametrize("flag", ["--states", "--draws", "--literal-states", "--repeats"])
def test_a_benchmark_of_nothing_is_refused(flag: str, capsys) -> None:
    assert call("bench", flag, -1) == call("bench", flag, 10**9) == 2
    assert f"{flag[2:].replace('-', '_')} must be a whole number from 1 to 10,000" in capsys.readouterr().err


def test_what_takes_all_memory_is_one_sentence_and_other_errors_are_bugs(monkeypatch, capsys) -> None:
    def fail(error: Exception) -> Any:
        def raising(config: Any) -> None:
            raise error

        return raising

    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")):
        monkeypatch.setattr("brrcrl_lib.commands.list_methods", fail(error))
        assert call("methods") == 2
        assert capsys.readouterr().err == "brrcrl methods: this takes more memory than there is; ask for less\n"
    monkeypatch.setattr("brrcrl_lib.commands.list_methods", fail(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["methods"])


def test_numbers_beyond_64_bits_are_refused(tmp_path: Path, capsys) -> None:
    assert call("train", "cloning", "--dataset", "x/y-v0", "--out", tmp_path / "run", "--batch-size", 10**20) == 2
    assert call("data", "verify", "--replay-episodes", 10**20) == 2
    assert "got 100000000000000000000, which is too large" in capsys.readouterr().err


# -- a full disk ---------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, monkeypatch) -> str:
    env = make_env("Pendulum-v1")
    write(tmp_path / "minari", "test/pendulum-v0", made_up_episodes(env), env)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return "test/pendulum-v0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="files are limited per process")
def test_a_disk_without_room_ends_in_a_sentence_and_keeps_the_last_checkpoint(data: str, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: writing raises in the middle of a file."""
    run, out, said = tmp_path / "run", tmp_path / "x.safetensors", tmp_path / "said"
    train = ("train", "cloning", "--dataset", data, "--preset", "smoke", "--device", "cpu", "--out", run)
    assert call(*train) == 0
    before = (run / "checkpoint.safetensors").read_bytes()
    export_model(run, tmp_path / "whole")
    room = (tmp_path / "whole").stat().st_size - 500
    for words, limit in (((*train, "--resume", "--steps", 80), 10_000), ((*train, "--resume", "--export", out), room)):
        process = os.fork()
        if process == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                with said.open("w", buffering=1) as file, redirect_stderr(file):
                    cli.main([str(word) for word in words])
            except SystemExit as left:
                os._exit(left.code if isinstance(left.code, int) else 1)
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 2, said.read_text()
        assert "File too large" in said.read_text() and "Traceback" not in said.read_text()
        assert (run / "checkpoint.safetensors").read_bytes() == before and not out.exists()
        assert not list(tmp_path.rglob("*.partial"))


def test_the_largest_return_of_a_spoiled_model_is_never_asked_for(run: Path) -> None:
    spoil(run, lambda about, _: about["facts"].update(return_quantiles=[float("nan")] * 101))
    with pytest.raises(KitError, match="the field 'return_quantiles' must be"):
        load_run(run).policy(BrRcrlAct(target="max"))
    assert Checkpoint.load(run / "checkpoint.safetensors").about["method"] == "br_rcrl"
