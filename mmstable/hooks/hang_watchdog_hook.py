"""The hook that reports where a run hangs."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.signals import resume_hint
from mmstable.errors import TrainingHangs, exit_now
from mmstable.events.records import Hang
from mmstable.hooks.emergency_checkpoint_hook import (
    EmergencyCheckpointHook,
    save_newest_snapshot,
)
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.rank_failure_hook import RankFailureHook
from mmstable.hooks.safe_checkpoint_hook import resume_from_last
from mmstable.hooks.step_hook import StepHook
from mmstable.io.heartbeat import (
    begin_heartbeat,
    end_heartbeat,
    is_supervised,
    write_heartbeat,
)
from mmstable.loops.workers import use_signal_safe_workers
from mmstable.messages import N_, _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import language, mapping, number, one_of, text
from mmstable.torch_internals import (
    Collectives,
    asked_loader,
    batches_read,
    read_collectives,
)

if TYPE_CHECKING:
    from mmstable.dist.failure import PeerWatch, RankStatus
    from mmstable.hang.watchdog import Phase, Stall, Watchdog

_NAME = 'HangWatchdogHook'
# Phases in which the state is complete once the failed iteration is undone.
_COMPLETE = ('data', 'forward', 'backward', 'validation')
# Seconds that saving may take.
_SAVING = 1800.0
# The same if the device hangs, so that only a snapshot can be saved: some,
# and one for each so many bytes.
_SAVING_SNAPSHOT, _BYTES_A_SECOND = 5.0, 50 * 2**20
_HANGS = N_(
    'mmstable: training hangs: {ranks:; }. The limit is {limit:.0f} s. All '
    'stacks are in {file}. {action} If it hangs again, test the machine with '
    '`mmstable doctor`.'
)
_HUNG = N_(
    'mmstable: training hung: {ranks:; }. A C call held the GIL all that '
    'time. The limit is {limit:.0f} s. All stacks are in {file}. {action}'
)
_WAITS = N_(
    "Training keeps waiting; HangWatchdogHook(action='exit') would end the "
    'run, and `mmstable train --max-restarts N` would restart it.'
)
_NOT_SAVED = N_(
    'mmstable: the state is incomplete (an update was half done) and was '
    'not saved. {resume}'
)


@register_globally(HOOKS)
class HangWatchdogHook(StepHook):
    """Report where a run hangs.

    Once a second a thread reads the call stack of the training thread, which
    shows the phase: 'data', 'forward', 'backward', 'step', 'hook',
    'validation', 'checkpoint', 'resume', 'compile' or 'other'. A healthy
    iteration has no overhead. If a phase exceeds its limit, the log names the
    rank, the line, the samples, the dataloader worker that training waits
    for, and the rank that other ranks wait for. Stacks of all threads and
    workers go to ``stability/stacks.rankN.txt``. While a C call holds the
    GIL, the stack of the training thread is in
    ``stability/watchdog.rankN.txt``. A suspended process, a debugger and a
    busy machine do not count as a hang.

    Args:
        min_limit (float): Least limit in seconds of data, forward, backward
            and step. Defaults to 300.0.
        rare_limit (float): Least limit in seconds of all other phases, and of
            the first three iterations. Defaults to 1800.0.
        factor (float): The limit of a phase is at least this multiple of its
            second longest time so far. Defaults to 5.0.
        limits (dict, optional): Fixed limits in seconds by phase, or by class
            of a hook. Defaults to None.
        action (str, optional): 'wait'; or 'exit': save the last complete
            state if possible, and exit with code 23. Defaults to None, which
            means 'exit' under a supervisor that restarts the run
            (``mmstable train --max-restarts``, torchrun), else 'wait'.
        lang (str, optional): Language of all log lines of the run, 'en' or
            'zh_cn'. Defaults to None, which means that of another hook, or
            of the environment variable ``MMSTABLE_LANG``, or English.
    """

    # Ahead of EmergencyCheckpointHook, which changes the same workers.
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
        self._ranks: PeerWatch | None = None
        self._validated = 0
        # Whether a hang of the current phase was logged.
        self._has_logged = False

    def before_run(self, runner: Runner) -> None:
        """Start the watchdog."""
        from mmstable.hang.dead_man_switch import DeadManSwitch
        from mmstable.hang.watchdog import PhaseLimits, Watchdog

        super().before_run(runner)
        self._stop()
        begin_heartbeat(runner.work_dir, get_rank())
        self._runner = runner
        self._folder = runner_view.stability_folder(runner)
        self._ranks = None
        if get_world_size() > 1:
            from mmstable.dist.failure import PeerWatch

            # Not started: it only carries the status of the ranks.
            self._ranks = PeerWatch(lost_after=5.0)
        self.watchdog = Watchdog(
            self,
            PhaseLimits(**self._settings),
            DeadManSwitch(self._folder / f'watchdog.rank{get_rank()}.txt'),
        )
        self.watchdog.start()

    def before_train(self, runner: Runner) -> None:
        """Let workers write their stacks on request."""
        super().before_train(runner)
        use_signal_safe_workers(
            runner.train_loop.dataloader, self._workers_file
        )

    def before_val(self, runner: Runner) -> None:
        """Let workers write their stacks on request."""
        loader = getattr(runner.val_loop, 'dataloader', None)
        use_signal_safe_workers(loader, self._workers_file)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: Any = None,
    ) -> None:
        """Count the validated batches."""
        self._validated += 1

    after_test_iter = after_val_iter

    def after_run(self, runner: Runner) -> None:
        """Stop the watchdog."""
        self._stop()
        end_heartbeat()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Stop the watchdog."""
        self._stop()

    @property
    def _workers_file(self) -> Path:
        return self._folder / f'workers.rank{get_rank()}.txt'

    def _stop(self) -> None:
        if self.watchdog is not None:
            # Still set while it stops: its last report reads it.
            self.watchdog.stop()
            self.watchdog = None
            with suppress(OSError):
                if self._workers_file.stat().st_size == 0:
                    self._workers_file.unlink()

    # The watchdog's thread calls the methods below.

    def progress(self) -> tuple[int, Any]:
        """Return the iterations done, and other counts that advance."""
        frame = None if self.watchdog is None else self.watchdog.frame()
        read = batches_read(asked_loader(frame))
        return self._runner.iter, (self._validated, read)

    def on_look(self, phase: Phase, seconds: float, limit: float) -> None:
        """Write the heartbeat, and publish a rank without progress."""
        if seconds <= limit:
            # A scheduler may judge the run by the age of the file.
            write_heartbeat(limit if self._ends() else math.inf, str(phase))
        if seconds > 0 and self._ranks is not None:
            # The store may be gone.
            with suppress(RuntimeError):
                self._ranks.leave_status(self._status(phase, seconds, ''))

    def on_stall(self, stall: Stall) -> None:
        """Log the hang; exit if `action` asks for it."""
        from mmstable.dist.failure import behind
        from mmstable.hang import report
        from mmstable.hang.watchdog import DEBUGGER

        dog, runner = self.watchdog, self._runner
        if dog is None:
            return
        loop = runner_view.built_train_loop(runner)
        step = getattr(getattr(loop, 'train_step', None), 'last', None)
        batch = getattr(step, 'batch', None)
        found = report.inspect(stall, dog.frame(), batch, self._workers_file)
        own = self._status(stall.phase, stall.seconds, found.where)
        ranks: dict[int, RankStatus | None] = {own.rank: own}
        if self._ranks is not None:
            # The store may be gone.
            with suppress(RuntimeError):
                ranks = self._ranks.exchange(own, 1.5 * dog.interval)
        known = [one for one in ranks.values() if one is not None]
        if any(one.phase == DEBUGGER for one in known):
            # A rank in a debugger: the others wait for its user.
            return
        # Training may have ended meanwhile.
        ends = self._ends() and not (stall.is_over or dog.is_stopped)
        text, action = _HANGS, _(_WAITS)
        if stall.is_over:
            text, action = _HUNG, _('Training continues.')
        elif ends:
            code = TrainingHangs.exit_code
            action = _('This process ends with exit code {code}.', code=code)
        file = report.stacks_file(self._folder, own.rank)
        text = _(
            text,
            ranks=report.describe_ranks(ranks),
            limit=stall.limit,
            file=file,
            action=action,
        )
        event = Hang.now(
            own.iteration,
            rank=own.rank,
            phase=stall.phase.name,
            part=stall.phase.part,
            seconds=stall.seconds,
            limit=stall.limit,
            line=found.line,
            behind=behind(known),
            action='exit' if ends else 'wait',
            text=text,
            file=str(file),
        )
        try:
            report.write_stacks(self._folder, own.rank, text, found.stacks)
            runner.logger.error(text)
            self._has_logged |= not stall.is_over
            self.monitor.emit(runner, event)
        finally:
            # Also if another hook raises: the run would hang for ever.
            if ends:
                self._leave(stall, TrainingHangs(text))

    def on_recovery(self, phase: Phase, seconds: float) -> None:
        """Log that training continues."""
        if self._has_logged:
            self._has_logged = False
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

    def _status(self, phase: Phase, seconds: float, where: str) -> RankStatus:
        from mmstable.dist.failure import RankStatus

        known = Collectives() if self._ranks is None else read_collectives()
        return RankStatus(
            get_rank(),
            runner_view.iterations_done(self._runner),
            str(phase),
            seconds,
            where,
            *known,
        )

    def _leave(self, stall: Stall, error: TrainingHangs) -> None:
        """End this process in time, even if saving fails or hangs."""
        from mmstable.state.device import answers
        from mmstable.state.run_state import RunState

        runner, limit = self._runner, _SAVING
        is_readable = answers(runner_view.device_of(runner.model))
        if not is_readable:
            size = RunState(runner).size()
            limit = _SAVING_SNAPSHOT + size / _BYTES_A_SECOND
        write_heartbeat(limit, str(stall.phase))
        saving = threading.Thread(
            target=self._rescue, args=(stall, error, is_readable), daemon=True
        )
        try:
            saving.start()
            saving.join(limit)
        finally:
            exit_now(error.exit_code)

    def _rescue(
        self, stall: Stall, error: TrainingHangs, is_readable: bool
    ) -> None:
        """Save a checkpoint if there is a complete state, and log its path."""
        runner, path = self._runner, None
        log = runner_view.find_hook(runner, EventLogHook)
        if log is not None:
            # Before saving, which may be cut off.
            log.on_exception(runner, error)
        loop = runner_view.built_train_loop(runner)
        step = getattr(loop, 'train_step', None)
        is_complete = stall.phase.name in _COMPLETE and step is not None
        if step is not None:
            step.freeze()
        saver = runner_view.find_hook(runner, EmergencyCheckpointHook)
        ranks = runner_view.find_hook(runner, RankFailureHook)
        try:
            if get_world_size() > 1:
                if ranks is not None and step and is_complete and is_readable:
                    step.undo_failed()
                path = ranks and ranks.end_hanging(
                    runner, error, is_complete, is_readable
                )
            elif not is_readable:
                path, __ = save_newest_snapshot(runner)
            elif saver is not None and is_complete:
                path = saver.save_hanging(runner)
        except Exception:
            runner.logger.exception(_(_NOT_SAVED, resume=''))
        if path is None:
            resume = resume_from_last(runner)
            runner.logger.error(_(_NOT_SAVED, resume=resume))
        else:
            resume = resume_hint(runner, path)
            runner.logger.error(
                _(
                    'mmstable: saved {path} before exiting. {resume}',
                    path=path,
                    resume=resume,
                )
            )


def _check_limits(limits: Any) -> dict[str, float]:
    checked = mapping(_NAME, 'limits', limits)
    for name, seconds in checked.items():
        key = f'limits.{text(_NAME, "limits", name)}'
        if not name[:1].isupper():
            from mmstable.hang.watchdog import PHASES

            one_of(_NAME, 'limits', name, PHASES)
        checked[name] = number(_NAME, key, seconds, above=0)
    return checked
