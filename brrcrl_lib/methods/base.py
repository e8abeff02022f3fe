"""What a method is, and the registry that knows them by name.

A method is one class in one file: a frozen `Config` (what is trained) and `Act` (how it is played), `build` (its
networks), `loss` or `update` (one gradient step), `policy` (what it becomes when it plays). Defining the class
registers it. The training loop, checkpoints, exact resume, evaluation, grids and the command line need nothing else.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from brrcrl_lib.base.config import did_you_mean, with_preset
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import KINDS, TRANSITIONS, Batch, Facts, Needs
from brrcrl_lib.methods.settings import MethodConfig
from brrcrl_lib.policies import Policy

PLUGINS = "BRRCRL_METHODS"
"""Environment variable: modules or .py files with further methods, separated by commas. Packages may instead declare
entry points of the group `brrcrl.methods`."""


class Method:
    """Subclass it, give it a `name`, and it can be trained, resumed, evaluated and put into grids."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `brrcrl methods`: what it is and where it is described."""
    kinds: ClassVar[tuple[str, ...]]
    """Which data it takes: box, discrete, pixels."""
    Config: ClassVar[type[MethodConfig]]
    """What is trained: a frozen dataclass, every field with a default and a docstring (the help text of its flag)."""
    Act: ClassVar[type[Any]]
    """How it is played: a frozen dataclass."""
    acting: ClassVar[tuple[str, ...]] = ("model",)
    """The modules that playing needs; an exported model has no others."""
    may_be_extended: ClassVar[bool] = True
    """Whether a run may be resumed with more steps; not where what a step does depends on how many there will be."""
    watched: ClassVar[str] = "loss"
    """The part of the loss that `patience` watches on held-out episodes."""
    resources: ClassVar[Mapping[str, float]] = {"cpus": 1, "gpus": 0.0}
    """What one training of it asks of a cluster; a share of a GPU (0.25) lets several have one."""
    needs: Needs = TRANSITIONS
    """What it wants to see of each transition. May be set in `build`, where it depends on the configuration."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register(cls)

    def __init__(self, config: Any, facts: Facts, device: torch.device | str = "cpu") -> None:
        if facts.kind not in self.kinds:
            raise KitError(f"{self.name} {_WANTS[self.kinds]}; {facts.dataset} has {_HAS[facts.kind]}")
        self.config, self.facts, self.device = config, facts, torch.device(device)
        self.modules: dict[str, nn.Module] = {name: module.to(device) for name, module in self.build().items()}
        if config.weight_decay is not None and not all(
            isinstance(optimizer, torch.optim.AdamW) for optimizer in self.optimizers.values()
        ):
            raise KitError(f"{self.name} has optimisers of its own, without weight decay; leave weight_decay out")
        self.averages: dict[str, nn.Module] = {}
        """What playing needs, averaged over the steps; empty where `ema` is off."""
        self.best: dict[str, nn.Module] = {}
        """What playing needs, at the best check on held-out episodes; empty where `patience` is off or before it."""
        if config.ema is not None:
            self.averages = self.acting_copies()
        if config.compile:
            self.loss = torch.compile(self.loss)  # type: ignore[method-assign]

    # -- to be written -------------------------------------------------------------------------------------------

    def build(self) -> dict[str, nn.Module]:
        """The networks by name, all of them kept in checkpoints; random numbers come from torch's global generator."""
        raise NotImplementedError

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Optimisers by name, kept in checkpoints too; by default one Adam for every weight that asks for gradients.

        With a `weight_decay` it is AdamW.
        """
        trained = [weight for module in self.modules.values() for weight in module.parameters() if weight.requires_grad]
        rate, decay = self.config.learning_rate, self.config.weight_decay
        if decay is None:
            return {"adam": torch.optim.Adam(trained, lr=rate, fused=True)}
        return {"adam": torch.optim.AdamW(trained, lr=rate, weight_decay=decay, fused=True)}

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        """The parts of the loss of one batch; `loss` is what is minimised. Free of host synchronisation."""
        raise NotImplementedError

    def update(self, batch: Batch, step: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        """One gradient step, the `step`-th from 0; returns the detached parts of the loss, on the device.

        Override it for several losses; every method must report `loss`.
        """
        with self.precision():
            parts = self.loss(batch, generator)
        self.minimise(parts["loss"], *self.optimizers.values())
        return {name: value.detach() for name, value in parts.items()}

    def policy(self, act: Any, generator: torch.Generator | None) -> Policy:
        """What plays, under the settings `act`."""
        raise NotImplementedError

    # -- which weights play ----------------------------------------------------------------------------------------

    def acting_copies(self) -> dict[str, nn.Module]:
        """Copies of the modules that playing needs (their averages, where there are any), which no gradient reaches."""
        now = self.as_it_plays().modules
        return {name: copy.deepcopy(now[name]).requires_grad_(False) for name in self.acting}

    @torch.no_grad()
    def average(self, step: int) -> None:
        """Move the averages towards the weights that the `step`-th update, from 0, has left (see `ema`)."""
        for name, average in self.averages.items():
            rate = max(1 - self.config.ema, 1 / (step + 1))
            torch._foreach_lerp_(list(average.parameters()), list(self.modules[name].parameters()), rate)

    def as_it_plays(self, best: bool = False) -> Method:
        """This method with its averaged weights, or those of the `best` check; itself where it has neither."""
        chosen = {**self.averages, **(self.best if best else {})}
        if not chosen:
            return self
        played = copy.copy(self)
        played.modules = {**self.modules, **chosen}
        vars(played).pop("loss", None)  # compiled for the weights that are trained
        return played

    # -- for the methods to use ----------------------------------------------------------------------------------

    @cached_property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Made when training asks for them: torch's first optimiser takes seconds to load, and playing needs none."""
        return self.make_optimizers()

    @property
    def model(self) -> Any:
        """The module of that name, which most methods have."""
        return self.modules["model"]

    def precision(self) -> AbstractContextManager[Any]:
        """bfloat16 where the configuration asks for it."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.config.mixed_precision else nullcontext()

    @staticmethod
    def minimise(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        """One step of each optimiser down the gradient of `loss`."""
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()


_HAS = {
    "box": "vectors and a box of continuous actions",
    "discrete": "vectors and discrete actions",
    "pixels": "frames and discrete actions",
}
_WANTS = {
    ("box",): "needs continuous actions",
    ("discrete", "pixels"): "needs discrete actions",
    ("box", "discrete"): "needs vectors",
    ("discrete",): "needs vectors and discrete actions",
    ("pixels",): "needs frames",
    ("box", "pixels"): "needs continuous actions or frames",
    KINDS: "takes everything",
}


def create(config: MethodConfig, facts: Facts, device: torch.device | str = "cpu") -> Method:
    """An untrained method: weights from the seed alone; torch's global generator is put back after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return method_of(config)(config, facts, device)


# -- the registry ------------------------------------------------------------------------------------------------

_METHODS: dict[str, type[Method]] = {}


def register(cls: type[Method]) -> None:
    """Take a method in, or say in one sentence what it lacks."""
    missing = [name for name in ("name", "summary", "kinds", "Config", "Act") if not hasattr(cls, name)]
    missing += [name for name in ("build", "policy") if getattr(cls, name) is getattr(Method, name)]
    if cls.loss is Method.loss and cls.update is Method.update:
        missing.append("loss or update")
    if missing:
        raise KitError(f"the method {cls.__qualname__} lacks {', '.join(missing)}; methods/cloning.py shows each")
    if not (isinstance(cls.Config, type) and issubclass(cls.Config, MethodConfig) and is_dataclass(cls.Act)):
        raise KitError(f"{cls.name}: Config must derive from MethodConfig, and both it and Act must be dataclasses")
    unknown = [kind for kind in cls.kinds if kind not in KINDS]
    if unknown or not cls.kinds:
        raise KitError(f"{cls.name}: kinds must be some of {', '.join(KINDS)}; got {', '.join(cls.kinds) or 'none'}")
    there = _METHODS.get(cls.name)
    if there is not None and (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
        raise KitError(f"two methods are called '{cls.name}': {there.__module__} and {cls.__module__}; rename one")
    sharing = [other.name for other in _METHODS.values() if other.Config is cls.Config and other.name != cls.name]
    if sharing:
        raise KitError(
            f"{cls.name} and {sharing[0]} share one Config; give {cls.name} a Config of its own (a subclass)"
        )
    _METHODS[cls.name] = cls


def methods() -> dict[str, type[Method]]:
    """Every method by name: the kit's own, and those of plugins."""
    _load_all()
    return dict(sorted(_METHODS.items()))


def method_named(name: str) -> type[Method]:
    _load_all()
    if name not in _METHODS:
        hint = f"{did_you_mean(name, sorted(_METHODS))}; {PLUGINS}=my_methods.py adds yours"
        raise KitError(f"unknown method '{name}'{hint}")
    return _METHODS[name]


def method_of(config: MethodConfig) -> type[Method]:
    """The method whose configuration this is."""
    _load_all()
    for method in _METHODS.values():
        if method.Config is type(config):
            return method
    raise KitError(f"{type(config).__qualname__} is the Config of no registered method")


def config_for(method: str, preset: str, kind: str, **overrides: Any) -> Any:
    """A method's configuration at the size of a preset for a kind of data, with single fields overridden."""
    return with_preset(method_named(method).Config, preset, kind, **overrides)


_loaded: set[str] = set()


def _load_all() -> None:
    """Import the kit's methods and the plugins, each once."""
    here = [f"{__package__}.{module.name}" for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    wanted = [*here, *filter(None, os.environ.get(PLUGINS, "").split(","))]
    if "entry points" not in _loaded:
        _loaded.add("entry points")
        wanted += [point.module for point in entry_points(group="brrcrl.methods")]
    for name in wanted:
        if name not in _loaded:
            _loaded.add(name)
            _import(name)


def _import(name: str) -> None:
    """A module by its name, or a .py file by its path."""
    if not name.endswith(".py"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.split(".")[0]:
                raise
            raise KitError(f"{PLUGINS} names the module '{name}', which cannot be imported") from None
        return
    path = Path(name).resolve()
    there = getattr(sys.modules.get(path.stem), "__file__", None)
    if there is not None and Path(there).resolve() == path:
        return  # a worker may have met it already, while unpacking what it was sent
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise KitError(f"{PLUGINS} names {path}, which is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
