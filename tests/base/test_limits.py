"""Rules: what they let through, and that every settings dataclass of the data commands is guarded by them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tyro

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.limits import ENV_ID, RECORD, check_fields, each, read_json, whole
from brrcrl_lib.base.settings import NAME, NAMES, Count, Name, OutPath, check_settings, number
from brrcrl_lib.tools.collecting.collect import CollectConfig
from brrcrl_lib.tools.collecting.collect_atari import AtariCollectConfig
from brrcrl_lib.tools.collecting.ppo import PpoConfig
from brrcrl_lib.tools.importing.d4rl import ImportConfig
from brrcrl_lib.tools.importing.dqn_replay import ImportReplayConfig
from brrcrl_lib.tools.publishing.cards import CardsConfig
from brrcrl_lib.tools.publishing.ladder import LadderConfig
from brrcrl_lib.tools.publishing.pack import PackConfig, UnpackConfig
from brrcrl_lib.tools.publishing.publish import PublishConfig
from brrcrl_lib.tools.publishing.rollout import RolloutConfig
from brrcrl_lib.tools.publishing.verify import VerifyConfig

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (whole(1), [1, 10**9], [0, -1, 1.0, "1", True, None]),
        (whole(0, 5), [0, 5], [6, -1]),
        (number(), [1, -2.5, 0], [NAN, INF, -INF, "1", None, True]),
        (number(0, 1), [0, 1, 0.5], [-0.1, 1.1, NAN]),
        (number(above=0), [1e-9, 3], [0, -1, INF]),
        (NAME, ["hopper", "pong-2", "a.b", "ms_pacman"], ["", ".", "..", "a/b", "/a", "../a", ".hidden", "a b", "a\n"]),
        (NAMES, ["ladder/pong", "x"], ["", "/x", "x/", "a//b", "../x", "a/../b", "."]),
        (ENV_ID, ["Hopper-v5", "ALE/Pong-v5", "a/b/C-v0"], ["", "os:Hopper-v5", "os.path:X-v0", "..", "a b", "/X-v0"]),
        (each(whole(1), 2), [[1, 2], (3, 4)], [[1], [1, 2, 3], [0, 1], "ab", 5]),
    ],
)
def test_rules(rule, good, bad) -> None:
    assert all(map(rule.fits, good)) and not any(map(rule.fits, bad))


@dataclass(frozen=True)
class Inner:
    rate: Annotated[float, number(above=0)] = 1.0
    """Rate."""


@dataclass(frozen=True)
class Settings:
    """Settings."""

    out: OutPath
    """Where to."""
    steps: Count = 5
    """How many."""
    goal: float = INF
    """May be infinite, as its default is."""
    plain: float = 1.0
    """May not."""
    layers: tuple[Count, ...] = (8, 8)
    """Sizes."""
    name: Name | None = None
    """A name."""
    kind: Literal["a", "b"] = "a"
    """A choice."""
    inner: Inner = Inner()
    """More."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": Path()}, "out must be a path that names"),
        ({"steps": 0}, "steps must be a whole number of at least 1; got 0"),
        ({"goal": NAN}, "goal must be a finite number; got nan"),
        ({"plain": INF}, "plain must be"),
        ({"layers": (8, -1)}, "layers must be .*got -1"),
        ({"layers": 8}, "layers must be a list"),
        ({"name": ".."}, "name must be a name"),
        ({"kind": "c"}, "kind must be one of a, b"),
        ({"inner": Inner(-1.0)}, r"inner\.rate must be"),
    ],
)
def test_settings_are_checked_field_by_field(change: dict[str, Any], message: str) -> None:
    good = Settings(Path("runs/x"))
    check_settings(good)
    check_settings(replace(good, goal=-INF, name="x"))
    with pytest.raises(KitError, match=message):
        check_settings(replace(good, **change))


def test_rules_leave_the_command_line_as_it_is(capsys) -> None:
    found = tyro.cli(Settings, args=["--out", "x", "--layers", "3", "4", "--inner.rate", "2", "--name", "n"])
    assert found == Settings(Path("x"), layers=(3, 4), inner=Inner(2.0), name="n")
    with pytest.raises(SystemExit):
        tyro.cli(Settings, args=["--help"])
    printed = capsys.readouterr().out
    assert "--steps INT" in printed and "Rule" not in printed


OUT = Path("runs/x")
GOOD = {
    CollectConfig: CollectConfig("Hopper-v5", OUT),
    AtariCollectConfig: AtariCollectConfig("ALE/Pong-v5", OUT),
    RolloutConfig: RolloutConfig(OUT, "a/b-v0"),
    LadderConfig: LadderConfig("pong"),
    ImportConfig: ImportConfig(OUT, "Hopper-v4", "a/b-v0"),
    ImportReplayConfig: ImportReplayConfig(OUT, "Pong"),
    PackConfig: PackConfig(OUT, OUT),
    UnpackConfig: UnpackConfig(OUT),
    PublishConfig: PublishConfig(OUT, "hopper"),
    VerifyConfig: VerifyConfig(),
    CardsConfig: CardsConfig(),
}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (
            CollectConfig,
            {
                "env": ["", "os:Hopper-v5"],
                "out": [Path()],
                "steps": [-1, 0],
                "stop_return": [NAN],
                "seed": [-1, 99_999],
                "hidden": [(0,), (-1, 4)],
                "learning_rate": [NAN, -1.0, 0.0],
                "batch_size": [-1, 0],
                "update_every": [0, -1],
                "random_steps": [-1],
                "discount": [2.0, NAN, -0.1],
                "snapshot_every": [0],
                "evaluation_episodes": [0],
                "publish_as": ["..", ".", "", "../../esc", "/tmp/x"],
            },
        ),
        (
            AtariCollectConfig,
            {
                "publish_as": [".", "", "../../esc"],
                "steps": [0],
                "seed": [-1, 10**12],
                "rungs": [0, 1],
                "ppo": [PpoConfig(envs=0), PpoConfig(learning_rate=NAN), PpoConfig(channels=(0, 1, 1))],
            },
        ),
        (RolloutConfig, {"steps": [0], "num_envs": [0], "seed": [-1, 10**17], "env": ["", "os:X-v0"], "id": [""]}),
        (LadderConfig, {"ladder": [""], "steps": [0], "name": ["..", ".", "/x", ""], "seed": [-1], "max_frames": [0]}),
        (ImportConfig, {"chunk_rows": [0, -1], "env": [""], "tail": ["other"]}),
        (ImportReplayConfig, {"fraction": [0.0, 1.5, NAN], "chunk_rows": [0], "name": [".."], "game": [""]}),
        (PackConfig, {"max_bytes": [0, -5], "out": [Path()]}),
        (UnpackConfig, {"name": ["..", ".", "", "/x", "a/../b"]}),
        (PublishConfig, {"name": ["../../evil", "", "."], "medium_share": [NAN, 2.0], "num_envs": [0], "steps": [0]}),
        (VerifyConfig, {"replay_episodes": [-1], "ids": [("",)]}),
        (CardsConfig, {}),
    ],
)
def test_every_setting_of_the_data_commands_has_a_range(kind: type, changes: dict[str, list[Any]]) -> None:
    check_settings(GOOD[kind])
    for name, values in changes.items():
        for value in values:
            with pytest.raises(KitError, match=rf"^{name}.* must be .*; got "):
                check_settings(replace(GOOD[kind], **{name: value}))


def test_files_are_named_with_the_field_that_is_wrong(tmp_path: Path) -> None:
    fields = {"steps": whole(0)}
    file = tmp_path / "x.json"
    for content, message in (
        ("[1]", "must hold an object"),
        ("{", "cannot be read as JSON"),
        ("{}", "lacks the field 'steps'"),
        ('{"steps": "9"}', "the field 'steps' must be a whole number of at least 0; it is '9'"),
        ('{"steps": 1, "card": 3}', "the field 'card' must be"),
    ):
        file.write_text(content)
        with pytest.raises(KitError, match=message) as caught:
            read_json(file, fields, {"card": RECORD})
        assert str(file) in str(caught.value)
    with pytest.raises(KitError, match="cannot be read"):
        read_json(tmp_path / "absent", fields)
    assert check_fields({"steps": 1, "card": None}, "x", fields, {"card": RECORD})["steps"] == 1
