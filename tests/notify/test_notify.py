"""Messages that really arrive, at a server on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import apprise
import pytest
from mmengine.hooks import Hook

from mmstable.cli.main import main
from mmstable.errors import ConfigError
from mmstable.events.log import read_events
from mmstable.events.records import Injection, MemoryAlarm
from mmstable.hooks import FaultForensicsHook, NotifyHook
from mmstable.hooks.notify_hook import describe_event
from mmstable.notify import Notifier, Occasion, notifier, send_from_supervisor
from mmstable.notify.addresses import VARIABLE, mask_address, read_addresses
from mmstable.notify.send import deliver
from tests.loops.runs import iter_loop
from tests.notify.mailbox import mailbox
from tests.patience import wait_until
from tests.toys import Sabotage, toy_runner


@pytest.fixture
def box(monkeypatch):
    with mailbox() as box:
        monkeypatch.setenv(VARIABLE, box.address)
        # A test on a busy machine waits for the message, however late.
        monkeypatch.setattr(notifier, 'TIMEOUT_S', 60.0)
        monkeypatch.setattr(Notifier.wait, '__defaults__', (60.0,))
        yield box


@pytest.fixture(autouse=True)
def no_own_file(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CONFIG_HOME', str(tmp_path / 'none'))


class Failing(Hook):
    """Raises in an iteration, as a bug of the user would."""

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 3:
            raise OSError('the disk is gone')


def test_a_finished_run(tmp_path, box):
    runner = toy_runner(tmp_path, train_cfg=iter_loop(4), hooks=[NotifyHook()])
    runner.train()
    assert box.titles() == ['finished']
    assert box[0].title.startswith(f'[mmstable] {tmp_path.name}: ')
    assert 'Iteration 4 of 4.' in box[0].body
    assert str(tmp_path) in box[0].body


def test_a_crash_with_its_reason_and_the_way_to_resume(tmp_path, box):
    runner = toy_runner(
        tmp_path, train_cfg=iter_loop(6), hooks=[NotifyHook(), Failing()]
    )
    runner.cfg.resume_command = 'mmstable train a.py --work-dir w'
    with pytest.raises(OSError, match='the disk is gone'):
        runner.train()
    assert box.titles() == ['crashed']
    assert 'OSError: the disk is gone' in box[0].body
    assert 'mmstable train a.py --work-dir w --resume' in box[0].body


def test_the_first_fault_is_sent_once_with_its_explanation(tmp_path, box):
    runner = toy_runner(
        tmp_path,
        train_cfg=iter_loop(8),
        hooks=[NotifyHook(), FaultForensicsHook(), Sabotage(inputs=[3, 4, 5])],
    )
    runner.train()
    assert sorted(box.titles()) == ['a fault, training continues', 'finished']
    fault = next(one for one in box if 'a fault' in one.title)
    assert 'first' in fault.body
    assert 'inputs' in fault.body


def test_without_an_explanation_the_bad_step_is_sent(tmp_path, box):
    sabotage = Sabotage(loss=[3])
    runner = toy_runner(
        tmp_path, train_cfg=iter_loop(5), hooks=[NotifyHook(), sabotage]
    )
    runner.train()
    assert len(box) == 2
    assert any('Iter 3: ' in one.body for one in box)


def test_in_the_language_of_the_run(tmp_path, box):
    hooks = [
        NotifyHook(),
        dict(type='mmstable.GradNanLoggerHook', lang='zh_cn'),
    ]
    toy_runner(tmp_path, train_cfg=iter_loop(3), hooks=hooks).train()
    assert box.titles() == ['训练完成']


def test_one_of_a_kind_in_ten_minutes_over_all_processes(tmp_path, box):
    for text in ('first', 'second', 'third'):
        # As several starts of a run would.
        one = Notifier(tmp_path)
        one.send(Occasion.CRASHED, text)
        one.send(Occasion.RESUMED, text)
        one.wait()
    assert sorted(box.titles()) == ['crashed', 'resumed']
    one = Notifier(tmp_path, interval_s=0)
    one.send(Occasion.CRASHED, 'fourth')
    one.wait()
    assert '2 more messages of this kind were not sent' in box[-1].body


def test_a_server_that_hangs_delays_nothing(tmp_path, box, monkeypatch):
    box.open.clear()
    one = Notifier(tmp_path)
    one.send(Occasion.FINISHED, 'x')
    # Returns although nothing has arrived.
    one.wait(0.1)
    assert not box
    box.open.set()
    one.wait()
    assert box.titles() == ['finished']


def test_a_failure_is_one_warning_without_the_address(
    tmp_path, box, capture_log
):
    box.status = 500
    runner = toy_runner(tmp_path, train_cfg=iter_loop(3), hooks=[NotifyHook()])
    with capture_log() as lines:
        runner.train()
    failed = [one for one in lines if 'could not be sent' in one]
    assert len(failed) == 1
    assert 'json://***: HTTP 500' in failed[0]
    written = ''.join(
        path.read_text(errors='replace')
        for path in tmp_path.rglob('*')
        if path.is_file()
    )
    assert 'json://***' in written
    assert 'a-secret' not in written


def test_without_addresses_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(notifier, 'deliver', lambda *a: 1 / 0)
    hook = NotifyHook()
    toy_runner(tmp_path, train_cfg=iter_loop(3), hooks=[hook]).train()
    assert hook._notifier is None


def test_what_a_killed_run_cannot_send(tmp_path, box):
    send_from_supervisor(tmp_path, 'killed by SIGKILL', is_over=False)
    wait_until(lambda: box)
    send_from_supervisor(tmp_path, 'All restarts are used up.', is_over=True)
    assert box.titles() == ['crashed', 'not restarted again']


def test_a_private_file(tmp_path, monkeypatch):
    file = tmp_path / 'addresses'
    file.write_text('# mine\njson://a\n\n  mailto://b  \n')
    file.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(file))
    assert read_addresses() == ['json://a', 'mailto://b']
    file.chmod(0o644)
    with pytest.raises(ConfigError, match='chmod 600'):
        read_addresses()
    file.chmod(0o600)
    file.write_text('json//a')
    with pytest.raises(ConfigError, match="one of them has no '://'"):
        read_addresses()
    monkeypatch.setenv(VARIABLE, 'pa55word-of-a-bot')
    with pytest.raises(ConfigError, match='neither an address') as error:
        read_addresses()
    assert 'pa55word' not in str(error.value)


def test_several_addresses_in_the_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, 'json://a  mailto://b')
    assert read_addresses() == ['json://a', 'mailto://b']
    assert mask_address('mailto://me:pw@host') == 'mailto://***'


def test_a_config_cannot_hold_an_address():
    with pytest.raises(TypeError, match='urls'):
        NotifyHook(urls=['json://a'])
    with pytest.raises(ValueError, match='NotifyHook: `interval` must be'):
        NotifyHook(interval=-1)


def test_memory_in_words():
    alarm = MemoryAlarm.now(
        7,
        resource='host',
        holder='workers',
        used=3 << 30,
        limit=4 << 30,
        left=1 << 30,
        source='cgroup',
        action='save',
        seconds_left=600.0,
    )
    occasion, kind, text = describe_event(alarm)
    assert (occasion, kind) == ('MEMORY', 'host')
    assert '1.0 GiB of 4.0 GiB left' in text
    assert '10 min' in text


def test_the_command(box, monkeypatch, capsys):
    assert main(['notify']) == 0
    assert capsys.readouterr().out == 'json://***\n'
    assert main(['notify', '--test']) == 0
    assert 'delivered' in capsys.readouterr().out
    assert len(box) == 1
    box.status = 404
    assert main(['notify', '--test']) == 13
    out = capsys.readouterr().out
    assert 'HTTP 404' in out
    assert 'a-secret' not in out
    monkeypatch.delenv(VARIABLE)
    assert main(['notify']) == 2
    assert 'Set MMSTABLE_NOTIFY' in capsys.readouterr().err


def test_the_limit_is_for_the_server_alone(box, monkeypatch):
    """Not for importing apprise's plug-ins on a busy machine."""
    order = []

    def add(self, address):
        order.append('add')
        return real(self, address)

    real = apprise.Apprise.add
    monkeypatch.setattr(apprise.Apprise, 'add', add)
    monkeypatch.setattr(
        threading.Timer, 'start', lambda self: order.append('timer')
    )
    request = dict(title='a', body='b', timeout_s=5.0)
    assert deliver(dict(request, addresses=[box.address, box.address])) == [
        '',
        '',
    ]
    assert order == ['add', 'add', 'timer']


@pytest.mark.soak
def test_every_fault_of_the_demo_arrives(tmp_path, box):
    """SIGKILL and a hang included, each within a minute."""
    root = Path(__file__).resolve().parents[2]
    code = (
        'import sys; from pathlib import Path; import demo_runs as demo\n'
        'from mmengine.config import Config\n'
        f'path = Path({str(tmp_path)!r})\n'
        'demo.write_drill(path / "drill.py", 400)\n'
        'cfg = Config.fromfile(path / "drill.py")\n'
        'cfg.custom_hooks.append('
        'dict(type="mmstable.NotifyHook", interval=0))\n'
        'cfg.dump(path / "drill.py")\n'
        'run = demo.start_protected(path / "drill.py", path / "run")\n'
        'sys.exit(run.wait())\n'
    )
    path = f'{root / "benchmarks"}{os.pathsep}{root}'
    done = subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'PYTHONPATH': path},
        timeout=900,
        check=False,
    )
    assert done.returncode == 0
    said = {
        'inf_grad': 'Iter 66: ',
        'nan_grad': 'Iter 93: ',
        'signal': 'killed by SIGKILL',
        'nan_loss': 'Iter 147: ',
        'inf_input': 'Iter 174: ',
        'spike_loss': 'Iter 201: ',
        'oom': 'Iter 228: ',
        'hang': 'training hangs',
        'nan_weight': 'Iter 282: ',
        # Training does not use it: found at the next snapshot.
        'nan_buffer': 'encoder.1.bn.running_var (NaN)',
        'exception': 'InjectedError',
    }
    files = (tmp_path / 'run').glob('*/stability/events*.jsonl')
    faults = [
        one
        for file in files
        for one in read_events(file)
        if isinstance(one, Injection)
    ]
    assert {one.kind for one in faults} == set(said)
    late = {
        f'{one.kind} in iteration {one.iteration}': [
            (round(letter.time - one.time), letter.body)
            for letter in box
            if letter.time > one.time
        ]
        for one in faults
        if not any(
            said[one.kind] in letter.body and 0 < letter.time - one.time < 60
            for letter in box
        )
    }
    assert not late
    assert box.titles().count('resumed') == 3
    assert box.titles()[-1] == 'finished'
    log = '\n'.join(p.read_text() for p in tmp_path.rglob('*.log'))
    assert 'a-secret' not in log
