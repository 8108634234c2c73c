"""A training run as ``mmstable probe`` reads and changes it.

Other threads may read. Changes are made by the training thread between two
steps, on all ranks after the same iteration.
"""

from __future__ import annotations

import os
import platform
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Callable

from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from mmstable import runner_view
from mmstable.dist.store import AgreedRequests
from mmstable.events.monitor import RunMonitor
from mmstable.events.records import Event, LiveChange, StepReport
from mmstable.events.samples import read_scale
from mmstable.hang.watchdog import (
    TrainingThread,
    blamed_line,
    calls_of,
    find_phase,
)
from mmstable.io.process import thread_frames
from mmstable.io.schema import Check, list_of, one_of, record, text, within
from mmstable.messages import _
from mmstable.optim.clipping import FixedLimit, NormClip, parse_clip
from mmstable.optim.observer import before_step


class Boundary:
    """Work of other threads that the training thread does between two steps.

    The training thread calls :meth:`visit` only if something is ``waiting``.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_open = True

    def post(self, work: Callable[[], Any]) -> Future[Any]:
        """Add work; it is done here and now if training is over."""
        job: Future[Any] = Future()
        self.waiting.append((job, work))
        if not self._is_open:
            self.visit()
        return job

    def visit(self) -> None:
        """Do all the waiting work that was not cancelled."""
        # Another thread may take the last one after training.
        with suppress(IndexError):
            while True:
                job, work = self.waiting.popleft()
                if job.set_running_or_notify_cancel():
                    _fulfil(job, work)

    def close(self) -> None:
        """Do the work that still waits: training is over."""
        self._is_open = False
        self.visit()


def _fulfil(job: Future[Any], work: Callable[[], Any]) -> None:
    try:
        value = work()
    except BaseException as error:
        job.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        job.set_result(value)


# Iterations between two reads of the store by all ranks.
INTERVAL = 10
# Far beyond any useful factor of a learning rate, or limit of a norm.
_LARGEST = 1e12
_VALUE = within(1 / _LARGEST, _LARGEST)


def check_change(value: Any, groups: Mapping[str, int]) -> dict[str, Any]:
    """Check a requested change.

    Args:
        value (Any): The change: ``what`` it is, its ``wrapper``, ``values``.
        groups (Mapping): Number of parameter groups by wrapper.

    Raises:
        ValueError: If it cannot be applied.
    """
    change = record(
        what=one_of('lr', 'clip'),
        wrapper=one_of(*groups),
        values=list_of(_VALUE, max(groups.values(), default=0) + 1),
    )(value)
    # A factor for each group; one limit for all of them.
    count = groups[change['wrapper']] if change['what'] == 'lr' else 1
    if len(change['values']) != count:
        raise ValueError(
            f'`values`: must have {count} entries, has {len(change["values"])}'
        )
    return change


class AgreedChanges:
    """Let one rank change something on all ranks.

    Args:
        apply (Callable): Applies a change.
        check (Callable): Checks a change, and returns it.
    """

    def __init__(
        self, apply: Callable[[dict[str, Any]], None], check: Check
    ) -> None:
        self._apply, self._check = apply, check
        self._requests = AgreedRequests(
            'live_changes', token=text(32), change=check
        )
        self._wanted: deque[dict[str, Any]] = deque()

    def request(self, change: dict[str, Any]) -> None:
        """Queue a change, from the training thread.

        Args:
            change (dict): A change that passes :func:`check_change`.
        """
        token = secrets.token_hex(8)
        self._wanted.append(dict(token=token, change=self._check(change)))

    def look(self, iteration: int) -> None:
        """Apply a change that is due, and request the next one.

        Args:
            iteration (int): Iterations done, the same on all ranks.
        """
        found = self._requests.due(iteration)
        if found is not None:
            if self._wanted and self._wanted[0]['token'] == found['token']:
                self._wanted.popleft()
            self._apply(found['change'])
        if self._wanted:
            self._requests.post(iteration, **self._wanted[0])


def read_clip(wrapper: Any, source: Any = None) -> float | str | None:
    """Read the maximum gradient norm; other kinds of clipping as text.

    Args:
        wrapper (OptimWrapper): The wrapper.
        source (StepSource, optional): Its observer, if it is a wrapper of
            mmengine. Defaults to None.
    """
    clip = getattr(_holder(wrapper, source), 'clip', None)
    if isinstance(clip, NormClip) and len(clip.groups) == 1:
        limit = clip.groups[0].limit
        if isinstance(limit, FixedLimit) and not clip.groups[0].modules:
            return limit.max_norm
    if clip is not None:
        return str(clip)
    settings = wrapper.clip_grad_kwargs
    return settings.get('max_norm', str(settings)) if settings else None


def set_clip(wrapper: Any, limit: float, source: Any = None) -> None:
    """Clip all gradients of a wrapper by their norm from now on.

    Args:
        wrapper (OptimWrapper): The wrapper.
        limit (float): The maximum norm.
        source (StepSource, optional): Its observer, if it is a wrapper of
            mmengine. Defaults to None.
    """
    holder = _holder(wrapper, source)
    if holder is not None:
        holder.clip = parse_clip('LiveProbeHook', max_norm=limit)
        return
    settings = dict(wrapper.clip_grad_kwargs or {})
    if 'max_norm' not in settings:
        settings = {}
        wrapper.clip_func = clip_grad_norm_
        wrapper.grad_name = 'grad_norm'
    wrapper.clip_grad_kwargs = {**settings, 'max_norm': limit}


def _holder(wrapper: Any, source: Any) -> Any:
    """Find the clip's owner: a safe wrapper, or the observer of another."""
    if hasattr(wrapper, 'clip'):
        return wrapper
    return source if getattr(source, 'clip', None) is not None else None


Group = dict[str, Any]


class LiveRates:
    """Multiply learning rates while an optimizer steps.

    Schedules compute a rate from the previous rate, and snapshots and
    checkpoints hold it. They never see the factor: it is applied right
    before a step, and removed right after it.
    """

    def __init__(self) -> None:
        # By wrapper, one for each of its groups.
        self.factors: dict[str, list[float]] = {}
        # Groups that are multiplied right now, the rate of the schedule, and
        # the product.
        self.scheduled: list[tuple[Group, Any, Any]] = []
        self._optimizers: dict[str, Optimizer] = {}
        self._ends: list[Callable[[], Any]] = []

    def bind(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Hook into the steps of optimizers that have a factor."""
        self.unbind()
        self._optimizers = dict(optimizers)
        self._listen()

    def unbind(self) -> None:
        """Remove the factors and the hooks."""
        self.take_off()
        for end in self._ends:
            end()
        self._ends = []

    def rates(self) -> dict[str, list[float]]:
        """Return the rates used by steps, by wrapper and group."""
        # Called by other threads, too: nothing may be written.
        applied = {id(group) for group, *__ in tuple(self.scheduled)}
        return {
            name: [
                float(group['lr']) * (1.0 if id(group) in applied else factor)
                for group, factor in self._groups(name)
            ]
            for name in self._optimizers
        }

    def multiply(self, name: str, ratios: Sequence[float]) -> None:
        """Change the factors of a wrapper.

        Args:
            name (str): The wrapper.
            ratios (Sequence[float]): Ratios by group; groups beyond the last
                one are left alone.
        """
        old = [factor for __, factor in self._groups(name)]
        more = [*ratios, *[1.0] * len(old)]
        self.factors[name] = [a * b for a, b in zip(old, more)]
        self._listen()

    @contextmanager
    def shown(self) -> Iterator[list[tuple[Group, Any]]]:
        """Show the rates used by steps in all groups, between two steps.

        Afterwards the groups get the yielded rates, which the caller may
        replace.
        """
        own = []
        for name in self._optimizers:
            for group, factor in self._groups(name):
                own.append((group, group['lr']))
                if factor != 1.0:
                    group['lr'] = group['lr'] * factor
        try:
            yield own
        finally:
            for group, rate in own:
                group['lr'] = rate

    def take_off(self) -> None:
        """Restore the schedule's rates in all groups."""
        for group, own, product in self.scheduled:
            # Unless other code has set a rate.
            if group['lr'] is product:
                group['lr'] = own
        self.scheduled.clear()

    def _groups(self, name: str) -> Iterator[tuple[Group, float]]:
        """Yield the groups of an optimizer with their factors."""
        groups = self._optimizers[name].param_groups
        known = self.factors.get(name, [])
        return zip(groups, [*known, *[1.0] * len(groups)])

    def _listen(self) -> None:
        if self._ends or not self.factors:
            return
        for name, one in self._optimizers.items():
            self._ends += [
                before_step(one, partial(self._put_on, name)),
                one.register_step_post_hook(self._after_step).remove,
            ]

    def _after_step(self, *__: Any) -> None:
        self.take_off()

    def _put_on(self, name: str, *__: Any) -> None:
        self.take_off()
        for group, factor in self._groups(name):
            if factor != 1.0:
                own, product = group['lr'], group['lr'] * factor
                group['lr'] = product
                self.scheduled.append((group, own, product))


_MOST_KEPT = 100
_MAX_CODE_CHARS = 500
_FACTOR_KEY = 'train/stable/live_lr_factor'


class LiveRun:
    """Read the state of a run, and change it.

    Reading is possible from any thread, changing only from the training
    thread: between two steps, see :class:`Boundary`.

    Args:
        runner (Runner): The runner.
        monitor (RunMonitor): The monitor of its steps and events.
    """

    def __init__(self, runner: Runner, monitor: RunMonitor) -> None:
        self.runner = runner
        self.boundary = Boundary()
        self.rates = LiveRates()
        self.clips: dict[str, float] = {}
        self.bad_steps: deque[StepReport] = deque(maxlen=_MOST_KEPT)
        self.events: deque[Event] = deque(maxlen=_MOST_KEPT)
        self._monitor = monitor
        self.thread = TrainingThread()
        # Whether the changes must be applied on other ranks, too.
        self.is_shared = get_world_size() > 1
        self._changes: AgreedChanges | None = None
        if self.is_shared:
            self._changes = AgreedChanges(self._apply, self._check)

    def begin(self) -> None:
        """Apply the changes of before a resume, ahead of training."""
        self.rates.bind(runner_view.optimizers(self.runner))
        for name, limit in self.clips.items():
            if name in runner_view.wrappers(self.runner):
                self._set_clip(name, limit)

    def end(self) -> None:
        """Do the waiting work, and remove the factors."""
        self.boundary.close()
        self.rates.unbind()

    def look(self, iteration: int) -> None:
        """Apply the changes that other ranks have requested."""
        if self._changes is not None and iteration % INTERVAL == 0:
            self._changes.look(iteration)

    @property
    def iteration(self) -> int:
        """Training iterations done."""
        return runner_view.iterations_done(self.runner)

    def status(self) -> dict[str, Any]:
        """Describe the state of the run in plain types."""
        runner, calls = self.runner, self.thread.calls()
        wrappers = runner_view.wrappers(runner)
        info = runner.message_hub.runtime_info
        return dict(
            pid=os.getpid(),
            host=platform.node(),
            rank=get_rank(),
            world_size=get_world_size(),
            work_dir=os.path.realpath(runner.work_dir),
            log_dir=os.path.realpath(runner.log_dir),
            iteration=self.iteration,
            max_iters=int(runner.max_iters),
            epoch=int(runner.epoch),
            phase=str(find_phase(calls)),
            line=blamed_line(calls),
            lr={n: v[0] for n, v in self.rates.rates().items() if v},
            lr_factors={n: v[0] for n, v in self.rates.factors.items() if v},
            clip={name: self.read_clip(name) for name in wrappers},
            loss_scale={n: read_scale(w) for n, w in wrappers.items()},
            skipped={
                name: source.steps.tally.skipped
                for name, source in self._monitor.sources.items()
            },
            checkpoint=str(info.get('last_ckpt') or ''),
        )

    def stacks(self) -> list[tuple[str, list[str]]]:
        """List the calls of all threads, the training thread first."""
        return [
            (
                name,
                [f'{c.file}:{c.line} {c.function}' for c in calls_of(frame)],
            )
            for ident, name, frame in thread_frames(self.thread.ident)
            if ident != threading.get_ident()
        ]

    def read_clip(self, name: str) -> float | str | None:
        """Read the clip limit of a wrapper."""
        wrapper = runner_view.wrappers(self.runner)[name]
        return read_clip(wrapper, self._monitor.sources.get(name))

    def change(self, what: str, name: str, values: Sequence[float]) -> None:
        """Change a wrapper, on all ranks.

        Args:
            what (str): 'lr' or 'clip'.
            name (str): The wrapper.
            values (Sequence[float]): Ratios of the learning rates by group,
                or the clip limit.
        """
        change = dict(what=what, wrapper=name, values=list(values))
        if self._changes is None:
            self._apply(self._check(change))
        else:
            self._changes.request(change)

    @contextmanager
    def noticing_changes(self, code: str) -> Iterator[list[str]]:
        """Turn learning rates that code changes into factors.

        Code on another thread changes them as it likes: the training thread
        may be about to change them, too.
        """
        notes: list[str] = []
        record_code = partial(
            self.note, 'code', text=code.strip()[:_MAX_CODE_CHARS]
        )
        if not self.thread.is_current:
            record_code()
            yield notes
            return
        ratios: dict[str, list[float]] = {}
        before = self.rates.rates()
        try:
            with self.rates.shown() as own:
                try:
                    yield notes
                finally:
                    ratios = self._changed(before, own)
        finally:
            record_code()
            notes += [self._multiply(*one) for one in ratios.items()]

    def note(self, what: str, **facts: Any) -> None:
        """Emit an event for a request."""
        event = LiveChange.now(
            self.iteration, what=what, rank=get_rank(), **facts
        )
        self._monitor.emit(self.runner, event)

    def _check(self, change: Any) -> dict[str, Any]:
        optimizers = runner_view.optimizers(self.runner)
        groups = {n: len(one.param_groups) for n, one in optimizers.items()}
        return check_change(change, groups)

    def _apply(self, change: dict[str, Any]) -> None:
        what, name, values = (change[k] for k in ('what', 'wrapper', 'values'))
        before: Any
        if what == 'lr':
            before = self.rates.rates()[name][0]
            self.rates.multiply(name, values)
            after = self.rates.rates()[name][0]
            # mmengine logs the rate of the schedule, without the factor.
            many = runner_view.has_many_wrappers(self.runner)
            key = f'{_FACTOR_KEY}/{name}' if many else _FACTOR_KEY
            factor = self.rates.factors[name][0]
            self.runner.message_hub.update_scalar(key, factor)
        else:
            before, (after,) = self.read_clip(name), values
            if isinstance(before, str):
                before = None
            self._set_clip(name, after)
        self.note(what, wrapper=name, before=before, after=after)

    def _set_clip(self, name: str, limit: float) -> None:
        self.clips[name] = limit
        wrapper = runner_view.wrappers(self.runner)[name]
        set_clip(wrapper, limit, self._monitor.sources.get(name))

    def _changed(
        self, before: dict[str, list[float]], own: list[tuple[dict, Any]]
    ) -> dict[str, list[float]]:
        """Find the ratios by which code has changed learning rates."""
        found: dict[str, list[float]] = {}
        for name, one in runner_view.optimizers(self.runner).items():
            now = [float(group['lr']) for group in one.param_groups]
            ratios = [n / o if o else 1.0 for o, n in zip(before[name], now)]
            if any(ratio != 1.0 for ratio in ratios):
                found[name] = ratios
        # A rate of 0 has no factor: keep the new rate.
        for index, (group, rate) in enumerate(own):
            if rate == 0:
                own[index] = (group, group['lr'])
        return found

    def _multiply(self, name: str, ratios: list[float]) -> str:
        """Keep a change by code as a factor; a note for its user."""
        facts = dict(wrapper=name, factor=ratios[0])
        try:
            self.change('lr', name, ratios)
        except ValueError:
            return _(
                '[mmstable: {wrapper}: a learning rate must stay above 0; '
                "the schedule's rate is used]",
                wrapper=name,
            )
        if self.is_shared:
            return _(
                '[mmstable: {wrapper}: learning rate times {factor:g} on ALL '
                'ranks within {count} iterations; do not repeat it on the '
                'others]',
                **facts,
                count=2 * INTERVAL,
            )
        return _(
            '[mmstable: {wrapper}: learning rate times {factor:g} from '
            'iteration {iteration} on, on top of the schedule]',
            **facts,
            iteration=self.iteration + 1,
        )
