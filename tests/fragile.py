"""A plugin for tests of runners: cloning that writes down every step it takes, can be slow, and can be killed.

BRRCRL_METHODS=tests/fragile.py brings the method and the grids; FRAGILE_NOTES names the folder for the notes,
FRAGILE_PAUSE seconds of sleep per step.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brrcrl_lib.methods.cloning import Cloning, CloningConfig
from brrcrl_lib.study.experiments.grids import GRIDS, Block

DATASET = "test/hopper/replay-v0"


@dataclass(frozen=True)
class FragileConfig(CloningConfig):
    """Cloning that may come to harm."""

    deaths: int = 0
    """So many times its process is killed at step 25, five steps after a checkpoint."""
    pause: float = 0.0
    """Seconds of sleep per step."""


class Fragile(Cloning):
    """Behaviour cloning, watched."""

    name = "fragile"
    summary = "cloning for tests of runners"
    Config = FragileConfig
    config: FragileConfig

    def update(self, batch: Any, step: int, generator: Any) -> dict[str, Any]:
        notes = Path(os.environ["FRAGILE_NOTES"])
        with (notes / f"steps-{self.config.seed}-{self.config.deaths}").open("a") as file:
            file.write(f"{step}\n")
        if step == 25 and self.config.deaths:
            killed = notes / f"killed-{self.config.seed}-{self.config.deaths}"
            times = len(killed.read_text()) if killed.exists() else 0
            if times < self.config.deaths:
                killed.write_text("x" * (times + 1))
                print("out of memory, for instance", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.config.pause or float(os.environ.get("FRAGILE_PAUSE", "0")))
        return super().update(batch, step, generator)


BOTH = ({"mode": "best"}, {"mode": "sample"})
PLAIN = {"method": "fragile"}
GRIDS["quick"] = (Block((DATASET,), (PLAIN,), (0, 1, 2, 3), BOTH, trace=True),)
GRIDS["slow"] = (Block((DATASET,), ({**PLAIN, "pause": 0.05},), (0, 1), BOTH),)
GRIDS["shaky"] = (Block((DATASET,), ({**PLAIN, "deaths": 1}, PLAIN), (0,), BOTH),)
GRIDS["doomed"] = (Block((DATASET,), ({**PLAIN, "deaths": 3}, PLAIN), (0,), BOTH),)
