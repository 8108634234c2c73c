"""The hook that sees to it that all ranks hold the same weights."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from mmengine.dist import all_gather, all_reduce, get_rank, get_world_size
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import Parameter

from mmstable import runner_view
from mmstable.dist.collectives import Sharing, find_sharing
from mmstable.errors import ReplicasDivergedError
from mmstable.events import StepReport
from mmstable.events.records import ReplicasDiverged
from mmstable.hooks.step_hook import StepHook
from mmstable.messages import _
from mmstable.optim.grad_health import clean_name, fingerprints
from mmstable.optim.step import copy_tensors
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import flag, integer, one_of
from mmstable.state.run_state import RunState, Sections

_NAME = 'ReplicaCheckHook'
_ACTIONS = ('warn', 'repair', 'stop')


@register_globally(HOOKS)
class ReplicaCheckHook(StepHook):
    """Compare the state of all ranks now and then, bit by bit.

    Data-parallel training works only as long as all ranks hold the same
    weights. A fault of one machine's memory, or code that runs on one rank
    only, breaks that silently. The first parameter that differs is named,
    and the ranks that hold another one than most do; of two, rank 0 counts,
    because it writes the checkpoints.

    With one process, or with FSDP, where nothing is held twice, it does
    nothing. Between two checks it costs nothing; a check reads the state
    once and exchanges two numbers.

    Args:
        interval (int): Iterations between two checks. Defaults to 500.
        action (str): What to do about a difference: 'warn'; 'repair', which
            copies what most ranks hold to the others; or 'stop', which ends
            the run with exit code 20. Defaults to 'warn'.
        optimizer (bool): Whether to compare the optimizer state, too.
            Defaults to True.
        buffers (bool): Whether to compare buffers, too. Those of BatchNorm
            differ unless ``broadcast_buffers`` or SyncBN is on. Defaults to
            False.
    """

    # After all that change the weights, before a checkpoint (VERY_LOW).
    priority = 'LOW'
    # Only a safe wrapper repairs ranks.
    observes_stock = False

    def __init__(
        self,
        interval: int = 500,
        action: str = 'warn',
        optimizer: bool = True,
        buffers: bool = False,
    ) -> None:
        super().__init__()
        self._interval = integer(_NAME, 'interval', interval)
        self._action = one_of(_NAME, 'action', action, _ACTIONS)
        self._optimizer = flag(_NAME, 'optimizer', optimizer)
        self._buffers = flag(_NAME, 'buffers', buffers)

    def before_train(self, runner: Runner) -> None:
        """Find out whether there is something to compare."""
        super().before_train(runner)
        sharing = find_sharing(runner.model)
        if sharing in (Sharing.REDUCED, Sharing.APART):
            self.after_train_iter = self._check_if_due  # type: ignore[method-assign]
        if sharing is Sharing.SHARDED:
            runner.logger.info(
                _(
                    'ReplicaCheckHook: the model is sharded, so there are no '
                    'replicas to compare.'
                )
            )

    def _check_if_due(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        """Compare every ``interval`` iterations."""
        if self.every_n_train_iters(runner, self._interval):
            self._check(runner)

    def after_bad_step(self, runner: Runner, report: StepReport) -> None:
        """Let averages of weights follow a rank that was repaired."""
        if report.copied_from is not None:
            averages = _averages(RunState(runner).tensors())
            copy_tensors([one for __, one in averages], report.copied_from)

    def _check(self, runner: Runner) -> None:
        state = self._state(runner)
        marks = fingerprints([value for __, value in state])
        if _are_equal(marks):
            return
        found = _compare(marks)
        names = [state[index][0] for index in found]
        ranks = tuple(sorted({r for odd in found.values() for r in odd}))
        iteration = self.monitor.iteration
        found_now = ReplicasDiverged.now(
            iteration,
            name=names[0],
            count=len(names),
            ranks=ranks,
            action=self._action,
        )
        self.monitor.emit(runner, found_now)
        repaired = ''
        if self._action == 'repair':
            source = min(set(range(get_world_size())) - set(ranks))
            copy_tensors([state[index][1] for index in found], source)
            repaired = _(' It has been copied from rank {rank}.', rank=source)
        text = _(
            "Iter {iteration}: replica mismatch: '{name}'{more} on rank "
            '{ranks} is not what the other ranks hold.{repaired}',
            iteration=iteration,
            name=names[0],
            more=_(' and {count} more', count=len(names) - 1)
            if len(names) > 1
            else '',
            ranks=ranks,
            repaired=repaired,
        )
        if self._action == 'stop':
            raise ReplicasDivergedError(text)
        if get_rank() == 0:
            runner.logger.warning(f'mmstable: {text}')

    def _state(self, runner: Runner) -> list[tuple[str, Tensor]]:
        sections = RunState(runner).tensors()
        state = [
            (clean_name(name), value)
            for name, value in sections.pop('state_dict').items()
            if self._buffers or isinstance(value, Parameter)
        ]
        # Of a sharded optimizer every rank holds a part of its own.
        optimizer = sections.pop('optimizer')
        if self._optimizer and not runner_view.has_sharded_optimizer(runner):
            # Sorted: ranks may have got their state in another order.
            state += [
                (f'optimizer.{name}', value)
                for name, value in sorted(optimizer.items())
            ]
        return state + _averages(sections)


def _averages(sections: Sections) -> list[tuple[str, Tensor]]:
    return [
        (f'{section}.{name}', value)
        for section, tensors in sections.items()
        for name, value in tensors.items()
        if section.startswith('ema') and isinstance(value, Parameter)
    ]


def _are_equal(marks: Tensor) -> bool:
    """Whether all ranks have the same marks. A collective call."""
    # Weights, so that two differences do not cancel each other.
    odd = 2 * torch.arange(len(marks), device=marks.device) + 1
    total = (marks * odd).sum()
    extremes = torch.stack([total, -total])
    all_reduce(extremes, op='max')
    return bool(extremes[0] == -extremes[1])


def _compare(marks: Tensor) -> dict[int, list[int]]:
    """Which ranks are not like most, for all that differs. A collective."""
    table = torch.stack(all_gather(marks)).tolist()
    found = {}
    for index, column in enumerate(zip(*table)):
        if len(set(column)) == 1:
            continue
        # Of several that are equally common, the one of the lowest rank.
        usual = Counter(column).most_common(1)[0][0]
        found[index] = [r for r, mark in enumerate(column) if mark != usual]
    return found
