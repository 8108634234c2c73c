"""The hook that breaks a run on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.errors import ConfigError
from mmstable.events import Injection
from mmstable.fault_injection.action import Scene, disarm
from mmstable.fault_injection.kinds import PlannedFault, plan_fault
from mmstable.fault_injection.ledger import Ledger
from mmstable.messages import _
from mmstable.optim.parameter_names import unwrap
from mmstable.optim.step_sources import monitor_of
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import flag, integer, refuse

_NAME = 'FaultInjectorHook'


@register_globally(HOOKS)
class FaultInjectorHook(Hook):
    """Inject faults, to see what a run survives before it matters.

    Every fault that has really happened is told to hooks by
    ``after_fault_injected(runner, fault)`` with an
    :class:`~mmstable.events.Injection`, and :class:`EventLogHook` writes it
    down. Faults that end a process (``oom``, ``hang``, ``signal``,
    ``exception``) happen once in a work directory: a run that goes on after
    them is spared. The others come again, as in an unbroken run.

    Args:
        faults (Sequence[dict]): What to inject: ``kind``, the settings of
            that kind, and ``at``, ``between``, ``probability`` and ``rank``
            for when and where. See ``docs/en/fault_injection.md``.
            Defaults to ().
        enabled (bool): Must be True if there are faults, so that nobody
            trains with them by accident. Defaults to False.
        seed (int): What probabilities are drawn from. Defaults to 0.
    """

    # All other hooks see what it breaks, and its records come first.
    priority = 'HIGHEST'

    def __init__(
        self,
        faults: Sequence[dict] = (),
        enabled: bool = False,
        seed: int = 0,
    ) -> None:
        flag(_NAME, 'enabled', enabled)
        if not isinstance(faults, (list, tuple)):
            rule = _('a list of dicts')
            refuse(_NAME, 'faults', rule, faults, right_type=False)
        if faults and not enabled:
            raise ValueError(
                _(
                    '{owner}: `faults` has {count} of them that would spoil '
                    'this run. Set `enabled=True` if that is what you want, '
                    'or take the hook out of the config.',
                    owner=_NAME,
                    count=len(faults),
                )
            )
        self._plan = [self._read(i, fault) for i, fault in enumerate(faults)]
        self._seed = integer(_NAME, 'seed', seed, at_least=0)
        self._rank = 0
        self._ledger: Ledger | None = None
        self._handles: list[Any] = []
        # Due in this iteration, to how often it has happened.
        self._due: dict[PlannedFault, int] = {}
        self._untold: list[dict[str, Any]] = []

    @staticmethod
    def _read(index: int, fault: Any) -> PlannedFault:
        try:
            return plan_fault(index, fault)
        except (TypeError, ValueError) as error:
            raise type(error)(f'{_NAME}: {error}') from None

    def before_train(self, runner: Runner) -> None:
        """Say loudly what is going to happen."""
        disarm(self._handles)
        if not self._plan:
            return
        self._rank = get_rank()
        model = unwrap(runner.model)
        for fault in self._plan:
            try:
                fault.action.check(model)
            except ValueError as error:
                raise ConfigError(
                    f'{_NAME}: faults[{fault.index}] ({fault.kind}): {error}'
                ) from error
        self._ledger = Ledger(Path(runner.work_dir), self._rank)
        runner.logger.warning(self._announcement(runner))

    def before_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
    ) -> None:
        """Prepare what is due."""
        if not self._plan:
            return
        if self._handles:
            # Of an iteration that an exception has cut short.
            disarm(self._handles)
        iteration = runner.iter + 1
        due = [
            fault
            for fault in self._plan
            if fault.is_due(iteration, self._rank, self._seed)
        ]
        if due:
            self._due = dict.fromkeys(due, 0)
            try:
                for fault in due:
                    self._arm(runner, fault, iteration)
            except BaseException:
                # mmengine's own loops would not tell of it.
                disarm(self._handles)
                raise

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Clear up, and tell of what happened."""
        if not self._due:
            return
        disarm(self._handles)
        self._tell(runner)
        missed = [fault for fault, count in self._due.items() if not count]
        self._due = {}
        for fault in missed:
            runner.logger.warning(
                _(
                    'mmstable: FaultInjectorHook: faults[{index}] ({fault}) '
                    'found nothing to act on in iteration {iteration}: '
                    'nothing was injected.',
                    iteration=runner.iter + 1,
                    index=fault.index,
                    fault=fault.name,
                )
            )

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Clear up; mmstable's loops tell of exceptions."""
        disarm(self._handles)
        self._tell(runner)
        self._due = {}

    def _arm(
        self, runner: Runner, fault: PlannedFault, iteration: int
    ) -> None:
        ledger = self._ledger if fault.action.ends_process else None
        if ledger is not None and (iteration, fault.name) in ledger:
            runner.logger.warning(
                _(
                    'mmstable: FaultInjectorHook: {kind} of iteration '
                    '{iteration} has happened already, and is not injected '
                    'again: see {file}',
                    iteration=iteration,
                    kind=fault.kind,
                    file=ledger.path,
                )
            )
            del self._due[fault]
            return
        note = partial(self._note, fault, iteration)

        def tell(target: str, value: str) -> None:
            note(target, value)
            if ledger is not None:
                ledger.add((iteration, fault.name))
            self._tell(runner)

        fault.action.arm(
            Scene(
                model=unwrap(runner.model),
                wrappers=run_view.wrappers(runner),
                handles=self._handles,
                tell=tell,
                note=note,
            )
        )

    def _note(
        self, fault: PlannedFault, iteration: int, target: str, value: str
    ) -> None:
        self._due[fault] = self._due.get(fault, 0) + 1
        facts = dict(
            iteration=iteration,
            rank=self._rank,
            kind=fault.kind,
            target=target,
            value=value,
        )
        # The same said of every parameter is said once.
        if facts not in self._untold:
            self._untold.append(facts)

    def _tell(self, runner: Runner) -> None:
        untold, self._untold = self._untold, []
        for facts in untold:
            injection = Injection.now(**facts)
            runner.logger.warning(
                _(
                    'mmstable: injected: Iter {iteration}: {kind}, {value} '
                    "in '{target}', rank {rank}",
                    **facts,
                )
            )
            monitor_of(runner).emit(runner, injection)

    def _announcement(self, runner: Runner) -> str:
        faults = [
            f'  [{one.index}] {one}{self._why_never(one, runner.max_iters)}'
            for one in self._plan
        ]
        return _(
            'mmstable: FaultInjectorHook: THIS RUN IS BROKEN ON PURPOSE, by '
            '{count:fault|faults}, seed {seed}:\n{faults:\n}\nTake '
            'FaultInjectorHook out of the config to train for real.',
            count=len(faults),
            seed=self._seed,
            faults=faults,
        )

    @staticmethod
    def _why_never(fault: PlannedFault, max_iters: int) -> str:
        ranks = fault.schedule.rank
        if ranks is not None and min(ranks) >= get_world_size():
            return _(
                ' (NEVER: this run has {ranks:rank|ranks} only)',
                ranks=get_world_size(),
            )
        if fault.schedule.begins_after(max_iters):
            return _(
                ' (NEVER: the run ends with iteration {last})', last=max_iters
            )
        return ''
