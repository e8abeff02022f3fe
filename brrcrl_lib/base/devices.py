"""Where tensors live and where randomness comes from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from tqdm import tqdm

from brrcrl_lib.base.errors import KitError


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes the first of cuda, mps, cpu that this machine has."""
    if name != "auto":
        there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
        try:
            device = torch.device(name)
            count = there[device.type]
        except (RuntimeError, KeyError):
            raise KitError(f"unknown device '{name}'; use auto, cpu, cuda, cuda:0, mps") from None
        if (device.index or 0) >= count:
            raise KitError(f"this machine has no device {device}; use auto or cpu")
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


def in_kernel() -> bool:
    """True where a notebook's cells run, whoever runs them."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def someone_can_drag() -> bool:
    """True in a kernel that a person's front end started: a Jupyter server, VS Code or Colab; not papermill, nbval."""
    return any(name == "JPY_SESSION_NAME" or name.startswith(("VSCODE_", "COLAB_")) for name in os.environ)


_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


@contextmanager
def no_bars() -> Iterator[None]:
    """No progress bar inside: a slider's picture stays until the next one is there."""
    before = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(before)


class _Erasable:
    """Where a notebook shows a bar: one output of plain text, rewritten in place and empty at the end.

    A widget would stay in the saved notebook as a view whose model is gone.
    """

    encoding = "utf-8"
    handle: Any = None

    def write(self, text: str) -> None:
        if not text.strip("\r") or not text.startswith("\r"):
            return  # tqdm moves its cursor; there is none here
        data = {"text/plain": text.strip()} if text.strip() else {}
        if self.handle is not None:
            self.handle.update(data, raw=True)
        elif data:
            from IPython.display import display

            self.handle = display(data, raw=True, display_id=True)

    def flush(self) -> None:
        pass


def track(iterable: Iterable[Any] | None = None, **options: Any) -> Any:
    """A progress bar that removes itself, and falls silent where output is compared. Takes tqdm's arguments."""
    silent = quiet() or _hidden.get()
    if not in_kernel():
        return tqdm(iterable, **{"leave": False, "disable": silent, **options})
    ours = {"file": _Erasable(), "leave": False, "position": 0, "ncols": 80, "mininterval": 0.25}
    return tqdm(iterable, **{"disable": silent or not someone_can_drag(), **options, **ours})
