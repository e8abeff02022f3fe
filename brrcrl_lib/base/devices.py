"""Where tensors live and where randomness comes from."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from tqdm.auto import tqdm

from brrcrl_lib.base.errors import KitError


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes the first of cuda, mps, cpu that this machine has."""
    if name != "auto":
        try:
            device = torch.device(name)
        except RuntimeError:
            raise KitError(f"unknown device '{name}'; use auto, cpu, cuda, cuda:0, mps") from None
        present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if not present.get(device.type, True):
            raise KitError(f"this machine has no {device.type} device; use auto or cpu")
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def use_one_thread() -> None:
    """Let torch compute on one CPU thread: with tensors as small as ours a second one costs more than it gives.

    Beside other work on the machine, threads that wait for each other make it much slower still.
    """
    torch.set_num_threads(1)


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The one source of randomness that the library's functions are handed."""
    return torch.Generator(device=device).manual_seed(seed)


def quiet() -> bool:
    """True under tests and batch refreshes (`BRRCRL_QUIET=1`): no progress bars, no widgets."""
    return os.environ.get("BRRCRL_QUIET", "") not in ("", "0")


def track(iterable: Iterable[Any] | None = None, **options: Any) -> Any:
    """A progress bar that falls silent where output is compared. Takes tqdm's arguments."""
    return tqdm(iterable, **{"leave": False, "disable": quiet(), **options})
