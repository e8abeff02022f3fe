"""What the data commands refuse, in one sentence and before anything on disk has changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch

from brrcrl_lib import cli
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.base.tensors import load_tensors, save_tensors
from brrcrl_lib.tools.agents.atari import AtariActor, untrained
from brrcrl_lib.tools.agents.vectors import Actor, DqnActor, SacActor
from brrcrl_lib.tools.collecting.collect import CollectConfig, collect
from brrcrl_lib.tools.collecting.collect_atari import AtariCollectConfig, collect_atari
from brrcrl_lib.tools.collecting.run_files import read_curve
from brrcrl_lib.tools.importing.d4rl import ImportConfig, import_d4rl
from brrcrl_lib.tools.publishing.cards import CardsConfig, cards
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter
from brrcrl_lib.tools.publishing.pack import PackConfig, UnpackConfig, pack, unpack
from brrcrl_lib.tools.publishing.publish import PublishConfig, publish
from brrcrl_lib.tools.publishing.rollout import RolloutConfig, rollout
from brrcrl_lib.tools.publishing.verify import VerifyConfig, run_verify


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert isinstance(left.value.code, int)
    return left.value.code


def small_store(target: Path) -> Path:
    with FrameWriter(target, {"env": "ALE/Pong-v5"}, (3, 2)) as writer:
        last = np.arange(9) == 8
        writer.append(np.ones((9, 3, 2), np.uint8), np.zeros(9, int), np.zeros(9), last)
        return writer.finish()


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# -- names and folders ---------------------------------------------------------------------------------------------


def test_no_name_leads_out_of_its_folder_or_removes_what_is_no_store(tmp_path) -> None:
    small_store(tmp_path / "frames" / "s")
    pack(PackConfig(tmp_path / "frames" / "s", tmp_path / "s.npz"))
    (tmp_path / "frames" / "thesis").mkdir()
    (tmp_path / "frames" / "thesis" / "chapter.txt").write_text("precious")
    shutil.copy(tmp_path / "s.npz", tmp_path / "..npz")
    before = everything(tmp_path)
    for file, name in (
        *((tmp_path / "s.npz", name) for name in ("..", ".", "", "../x", "/tmp/x", "a/../../x", "thesis")),
        (tmp_path / "..npz", None),
    ):
        with pytest.raises(KitError):
            unpack(UnpackConfig(file, name, tmp_path / "frames", overwrite=True))
    for name in ("..", "../../evil", "", "."):
        with pytest.raises(KitError, match="name must be a name"):
            publish(PublishConfig(tmp_path / "run", name, tmp_path / "minari"))
        with pytest.raises(KitError, match="publish_as must be a name"):
            collect(CollectConfig("Pendulum-v1", tmp_path / "run", publish_as=name))
        ppo = AtariCollectConfig("ALE/Pong-v5", tmp_path / "run", publish_as=name, policies=tmp_path / "policies")
        with pytest.raises(KitError, match="publish_as must be a name"):
            collect_atari(ppo)
    ppo = AtariCollectConfig("ALE/Pong-v5", tmp_path / "run", publish_as="thesis", policies=tmp_path / "frames")
    with pytest.raises(KitError, match=r"has no ladder\.json"):
        collect_atari(ppo)
    assert everything(tmp_path) == before


def test_a_sample_is_never_overwritten_by_its_own_card(tmp_path) -> None:
    small_store(tmp_path / "s")
    with pytest.raises(KitError, match=r"write .*x\.npz"):
        pack(PackConfig(tmp_path / "s", tmp_path / "x.json"))
    assert not (tmp_path / "x.json").exists()


# -- collecting and publishing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["NoSuch-v0", "Hopper-v99", "os:Hopper-v5", "Hopper"])
def test_a_mistyped_environment_leaves_no_trace(tmp_path, env) -> None:
    with pytest.raises(KitError, match="env"):
        collect(CollectConfig(env, tmp_path / "run"), progress=False)
    assert list(tmp_path.iterdir()) == []


def test_more_environments_than_memory_holds_are_refused_before_one_is_made(tmp_path) -> None:
    with pytest.raises(KitError, match="num_envs must be a whole number from 1 to 1,024"):
        rollout(RolloutConfig(tmp_path / "policy", "my/set-v0", num_envs=10**9, root=tmp_path))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("collected") / "run"
    settings: dict[str, Any] = {"hidden": (4,), "batch_size": 8, "random_steps": 200, "evaluation_episodes": 1}
    collect(CollectConfig("Pendulum-v1", folder, steps=200, snapshot_every=200, **settings), progress=False)
    return folder


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", r"config\.json cannot be read as JSON"),
        ("config.json", b"{}", r"config\.json lacks the field 'env'"),
        ("state.safetensors", b"cut", "not a readable safetensors file"),
        ("state.safetensors", None, r"\(progress\) cannot be read as JSON"),
    ],
)
def test_damaged_runs_are_named(run, tmp_path, file, content, message) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    if content is None:
        save_tensors(folder / file, {"x": torch.zeros(1)}, {"other": "kind"})
    else:
        (folder / file).write_bytes(content)
    stored = json.loads((run / "config.json").read_text())
    again = CollectConfig("Pendulum-v1", folder, steps=400, snapshot_every=200, hidden=tuple(stored["hidden"]),
                          batch_size=8, random_steps=200, evaluation_episodes=1)  # fmt: skip
    with pytest.raises(KitError, match=message):
        collect(again, progress=False)
    with pytest.raises(KitError, match=message):
        publish(PublishConfig(folder, "pendulum", tmp_path / "minari"))
    assert not (tmp_path / "minari").exists()


def test_the_same_snapshots_are_the_same_bytes(run, tmp_path) -> None:
    snapshot = next(run.glob("snapshots/*"))
    actor = Actor.load(snapshot)
    actor.save(tmp_path / "again.safetensors", **actor.about)
    assert (tmp_path / "again.safetensors").read_bytes() == snapshot.read_bytes() and read_curve(run)


# -- policies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"about": None}, "about.* cannot be read as JSON"),
        ({"about": "nonsense"}, "about.* cannot be read as JSON"),
        ({"about": "[]"}, "must hold an object"),
        ({"about": '{"env": "os:X-v0"}'}, "the field 'env' must be"),
        ({"about": '{"env": "NoSuch-v0"}'}, "environment 'NoSuch-v0' cannot be made"),
        ({"about": "{}"}, "does not say which environment"),
        ({"hidden": None}, "lacks the field 'hidden'"),
        ({"hidden": "[9]"}, "no policy that fits together"),
        ({"hidden": "[1000000000, 1000000000]"}, "no policy that fits together"),
        ({"hidden": '"x"'}, "the field 'hidden' must be"),
        ({"kind": "DqnActor"}, "no policy that fits together"),
        ({"kind": "Other"}, "holds no SacActor or DqnActor"),
    ],
)
def test_wrong_policies_are_refused_in_one_sentence(tmp_path, change, message) -> None:
    path = tmp_path / "p.safetensors"
    SacActor(3, -np.ones(1), np.ones(1), (4,)).save(path, env="Pendulum-v1")
    metadata, tensors = load_tensors(path)
    changed = {name: text for name, text in (metadata | change).items() if text is not None}
    save_tensors(path, tensors, changed)
    with pytest.raises(KitError, match=message):
        rollout(RolloutConfig(path, "test/x-v0", steps=10, root=tmp_path / "root"))
    assert not (tmp_path / "root").exists()


def test_policies_without_numbers_or_with_another_layout(tmp_path) -> None:
    broken = SacActor(3, -np.ones(1), np.ones(1), ())
    broken.save(tmp_path / "a.safetensors", env="Pendulum-v1")
    assert SacActor.load(tmp_path / "a.safetensors").sizes == (3, 1)
    torch.nn.init.constant_(broken.mean.weight, float("nan"))
    broken.save(tmp_path / "a.safetensors", env="Pendulum-v1")
    with pytest.raises(KitError, match=r"'mean\.weight' are not finite"):
        Actor.load(tmp_path / "a.safetensors")
    DqnActor(4, 2, (3,)).save(tmp_path / "d.safetensors")
    assert Actor.load(tmp_path / "d.safetensors").about == {"epsilon": 0.05}
    untrained(4, channels=(4, 4, 4), units=8).save(tmp_path / "b.safetensors", env="ALE/Pong-v5")
    metadata, tensors = load_tensors(tmp_path / "b.safetensors")
    for layout in ('{"actions": 4}', '{"actions": 4, "channels": [4, 4, 4], "units": 1000000000}', "[]", "x"):
        save_tensors(tmp_path / "b.safetensors", tensors, metadata | {"layout": layout})
        with pytest.raises(KitError, match=r"layout|fits together"):
            AtariActor.load(tmp_path / "b.safetensors")


# -- importing, verifying, cards -----------------------------------------------------------------------------------


def d4rl_file(path: Path, **columns: Any) -> Path:
    rows = {
        "observations": np.zeros((6, 3), np.float32),
        "actions": np.zeros((6, 1), np.float32),
        "rewards": np.zeros(6, np.float32),
        "terminals": np.arange(6) == 5,
        "timeouts": np.zeros(6, bool),
    } | columns
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            if callable(values):
                values(file, name)
            else:
                file[name] = values
    return path


def unwritten(file: h5py.File, name: str) -> None:
    """A thousand million rows that take no place in the file."""
    file.create_dataset(name, (10**9, *{"observations": [3], "actions": [1]}.get(name, [])), chunks=True)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"terminals": np.array([b"False"] * 6)}, "real numbers are needed"),
        ({"terminals": np.arange(6)}, "terminals hold other values than 0 and 1"),
        ({"rewards": np.ones(6, complex)}, "real numbers are needed"),
        ({"rewards": np.zeros(6, "f4,f4")}, "real numbers are needed"),
        ({"rewards": np.array(["a"] * 6, dtype=h5py.string_dtype())}, "real numbers are needed"),
        ({"observations": np.array([[b"x"] * 3] * 6)}, "real numbers are needed"),
        ({"rewards": np.full(6, 1e39)}, "rewards are not finite in row 0, as 32-bit numbers"),
        (
            dict.fromkeys(("observations", "actions", "rewards", "terminals", "timeouts"), unwritten),
            "more than a file of its size can hold",
        ),
    ],
)
def test_tables_of_anything_but_plain_numbers_are_refused(tmp_path, column, message) -> None:
    file = d4rl_file(tmp_path / "x.hdf5", **column)
    with pytest.raises(KitError, match=message):
        import_d4rl(ImportConfig(file, "Pendulum-v1", "test/x-v0", root=tmp_path / "root"))
    assert not (tmp_path / "root").exists() or not any((tmp_path / "root").iterdir())


def test_nothing_to_verify_and_a_file_for_a_folder_are_mistakes(tmp_path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for root in ("absent", "empty", "file"):
        with pytest.raises(KitError, match="there is no dataset in"):
            run_verify(VerifyConfig(root=tmp_path / root))
    for root in ("absent", "file"):
        with pytest.raises(KitError, match="is no folder of datasets"):
            cards(CardsConfig(tmp_path / root))
    assert call("data", "verify", "--root", str(tmp_path / "absent")) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


def test_wrong_cards_are_named(tmp_path) -> None:
    source = ROOT / "data" / "minari" / "brrcrl" / "hopper" / "medium-v0"
    copy = shutil.copytree(source, tmp_path / "minari" / "brrcrl" / "hopper" / "medium-v0") / "data" / "metadata.json"
    metadata = json.loads(copy.read_text())
    metadata["card"]["return_mean"] = "high"
    copy.write_text(json.dumps(metadata))
    with pytest.raises(KitError, match="the card of brrcrl/hopper/medium-v0: the field 'return_mean' must be"):
        cards(CardsConfig(tmp_path / "minari"))
    rows = run_verify(VerifyConfig(root=tmp_path / "minari"))
    assert [row.ok for row in rows] == [False] and "return_mean" in rows[0].details
    assert gym.spec("Hopper-v5").id == metadata["card"]["env"]
