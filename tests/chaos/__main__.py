"""The campaign: three parts, one table, exit code 1 if anything in it is bad."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from chaos import files, kills, words
from chaos.inputs import make_inputs
from chaos.tally import Tally

PARTS = {"words": (words.campaign, 0.2), "files": (files.campaign, 0.3), "kills": (kills.campaign, 0.5)}
"""Each part and its share of the time."""


@dataclass(frozen=True)
class Chaos:
    """Kill the kit's commands at random and feed them nonsense; count what goes wrong."""

    minutes: float = 10.0
    """About how long it takes; every kind of kill has its turn once, however short."""
    seed: int = 0
    """The same number tries the same things, as far as the time reaches."""
    only: str = ""
    """One part (kills, words, files), or part:word for the rows whose name contains the word."""
    folder: Path | None = None
    """Work here, with the inputs that are there already, and leave it; a temporary folder by default."""


def run(config: Chaos) -> int:
    torch.set_num_threads(1)
    place = config.folder.absolute() if config.folder else Path(tempfile.mkdtemp(prefix="brrcrl-chaos-"))
    tally, started = Tally(), time.monotonic()
    os.environ["BRRCRL_QUIET"] = "1"
    part, _, word = config.only.partition(":")
    chosen = {name: entry for name, entry in PARTS.items() if part in ("", name)}
    variables = make_inputs(place / "inputs")
    made = time.monotonic() - started
    left = max(0.0, 60 * config.minutes - made) / sum(share for _, share in chosen.values())
    try:
        for name, (campaign, share) in chosen.items():
            print(f"{name}: {share * left:.0f} s", flush=True)
            folder, dice = place / name, random.Random(f"{config.seed} {name}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            campaign(place / "inputs", folder, variables, dice, share * left, tally, word)
    except KeyboardInterrupt:
        print("\ninterrupted; so far:")
    print(f"\nseed {config.seed}, {(time.monotonic() - started) / 60:.1f} minutes\n\n{tally.table()}")
    if tally.complaints:
        print(f"\n{len(tally.complaints)} bad cases:\n" + "\n".join(line[:400] for line in tally.complaints))
    if config.folder is None:
        shutil.rmtree(place, ignore_errors=True)
    return int(tally.failed)


if __name__ == "__main__":
    sys.exit(run(tyro.cli(Chaos, prog="chaos")))
