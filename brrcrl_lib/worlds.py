"""One card per environment and game, and the one parser of names: nothing else takes an id apart.

A new environment is one new card in worlds.toml. One without a card works everywhere; it only has no reference score.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple


class Reference(NamedTuple):
    """Two returns that mark 0 and 100 on the scale of an environment."""

    low: float  # a random policy
    high: float  # an expert, or a human player
    source: str


@dataclass(frozen=True)
class World:
    """What the kit knows about an environment or a game; None where it knows nothing."""

    name: str
    """As dataset ids have it, in small letters: hopper."""
    title: str
    """As a reader knows it: Hopper."""
    kind: str | None = None
    """What a model sees and does: box (vectors, and actions from a box) or pixels (frames, and buttons)."""
    env_id: str | None = None
    """Gymnasium's id of the version that the kit plays."""
    reference: Reference | None = None
    """Where 0 and 100 of the normalised score lie.

    `d4rl`: D4RL's reference returns. They were measured in v2-era environments; on v5 they are a convention.
    `atari-human`: a random policy and a human tester, both started with random no-ops; the pair that DQN Zoo, Hafner
    et al. (2020) and Decision Transformer divide by. The human scores are those of Wang et al. (2016).
    """
    paper_reference: Reference | None = None
    """The human scores of Mnih et al. (2015), which the paper's Table 2 seems to divide by, although it cites Hafner
    et al.

    Its 138.0 in Pong cannot be had on the other scale, where a perfect game is worth 118.1; on this one it is a raw
    score of 20.7. Compare with that table in these units only.
    """
    paper_range: tuple[float, float] | None = None
    """V_min and V_max in the paper's table of hyperparameters."""
    authors_high: Mapping[str, float] = field(default_factory=dict, hash=False)
    """V_max in the authors' released code: one value per kind of dataset, for discount 0.99 (V_min is 0)."""
    discount: float | None = None
    """gamma in the paper's table of hyperparameters."""
    reward_clip: float | None = None
    """Rewards are clipped to plus or minus this for training; None: they stay as they are."""
    time_limit: int | None = None
    """Steps after which Gymnasium's own time limit ends an episode."""
    max_steps: int | None = None
    """Decisions after which the grids cut a game off: a policy that never serves the ball would sit there for all of
    the usual 27,000 (108,000 screens). Rows say how many games were cut."""
    ladder_goal: float | None = None
    """Mean return that we wanted the best policy of the game's ladder to exceed, clearly above a random player's."""
    decimals: int = 0
    """Digits behind the point that a return deserves: a game of Pong is decided by single points."""


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def make_card(name: str, **stated: Any) -> World:
    """A card from the fields that the file states, and what its kind has in common."""
    fields = {"title": "", **_FILE["kinds"][stated["kind"]], **stated}
    for reference in [key for key in fields if key.endswith("reference")]:
        fields[reference] = Reference(*fields[reference])
    return World(**{**fields, "name": name, "paper_range": tuple(fields["paper_range"])})


KINDS = {kind: make_card("", kind=kind) for kind in _FILE["kinds"]}
"""What all worlds of a kind have in common."""
WORLDS = tuple(make_card(name, **card) for name, card in _FILE["worlds"].items())
"""The cards of worlds.toml, in the order of the kit."""
PAPER_HIGH: float = _FILE["kinds"]["box"]["paper_range"][1]
"""V_max in the paper's table of hyperparameters, for every Gym dataset (V_min is 0)."""
TIME_LIMIT: int = _FILE["kinds"]["box"]["time_limit"]
"""Steps of an episode in every locomotion environment of Gymnasium."""

CARDS = {world.name: world for world in WORLDS}
GAMES = tuple(world.name for world in WORLDS if world.kind == "pixels")
"""The paper's four games."""


def world_of(name: str, kind: str | None = None) -> World:
    """The card of an environment, game or dataset: of `Hopper-v5`, `hopper`, `ALE/Pong-v5`, `PongNoFrameskip-v4`,
    `brrcrl/hopper/medium-v0` or `ladder/pong`.

    One without a card gets what its `kind` has in common; of most games the name says that they are games.
    """
    found = DatasetName.parse(name)
    if found.world_name in CARDS:
        return CARDS[found.world_name]
    is_game = found.namespace == "ALE" or found.kind in STORES or _GAME.search(name)
    common = KINDS.get(kind or ("pixels" if is_game else ""), World("", ""))
    title = found.world_name[:1].upper() + found.world_name[1:]
    return replace(common, name=found.world_name.lower(), title=title)


STORES = ("ladder", "sample")
"""Frame stores of games: ladder/pong is what its policies played, sample/pong the part of it that ships."""
DATASET_KINDS = ("medium-replay", "medium", "medium-expert", "expert", *STORES)
"""The kinds of datasets, in the order of the kit."""

_VERSION = re.compile(r"-v(\d+)$")
_GAME = re.compile(r"(NoFrameskip|Deterministic)(?=-|$)", re.IGNORECASE)


@dataclass(frozen=True)
class DatasetName:
    """A dataset's id, taken apart. Any text has such parts; what it does not say is empty."""

    id: str
    """`brrcrl/hopper/medium-replay-v0`, the whole of it."""
    namespace: str
    """brrcrl; empty for `ladder/pong`."""
    world_name: str
    """hopper: the name of a card, or what stands in that place."""
    kind: str
    """medium-replay; ladder for `ladder/pong`."""
    version: int | None
    """0; None where the id ends without one."""

    @classmethod
    def parse(cls, dataset_id: str) -> DatasetName:
        """Knows `space/world/kind-v0`, `space/world-v0`, `world-kind-v0`, `ladder/world`, environments and paths."""
        *spaces, folder, last = ["", *_parts(dataset_id)]
        version = _VERSION.search(last)
        stem = _VERSION.sub("", last)
        first, _, rest = stem.partition("-")
        if folder in STORES:
            world, kind = _world_name(last), folder
        elif _world_name(folder) in CARDS:
            world, kind = _world_name(folder), stem
        elif _world_name(first) in CARDS:
            spaces, world, kind = [*spaces, folder], _world_name(first), rest
        elif len(spaces) > 1:
            world, kind = folder, stem
        else:
            spaces, world, kind = [*spaces, folder], _world_name(stem), ""
        return cls(dataset_id, "/".join(filter(None, spaces)), world, kind, int(version[1]) if version else None)

    @property
    def world(self) -> World:
        return world_of(self.id)

    @property
    def short(self) -> str:
        """For a reader: `hopper medium-replay`, `pong` (of ladder/pong), `pong sample`."""
        if self.kind in STORES and not self.namespace:
            return self.world_name if self.kind == "ladder" else f"{self.world_name} {self.kind}"
        return " ".join(self._ending)

    @property
    def model_name(self) -> str:
        """How files of the dataset's models begin: `hopper-medium-replay`, `pong-ladder`."""
        if self.kind in STORES and not self.namespace:
            return f"{self.world_name}-{self.kind}"
        return "-".join(self._ending)

    @property
    def sort_key(self) -> tuple[int, int, str]:
        """Worlds in the order of their cards, then kinds; what is not known comes last, by name."""
        return _place(self.world_name, tuple(CARDS)), _place(self.kind, DATASET_KINDS), self.id

    @property
    def _ending(self) -> list[str]:
        """The last two parts of the id, without the version."""
        return _parts(_VERSION.sub("", self.id))[-2:]


def newest_versions(dataset_ids: Iterable[str]) -> list[str]:
    """Those of the ids of which there is no newer version among them."""
    names = [DatasetName.parse(dataset_id) for dataset_id in dataset_ids]
    latest: dict[tuple[str, str, str], int] = {}
    for name in names:
        place = (name.namespace, name.world_name, name.kind)
        latest[place] = max(latest.get(place, -1), name.version or 0)
    return [name.id for name in names if (name.version or 0) == latest[name.namespace, name.world_name, name.kind]]


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part] or [""]


def _world_name(text: str) -> str:
    """The name of the card that `text` means, or `text` itself: Hopper is hopper, PongNoFrameskip is pong."""
    bare = _GAME.sub("", text)
    return bare.lower() if bare.lower() in CARDS else bare


def _place(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)
