"""Both sides of the comparison of updates learn, and take turns."""

import pytest
import torch

from brrcrl_lib.base.devices import generator
from brrcrl_lib.data.batch import Needs
from brrcrl_lib.methods.base import config_for
from brrcrl_lib.study.experiments.cost import random_batch
from brrcrl_lib.tools.bench import updates

pytest.importorskip("torchrl")


@pytest.mark.parametrize("name", updates.METHODS)
def test_an_update_of_theirs_moves_every_network_that_it_trains(name, monkeypatch):
    trained = []
    for kind in ("Adam", "AdamW"):
        real = getattr(torch.optim, kind)

        def recorded(parameters, real=real, **options):
            parameters = list(parameters)
            trained.extend(parameters)
            return real(parameters, **options)

        monkeypatch.setattr(torch.optim, kind, recorded)
    config = config_for(name, "smoke", "box")
    needs = Needs(context=config.context) if name == "dt" else Needs(next=name != "cloning")
    update = updates.THEIRS[name](random_batch(32, needs, generator(0)), config)
    assert trained
    before = [weight.detach().clone() for weight in trained]
    for step in range(2):
        update(step)
    moved = [not torch.equal(old, new.detach()) for old, new in zip(before, trained, strict=True)]
    assert all(moved)


def test_turns_are_taken_and_the_first_does_not_count(monkeypatch):
    said, spent = [], {"ours": iter([9.0, 9.0, 1.0, 3.0, 1.0, 3.0]), "theirs": iter([0.0, 0.0, 4.0, 4.0, 4.0, 4.0])}
    monkeypatch.setattr(updates, "cpu_seconds", lambda action: next(spent[action()]))

    def side(name):
        return lambda step: said.append((name, step)) or name

    assert updates.take_turns(side("ours"), side("theirs"), 2) == (2.0, 4.0)
    assert said[:4] == [("ours", 0), ("ours", 1), ("theirs", 0), ("theirs", 1)] and len(said) == 12
