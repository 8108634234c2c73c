"""The hook that lets you inspect and change a run while it trains."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.signals import SAVE, Request
from mmstable.events import Event, StepReport
from mmstable.hooks.emergency_checkpoint_hook import EmergencyCheckpointHook
from mmstable.hooks.step_hook import StepHook
from mmstable.io.schema import list_of, mapping_of, record, text, within
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import flag

if TYPE_CHECKING:
    from mmstable.probe.probing import ProbingBridge
    from mmstable.probe.run import LiveRun
    from mmstable.probe.server import ProbeServer

_NAME = 'LiveProbeHook'


@register_globally(HOOKS)
class LiveProbeHook(StepHook):
    """Let you inspect and change a run while it trains.

    Every process of the run opens a socket that only the same user of the
    same machine can connect to. ``mmstable probe WORK_DIR`` uses it: status,
    stacks, bad steps, a checkpoint now, another learning rate or clip limit,
    stop. A changed learning rate is a factor on top of the schedule. All
    ranks apply a change after the same iteration, a resumed run keeps it, and
    it is recorded as an event, ``live_change``.

    With ``use_probing=True`` the commands of the package ``probing``
    (``pip install mmstable[probing]``) work, too: SQL, also over
    ``python.mmstable_steps`` and ``python.mmstable_events``, and Python code,
    which runs between two steps and can use ``runner``, ``trainer``,
    ``model``, ``optimizer`` and ``train_loader``. Its socket lets EVERY user
    of this machine run code as the user who trains. With the environment
    variable ``PROBING_TORCH_PROFILING=on`` it also measures how long the
    modules of a model take that is not compiled.

    Args:
        use_probing (bool): Whether to start ``probing``. Defaults to False.
    """

    # After DivergenceGuardHook, so that code sees the learning rate of the
    # next step.
    priority = 45
    saved = staticmethod(
        record(
            lr_factors=mapping_of(text(), list_of(within(0))),
            clips=mapping_of(text(), within(0)),
        )
    )

    def __init__(self, use_probing: bool = False) -> None:
        self._use_probing = flag(_NAME, 'use_probing', use_probing)
        self._saved: dict[str, Any] = {}
        self._run: LiveRun | None = None
        self._server: ProbeServer | None = None
        self._bridge: ProbingBridge | None = None

    def before_train(self, runner: Runner) -> None:
        """Open the socket, and start ``probing`` on request."""
        from mmstable.probe.commands import Commands
        from mmstable.probe.run import LiveRun
        from mmstable.probe.server import ProbeServer

        super().before_train(runner)
        self.close(runner)
        self._run = run = LiveRun(runner, self.monitor)
        run.rates.factors.update(self._saved.get('lr_factors', {}))
        run.clips.update(self._saved.get('clips', {}))
        run.begin()
        if self._saved:
            runner.logger.warning(
                _(
                    'LiveProbeHook: live changes from before the resume '
                    'stay in effect: learning rates [{factors}], clip '
                    'limits [{clips}].',
                    factors=[
                        f'{name}: x{one[0]:g}'
                        for name, one in run.rates.factors.items()
                    ],
                    clips=[f'{n}: {v:g}' for n, v in run.clips.items()],
                )
            )
        commands = Commands(run, partial(_request_save, runner))
        if self._use_probing:
            from mmstable.probe import probing

            self._bridge = commands.bridge = probing.open_bridge(run)
        try:
            self._server = ProbeServer(commands.all(), run.thread.has_ended)
        except OSError as error:
            runner.logger.warning(
                _(
                    'LiveProbeHook: `mmstable probe` will not find this '
                    'run: its socket could not be created ({error}). Set '
                    'the environment variable MMSTABLE_PROBE_DIR to use '
                    'another folder.',
                    error=error,
                )
            )
        else:
            runner.logger.info(
                _(
                    'LiveProbeHook: inspect this run with `mmstable probe '
                    '{folder}`; only you can use its socket.',
                    folder=runner.work_dir,
                )
            )

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: DATA_BATCH = None
    ) -> None:
        """Run requested work between two steps."""
        run = self._run
        if run is not None and (run.boundary.waiting or run.is_shared):
            run.look(runner.iter)
            run.boundary.visit()

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: Any = None,
    ) -> None:
        """Run requested work between two batches of validation."""
        if self._run is not None and self._run.boundary.waiting:
            self._run.boundary.visit()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        """Restore the schedule's rates, if a step raised before its end."""
        if self._run is not None and self._run.rates.scheduled:
            self._run.rates.take_off()

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Keep a bad step, and add each step to the table."""
        if self._bridge is not None:
            self._bridge.add_step(report)
        if report.fault is not None and self._run is not None:
            self._run.bad_steps.append(report)

    def after_event(self, runner: Runner, event: Event) -> None:
        """Keep an event, and add it to the table."""
        if self._bridge is not None:
            self._bridge.add_event(event)
        if self._run is not None:
            self._run.events.append(event)

    def close(self, runner: Runner) -> None:
        """Close the socket."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.close()
        if self._run is not None:
            self._run.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the changes that a resumed run keeps."""
        run = self._run
        if run is None or not (run.rates.factors or run.clips):
            return {}
        factors = {name: list(v) for name, v in run.rates.factors.items()}
        return dict(lr_factors=factors, clips=dict(run.clips))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the changes of :meth:`state_dict`."""
        self._saved = state


def _request_save(runner: Runner, ends: bool) -> None:
    saver = runner_view.find_hook(runner, EmergencyCheckpointHook)
    if saver is None:
        raise ValueError(
            _(
                'this run cannot save on request: it needs '
                'mmstable.EmergencyCheckpointHook and '
                'mmstable.SafeCheckpointHook'
            )
        )
    # The log line starts with 'mmstable: ' already.
    saver.request('probe', Request.SIGTERM if ends else SAVE)
