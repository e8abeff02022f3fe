"""The registry of methods: what it takes in, what it refuses, and what a method may rely on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import make_batch, make_facts
from torch import nn

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.methods import base
from brrcrl_lib.methods.base import Method, config_for, method_named, method_of, methods
from brrcrl_lib.methods.cloning import Cloning, CloningAct, CloningConfig
from brrcrl_lib.methods.settings import MethodConfig


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> None:
    """Methods that a test defines are forgotten after it."""
    methods()
    monkeypatch.setattr(base, "_METHODS", dict(base._METHODS))
    monkeypatch.setattr(base, "_loaded", set(base._loaded))


@dataclass(frozen=True)
class MineConfig(CloningConfig):
    """A configuration of its own."""


def parts(**changes: Any) -> dict[str, Any]:
    """What a class needs to be a method, with some of it changed or (None) left out."""
    whole = {
        "name": "mine",
        "summary": "mine",
        "kinds": ("box",),
        "Config": MineConfig,
        "Act": CloningAct,
        "build": lambda self: {"model": nn.Linear(3, 2)},
        "loss": lambda self, batch, generator: {"loss": self.model(batch.observations).sum()},
        "policy": lambda self, act, generator: None,
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def test_the_kits_methods_are_there_and_complete() -> None:
    assert {"br_rcrl", "br_rcrl_joint", "cloning", "vanilla"} <= set(methods())
    for name, method in methods().items():
        assert method.name == name and method.summary and method.__doc__
        assert method_named(name) is method
        for kind in method.kinds:
            assert method_of(config_for(name, "laptop", kind)) is method


@pytest.mark.parametrize("missing", ["summary", "kinds", "Config", "Act", "build", "policy", "loss"])
def test_a_class_without_what_a_method_needs_is_refused(missing: str) -> None:
    with pytest.raises(KitError, match=f"lacks {missing}"):
        type("Mine", (Method,), parts(**{missing: None}))
    assert "mine" not in methods()


@pytest.mark.parametrize(("changes", "message"), [
    ({"kinds": ("boxes",)}, "kinds must be some of box, discrete, pixels; got boxes"),
    ({"kinds": ()}, "got none"),
    ({"Config": int}, "Config must derive from MethodConfig"),
    ({"Act": int}, "must be dataclasses"),
    ({"name": "cloning"}, "two methods are called 'cloning'"),
    ({"Config": CloningConfig}, "mine and cloning share one Config"),
])  # fmt: skip
def test_a_method_that_cannot_work_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(KitError, match=message):
        type("Mine", (Method,), parts(**changes))
    assert method_named("cloning") is Cloning


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(KitError, match="unknown method 'clonig'; did you mean 'cloning'"):
        method_named("clonig")
    with pytest.raises(KitError, match="Config of no registered method"):
        method_of(MethodConfig())


def test_plugins_are_modules_or_files(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "their_method.py"
    file.write_text(
        "from dataclasses import dataclass\n\n"
        "from brrcrl_lib.methods.cloning import Cloning, CloningConfig\n\n\n"
        "@dataclass(frozen=True)\nclass TheirConfig(CloningConfig):\n    pass\n\n\n"
        "class Theirs(Cloning):\n    name, Config = 'theirs', TheirConfig\n    summary = 'cloning under another name'\n"
    )
    monkeypatch.setenv("BRRCRL_METHODS", str(file))
    assert methods()["theirs"].summary == "cloning under another name"
    for wrong, message in (("no_such_module", "cannot be imported"), (str(tmp_path / "no.py"), "no Python file")):
        monkeypatch.setenv("BRRCRL_METHODS", wrong)
        with pytest.raises(KitError, match=message):
            methods()


# -- several networks, several optimisers ------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoConfig(MethodConfig):
    """Two networks that learn at different rates."""

    device: str = field(default="cpu")


def test_a_method_may_have_several_networks_and_optimisers() -> None:
    def build(self: Any) -> dict[str, nn.Module]:
        return {"model": nn.Linear(3, 2), "critic": nn.Linear(3, 1)}

    def make_optimizers(self: Any) -> dict[str, torch.optim.Optimizer]:
        return {
            "actor": torch.optim.SGD(self.modules["model"].parameters(), lr=0.1),
            "critic": torch.optim.Adam(self.modules["critic"].parameters(), lr=0.01),
        }

    def update(self: Any, batch: Any, step: int, generator: Any) -> dict[str, torch.Tensor]:
        losses = {name: module(batch.observations).square().mean() for name, module in self.modules.items()}
        self.minimise(losses["model"], self.optimizers["actor"])
        self.minimise(losses["critic"], self.optimizers["critic"])
        return {"loss": losses["model"].detach(), "critic": losses["critic"].detach()}

    members = parts(Config=TwoConfig, build=build, loss=None, update=update, make_optimizers=make_optimizers)
    method = type("Mine", (Method,), members)(TwoConfig(), make_facts())
    first = method.update(make_batch(), 0, None)
    for step in range(1, 30):
        last = method.update(make_batch(), step, None)
    assert all(float(last[name]) < float(first[name]) for name in first)
