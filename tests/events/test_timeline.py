"""The timeline that is drawn in ``mmstable.events`` is what happens."""

from __future__ import annotations

import re

from mmengine.hooks import Hook

import mmstable.events
from tests.loops.runs import iter_loop
from tests.toys import Sabotage, ToyModel, toy_runner

# The second iteration is the one that is drawn: its step is bad.
BAD = 2


def drawn() -> list[tuple[str, str]]:
    """The first word of every line, with the stage that it is in."""
    lines = mmstable.events.__doc__.split('::\n', 1)[1].splitlines()
    words, stage = [], ''
    for line in lines:
        match = re.match(r'    ( {0,4})(\w+)', line)
        if match:
            stage = match[2] if match[1] == '' else stage
            words.append((stage, match[2]))
    return words


class Recorder:
    """What a runner really does in that iteration, in the same words."""

    def __init__(self, runner) -> None:
        self.runner = runner
        self.stage = ''
        self.seen: list[tuple[str, str]] = []

    def begin(self, stage: str) -> None:
        self.stage = stage
        self.note(stage)

    def note(self, name: str) -> None:
        if self.runner.iter + 1 == BAD:
            self.seen.append((self.stage, name))

    def watch(self, owner, method: str, note) -> None:
        original = getattr(owner, method)

        def call(*args, **kwargs):
            note()
            return original(*args, **kwargs)

        setattr(owner, method, call)

    def watch_hooks(self) -> None:
        for hook in self.runner.hooks:
            name = type(hook).__name__
            for stage in ('before_train_iter', 'after_train_iter'):
                if (stage, name) in drawn():
                    self.watch(hook, stage, lambda n=name: self.note(n))


class Listener(Hook):
    """Hears of steps before all others that listen."""

    priority = 'HIGHEST'

    def after_step(self, runner, name, report) -> None:
        self.recorder.note('after_step')


def test_the_drawing_is_true(tmp_path):
    model, listener = ToyModel(), Listener()
    runner = toy_runner(
        tmp_path,
        model=model,
        train_cfg=iter_loop(3),
        hooks=[
            listener,
            Sabotage(loss=[BAD]),
            dict(type='mmstable.SafeEMAHook'),
            dict(type='mmstable.EmergencyCheckpointHook'),
        ],
        default_hooks=dict(
            guard=dict(type='mmstable.DivergenceGuardHook'),
            param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
            checkpoint=dict(type='mmstable.SafeCheckpointHook'),
        ),
    )
    recorder = listener.recorder = Recorder(runner)
    call_hook = runner.call_hook

    def record(fn_name, **kwargs):
        if fn_name.endswith('train_iter'):
            recorder.begin(fn_name)
        else:
            recorder.note(fn_name)
        call_hook(fn_name, **kwargs)
        if fn_name == 'before_train':
            recorder.watch_hooks()

    runner.call_hook = record
    wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.optim_wrapper = wrapper
    recorder.watch(model, 'train_step', lambda: recorder.begin('train_step'))
    recorder.watch(model, 'forward', lambda: recorder.note('forward'))
    recorder.watch(wrapper, 'backward', lambda: recorder.note('backward'))
    recorder.watch(wrapper, 'step', lambda: recorder.note('step'))
    runner.train()
    assert recorder.seen == drawn()
