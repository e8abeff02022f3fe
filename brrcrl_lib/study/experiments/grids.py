"""The grids of experiments, declared as data: what is trained, on what, and how it is made to act.

A cell is one number to be measured: (dataset, training, seed, act). A training is a method and what differs from its
`Config`, an act what differs from its `Act`; cells of any grid that share a training share its run, and cells that
are the same are measured once. A plugin may add a grid of its own: GRIDS["mine"] = (Block(...), ...).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from itertools import product
from typing import Any

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.open import kind_of
from brrcrl_lib.methods.base import config_for, methods
from brrcrl_lib.worlds import GAMES, WORLDS, DatasetName, world_of

HOPPER, WALKER2D, HALFCHEETAH = (f"brrcrl/{world.name}/medium-replay-v0" for world in WORLDS if world.kind == "box")
MEDIUM_REPLAY = (HOPPER, WALKER2D, HALFCHEETAH)
WALKER2D_OTHERS = tuple(f"brrcrl/walker2d/{kind}-v0" for kind in ("medium", "medium-expert", "expert"))
SEEDS = (0, 1, 2)

Settings = dict[str, Any]
AUTHORS: Settings = {"method": "br_rcrl", "objective": "authors"}
PAPER: Settings = {"method": "br_rcrl", "objective": "paper"}
VANILLA: Settings = {"method": "vanilla"}
CLONING: Settings = {"method": "cloning"}

ADAPTIVE: Settings = {"target": "adaptive", "delta": 0.1}
MAX: Settings = {"target": "max"}
SCHEDULE: Settings = {"target": "dt_schedule"}
FIXED: tuple[Settings, ...] = tuple({"target": "fixed", "quantile": q} for q in (0.5, 0.9))
CLONE: Settings = {"clone": True}
PLAIN: Settings = {}
DELTAS = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)
TOP_SHARES = (0.5, 0.2)
LENGTHS = (500, 1_000, 2_000, 4_000, 8_000, 16_000, 40_000)
"""Training steps at which the study of regimes looks; a longer training goes on from a shorter one."""
EARLY: Settings = {**AUTHORS, "fusion": "early"}

BREAKOUT, QBERT, PONG, SEAQUEST = (f"ladder/{game}" for game in GAMES)
TABLES: tuple[Settings, ...] = tuple(
    {"method": "br_rcrl_joint", "objective": objective} for objective in ("monte_carlo", "distributional_td")
)
ATARI_DELTAS = (0.9, 0.5, 0.2, 0.1, 0.05, 0.01, 0.001)
ATARI_RULES: tuple[Settings, ...] = (*({**ADAPTIVE, "delta": delta} for delta in ATARI_DELTAS), MAX, SCHEDULE)
EPISODES = {"table1": 20, "again": 20}
"""Episodes per cell of the grids that have a number of their own."""
HOUSEKEEPING = ("device", "log_every", "checkpoint_every")
"""Settings that do not change what is learned."""


@dataclass(frozen=True)
class Block:
    """Every dataset x every training x every seed x every act."""

    datasets: tuple[str, ...]
    trainings: tuple[Settings, ...]
    seeds: tuple[int, ...]
    acts: tuple[Settings, ...]
    trace: bool = False
    """Keep what the policy asked for and got at every step."""
    budgets: Mapping[str, int | None] = field(default_factory=dict)
    """Updates by method, for the preset laptop; the others have lengths of their own."""

    def budgeted(self, training: Settings) -> Settings:
        steps = self.budgets.get(training["method"])
        return training if steps is None else {**training, "steps": steps}


def atari(datasets: tuple[str, ...], seeds: tuple[int, ...]) -> tuple[Block, ...]:
    """Both objectives under every rule and without any, and their rivals under those that they can follow."""
    return (
        Block(datasets, TABLES, seeds, (*ATARI_RULES, CLONE)),
        Block(datasets, (VANILLA,), seeds, (MAX, SCHEDULE, ADAPTIVE)),
        Block(datasets, (CLONING,), seeds, (PLAIN,)),
    )


# -- the study of regimes ------------------------------------------------------------------------------------------

TUNING_DATA = tuple(f"brrcrl/{world}/medium-replay-v1" for world in ("halfcheetah", "hopper"))
TUNING_SEEDS = (100, 101, 102)
"""Seeds that appear in no result."""


def regimes(steps: int) -> tuple[Block, ...]:
    """Everything at one length of training (docs/regimes.md, step 1)."""
    ours, vanilla, cloning = ({**training, "steps": steps} for training in (AUTHORS, VANILLA, CLONING))
    paper = {**PAPER, "steps": steps}
    return (
        Block(TUNING_DATA, (ours, paper), TUNING_SEEDS, ({**ADAPTIVE, "source": "auto"},)),
        Block(TUNING_DATA, (vanilla,), TUNING_SEEDS, (MAX, ADAPTIVE)),
        Block(TUNING_DATA, (cloning,), TUNING_SEEDS, (PLAIN,)),
    )


def settings_of_training() -> tuple[Block, ...]:
    """One setting at a time, at the length that step 1 has chosen for the method (docs/regimes.md, step 2)."""
    any_method: tuple[Settings, ...] = ({"ema": 0.999}, {"weight_decay": 0.1}, {"weight_decay": 1.0})
    of_ours: tuple[Settings, ...] = ({"components": 5}, {"fusion": "early"})
    released, paper, vanilla, cloning = (
        {**training, "steps": steps}
        for training, steps in ((AUTHORS, 2_000), (PAPER, 4_000), (VANILLA, 16_000), (CLONING, 16_000))
    )
    usual = {**ADAPTIVE, "source": "auto"}
    return tuple(
        Block(TUNING_DATA, tuple({**training, **setting} for setting in settings), TUNING_SEEDS, acts)
        for training, settings, acts in (
            (released, any_method, (usual,)),
            (vanilla, any_method, (MAX, ADAPTIVE)),
            (released, of_ours, (usual,)),
            (cloning, any_method, (PLAIN,)),
            (paper, (*any_method, *of_ours), (usual,)),
        )
    )


def ways_of_playing() -> tuple[Block, ...]:
    """What step 2 has chosen, with other weights of the prior and the other source of p(R|s) (docs/regimes.md, step
    3)."""
    released, paper = {**AUTHORS, "steps": 2_000}, {**PAPER, "steps": 4_000, "ema": 0.999}
    cloning = {**CLONING, "steps": 16_000, "ema": 0.999, "weight_decay": 0.1}
    alphas = tuple({**ADAPTIVE, "source": "auto", "prior_weight": alpha} for alpha in (0.5, 2.0, 0.25, 4.0))
    return (
        Block(TUNING_DATA, (released, paper), TUNING_SEEDS, alphas[:2]),
        Block(TUNING_DATA, (released,), TUNING_SEEDS, ({**ADAPTIVE, "source": "prior_samples"},)),
        Block(TUNING_DATA, (paper,), TUNING_SEEDS, ({**ADAPTIVE, "source": "value_model"},)),
        Block(TUNING_DATA, (released, paper), TUNING_SEEDS, alphas[2:]),
        Block(TUNING_DATA, (cloning,), TUNING_SEEDS, (PLAIN,)),
    )


# -- everything again --------------------------------------------------------------------------------------------

CHOSEN_RELEASED: Settings = {**AUTHORS, "steps": 2_000}
CHOSEN_PAPER: Settings = {**PAPER, "steps": 4_000, "ema": 0.999}
CHOSEN_VANILLA: Settings = {**VANILLA, "steps": 16_000, "ema": 0.999}
CHOSEN_CLONING: Settings = {**CLONING, "steps": 16_000, "ema": 0.999, "weight_decay": 0.1}
CLONING_WITHOUT_DECAY: Settings = {**CLONING, "steps": 16_000, "ema": 0.999}
"""What the rule of docs/regimes.md chose; for cloning also without the decay, which lost return on the tuning seeds."""
PLAYED_RELEASED: Settings = {"source": "auto", "prior_weight": 0.5}
PLAYED_PAPER: Settings = {"source": "auto", "prior_weight": 0.25}


def again() -> tuple[Block, ...]:
    """The results on version 1 of the data with the chosen settings, the most telling cells first: five seeds."""
    replay = tuple(name.replace("-v0", "-v1") for name in MEDIUM_REPLAY)
    seeds = tuple(range(5))
    schedules = tuple({"target": name, "clamp": True} for name in ("dt_schedule", "dt_schedule_undiscounted"))
    others: tuple[Settings, ...] = (MAX, *schedules, *FIXED)
    ours = ((CHOSEN_RELEASED, PLAYED_RELEASED), (CHOSEN_PAPER, PLAYED_PAPER))
    clones = (CLONING_WITHOUT_DECAY, CHOSEN_CLONING)
    return (
        *(Block(replay, (training,), seeds, ({**ADAPTIVE, **played}, CLONE)) for training, played in ours),
        Block(
            replay, tuple({**clone, "top_share": share} for clone in clones for share in (0.2, 0.1)), seeds, (PLAIN,)
        ),
        Block(replay, (CHOSEN_VANILLA,), seeds, (MAX, ADAPTIVE, *others[1:])),
        Block(replay, clones, seeds, (PLAIN,)),
        *(Block(replay, (training,), seeds, tuple({**act, **played} for act in others)) for training, played in ours),
        *(
            Block(replay, (training,), seeds, tuple({**ADAPTIVE, "delta": delta, **played} for delta in DELTAS))
            for training, played in ours
        ),
    )


# -- Table 1 -----------------------------------------------------------------------------------------------------

BUDGETS: dict[str, int | None] = {
    "br_rcrl": None,
    "vanilla": None,
    "cloning": None,
    "rvs": 20_000,
    "dt": 10_000,
    "ibc": 10_000,
    "td3_bc": 100_000,
    "iql": 100_000,
    "cql": 20_000,
}
"""Updates of each method in the grid `table1`; None: its default, so that trainings are shared with other grids."""
TUNED_DELTAS = (0.5, 0.2, 0.05, 0.01)
TUNED_SHARES = (0.5, 0.75, 1.25)

Columns = tuple[tuple[Settings, tuple[Settings, ...]], ...]
TABLE1: Columns = (
    (AUTHORS, (ADAPTIVE,)),
    (PAPER, (ADAPTIVE,)),
    (CLONING, (PLAIN,)),
    ({**CLONING, "top_share": 0.1}, (PLAIN,)),
    ({**CLONING, "top_share": 0.2}, (PLAIN,)),
    (VANILLA, (ADAPTIVE, MAX, SCHEDULE)),
    ({"method": "rvs"}, (PLAIN,)),
    ({"method": "td3_bc"}, (PLAIN,)),
    ({"method": "iql"}, (PLAIN,)),
    ({"method": "dt"}, (PLAIN,)),
    ({"method": "cql"}, (PLAIN,)),
    ({"method": "ibc"}, (PLAIN,)),
)
"""The columns of Table 1 that the kit has, each with how it is played; vanilla under every rule, to find its best."""
TUNED: Columns = (
    *((training, tuple({**ADAPTIVE, "delta": delta} for delta in TUNED_DELTAS)) for training in (AUTHORS, PAPER)),
    ({"method": "rvs"}, tuple({"share": share} for share in TUNED_SHARES)),
    ({"method": "dt"}, tuple({"share": share} for share in TUNED_SHARES)),
)
"""Other values of the knobs that are turned at test time: no trainings of their own."""


def table1(kind: str, seeds: Iterable[int], columns: Columns) -> list[Block]:
    """All methods of the first seed on the three worlds, then all of the second, ..."""
    datasets = tuple(f"brrcrl/{world.name}/{kind}-v1" for world in WORLDS if world.kind == "box")
    return [
        Block(datasets, (training,), (seed,), acts, budgets=BUDGETS) for seed in seeds for training, acts in columns
    ]


# -- the grids ---------------------------------------------------------------------------------------------------

GRIDS: dict[str, tuple[Block, ...]] = {
    # Does BR-RCRL beat cloning, and does the objective matter? (Section 4.1; notebook 05)
    "engine": (
        Block(MEDIUM_REPLAY, (AUTHORS, PAPER), SEEDS, (ADAPTIVE, CLONE)),
        Block(MEDIUM_REPLAY, (CLONING,), SEEDS, (PLAIN,)),
    ),
    # Adaptive targets against Max, the DT scheduler and fixed returns (Table 3; notebook 07)
    "targets": (
        Block(MEDIUM_REPLAY, (AUTHORS, PAPER, VANILLA), SEEDS, (ADAPTIVE, MAX, SCHEDULE, *FIXED)),
        Block(WALKER2D_OTHERS[:2], (AUTHORS,), SEEDS, (ADAPTIVE, MAX, SCHEDULE)),
    ),
    # What delta does (Figure 4, left; notebook 08)
    "delta_sweep": (
        Block(MEDIUM_REPLAY, (AUTHORS, PAPER), SEEDS, tuple({**ADAPTIVE, "delta": delta} for delta in DELTAS)),
    ),
    # Does the agent deliver the return it asked for? (Figure 5; notebook 09)
    "target_vs_observed": (Block((*MEDIUM_REPLAY, *WALKER2D_OTHERS), (AUTHORS,), SEEDS, (ADAPTIVE,), trace=True),),
    # Which component carries the result (Table 4), and what the paper does not mention (notebook 10)
    "ablations": (
        Block((HOPPER,), (EARLY,), SEEDS, (ADAPTIVE,)),  # the slowest to train come first
        # Played differently: no training of their own.
        Block(MEDIUM_REPLAY, (VANILLA,), SEEDS, (SCHEDULE, ADAPTIVE)),
        Block(
            MEDIUM_REPLAY,
            (AUTHORS,),
            SEEDS,
            (
                {**ADAPTIVE, "source": "value_model"},
                {**ADAPTIVE, "source": "prior_samples_logits"},
                {**ADAPTIVE, "optimizer": "langevin"},
                {**ADAPTIVE, "mode": "sample"},
            ),
        ),
        Block((HOPPER,), (AUTHORS,), SEEDS, ({**ADAPTIVE, "optimizer": "dfo", "samples": 1024},)),
        # Trained differently.
        Block(
            MEDIUM_REPLAY,
            (AUTHORS, {**AUTHORS, "return_weight": 0.0}, {**AUTHORS, "uniform_share": 1.0}, PAPER),
            SEEDS,
            (ADAPTIVE,),
        ),
        Block(
            (HOPPER,),
            (
                {**AUTHORS, "uniform_share": 0.0},
                {**AUTHORS, "buckets": 20},
                {**AUTHORS, "bucket_range": "paper"},
                {**AUTHORS, "negatives": 4},
            ),
            SEEDS,
            (ADAPTIVE,),
        ),
    ),
    # Do low-return trajectories help? (appendix; notebook 11)
    "rtg_independence": (
        Block(MEDIUM_REPLAY, (AUTHORS,), SEEDS, (ADAPTIVE,)),
        Block(MEDIUM_REPLAY, (VANILLA,), SEEDS, (SCHEDULE, ADAPTIVE)),
        Block(MEDIUM_REPLAY, (CLONING,), SEEDS, (PLAIN,)),
        Block(MEDIUM_REPLAY, tuple({**AUTHORS, "top_share": share} for share in TOP_SHARES), SEEDS, (ADAPTIVE,)),
        Block(
            MEDIUM_REPLAY, tuple({**VANILLA, "top_share": share} for share in TOP_SHARES), SEEDS, (SCHEDULE, ADAPTIVE)
        ),
        Block(MEDIUM_REPLAY, tuple({**CLONING, "top_share": share} for share in TOP_SHARES), SEEDS, (PLAIN,)),
    ),
    # The joint table on pixels (Section 4.3, Table 2 and Figure 4, right; notebook 12)
    "atari": (
        Block((BREAKOUT, PONG), TABLES, (0,), (ADAPTIVE, MAX), trace=True),
        *atari((BREAKOUT, PONG, QBERT, SEAQUEST), (0,)),
        *atari((BREAKOUT, PONG), (1, 2)),
    ),
    # Every method on the same data, by the same protocol (Table 1; notebook 13)
    "table1": (
        *table1("medium-replay", range(5), TABLE1),
        *table1("medium-replay", range(5), TUNED),
        *table1("medium-expert", range(3), TABLE1),
        *table1("medium", range(3), TABLE1),
    ),
    # How long to train, and with which settings, chosen by the rule of docs/regimes.md (notebook 05)
    "regimes": (
        *(block for steps in LENGTHS for block in regimes(steps)),
        *settings_of_training(),
        *ways_of_playing(),
    ),
    # The grids engine, targets and delta_sweep on version 1 of the data, which will take their place when it is whole
    "again": again(),
}


@dataclass(frozen=True)
class Cell:
    """One number to be measured."""

    dataset: str
    kind: str
    """What the data are: box, discrete or pixels."""
    training: Mapping[str, Any]
    """`method`, and what differs from its Config."""
    seed: int
    act: Mapping[str, Any]
    """What differs from the method's Act."""
    preset: str
    episodes: int
    trace: bool = False
    max_steps: int | None = None
    """Cut episodes off after so many steps."""

    @property
    def method(self) -> str:
        return self.training["method"]

    @cached_property
    def config(self) -> Any:
        return config_for(self.method, self.preset, self.kind, seed=self.seed, **self.variant)

    @property
    def variant(self) -> dict[str, Any]:
        """What differs from the method's Config."""
        return {name: value for name, value in self.training.items() if name != "method"}

    @cached_property
    def train_key(self) -> str:
        """Names the training by all its settings, so that other defaults mean another training.

        Fields that are off (None, False) are left out: a new option does not rename what was trained before it.
        """
        settings = {name: value for name, value in asdict(self.config).items() if name not in HOUSEKEEPING}
        switched_on = {name: value for name, value in settings.items() if value is not None and value is not False}
        return _digest([self.dataset, self.method, switched_on])

    @property
    def key(self) -> str:
        cap = [] if self.max_steps is None else [self.max_steps]
        return _digest([self.train_key, dict(self.act), self.episodes, *cap])

    def describe(self) -> str:
        settings = {**self.training, **self.act}
        return f"{self.dataset} seed {self.seed} " + " ".join(f"{name}={value}" for name, value in settings.items())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def dataset_of(dataset: str, preset: str, data: str) -> str:
    """What stands for a grid's dataset: D4RL's of the same world and kind; in smoke runs, samples for ladders."""
    if data == "d4rl":
        name = DatasetName.parse(dataset)
        if name.world.kind != "box":
            raise KitError(f"D4RL has no data of {name.short}; run this grid with --data kit")
        return f"d4rl/{name.world_name}/{name.kind}-v2"
    return dataset.replace("ladder/", "sample/") if preset == "smoke" else dataset


def cells(grid: str, preset: str = "laptop", episodes: int | None = None, data: str = "kit") -> list[Cell]:
    """All cells of a grid, in the order in which they are run, on the kit's `data` or on D4RL's."""
    methods()  # plugins may bring grids
    if grid not in GRIDS:
        raise KitError(f"unknown grid '{grid}'{did_you_mean(grid, GRIDS)}")
    look_up = cache(kind_of)  # opens each dataset once, not once a cell
    found: dict[str, Cell] = {}
    for block in GRIDS[grid]:
        for named in block.datasets:
            dataset = dataset_of(named, preset, data)
            kind, most = look_up(dataset), world_of(named).max_steps
            for seed, training, act in product(block.seeds, block.trainings, block.acts):
                settings = block.budgeted(training) if preset == "laptop" else training
                count = episodes or EPISODES.get(grid, 10)
                cell = Cell(dataset, kind, settings, seed, act, preset, count, block.trace, most)
                found.setdefault(cell.key, cell)
    return list(found.values())


def coverage(grid: str, keys: Iterable[str], preset: str = "laptop") -> str:
    """How much of a grid the rows with these keys are, in words."""
    if preset == "smoke":
        return "a few cells of the grid, measured here and now; their numbers claim nothing"
    wanted = {cell.key for cell in cells(grid, "laptop" if preset == "recorded" else preset)}
    found = len(wanted & set(keys))
    if found == len(wanted):
        return f"all {found} cells of the grid"
    return f"{found} of {len(wanted)} cells of the grid so far; `brrcrl experiments run {grid}` continues it"
