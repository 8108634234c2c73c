"""What code that is sent to a run can use, by short names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mmstable import run_view
from mmstable.liveness.probe.live_run import LiveRun


class Trainer:
    """The few attributes that debugging guides expect of a trainer.

    Args:
        run (LiveRun): The run.
    """

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    @property
    def current_step(self) -> int:
        """Training iterations done."""
        return self._run.iteration

    @property
    def grad_clip(self) -> Any:
        """The clip limit; one for each wrapper if there are several."""
        names = run_view.wrappers(self._run.runner)
        found = {name: self._run.read_clip(name) for name in names}
        return found if len(found) > 1 else next(iter(found.values()))

    @grad_clip.setter
    def grad_clip(self, limit: float | Mapping[str, float]) -> None:
        wrappers = run_view.wrappers(self._run.runner)
        if not isinstance(limit, Mapping):
            limit = dict.fromkeys(wrappers, limit)
        for name, value in limit.items():
            if name not in wrappers or not float(value) > 0:
                raise ValueError(
                    'trainer.grad_clip must be a number above 0, or one for '
                    f'each of {", ".join(wrappers)}; got {limit!r}'
                )
        for name, value in limit.items():
            self._run.change_clip(name, float(value))


class Optimizers:
    """Several optimizers with the surface of one.

    Args:
        members (Mapping): The optimizers by the name of their wrapper.
    """

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all."""
        return [g for o in self._members.values() for g in o.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The states of all, by name."""
        return {name: one.state_dict() for name, one in self._members.items()}


def names_of(run: LiveRun) -> dict[str, Any]:
    """The names, and what they stand for."""
    runner = run.runner
    members = run_view.optimizers(runner)
    (first, *others) = members.values()
    return dict(
        torch=torch,
        runner=runner,
        trainer=Trainer(run),
        model=run_view.saved_model(runner),
        optimizer=Optimizers(members) if others else first,
        train_loader=runner.train_loop.dataloader,
    )
