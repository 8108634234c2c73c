"""The hook that breaks a run on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import ConfigError
from mmstable.events import Injection
from mmstable.messages import _
from mmstable.optim.grad_health import unwrap
from mmstable.optim.observer import monitor_of
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import flag, integer, refuse

if TYPE_CHECKING:
    from mmstable.inject.plan import Ledger, PlannedFault

_NAME = 'FaultInjectorHook'


@register_globally(HOOKS)
class FaultInjectorHook(Hook):
    """Inject faults, to test which faults a run survives.

    Every injected fault is reported to hooks by
    ``after_fault_injected(runner, fault)`` with an
    :class:`~mmstable.events.Injection`, and :class:`EventLogHook` records
    it. Faults that end a process (``oom``, ``hang``, ``signal``,
    ``exception``) happen once in a work directory: a resumed run does not
    repeat them. Other faults are repeated, as in an uninterrupted run.

    Args:
        faults (Sequence[dict]): The faults: ``kind``, the settings of
            that kind, and ``at``, ``between``, ``probability`` and ``rank``
            for when and where. See ``docs/en/fault_injection.md``.
            Defaults to ().
        enabled (bool): Must be True if there are faults, so that they are
            never left in a config by accident. Defaults to False.
        seed (int): Seed of probabilities. Defaults to 0.
    """

    # Before all other hooks, which see the fault, and its record first.
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
                    '{owner}: `faults` lists {count:fault|faults} that '
                    'would break this run. Set `enabled=True` to inject '
                    'them, or remove the hook from the config.',
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
        self._pending: list[dict[str, Any]] = []

    @staticmethod
    def _read(index: int, fault: Any) -> PlannedFault:
        from mmstable.inject.plan import plan_fault

        try:
            return plan_fault(index, fault)
        except (TypeError, ValueError) as error:
            raise type(error)(f'{_NAME}: {error}') from None

    def before_train(self, runner: Runner) -> None:
        """Check the faults, and log them."""
        if not self._plan:
            return
        from mmstable.inject.plan import Ledger

        self._disarm()
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
        runner.logger.warning(
            _(
                'mmstable: FaultInjectorHook: THIS RUN IS BROKEN ON PURPOSE, '
                'by {count:fault|faults}, seed {seed}:\n'
                '{faults:\n'
                '}\n'
                'Remove FaultInjectorHook from the config to train normally.',
                count=len(self._plan),
                seed=self._seed,
                faults=[f'  [{one.index}] {one}' for one in self._plan],
            )
        )

    def before_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Prepare the faults that are due."""
        if not self._plan:
            return
        # Of an iteration that an exception has cut short.
        self._disarm()
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
                # mmengine's own loops call no hook after an exception.
                self._disarm()
                raise

    def after_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Remove all hooks, and report the injected faults."""
        if not self._due:
            return
        self._disarm()
        self._report(runner)
        missed = [fault for fault, count in self._due.items() if not count]
        self._due = {}
        for fault in missed:
            runner.logger.warning(
                _(
                    'mmstable: FaultInjectorHook: faults[{index}] ({fault}) '
                    'was not injected: iteration {iteration} has no target '
                    'for it.',
                    iteration=runner.iter + 1,
                    index=fault.index,
                    fault=fault.name,
                )
            )

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Remove all hooks, and report the injected faults."""
        self._disarm()
        self._report(runner)
        self._due = {}

    def _disarm(self) -> None:
        if self._handles:
            from mmstable.inject.faults import disarm

            disarm(self._handles)

    def _arm(
        self, runner: Runner, fault: PlannedFault, iteration: int
    ) -> None:
        from mmstable.inject.faults import Scene

        ledger = self._ledger if fault.action.ends_process else None
        if ledger is not None and (iteration, fault.name) in ledger:
            runner.logger.warning(
                _(
                    'mmstable: FaultInjectorHook: {kind} of iteration '
                    '{iteration} was injected before the restart and is not '
                    'repeated: see {file}',
                    iteration=iteration,
                    kind=fault.kind,
                    file=ledger.path,
                )
            )
            del self._due[fault]
            return
        note = partial(self._note, fault, iteration)

        def report(target: str, value: str) -> None:
            note(target, value)
            if ledger is not None:
                ledger.add((iteration, fault.name))
            self._report(runner)

        fault.action.arm(
            Scene(
                model=unwrap(runner.model),
                wrappers=runner_view.wrappers(runner),
                handles=self._handles,
                report=report,
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
        # One record, if the same fault hits every parameter.
        if facts not in self._pending:
            self._pending.append(facts)

    def _report(self, runner: Runner) -> None:
        pending, self._pending = self._pending, []
        for facts in pending:
            injection = Injection.now(**facts)
            runner.logger.warning(
                _(
                    'mmstable: injected: Iter {iteration}: {kind}, {value} '
                    "in '{target}', rank {rank}",
                    **facts,
                )
            )
            monitor_of(runner).emit(runner, injection)
