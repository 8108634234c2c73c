"""The hook that reports where a run hangs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checkpoint.resume_hint import RESUME_FROM_NEWEST, resume_hint
from mmstable.errors import TrainingHangs
from mmstable.events.machine_records import Hang
from mmstable.hooks.emergency_checkpoint_hook import EmergencyCheckpointHook
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.rank_failure_hook import RankFailureHook
from mmstable.hooks.safe_checkpoint_hook import SafeCheckpointHook
from mmstable.hooks.step_hook import StepHook
from mmstable.liveness.collectives import read_collectives
from mmstable.liveness.dead_man_switch import DeadManSwitch
from mmstable.liveness.hang_text import describe_ranks
from mmstable.liveness.inspection import Finding, inspect
from mmstable.liveness.limits import PHASES, PhaseLimits
from mmstable.liveness.loader import asked_loader, batches_read
from mmstable.liveness.peers import RankStatus, StatusBoard, behind
from mmstable.liveness.phases import DEBUGGER, Phase
from mmstable.liveness.sign_of_life import is_supervised, show_life
from mmstable.liveness.stacks import stacks_file, write_stacks
from mmstable.liveness.watchdog import Stall, Watchdog
from mmstable.loops.shielded_workers import shield_workers
from mmstable.messages import N_, _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import language, mapping, number, one_of, text

_NAME = 'HangWatchdogHook'
# Phases in which the state is complete once the failed iteration is undone.
_COMPLETE = ('data', 'forward', 'backward', 'validation')
# Seconds that saving may take, after which a supervisor kills the process.
_SAVING = 1800.0
_NOT_SAVED = N_(
    'mmstable: the state is in the middle of something and was not saved. '
    '{resume}'
)


@register_globally(HOOKS)
class HangWatchdogHook(StepHook):
    """Say where a run hangs, instead of nothing.

    A thread looks once a second at what the training calls, which tells the
    phase: 'data', 'forward', 'backward', 'step', 'hook', 'validation',
    'checkpoint', 'resume', 'compile' or 'other'. A healthy iteration pays
    nothing. If a phase takes too long, the log names the rank, the line, the
    samples, the worker of the data loader that is waited for, and the rank
    that others wait for; stacks of all threads and workers are in
    ``stability/stacks.rankN.txt``. While a call in C holds Python's lock, the
    stack of the training thread is in ``stability/watchdog.rankN.txt``. A
    suspended process, a debugger and a busy machine do not count.

    Args:
        min_limit (float): Seconds that data, forward, backward and step may
            take at least. Defaults to 300.0.
        rare_limit (float): The same for all else, and for the first three
            iterations. Defaults to 1800.0.
        factor (float): A phase may also take so many times longer than it
            has taken twice before. Defaults to 5.0.
        limits (dict, optional): Limits of phases, or of hooks by their class,
            in seconds, that are not learned. Defaults to None.
        action (str, optional): 'wait'; or 'exit': save the last complete
            state if it can be had, and end with exit code 23. Defaults to
            None, which means 'exit' if somebody is going to start the run
            again (``mmstable train --max-restarts``, torchrun), else 'wait'.
        lang (str, optional): The language of all lines of the run, 'en' or
            'zh_cn'. Defaults to None, which means that of another hook, or
            of the environment variable ``MMSTABLE_LANG``, or English.
    """

    # Ahead of EmergencyCheckpointHook, which shields the same workers.
    priority = 'VERY_HIGH'
    observes_stock = False

    def __init__(
        self,
        min_limit: float = 300.0,
        rare_limit: float = 1800.0,
        factor: float = 5.0,
        limits: Mapping[str, float] | None = None,
        action: str | None = None,
        lang: str | None = None,
    ) -> None:
        self.lang = language(_NAME, lang)
        self._settings: dict[str, Any] = dict(
            by_hand=_check_limits(limits),
            least=number(_NAME, 'min_limit', min_limit, above=0),
            least_rare=number(_NAME, 'rare_limit', rare_limit, above=0),
            factor=number(_NAME, 'factor', factor, at_least=1),
        )
        if action is not None:
            one_of(_NAME, 'action', action, ('wait', 'exit'))
        self._action = action
        self._runner: Runner
        self._folder: Path
        self.watchdog: Watchdog | None = None
        self._board: StatusBoard | None = None
        self._validated = 0
        # Whether the log says of the present phase that it hangs.
        self._has_told = False

    def before_run(self, runner: Runner) -> None:
        """Start to watch."""
        super().before_run(runner)
        self._stop()
        self._runner = runner
        self._folder = run_view.stability_folder(runner)
        self._board = StatusBoard() if get_world_size() > 1 else None
        self.watchdog = Watchdog(
            self,
            PhaseLimits(**self._settings),
            DeadManSwitch(self._folder / f'watchdog.rank{get_rank()}.txt'),
        )
        self.watchdog.start()

    def before_train(self, runner: Runner) -> None:
        """Let workers write their stacks when they are asked to."""
        super().before_train(runner)
        shield_workers(runner.train_loop.dataloader, self._workers_file)

    def before_val(self, runner: Runner) -> None:
        """Let workers write their stacks when they are asked to."""
        loader = getattr(runner.val_loop, 'dataloader', None)
        shield_workers(loader, self._workers_file)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: Any = None,
    ) -> None:
        """Note the progress."""
        self._validated += 1

    after_test_iter = after_val_iter

    def after_run(self, runner: Runner) -> None:
        """All went well."""
        self._stop()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """It has not hung, but failed."""
        self._stop()

    @property
    def _workers_file(self) -> Path:
        return self._folder / f'workers.rank{get_rank()}.txt'

    def _stop(self) -> None:
        dog, self.watchdog = self.watchdog, None
        if dog is not None:
            dog.stop()
            with suppress(OSError):
                if self._workers_file.stat().st_size == 0:
                    self._workers_file.unlink()

    # The rest is called from the thread.

    def progress(self) -> tuple[int, Any]:
        """Iterations of training done, and what else changes with time."""
        frame = None if self.watchdog is None else self.watchdog.frame()
        read = batches_read(asked_loader(frame))
        return self._runner.iter, (self._validated, read)

    def on_look(self, phase: Phase, seconds: float, limit: float) -> None:
        """Show that this rank is alive, and that it makes no progress."""
        show_life(limit if self._ends() else math.inf, str(phase))
        if seconds > 0 and self._board is not None:
            # The store may be gone.
            with suppress(RuntimeError):
                self._board.leave(self._status(phase, seconds, ''))

    def on_stall(self, stall: Stall) -> None:
        """Report it; end the run if that is wanted."""
        dog = self.watchdog
        if dog is None:
            return
        found = inspect(stall, dog.frame(), self._batch(), self._workers_file)
        own = self._status(stall.phase, stall.seconds, found.where)
        ranks: dict[int, RankStatus | None] = {own.rank: own}
        if self._board is not None:
            # The store may be gone.
            with suppress(RuntimeError):
                ranks = self._board.exchange(own, 1.5 * dog.interval)
        if any(one and one.phase == DEBUGGER for one in ranks.values()):
            # The others wait for its user.
            return
        # Not if training has ended meanwhile.
        ends = self._ends() and not (stall.is_over or dog.is_stopped)
        text = self._describe(stall, ranks, ends)
        try:
            write_stacks(self._folder, get_rank(), text, found.stacks)
            self._runner.logger.error(text)
            self._has_told |= not stall.is_over
            self._emit(stall, found, ranks, ends, text)
        finally:
            # Also if another hook fails: the run would hang for ever.
            if ends:
                self._leave(stall, TrainingHangs(text))

    def on_recovery(self, phase: Phase, seconds: float) -> None:
        """Say that it was no hang for ever."""
        if self._has_told:
            self._has_told = False
            self._runner.logger.warning(
                _(
                    'mmstable: training continues after {seconds:.0f} s in '
                    "'{phase}'.",
                    phase=str(phase),
                    seconds=seconds,
                )
            )

    def _ends(self) -> bool:
        if self._action is None:
            return is_supervised()
        return self._action == 'exit'

    def _batch(self) -> Any:
        loop = run_view.built_train_loop(self._runner)
        step = getattr(getattr(loop, 'train_step', None), 'last', None)
        return getattr(step, 'batch', None)

    def _status(self, phase: Phase, seconds: float, where: str) -> RankStatus:
        known = read_collectives() if self._board is not None else None
        return RankStatus(
            get_rank(),
            run_view.iterations_done(self._runner),
            str(phase),
            seconds,
            where,
            -1 if known is None else known.begun,
            '' if known is None else known.waits_in,
        )

    def _describe(
        self,
        stall: Stall,
        ranks: Mapping[int, RankStatus | None],
        ends: bool,
    ) -> str:
        facts = dict(
            ranks=describe_ranks(ranks),
            limit=stall.limit,
            file=stacks_file(self._folder, get_rank()),
        )
        if stall.is_over:
            over = _('Training continues.')
            return _(
                'mmstable: training hung: {ranks:; }. A call in C held '
                "Python's lock all that time. The limit is {limit:.0f} s. "
                'All stacks are in {file}. {action}',
                **facts,
                action=over,
            )
        action = _(
            "Training waits; HangWatchdogHook(action='exit') would end it, "
            'and `mmstable train --max-restarts N` start it again.'
        )
        if ends:
            action = _(
                'This process ends with exit code {code}.',
                code=TrainingHangs.exit_code,
            )
        return _(
            'mmstable: training hangs: {ranks:; }. The limit is {limit:.0f} '
            's. All stacks are in {file}. {action} If it hangs again, test '
            'the machine with `mmstable doctor`.',
            **facts,
            action=action,
        )

    def _emit(
        self,
        stall: Stall,
        found: Finding,
        ranks: Mapping[int, RankStatus | None],
        ends: bool,
        text: str,
    ) -> None:
        event = Hang.now(
            run_view.iterations_done(self._runner),
            rank=get_rank(),
            phase=stall.phase.name,
            part=stall.phase.part,
            seconds=stall.seconds,
            limit=stall.limit,
            line=found.line,
            behind=behind([one for one in ranks.values() if one is not None]),
            action='exit' if ends else 'wait',
            text=text,
            file=str(stacks_file(self._folder, get_rank())),
        )
        self.monitor.emit(self._runner, event)

    def _leave(self, stall: Stall, error: TrainingHangs) -> None:
        """End this process, even if saving fails."""
        show_life(_SAVING, str(stall.phase))
        try:
            self._rescue(stall, error)
        finally:
            os._exit(error.exit_code)

    def _rescue(self, stall: Stall, error: TrainingHangs) -> None:
        """Save what can be had, and say what that is."""
        runner = self._runner
        loop = run_view.built_train_loop(runner)
        step = getattr(loop, 'train_step', None)
        is_complete = stall.phase.name in _COMPLETE and step is not None
        if step is not None:
            step.freeze()
        path = None
        try:
            path = self._save(error, is_complete)
        except Exception:
            runner.logger.exception(_(_NOT_SAVED, resume=''))
        if path is None:
            last = run_view.find_hook(runner, SafeCheckpointHook)
            resume = resume_hint(runner, getattr(last, 'last_ckpt', None))
            resume = resume or _(RESUME_FROM_NEWEST)
            runner.logger.error(_(_NOT_SAVED, resume=resume))
        else:
            resume = resume_hint(runner, path)
            runner.logger.error(
                _(
                    'mmstable: saved {path} before the end. {resume}',
                    path=path,
                    resume=resume,
                )
            )
        log = run_view.find_hook(runner, EventLogHook)
        if log is not None:
            log.on_exception(runner, error)

    def _save(self, error: TrainingHangs, is_complete: bool) -> str | None:
        runner = self._runner
        if self._board is not None:
            ranks = run_view.find_hook(runner, RankFailureHook)
            if ranks is None:
                return None
            if is_complete:
                runner.train_loop.train_step.undo_failed()
            return ranks.end_hanging(runner, error, is_complete)
        saver = run_view.find_hook(runner, EmergencyCheckpointHook)
        if saver is None or not is_complete:
            return None
        return saver.save_hanging(runner)


def _check_limits(limits: Any) -> dict[str, float]:
    checked = mapping(_NAME, 'limits', limits)
    for name, seconds in checked.items():
        key = f'limits.{text(_NAME, "limits", name)}'
        if not name[:1].isupper():
            one_of(_NAME, 'limits', name, PHASES)
        checked[name] = number(_NAME, key, seconds, above=0)
    return checked
