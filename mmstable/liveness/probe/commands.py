"""What a run can be asked through its socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

import psutil

from mmstable import run_view
from mmstable.checked_json import integer, number, optional, text
from mmstable.liveness.probe.agreed_changes import INTERVAL
from mmstable.liveness.probe.live_run import LiveRun
from mmstable.liveness.probe.probing_bridge import ProbingBridge
from mmstable.liveness.probe.tables import EVENT_COLUMNS, event_row
from mmstable.liveness.processes import state_of, waits_in
from mmstable.memory.process_tree import read_tree
from mmstable.messages import N_, _

# Seconds that an answer waits for the end of a step.
PATIENCE = 5.0
# Seconds to watch how fast it is.
_WATCHED = 2.0
_FEW, _MOST = 20, 100
_factor, _limit = optional(number), number
_name = optional(text(1000))
NEEDS_PROBING = N_(
    'this needs a run that was started with `mmstable train CONFIG --probe '
    'probing`, after `pip install mmstable[probing]`; every user of the '
    'machine can then run code as you'
)
BAD_CLIP = N_('the clip limit must be a number above 0, got {value}')
BAD_LR = N_(
    'the learning rate must be a number above 0, as 0.001, or a factor above '
    '0, as x0.1'
)


class Commands:
    """The commands, with the run that they are about.

    Args:
        run (LiveRun): The run.
        request_save (Callable): Asks for a checkpoint at the end of the
            step, or of the accumulation window; with True, for the end of
            the run as well. Raises ValueError if nobody can do that.
    """

    def __init__(
        self, run: LiveRun, request_save: Callable[[bool], None]
    ) -> None:
        self._run = run
        self._request_save = request_save
        self.bridge: ProbingBridge | None = None

    def all(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """All of them, by name."""
        return dict(
            status=self._status,
            stacks=self._stacks,
            steps=self._steps,
            events=self._events,
            speed=self._speed,
            memory=self._memory,
            set_lr=self._set_lr,
            set_clip=self._set_clip,
            save=self._save,
            stop=self._stop,
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
        """The newest bad steps, the oldest first."""
        steps = list(self._run.bad_steps)[-_count(request) :]
        return [
            dict(
                iteration=one.iteration,
                wrapper=one.wrapper,
                outcome=str(one.outcome),
                fault=str(one.fault),
                loss_scale=one.loss_scale,
                culprits=[culprit.name for culprit in one.culprits[:5]],
            )
            for one in steps
        ]

    def _events(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The newest events, the oldest first."""
        events = list(self._run.events)[-_count(request) :]
        return [dict(zip(EVENT_COLUMNS, event_row(one))) for one in events]

    def _speed(self, request: Mapping[str, Any]) -> float | None:
        """Mean seconds for an iteration."""
        return self._run.speed(_WATCHED)

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
        """To a number, of the first group, or by a factor, of all."""
        rate = _check(request, 'lr', _factor)
        factor = _check(request, 'factor', _factor)
        if (rate is None) == (factor is None) or not (rate or factor) > 0:
            raise ValueError(_(BAD_LR))
        names = self._wrappers(request)

        def change() -> dict[str, float]:
            current = self._run.rates.rates()
            done = {}
            for name in names:
                old = current[name][0]
                if rate is not None and not old:
                    raise ValueError(
                        _(
                            "{wrapper}: the schedule's learning rate is 0 "
                            'right now, which no factor changes; try again '
                            'later',
                            wrapper=name,
                        )
                    )
                ratio = factor if rate is None else rate / old
                self._run.change_lr(name, [ratio] * len(current[name]))
                done[name] = old * ratio
            return done

        return self._change(change)

    def _set_clip(self, request: Mapping[str, Any]) -> dict[str, Any]:
        limit = _check(request, 'max_norm', _limit)
        if not limit > 0:
            raise ValueError(_(BAD_CLIP, value=limit))
        names = self._wrappers(request)

        def change() -> dict[str, float]:
            for name in names:
                self._run.change_clip(name, limit)
            return dict.fromkeys(names, limit)

        return self._change(change)

    def _save(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask_to_save(ends=False)

    def _stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask_to_save(ends=True)

    def _sql(self, request: Mapping[str, Any]) -> dict[str, list[Any]]:
        if self.bridge is None:
            raise ValueError(_(NEEDS_PROBING))
        return self.bridge.query(_check(request, 'query', text(10000)))

    def _ask_to_save(self, ends: bool) -> dict[str, Any]:
        def work() -> None:
            self._request_save(ends)
            self._run.note('stop' if ends else 'save')

        return self._change(work)

    def _change(self, work: Callable[[], Any]) -> dict[str, Any]:
        def work_and_look() -> tuple[Any, int]:
            # Training goes on as soon as this is over.
            return work(), self._run.iteration

        job = self._run.boundary.post(work_and_look)
        done = job.wait(PATIENCE)
        value, iteration = job.result() if done else (None, None)
        return dict(
            done=done,
            value=value,
            iteration=iteration,
            # Iterations until all ranks have made a change.
            within=2 * INTERVAL if self._run.is_shared else 0,
        )

    def _wrappers(self, request: Mapping[str, Any]) -> list[str]:
        known = list(run_view.wrappers(self._run.runner))
        name = _check(request, 'wrapper', _name)
        if name is None:
            return known
        if name not in known:
            raise ValueError(
                _(
                    "no optimizer wrapper '{name}', there is {known}",
                    name=name,
                    known=known,
                )
            )
        return [name]


def _check(
    request: Mapping[str, Any], key: str, check: Callable[[Any], Any]
) -> Any:
    try:
        return check(request.get(key))
    except ValueError as error:
        raise ValueError(f'`{key}`: {error}') from None


def _count(request: Mapping[str, Any]) -> int:
    return _check(request, 'count', optional(integer(1, _MOST))) or _FEW
