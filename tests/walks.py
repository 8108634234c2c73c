"""The walks of a run through mmstable: step, save, resume and death.

A walk is drawn in the docstring of the module it begins in, one station a
line, as ``optim/step.py: step``. :data:`WALKS` says where, and how many calls
and files it may take. ``python -m tests.walks`` prints the figures.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mmstable
from mmstable.loops import train
from tests.test_python_calls import EVERYTHING, SCHEDULE
from tests.toys import toy_runner

PACKAGE = f'{Path(mmstable.__file__).parent}/'
STATION = re.compile(r'^ {4}([\w/]+\.py): (\w+)', re.MULTILINE)
# Iterations: the limits of spikes are in force by then.
STEP, SAVE = 23, 24


@dataclass(frozen=True)
class Walk:
    """What is drawn of a walk, and what it may take.

    Args:
        module: Its first station, whose docstring draws it.
        files: The most files of mmstable that it may pass.
        calls: The most calls of functions of mmstable.
    """

    module: str
    files: int
    calls: int

    def stations(self) -> list[str]:
        """The stations that are drawn, in order."""
        text = importlib.import_module(self.module).__doc__ or ''
        return [':'.join(found) for found in STATION.findall(text)]


@dataclass
class Trace:
    """Calls of mmstable's functions, as 'optim/step.py:step', in order."""

    calls: list[str] = field(default_factory=list)

    @property
    def files(self) -> set[str]:
        return {call.partition(':')[0] for call in self.calls}

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record this thread, and those that it starts."""
        before = sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        # Comprehensions are calls in some Pythons only.
        if (
            event == 'call'
            and code.co_filename.startswith(PACKAGE)
            and not code.co_name.startswith('<')
        ):
            name = code.co_filename[len(PACKAGE) :]
            self.calls.append(f'{name}:{code.co_name}')


# Limits are the figures of today. To be reached: 20 files for a step, 12 for
# a save, 25 for a resume. Calls of a save and a resume grow with the toy. A
# death passes a save, the replay of the failed step, and the report.
WALKS = {
    'step': Walk('mmstable.loops.train_step', files=25, calls=66),
    'save': Walk('mmstable.checkpoint.writer', files=39, calls=6300),
    'death': Walk('mmstable.loops.failure', files=80, calls=11500),
    'resume': Walk('mmstable.checkpoint.loaders', files=33, calls=8100),
}


def record_walks(work_dir: Path) -> dict[str, Trace]:
    """Train a toy with everything on, save, resume, and trace each."""
    traces = {name: Trace() for name in WALKS}
    first = _runner(work_dir)
    stack = contextlib.ExitStack()
    call_hook = first.call_hook

    def watched(fn_name: str, **kwargs: Any) -> None:
        if fn_name == 'before_train_iter':
            stack.close()
            if first.iter + 1 == STEP:
                stack.enter_context(traces['step'].recording())
        if fn_name == 'after_train_iter' and first.iter + 1 == SAVE:
            with _calls_of(first, traces['save']):
                call_hook(fn_name, **kwargs)
        else:
            call_hook(fn_name, **kwargs)

    first.call_hook = watched
    first.train()
    _record_resume(work_dir, traces['resume'])
    _record_death(work_dir / 'death', traces['death'])
    return traces


@contextlib.contextmanager
def _calls_of(runner: Any, trace: Trace) -> Iterator[None]:
    """Record what the hook that saves does after an iteration."""
    (hook,) = (
        hook
        for hook in runner.hooks
        if type(hook).__name__ == 'SafeCheckpointHook'
    )
    save = hook.after_train_iter

    def recorded(*args: Any, **kwargs: Any) -> None:
        with trace.recording():
            save(*args, **kwargs)

    hook.after_train_iter = recorded
    try:
        yield
    finally:
        del hook.after_train_iter


def _record_resume(work_dir: Path, trace: Trace) -> None:
    """From the file to the first batch, without the start of all hooks."""
    checkpoint = work_dir / f'iter_{SAVE}.pth'
    runner = _runner(
        work_dir / 'resumed', load_from=str(checkpoint), resume=True
    )
    load, call_hook = runner.load_or_resume, runner.call_hook
    stack = contextlib.ExitStack()

    def recorded() -> None:
        with trace.recording():
            load()

    def watched(fn_name: str, **kwargs: Any) -> None:
        stack.close()
        call_hook(fn_name, **kwargs)
        if fn_name in ('before_train', 'before_train_epoch'):
            stack.enter_context(trace.recording())

    runner.load_or_resume, runner.call_hook = recorded, watched
    runner.train()


def _record_death(work_dir: Path, trace: Trace) -> None:
    """From the exception that leaves the loop to the end of the run."""
    runner, end_run = _runner(work_dir), train.end_run

    def recorded(*args: Any) -> Any:
        with trace.recording():
            return end_run(*args)

    def fail(*args: Any) -> None:
        if runner.iter == 5:
            raise IndexError('a walk to its end')

    runner.model.register_forward_pre_hook(fail)
    train.end_run = recorded
    try:
        runner.train()
    except IndexError:
        return
    finally:
        train.end_run = end_run


def _runner(work_dir: Path, **more: Any) -> Any:
    settings = copy.deepcopy(EVERYTHING)
    settings['train_cfg']['max_iters'] = SAVE + 1
    settings['default_hooks']['checkpoint']['interval'] = SAVE
    return toy_runner(work_dir, param_scheduler=SCHEDULE, **settings, **more)


def main() -> None:
    """Print the figures of all walks."""
    import tempfile

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(sys.stderr),
    ):
        traces = record_walks(Path(folder))
    for name, trace in traces.items():
        walk = WALKS[name]
        print(
            f'{name:8}{len(trace.files):4} of {walk.files} files,'
            f'{len(trace.calls):6} of {walk.calls} calls'
        )
    if '--calls' in sys.argv:
        for name, trace in traces.items():
            print(name, *dict.fromkeys(trace.calls), sep='\n  ')


if __name__ == '__main__':
    main()
