"""The hook that lets its user look into a run, and change it."""

from __future__ import annotations

from functools import partial
from signal import SIGTERM
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checked_json import list_of, mapping_of, record, text, within
from mmstable.checkpoint.stop_signal import SAVE
from mmstable.events import Event, StepReport
from mmstable.hooks.emergency_checkpoint_hook import EmergencyCheckpointHook
from mmstable.hooks.step_hook import StepHook
from mmstable.liveness.probe.commands import Commands
from mmstable.liveness.probe.console import Console
from mmstable.liveness.probe.live_run import LiveRun
from mmstable.liveness.probe.names import names_of
from mmstable.liveness.probe.probing_bridge import (
    ProbingBridge,
    asks_for_times,
    is_installed,
)
from mmstable.liveness.probe.server import ProbeServer
from mmstable.liveness.probe.tables import Tables
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import flag, number

_NAME = 'LiveProbeHook'


@register_globally(HOOKS)
class LiveProbeHook(StepHook):
    """Let its user look into a run while it runs, and change it.

    Every process of the run opens a socket that only the same user of the
    same machine can connect to. ``mmstable probe WORK_DIR`` uses it: where
    the run is, stacks, bad steps, a checkpoint now, another learning rate or
    clip limit, the end. A changed learning rate is a factor on that of the
    schedule. All ranks make such a change after the same iteration, a
    resumed run keeps it, and it is an event, ``live_change``.

    With ``use_probing=True`` the commands of the package ``probing``
    (``pip install mmstable[probing]``) work, too: SQL, also over
    ``python.mmstable_steps`` and ``python.mmstable_events``, and Python code,
    which is run between two steps and knows ``runner``, ``trainer``,
    ``model``, ``optimizer`` and ``train_loader``. Its socket lets EVERY user
    of this machine run code as the user who trains.

    Args:
        use_probing (bool): Whether to start ``probing``. Defaults to False.
        trace_modules (bool, optional): Whether ``probing`` measures how long
            modules take, which costs time in every iteration. Never if the
            model is compiled, since that would compile it again. Defaults to
            None, which means if the environment variable
            ``PROBING_TORCH_PROFILING`` says 'on'.
        patience (float): Seconds that code waits for the end of a step. Then
            it is run at once, on another thread. Defaults to 5.0.
    """

    # After DivergenceGuardHook, so that code sees the learning rate that the
    # next step is made with.
    priority = 45
    saved = staticmethod(
        record(
            lr_factors=mapping_of(text(), list_of(within(0))),
            clips=mapping_of(text(), within(0)),
        )
    )

    def __init__(
        self,
        use_probing: bool = False,
        trace_modules: bool | None = None,
        patience: float = 5.0,
    ) -> None:
        self._use_probing = flag(_NAME, 'use_probing', use_probing)
        if trace_modules is None:
            trace_modules = asks_for_times()
        self._trace_modules = flag(_NAME, 'trace_modules', trace_modules)
        self._patience = number(_NAME, 'patience', patience, above=0)
        self._saved: dict[str, Any] = {}
        self._run: LiveRun | None = None
        self._server: ProbeServer | None = None
        self._bridge: ProbingBridge | None = None
        self._tables: Tables | None = None

    def before_train(self, runner: Runner) -> None:
        """Open the socket, and start ``probing`` if it is wanted."""
        super().before_train(runner)
        self._close()
        self._run = run = LiveRun(runner, self.monitor)
        run.rates.factors.update(self._saved.get('lr_factors', {}))
        run.clips.update(self._saved.get('clips', {}))
        run.begin()
        if self._saved:
            runner.logger.warning(
                _(
                    'LiveProbeHook: this run keeps what was changed before '
                    'it was resumed: learning rates [{factors}], clip limits '
                    '[{clips}].',
                    **_in_words(run),
                )
            )
        commands = Commands(run, partial(_request_save, runner))
        if self._use_probing:
            self._open_probing(run, commands)
        try:
            self._server = ProbeServer(commands.all(), run.thread.has_ended)
        except OSError as error:
            runner.logger.warning(
                _(
                    'LiveProbeHook: `mmstable probe` will not find this run: '
                    'no socket can be made for it ({error}). The environment '
                    'variable MMSTABLE_PROBE_DIR names another folder.',
                    error=error,
                )
            )
        else:
            runner.logger.info(
                _(
                    'LiveProbeHook: look into this run with `mmstable probe '
                    '{folder}`; its socket is open to you only.',
                    folder=runner.work_dir,
                )
            )

    def before_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
    ) -> None:
        """Between two steps: do what was asked for."""
        run = self._run
        if run is not None and (run.boundary.waiting or run.is_shared):
            run.look(runner.iter)
            run.boundary.visit()

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: Any = None,
    ) -> None:
        """Between two steps as well."""
        if self._run is not None and self._run.boundary.waiting:
            self._run.boundary.visit()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Put the rates of the schedule back, if torch lost our hooks."""
        if self._run is not None and self._run.rates.scheduled:
            self._run.rates.take_off()

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Remember a step."""
        if self._tables is not None:
            self._tables.add_step(report)
        if report.fault is not None and self._run is not None:
            self._run.bad_steps.append(report)

    def after_event(self, runner: Runner, event: Event) -> None:
        """Remember an event."""
        if self._tables is not None:
            self._tables.add_event(event)
        if self._run is not None:
            self._run.events.append(event)

    def after_train(self, runner: Runner) -> None:
        """Close the socket."""
        self._close()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Close the socket."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        run = self._run
        if run is None or not (run.rates.factors or run.clips):
            return {}
        factors = {name: list(v) for name, v in run.rates.factors.items()}
        return dict(lr_factors=factors, clips=dict(run.clips))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._saved = state

    def _open_probing(self, run: LiveRun, commands: Commands) -> None:
        log = run.runner.logger
        if not is_installed():
            log.warning(
                _(
                    'LiveProbeHook: `probing` is not installed; only '
                    '`mmstable probe` works, without SQL and code. Install '
                    'it with `pip install mmstable[probing]`.'
                )
            )
            return
        console = Console(
            run.boundary, names_of(run), run.noticing_changes, self._patience
        )
        self._bridge = commands.bridge = bridge = ProbingBridge(console)
        self._tables = Tables(bridge.make_table)
        if self._trace_modules and not run_view.is_compiled(run.runner.model):
            bridge.trace_modules()
        log.warning(
            _(
                'LiveProbeHook: EVERY user of this machine can now run code '
                'as you in this process, through the socket of `probing`, '
                'which does not ask who is there. Use it only on machines '
                'whose users you trust; `mmstable probe` works without it '
                '(`--probe` alone).'
            )
        )

    def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        bridge, self._bridge = self._bridge, None
        self._tables = None
        if bridge is not None:
            bridge.close()
        if self._run is not None:
            self._run.end()


def _request_save(runner: Runner, ends: bool) -> None:
    saver = run_view.find_hook(runner, EmergencyCheckpointHook)
    if saver is None:
        raise ValueError(
            _(
                'nobody saves on request: the run needs '
                'mmstable.EmergencyCheckpointHook and '
                'mmstable.SafeCheckpointHook'
            )
        )
    # The log says `mmstable: ` ahead of it.
    saver.request('probe', SIGTERM if ends else SAVE)


def _in_words(run: LiveRun) -> dict[str, list[str]]:
    return dict(
        factors=[f'{n}: x{v[0]:g}' for n, v in run.rates.factors.items()],
        clips=[f'{n}: {v:g}' for n, v in run.clips.items()],
    )
