"""The real ``probing`` against a real training, from outside.

The commands in ``guide_commands.txt`` are those of a user's guide to the
debugging of trainings, to the letter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest
import torch

from mmstable.probe import server
from mmstable.probe.probing import is_installed
from mmstable.report import LiveChange, read_events
from tests.cli.runs import ROOT
from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(
    not is_installed(),
    reason='no wheel of probing for this machine: requirements/probing.txt',
)
COMMANDS = (
    (Path(__file__).parent / 'data' / 'guide_commands.txt')
    .read_text(encoding='utf-8')
    .rstrip('\n')
    .split('\n----\n')
)
# What each has to answer, in the same order. Gradients are cleared between
# two steps, and there is one process: three have nothing to say.
ANSWERS = [
    'live_training.py',
    'depth',
    'MainThread: alive=True',
    'DataLoader workers: 0\nPrefetch factor: None',
    '',
    '',
    'Grad clip value: 5.0',
    'tensor(0.)',
    # It samples the modules: any of them.
    'post forward',
    'GPU 利用率: 42 %',
    'peak_memory',
    '清理完成',
    '紧急检查点已保存',
    "Keys: dict_keys(['step', 'model'])\nStep: 7",
    'Group 0: lr=0.00',
    '新学习率: 0.000',
    'Rank 0 step: ',
    'Rank 1 step: ',
    '',
]


class Training:
    """A training that runs, and what can be done to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / 'bin'
        programs.mkdir()
        smi = programs / 'nvidia-smi'
        smi.write_text('#!/bin/sh\necho "42 %"\n')
        smi.chmod(0o755)
        scripts = sysconfig.get_path('scripts')
        self.env = {
            **os.environ,
            'PYTHONPATH': str(ROOT),
            'PATH': f'{programs}:{scripts}:{os.environ["PATH"]}',
            server.VARIABLE: str(folder / 'sockets'),
            # This may have no effect.
            'PROBING_PORT': '0',
            # This asks for the times of modules, and must do nothing else.
            'PROBING_TORCH_PROFILING': 'on',
        }
        self.log = folder / 'log.txt'
        with open(self.log, 'w') as log:
            self.process = subprocess.Popen(
                [sys.executable, '-m', 'tests.probe.live_training']
                + [str(folder)],
                cwd=folder,
                env=self.env,
                stdout=log,
                stderr=log,
            )
        self.env.update(ENDPOINT=f'-t {self.process.pid}')

    def wait_for(self, text: str) -> None:
        wait_until(
            lambda: text in self.log.read_text(), 90, process=self.process
        )

    def shell(self, command: str) -> tuple[str, str]:
        done = subprocess.run(
            ['bash', '-c', command],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    def push(self, code: str) -> str:
        out, err = self.shell(f'probing $ENDPOINT eval "{code}"')
        assert 'Traceback' not in err, err
        return out

    def probe(self, *words: str) -> str:
        command = [sys.executable, '-m', 'mmstable', 'probe']
        done = subprocess.run(
            [*command, str(self.folder / 'run'), *words],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope='module')
def training(tmp_path_factory):
    folder = tmp_path_factory.mktemp('live')
    torch.save(dict(step=7, model={}), folder / 'checkpoint.pt')
    one = Training(folder)
    try:
        one.wait_for('[100/')
        yield one
    finally:
        one.process.kill()
        one.process.wait()


def test_every_command_has_an_answer_here():
    assert len(COMMANDS) == len(ANSWERS)


@pytest.mark.soak
def test_one_live_training(training):
    # One after another: each finds the run as the others have left it.
    for command, answer in zip(COMMANDS, ANSWERS):
        command_of_a_guide(training, command, answer)
    for look in LOOKS:
        look(training)


def command_of_a_guide(training, command, answer):
    # Two of them name machines of their author.
    for node in ('node1', 'node2'):
        command = command.replace(f'-t {node}:8080', '$ENDPOINT')
    # probing misses the frames of Python now and then.
    for _ in range(5):
        out, err = training.shell(command)
        assert 'Traceback' not in err, (command, err)
        if answer in out and (answer or not out):
            return
    raise AssertionError((command, out))


def the_changed_rate_stays_changed(training):
    before = training.probe('lr')
    assert '(x0.1 of the schedule)' in before
    step = int(training.push('trainer.current_step'))
    training.push("pg = optimizer.param_groups[0]; pg['lr'] *= 0.5")
    wait_until(lambda: int(training.push('trainer.current_step')) > step)
    assert '(x0.05 of the schedule)' in training.probe('lr')
    rate = float(training.push("optimizer.param_groups[0]['lr']"))
    assert rate == pytest.approx(0.01 * 0.05, rel=0.05)


def the_limit_is_changed_by_code(training):
    training.push('trainer.grad_clip = 0.25')
    assert float(training.push('trainer.grad_clip')) == 0.25
    assert 'clip 0.25' in training.probe()


def the_emergency_checkpoint_of_the_guide(training):
    saved = torch.load(training.folder / 'emergency_checkpoint.pt')
    assert saved['step'] > 0
    assert 'net.head.weight' in saved['model']


def code_runs_between_two_steps_on_the_main_thread(training):
    code = 'import threading; threading.current_thread() is '
    assert training.push(code + 'threading.main_thread()') == 'True'


def steps_and_events_are_tables(training):
    query = (
        'SELECT iteration, fault, loss_scale FROM python.mmstable_steps '
        'ORDER BY iteration LIMIT 10'
    )
    out, _ = training.shell(f'probing $ENDPOINT query "{query}"')
    assert 'nan_grad' in out
    assert training.probe('sql', query).splitlines()[3].split() == [
        '3',
        'nan_grad',
        '1',
    ]
    query = 'SELECT event, iteration FROM python.mmstable_events'
    assert 'step_fault' in training.probe('sql', query)


def the_slowest_modules_by_name(training):
    out = training.probe('slow')
    assert 's for an iteration' in out
    assert 'net.backbone' in out


def no_port_is_opened_and_a_warning_says_what_is(training):
    connections = psutil.Process(training.process.pid).net_connections()
    assert [one for one in connections if one.status == 'LISTEN'] == []
    log = training.log.read_text()
    assert log.count('EVERY user of this machine can now run code') == 1


def a_run_that_hangs_still_answers_and_says_so(training):
    (training.folder / 'hang').touch()
    try:
        wait_until(lambda: 'time.sleep(0.1)' in training.probe('ranks'))
        out = training.push('trainer.current_step')
        step, note = out.split('\n')
        assert 'no step ended within 2 s' in note
        assert f'iteration {step} of' in training.probe('hang')
        assert 'as soon as' in training.probe('lr', 'x0.5')
    finally:
        (training.folder / 'hang').unlink()
    # What was asked for while it hung is done.
    wait_until(lambda: '(x0.025 of the schedule)' in training.probe('lr'))


def signals_still_end_it(training):
    training.process.send_signal(signal.SIGTERM)
    training.process.wait(60)
    assert list((training.folder / 'run').glob('emergency_iter_*.pth'))
    assert 'saved' in training.log.read_text()
    assert list((training.folder / 'sockets').iterdir()) == []
    (path,) = (training.folder / 'run').rglob('events.jsonl')
    found = [e for e in read_events(path) if isinstance(e, LiveChange)]
    rates = [round(e.after / e.before, 6) for e in found if e.what == 'lr']
    assert rates == [0.1, 0.5, 0.5]
    assert any("pg['lr'] *= 0.1" in e.text for e in found)


LOOKS = (
    the_changed_rate_stays_changed,
    the_limit_is_changed_by_code,
    the_emergency_checkpoint_of_the_guide,
    code_runs_between_two_steps_on_the_main_thread,
    steps_and_events_are_tables,
    the_slowest_modules_by_name,
    no_port_is_opened_and_a_warning_says_what_is,
    a_run_that_hangs_still_answers_and_says_so,
    signals_still_end_it,
)


HEALTHY = """
import os, random, sys
os.environ['PROBING_TORCH_PROFILING'] = 'on'
from tests.toys import toy_runner, weights
runner = toy_runner(sys.argv[1], max_iters=8, hooks=[
    dict(type='mmstable.LiveProbeHook', use_probing=sys.argv[2] == 'probing')])
random.seed(3)
runner.train()
sums = [w.double().sum().item() for w in weights(runner.model).values()]
print(random.random(), sums)
assert ('probing' in sys.modules) == (sys.argv[2] == 'probing')
"""


@pytest.mark.soak
def test_a_healthy_run_draws_the_same_numbers(tmp_path):
    drawn = []
    for use in ('probing', 'nothing'):
        done = subprocess.run(
            [sys.executable, '-c', HEALTHY, str(tmp_path / use), use],
            env={**os.environ, server.VARIABLE: str(tmp_path / 'sockets')},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        drawn.append(done.stdout.splitlines()[-1])
    assert drawn[0] == drawn[1]
