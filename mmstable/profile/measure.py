"""Measure where the time of a few iterations goes.

Timers on hooks, wrappers and modules record spans. A thread reads
the state of the dataloader workers while training waits for them.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import ismemberdescriptor
from itertools import count
from statistics import median
from types import FrameType
from typing import Any, Callable, NamedTuple

import psutil
import torch
from mmengine.runner import Runner
from torch.nn import Module

from mmstable import runner_view
from mmstable.events.log import device_of
from mmstable.hang.watchdog import TrainingThread
from mmstable.io.process import BackgroundThread, state_of, waits_in
from mmstable.optim.grad_health import clean_name
from mmstable.torch_internals import (
    asked_loader,
    awaited_worker,
    find_call,
    starts_loader,
    worker_pids,
)

# Kinds of spans besides the stages of hooks.
BACKWARD, STEP, MODULE, VALIDATION = 'backward', 'step', 'module', 'validation'


def device_clock(device: torch.device) -> Callable[[], float]:
    """Return a clock that synchronizes with the device.

    A GPU computes asynchronously: without synchronizing, the time would be
    charged to the code that first reads a result.

    Args:
        device (torch.device): Device of the model.
    """
    backend = getattr(torch, device.type, None)
    synchronize = getattr(backend, 'synchronize', None)
    if device.type == 'cpu' or synchronize is None:
        return time.perf_counter

    def clock() -> float:
        synchronize()
        return time.perf_counter()

    return clock


@dataclass(eq=False)
class Span:
    """A part of an iteration.

    Args:
        kind (str): The stage of a hook, or :data:`BACKWARD`, :data:`STEP`,
            :data:`MODULE` or :data:`VALIDATION`.
        name (str): The class of the hook, or the name of the module.
        start (float): When it began, in seconds.
        stop (float): When it ended.
        cpu (float): CPU time of the thread when it began.
        is_inner (bool): Whether it is a part of another span that is no
            module.
    """

    kind: str
    name: str
    start: float
    stop: float
    cpu: float
    is_inner: bool

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.stop - self.start


class SpanRecorder:
    """Record spans of the constructing thread.

    Args:
        clock (Callable): Returns the time.
        annotates (bool): Whether spans also go to torch's profiler. Defaults
            to False.
    """

    def __init__(
        self, clock: Callable[[], float], annotates: bool = False
    ) -> None:
        self.clock = clock
        self._annotates = annotates
        self._thread = threading.get_ident()
        self.spans: list[Span] = []
        # With a context that ends the range in torch's profiler.
        self._open: list[tuple[Span, ExitStack]] = []

    def begin(self, kind: str, name: str) -> Span | None:
        """Begin a span; pass the result to :meth:`end`."""
        if threading.get_ident() != self._thread:
            # A backward pass may run modules again, in threads of its own.
            return None
        kinds = [span.kind for span, __ in self._open]
        if kind == MODULE and BACKWARD in kinds:
            return None
        profiled = ExitStack()
        if self._annotates:
            label = f'{kind}: {name}'
            profiled.enter_context(torch.profiler.record_function(label))
        inner = any(one != MODULE for one in kinds)
        cpu, start = time.thread_time(), self.clock()
        span = Span(kind, name, start, math.nan, cpu, inner)
        self._open.append((span, profiled))
        return span

    def end(self, span: Span | None) -> None:
        """End a span, and all that an exception has left open inside."""
        if all(one is not span for one, __ in self._open):
            return
        stop = self.clock()
        one = None
        while one is not span:
            one, profiled = self._open.pop()
            # Out of order after an exception.
            with suppress(RuntimeError):
                profiled.close()
        if span is not None:
            span.stop = stop
            self.spans.append(span)

    def end_module(self, name: str) -> None:
        """End the innermost open span of a module."""
        if threading.get_ident() != self._thread:
            return
        for span, __ in reversed(self._open):
            if (span.kind, span.name) == (MODULE, name):
                self.end(span)
                return


# Stages of hooks in an iteration, or between two of them.
BEFORE, AFTER = 'before_train_iter', 'after_train_iter'
_STAGES = (BEFORE, AFTER, 'before_train_epoch', 'after_train_epoch')
_OF_WRAPPERS = {'backward': BACKWARD, 'step': STEP, 'zero_grad': STEP}


class Instruments:
    """Put timers on the objects of a run, not on their classes.

    :meth:`remove` leaves nothing behind.

    Args:
        recorder (SpanRecorder): Gets the times.
    """

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._is_on = True
        self._remove: list[Callable[[], None]] = []

    def watch_hooks(self, hooks: Iterable[Any], watcher: Any = None) -> None:
        """Time hooks.

        Args:
            hooks (Iterable): The hooks.
            watcher (Any, optional): The hook that ends iterations. Defaults
                to None.
        """
        for hook in hooks:
            for stage in _STAGES:
                if hook is not watcher or stage == BEFORE:
                    self._watch(hook, stage, stage, type(hook).__name__)

    def watch_wrappers(self, wrappers: Mapping[str, Any]) -> None:
        """Time backward passes and steps."""
        for name, wrapper in wrappers.items():
            for method, kind in _OF_WRAPPERS.items():
                self._watch(wrapper, method, kind, name)

    def watch_modules(self, model: Module, depth: int) -> None:
        """Time modules in the forward pass.

        Args:
            model (Module): The model, without a wrapper.
            depth (int): How many names deep, such as 2 for 'backbone.layer3'.
        """
        for full, module in model.named_modules():
            name = clean_name(f'{full}.').rstrip('.')
            is_script = isinstance(module, torch.jit.ScriptModule)
            if not name or name.count('.') >= depth or is_script:
                continue
            begin = _ModuleTimer(partial(self._recorder.begin, MODULE), name)
            end = _ModuleTimer(self._recorder.end_module, name)
            self._remove += [
                module.register_forward_pre_hook(begin).remove,
                module.register_forward_hook(end).remove,
            ]

    def remove(self) -> None:
        """Remove all timers."""
        self._is_on = False
        while self._remove:
            self._remove.pop()()

    def _watch(self, owner: Any, name: str, kind: str, label: str) -> None:
        original = getattr(owner, name, None)
        if original is None or not hasattr(owner, '__dict__'):
            return
        # As a stage of a `QuietHook` that is called for a while.
        is_slot = ismemberdescriptor(getattr(type(owner), name, None))
        had = is_slot or name in vars(owner)
        recorder = self._recorder

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._is_on:
                return original(*args, **kwargs)
            span = recorder.begin(kind, label)
            try:
                return original(*args, **kwargs)
            finally:
                recorder.end(span)

        def restore() -> None:
            # Unless other code has replaced it since.
            if getattr(owner, name, None) is timed:
                delattr(owner, name)
                if had:
                    setattr(owner, name, original)

        setattr(owner, name, timed)
        self._remove.append(restore)


class _ModuleTimer:
    """A hook of a module; in a copy of the module it does nothing."""

    def __init__(self, note: Callable[[str], Any] | None, name: str) -> None:
        self._note, self._name = note, name

    def __call__(self, *args: Any) -> None:
        if self._note is not None:
            self._note(self._name)

    def __reduce__(self) -> tuple[Any, ...]:
        # A hook may copy or save the whole model in a measured iteration.
        return _ModuleTimer, (None, self._name)


# The phase of a compiled training step, whose parts cannot be measured.
WHOLE_STEP = 'train_step'
_PHASES = ('data', 'forward', BACKWARD, STEP, 'hooks', 'other')


class Mark(NamedTuple):
    """The end of an iteration.

    Args:
        time (float): When, in seconds.
        cpu (float): CPU time of the thread then.
    """

    time: float
    cpu: float


@dataclass
class Profile:
    """Mean seconds of an iteration, validation left out.

    Args:
        iterations (int): How many were measured.
        seconds (float): Duration of an iteration.
        phases (dict[str, float]): 'data', 'forward', 'backward', 'step',
            'hooks' and 'other', which add up to it; 'train_step' in place of
            the three for a compiled model. Defaults to {}.
        hooks (dict[str, float]): By class, the slowest first. Defaults to {}.
        usual_hooks (dict[str, float]): The median of each in place of the
            mean: a save or a replay in one iteration is not the rule.
            Defaults to {}.
        modules (dict[str, float]): Forward passes by name, with all that is
            inside, the slowest first. Defaults to {}.
        data_cpu (float): The part of 'data' in which this process computed.
            Defaults to 0.0.
    """

    iterations: int
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)
    hooks: dict[str, float] = field(default_factory=dict)
    usual_hooks: dict[str, float] = field(default_factory=dict)
    modules: dict[str, float] = field(default_factory=dict)
    data_cpu: float = 0.0

    def share(self, seconds: float) -> float:
        """Return seconds as a share of an iteration."""
        return min(1.0, seconds / self.seconds) if self.seconds > 0 else 0.0

    @property
    def data_share(self) -> float:
        """Share of the time in which training waits for data."""
        return self.share(self.phases.get('data', 0.0))


def summarize(
    spans: Sequence[Span], marks: Sequence[Mark], sees_inside: bool = True
) -> Profile:
    """Average over consecutive iterations.

    Args:
        spans (Sequence[Span]): The recorded spans.
        marks (Sequence[Mark]): The end of the iteration before, and of each.
        sees_inside (bool): Whether backward passes and steps were recorded.
            Defaults to True.
    """
    means = Profile(max(1, len(marks) - 1), 0.0)
    means.phases = dict.fromkeys(_PHASES, 0.0)
    each: list[dict[str, float]] = []
    for begin, end in zip(marks, marks[1:]):
        inside = [s for s in spans if begin.time <= s.start < end.time]
        before = dict(means.hooks)
        _add_iteration(means, inside, begin, end)
        each.append(
            {n: v - before.get(n, 0.0) for n, v in means.hooks.items()}
        )
    means.usual_hooks = _slowest_first(
        {
            name: means.iterations * median(one.get(name, 0.0) for one in each)
            for name in means.hooks
        }
    )
    phases = means.phases
    if not sees_inside:
        phases[WHOLE_STEP] = phases.pop('forward')
        del phases[BACKWARD], phases[STEP]
    means.phases = {name: max(0.0, part) for name, part in phases.items()}
    means.hooks = _slowest_first(means.hooks)
    means.modules = _slowest_first(means.modules)
    return means


def _add_iteration(
    means: Profile, spans: list[Span], begin: Mark, end: Mark
) -> None:
    """Add the part of one iteration to the means."""
    outer = [s for s in spans if not s.is_inner and s.kind != MODULE]
    before = [s for s in outer if s.kind == BEFORE]
    if not before:
        return
    first = min(before, key=lambda s: s.start)
    step_begin = max(s.stop for s in before)
    after = [
        s.start for s in outer if s.kind == AFTER and s.start >= step_begin
    ]
    step_end = min(after, default=end.time)
    # Hooks that end the iteration before, or an epoch, and validation.
    in_gap = [s for s in outer if s.stop <= first.start]
    seconds = end.time - begin.time - _total(in_gap, VALIDATION)
    in_step = [s for s in spans if step_begin <= s.start < step_end]
    outer_in_step = [s for s in in_step if not s.is_inner]
    backward, step = (_total(outer_in_step, k) for k in (BACKWARD, STEP))
    hooks = [s for s in outer if s.kind in _STAGES]
    modules = [s for s in in_step if s.kind == MODULE]
    for times, timed in (means.hooks, hooks), (means.modules, modules):
        for span in timed:
            part = span.seconds / means.iterations
            times[span.name] = times.get(span.name, 0.0) + part
    data = first.start - begin.time - _total(in_gap)
    found = {
        'data': data,
        'forward': step_end - step_begin - backward - step,
        BACKWARD: backward,
        STEP: step,
        'hooks': _total(hooks),
    }
    found['other'] = seconds - sum(found.values())
    for name, value in found.items():
        means.phases[name] += value / means.iterations
    means.seconds += seconds / means.iterations
    if not in_gap:
        cpu = min(data, first.cpu - begin.cpu)
        means.data_cpu += cpu / means.iterations


def _slowest_first(times: dict[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _total(spans: list[Span], kind: str | None = None) -> float:
    return sum(s.seconds for s in spans if kind in (None, s.kind))


# Seconds between two looks.
_INTERVAL = 0.01
# Looks between two checks whether training is over.
_LOOKS_TO_END = 100
# Shares of looks, and of a CPU core.
_BUSY, _DISK, _MOSTLY = 0.5, 0.3, 0.5
_LOOPS = 'mmengine/runner/loops.py'


def _pauses_between_passes(frame: FrameType | None) -> bool:
    """Whether mmengine's loop sleeps before it reads the data once more."""
    return frame is not None and find_call(frame, _LOOPS, '__next__') is frame


# States in which the training thread itself delays a batch.
_OF_ITSELF = {'starting': starts_loader, 'pause': _pauses_between_passes}
_IN_MAIN = (*_OF_ITSELF, 'main')


@dataclass(frozen=True)
class Loading:
    """State of the data loader while training waited for it.

    Args:
        state (str): 'busy', 'disk' or 'idle' workers; 'starting' if they are
            being started; 'pause' if mmengine's loop sleeps between two
            passes over the data; 'main' without workers; '' if unknown.
        kernel (str): The kernel function that workers waited in most.
            Defaults to ''.
    """

    state: str
    kernel: str = ''


class LoadingWatch:
    """Watch the constructing thread's data loader, from another thread."""

    def __init__(self) -> None:
        self._training = TrainingThread()
        self._looks: Counter[str] = Counter()
        self._kernel: Counter[str] = Counter()
        # When a worker was first seen, and its CPU time then.
        self._begin: dict[int, tuple[float, float]] = {}
        self._cpu: dict[int, float] = {}
        self._thread = BackgroundThread('mmstable profile', self._run)
        self._thread.start()

    def stop(self) -> Loading:
        """Stop, and return the state seen most."""
        self._thread.stop()
        looks, total = self._looks, sum(self._looks.values())
        if total == 0:
            return Loading('')
        ((kernel, _),) = self._kernel.most_common(1) or [('', 0)]
        cpu = max(self._cpu.values(), default=0.0)
        state = 'idle'
        main = [one for one in _IN_MAIN if looks[one] >= _MOSTLY * total]
        if main:
            state = main[0]
        elif looks['running'] >= _BUSY * total or cpu >= _BUSY:
            state = 'busy'
        elif looks['disk'] >= _DISK * total:
            state = 'disk'
        return Loading(state, kernel)

    def _run(self, stopped: threading.Event) -> None:
        for number in count(1):
            if stopped.wait(_INTERVAL):
                return
            if number % _LOOKS_TO_END == 0 and self._training.has_ended():
                return
            self._look()

    def _look(self) -> None:
        frame = self._training.frame()
        for state, applies in _OF_ITSELF.items():
            if applies(frame):
                self._looks[state] += 1
                return
        loader = asked_loader(frame)
        del frame
        if loader is None:
            return
        pids = worker_pids(loader)
        if not pids:
            self._looks['main'] += 1
            return
        number = awaited_worker(loader) or 0
        del loader
        pid = pids[number % len(pids)]
        state = state_of(pid)
        self._looks[state] += 1
        if state in ('sleeping', 'disk'):
            self._kernel[waits_in(pid)] += 1
        self._note_cpu(pid)

    def _note_cpu(self, pid: int) -> None:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return
        now, spent = time.monotonic(), times.user + times.system
        since, before = self._begin.setdefault(pid, (now, spent))
        if now - since > 10 * _INTERVAL:
            self._cpu[pid] = (spent - before) / (now - since)


class IterationSample:
    """Measure all iterations from now on, until it is stopped.

    Args:
        runner (Runner): The runner, after an iteration.
        hook (Any): The hook that calls :meth:`mark` after each iteration.
        depth (int): How many module names deep to measure.
        annotates (bool): Whether spans also go to torch's profiler. Defaults
            to False.
    """

    def __init__(
        self, runner: Runner, hook: Any, depth: int, annotates: bool = False
    ) -> None:
        clock = device_clock(device_of(runner.model))
        self._recorder = SpanRecorder(clock, annotates)
        self._instruments = Instruments(self._recorder)
        self._sees_inside = not runner_view.is_compiled(runner.model)
        self._instruments.watch_hooks(runner.hooks, hook)
        if self._sees_inside:
            # Hooks make a compiled model compile again.
            model = runner_view.saved_model(runner)
            self._instruments.watch_wrappers(runner_view.wrappers(runner))
            self._instruments.watch_modules(model, depth)
        self._watch = LoadingWatch()
        self._marks: list[Mark] = []
        self.mark()

    def mark(self) -> int:
        """End an iteration, and return their number."""
        clock = self._recorder.clock
        self._marks.append(Mark(clock(), time.thread_time()))
        return len(self._marks) - 1

    def leave_out(self, start: float, stop: float) -> None:
        """Exclude a validation; times of :func:`time.perf_counter`."""
        self._recorder.spans.append(
            Span(VALIDATION, '', start, stop, 0.0, is_inner=False)
        )

    def stop(self) -> tuple[Profile, Loading]:
        """Remove all timers, and return the measurements."""
        self._instruments.remove()
        loading = self._watch.stop()
        spans = self._recorder.spans
        return summarize(spans, self._marks, self._sees_inside), loading


def gpu_busy(device: torch.device) -> int | None:
    """Read the utilization of a GPU in percent; None if unknown."""
    # Without a GPU, its driver or its Python package this fails in many ways.
    with suppress(Exception):
        if device.type == 'cuda':
            return torch.cuda.utilization(device)
    return None
