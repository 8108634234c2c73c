"""The commands that a run answers through its socket."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import wait
from typing import Any, Callable

import psutil

from mmstable import runner_view
from mmstable.io.process import state_of, waits_in
from mmstable.io.schema import check_field, integer, number, optional, text
from mmstable.memory.host import read_tree
from mmstable.messages import N_, _
from mmstable.probe.probing import EVENT_COLUMNS, ProbingBridge, event_row
from mmstable.probe.run import INTERVAL, LiveRun

# Seconds that an answer waits for the end of a step.
PATIENCE = 5.0
# Seconds over which the speed is measured.
_WATCHED = 2.0
_FEW, _MOST = 20, 100
NEEDS_PROBING = N_(
    'this needs a run that was started with `mmstable train CONFIG --probe '
    'probing`, after `pip install mmstable[probing]`; every user of the '
    'machine can then run code as you'
)
BAD_CLIP = N_('the clip limit must be a number above 0, got {value}')
BAD_LR = N_(
    'the learning rate must be a number above 0, such as 0.001, or a factor '
    'above 0, such as x0.1'
)


class Commands:
    """The commands, bound to a run.

    Args:
        run (LiveRun): The run.
        request_save (Callable): Requests a checkpoint at the end of the step,
            or of the accumulation window; with True, the end of the run as
            well. Raises ValueError if no hook can do that.
    """

    def __init__(
        self, run: LiveRun, request_save: Callable[[bool], None]
    ) -> None:
        self._run = run
        self._request_save = request_save
        self.bridge: ProbingBridge | None = None

    def all(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """All commands by name; each takes the request."""
        return dict(
            status=self._status,
            stacks=self._stacks,
            steps=self._steps,
            events=self._events,
            speed=self._speed,
            memory=self._memory,
            set_lr=self._set_lr,
            set_clip=self._set_clip,
            save=lambda __: self._save('save', ends=False),
            stop=lambda __: self._save('stop', ends=True),
            sql=self._sql,
        )

    def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return dict(
            self._run.status(),
            probing=self.bridge is not None,
            traces=self.bridge is not None and self.bridge.traces,
        )

    def _stacks(self, request: Mapping[str, Any]) -> dict[str, Any]:
        pids = [one.pid for one in psutil.Process().children()]
        return dict(
            threads=self._run.stacks(),
            children=[(one, state_of(one), waits_in(one)) for one in pids],
        )

    def _steps(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List the newest bad steps, the oldest first."""
        return [
            dict(
                iteration=one.iteration,
                wrapper=one.wrapper,
                outcome=str(one.outcome),
                fault=str(one.fault),
                loss_scale=one.loss_scale,
                culprits=[culprit.name for culprit in one.culprits[:5]],
            )
            for one in list(self._run.bad_steps)[-_count(request) :]
        ]

    def _events(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """List the newest events, the oldest first."""
        events = list(self._run.events)[-_count(request) :]
        return [dict(zip(EVENT_COLUMNS, event_row(one))) for one in events]

    def _speed(self, request: Mapping[str, Any]) -> float | None:
        """Measure the mean seconds of an iteration."""
        before, start = self._run.iteration, time.monotonic()
        time.sleep(_WATCHED)
        done = self._run.iteration - before
        return (time.monotonic() - start) / done if done > 0 else None

    def _memory(self, request: Mapping[str, Any]) -> dict[str, Any]:
        found = read_tree()
        return dict(
            main=found.main,
            tree=found.tree,
            workers=found.workers,
            worker_count=len(found.worker_pids),
            left=found.room.left,
            limit=found.room.limit,
            files=found.main_files,
        )

    def _set_lr(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Set the rate of the first group, or multiply that of all."""
        rate = check_field('lr', optional(number), request.get('lr'))
        factor = check_field('factor', optional(number), request.get('factor'))
        if (rate is None) == (factor is None) or not (rate or factor) > 0:
            raise ValueError(_(BAD_LR))

        def change(name: str) -> float:
            rates = self._run.rates.rates()[name]
            if rate is not None and not rates[0]:
                raise ValueError(
                    _(
                        "{wrapper}: the schedule's learning rate is 0 right "
                        'now, and a factor cannot change that; try again '
                        'later',
                        wrapper=name,
                    )
                )
            ratio = factor if rate is None else rate / rates[0]
            self._run.change('lr', name, [ratio] * len(rates))
            return rates[0] * ratio

        return self._change_wrappers(request, change)

    def _set_clip(self, request: Mapping[str, Any]) -> dict[str, Any]:
        limit = check_field('max_norm', number, request.get('max_norm'))
        if not limit > 0:
            raise ValueError(_(BAD_CLIP, value=limit))

        def change(name: str) -> float:
            self._run.change('clip', name, [limit])
            return limit

        return self._change_wrappers(request, change)

    def _sql(self, request: Mapping[str, Any]) -> dict[str, list[Any]]:
        if self.bridge is None:
            raise ValueError(_(NEEDS_PROBING))
        sql = check_field('query', text(10000), request.get('query'))
        return self.bridge.query(sql)

    def _save(self, what: str, ends: bool) -> dict[str, Any]:
        def work() -> None:
            self._request_save(ends)
            self._run.note(what)

        return self._change(work)

    def _change_wrappers(
        self, request: Mapping[str, Any], change: Callable[[str], float]
    ) -> dict[str, Any]:
        """Change the named wrapper, or all of them."""
        names = list(runner_view.wrappers(self._run.runner))
        name = check_field(
            'wrapper', optional(text(1000)), request.get('wrapper')
        )
        if name not in (None, *names):
            raise ValueError(
                _(
                    "unknown optimizer wrapper '{name}'; this run has {known}",
                    name=name,
                    known=names,
                )
            )
        chosen = names if name is None else [name]
        return self._change(lambda: {one: change(one) for one in chosen})

    def _change(self, work: Callable[[], Any]) -> dict[str, Any]:
        # Together: training continues as soon as the work is done.
        job = self._run.boundary.post(lambda: (work(), self._run.iteration))
        wait([job], PATIENCE)
        value, iteration = job.result() if job.done() else (None, None)
        return dict(
            done=iteration is not None,
            value=value,
            iteration=iteration,
            # Iterations until all ranks have made a change.
            within=2 * INTERVAL if self._run.is_shared else 0,
        )


def _count(request: Mapping[str, Any]) -> int:
    known = optional(integer(1, _MOST))
    return check_field('count', known, request.get('count')) or _FEW
