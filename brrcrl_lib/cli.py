"""The `brrcrl` command: a table of commands, each of which loads what it needs only when it is chosen.

Flags and help texts come from the configuration dataclasses. What a user got wrong is answered with one sentence
and exit code 2; a notebook that failed gives exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, NoReturn

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.settings import check_settings

COMMANDS = {  # name: (module, configuration, function, what it does)
    "notebooks run": (
        "tools.notebook_commands",
        "RunNotebooks",
        "run_notebooks",
        "run notebooks, all or some, and sum up",
    ),
    "notebooks refresh": (
        "tools.notebook_commands",
        "RefreshNotebooks",
        "refresh_notebooks",
        "store fresh outputs in the notebooks",
    ),
    "notebooks html": (
        "tools.notebook_commands",
        "HtmlNotebooks",
        "html_notebooks",
        "write the notebooks to a small site, to read without a kernel",
    ),
    "notebooks list": (
        "tools.notebook_commands",
        "ListNotebooks",
        "list_notebooks",
        "list the notebooks with their questions",
    ),
    "claims readme": (
        "tools.readme",
        "ReadmeConfig",
        "write_readme",
        "write the README's table of claims from the recorded rows",
    ),
    "data collect": ("tools.collecting.collect", "CollectConfig", "collect", "train SAC, DQN, or PPO on Atari"),
    "data rollout": ("tools.publishing.rollout", "RolloutConfig", "rollout", "play policies into a dataset"),
    "data publish": ("tools.publishing.publish", "PublishConfig", "publish", "turn a collection into datasets"),
    "data verify": ("tools.publishing.verify", "VerifyConfig", "run_verify", "check the installed datasets"),
    "data import-d4rl": ("tools.importing.d4rl", "ImportConfig", "import_d4rl", "convert a D4RL HDF5 file"),
    "data import-dqn-replay": (
        "tools.importing.dqn_replay",
        "ImportReplayConfig",
        "import_dqn_replay",
        "convert DQN-replay files to a frame store",
    ),
    "data pack": ("tools.publishing.pack", "PackConfig", "pack", "put games of a frame store in a file"),
    "data unpack": ("tools.publishing.pack", "UnpackConfig", "unpack", "make such a file a frame store"),
    "data card": ("commands", "DataCard", "data_card", "what a dataset is good for, in one look"),
    "data cards": ("tools.publishing.cards", "CardsConfig", "cards", "write the tables of data/README.md again"),
    "train": ("commands", "train_command", "train", "fit a method to a dataset; resumable"),
    "evaluate": ("commands", "evaluate_command", "evaluate", "play a trained model"),
    "methods": ("commands", "ListMethods", "list_methods", "list the methods: what they take, what they are"),
    "experiments run": (
        "commands",
        "ExperimentConfig",
        "run_experiments",
        "run a grid of experiments, here or on a cluster; resumable",
    ),
    "experiments status": (
        "study.experiments.status",
        "StatusConfig",
        "status_command",
        "how far a grid is, and how long the rest takes",
    ),
    "experiments merge": (
        "study.experiments.recording",
        "MergeConfig",
        "merge_command",
        "write the finished cells of a grid to its CSV file",
    ),
    "film": ("tools.film", "FilmConfig", "film", "film adaptive targets beside Max on one robot, as a GIF"),
    "bench": ("tools.bench.bench", "BenchConfig", "bench", "measure speed side by side"),
}
VARIANTS = {  # (command, words in it): (module, configuration, function) that these words choose
    ("data collect", "--algorithm ppo"): ("tools.collecting.collect_atari", "AtariCollectConfig", "collect_atari"),
    ("data rollout", "--ladder"): ("tools.publishing.ladder", "LadderConfig", "ladder"),
}
LEADING = {
    "data import-d4rl": "--file",
    "data import-dqn-replay": "--dir",
    "data pack": "--store",
    "data unpack": "--file",
    "data verify": "--ids",
    "data card": "--dataset",
    "experiments run": "--grid",
    "experiments status": "--grid",
    "experiments merge": "--grid",
}
"""Flags whose name may be left out when their value comes first: `brrcrl data import-d4rl FILE --env ...`."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Find the command, read its flags, run it; leave with 0, 1 (it failed) or 2 (the request was wrong)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    if command is None:
        raise SystemExit(_overview(words))
    import tyro  # takes longer than all the rest, and an overview needs none of it

    rest = words[len(command.split()) :]
    if command in LEADING and rest and not rest[0].startswith("-"):
        rest.insert(0, LEADING[command])
    try:
        _refuse_empty(rest)
        module_name, config_name, function_name = _choose(command, rest)
        module = import_module(f"brrcrl_lib.{module_name}")
        wanted = getattr(module, config_name)
        # A function reads the words itself: which flags there are, and what they start from, depends on some of them.
        config = tyro.cli(wanted, prog=f"brrcrl {command}", args=rest) if isinstance(wanted, type) else wanted(rest)
        check_settings(config)
        result = getattr(module, function_name)(config)
    except KeyboardInterrupt:
        _complain(f"\nbrrcrl {command}: stopped")  # the terminal has just written ^C
        raise SystemExit(130) from None
    except (KitError, OSError, FloatingPointError) as error:
        _complain(f"brrcrl {command}: {error}")
        raise SystemExit(2) from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise  # a bug
        _complain(f"brrcrl {command}: this takes more memory than there is; ask for less")
        raise SystemExit(2) from None
    raise SystemExit(_report(result))


def _complain(sentence: str) -> None:
    """On a line of its own: progress bars that are still drawn make way for it."""
    bars = sys.modules.get("tqdm")  # where nobody has loaded it, there are none
    (bars.tqdm.write if bars else print)(sentence, file=sys.stderr)


def _refuse_empty(words: Sequence[str]) -> None:
    """An empty word is a variable of the shell that was not set: as a path it would be the working folder."""
    for before, word in pairwise(["", *words]):
        if not word.strip():
            raise KitError(f"what follows {before or 'the command'} is empty")
        if word.startswith("--") and word.endswith("="):
            raise KitError(f"what follows {word} is empty")


def _choose(command: str, words: Sequence[str]) -> tuple[str, str, str]:
    """Module, configuration and function of a command, as the flags among `words` choose them."""
    given = " ".join(words).replace("=", " ") + " "
    for (name, flags), chosen in VARIANTS.items():
        if name == command and f"{flags} " in given:
            return chosen
    return COMMANDS[command][:3]


def _report(result: Any) -> int:
    """Print what a command gave back; the exit code is 1 if a check in it failed."""
    if result is None or isinstance(result, int):
        return result or 0
    rows = result if isinstance(result, list) else [result]
    checks = [row for row in rows if hasattr(row, "ok")]
    for check in checks:
        print(f"{'ok    ' if check.ok else 'FAILED'}  {check.dataset}  {check.check}: {check.details}")
    if rows and not checks:
        last = rows[-1]  # of a learning curve, where it ended
        print("\n".join(f"{key}: {value}" for key, value in last.items()) if isinstance(last, dict) else last)
    return int(not all(check.ok for check in checks))


def _overview(words: Sequence[str]) -> int:
    """Print the commands, or those of the group that was named; complain about a word that is none of them."""
    asked = [word for word in words if word not in ("-h", "--help")]
    inside = [name for name in COMMANDS if asked and name.split()[0] == asked[0]]
    if len(asked) > (1 if inside else 0):
        word = " ".join(asked[: 2 if inside else 1])
        print(f"brrcrl: no command '{word}'{did_you_mean(word, inside or list(COMMANDS))}", file=sys.stderr)
        return 2
    print("usage: brrcrl COMMAND [options]; brrcrl COMMAND --help explains one\n")
    for name in inside or COMMANDS:
        print(f"  {name:<24} {COMMANDS[name][3]}")
    return 0


if __name__ == "__main__":
    main()
