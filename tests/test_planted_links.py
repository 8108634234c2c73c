"""Links in a work directory that lead to a file of somebody else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mmengine.hooks import Hook

from mmstable.cli.main import main
from mmstable.errors import ConfigError, InjectedError, TrainingDiverged
from mmstable.hang.dead_man_switch import DeadManSwitch
from mmstable.hang.report import write_exception, write_stacks
from mmstable.hooks import FaultInjectorHook
from mmstable.io.heartbeat import write_heartbeat
from mmstable.report import read_events
from tests.patience import wait_until
from tests.toys import Sabotage, toy_runner


@pytest.fixture
def victim(tmp_path):
    """A file of somebody, which must not change."""
    path = tmp_path / 'elsewhere' / 'victim'
    path.parent.mkdir()
    path.write_text('precious')
    yield path
    assert path.read_text() == 'precious'


def stability(runner) -> Path:
    folder = Path(runner.log_dir, 'stability')
    folder.mkdir(parents=True)
    return folder


class Planter(Hook):
    """Plants links while a run is under way."""

    def __init__(self, links, target):
        self.links, self.target = links, target

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        while self.links:
            self.links.pop().symlink_to(self.target)


def test_checkpoints_and_their_pointer(tmp_path, victim):
    work = tmp_path / 'work'
    work.mkdir()
    names = ['iter_2.pth', 'iter_2.pth.json', 'last_checkpoint']
    # What the temporary files were called once.
    names += [f'.{name}.mmstable-tmp' for name in names]
    planter = Planter([work / name for name in names], victim)
    hook = dict(type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False)
    runner = toy_runner(
        work,
        max_iters=2,
        hooks=[planter],
        default_hooks=dict(checkpoint=hook),
    )
    runner.train()
    assert (work / 'last_checkpoint').read_text() == str(work / 'iter_2.pth')
    side = json.loads((work / 'iter_2.pth.json').read_text())
    assert side['size'] == (work / 'iter_2.pth').stat().st_size
    assert not any((work / name).is_symlink() for name in names[:3])


def test_the_event_file(tmp_path, victim):
    hooks = [dict(type='mmstable.EventLogHook')]
    runner = toy_runner(tmp_path / 'work', max_iters=2, hooks=hooks)
    folder = stability(runner)
    (folder / 'events.jsonl').symlink_to(victim)
    (folder / 'events-2.jsonl').symlink_to(victim.parent / 'new')
    runner.train()
    assert len(list(read_events(folder / 'events-3.jsonl'))) > 1
    assert not (victim.parent / 'new').exists()


def test_the_diagnosis(tmp_path, victim):
    hooks = [
        dict(
            type='mmstable.DivergenceGuardHook',
            max_consecutive_bad=2,
            actions=dict(nan_loss='stop'),
        ),
        Sabotage(loss=range(1, 9)),
    ]
    runner = toy_runner(tmp_path / 'work', max_iters=8, hooks=hooks)
    path = stability(runner) / 'diagnosis.json'
    path.symlink_to(victim)
    with pytest.raises(TrainingDiverged):
        runner.train()
    assert json.loads(path.read_text())['schema'] == 1
    assert not path.is_symlink()


def test_stacks(tmp_path, victim):
    path = tmp_path / 'stacks.rank0.txt'
    path.symlink_to(victim)
    write_exception(tmp_path, 0, ValueError('a broken sample'))
    write_stacks(tmp_path, 0, 'rank 1 failed')
    text = path.read_text()
    assert 'ValueError: a broken sample' in text
    assert 'rank 1 failed' in text
    assert 'test_planted_links.py' in text


def test_the_stack_of_a_silent_process(tmp_path, victim):
    path = tmp_path / 'watchdog.rank0.txt'
    path.symlink_to(victim)
    switch = DeadManSwitch(path)
    try:
        # Somebody puts a link in the place of the new file, too.
        path.unlink()
        path.symlink_to(victim)
        switch.arm(0.1)
        wait_until(lambda: switch.read()[0])
        assert victim.read_text() == 'precious'
    finally:
        switch.close()


def test_the_report_of_a_batch_that_does_not_fit(tmp_path, victim):
    fault = FaultInjectorHook(faults=[dict(kind='oom', at=2)], enabled=True)
    runner = toy_runner(
        tmp_path / 'work',
        max_iters=3,
        hooks=[fault],
        train_cfg=dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=3),
    )
    path = stability(runner) / 'out_of_memory' / 'iter_2.txt'
    path.parent.mkdir()
    path.symlink_to(victim)
    runner.train()
    assert not path.is_symlink()
    assert 'memory' in path.read_text()


def test_the_heartbeat_file(tmp_path, victim, monkeypatch):
    path = tmp_path / 'heartbeat'
    path.symlink_to(victim)
    monkeypatch.setenv('MMSTABLE_SUPERVISOR_FILE', str(path))
    for limit in (300, 5):
        write_heartbeat(limit, 'data')
    assert path.read_text() == '5 data'


def test_stacks_that_cannot_be_written_stop_nobody(tmp_path):
    (tmp_path / 'file').touch()
    write_stacks(tmp_path / 'file', 0, 'rank 1 failed')
    write_exception(tmp_path / 'file', 0, ValueError('a broken sample'))


def fail_at(work: Path, *iterations: int):
    faults = [dict(kind='exception', at=at) for at in iterations]
    hook = FaultInjectorHook(faults=faults, enabled=True)
    return toy_runner(work, max_iters=4, hooks=[hook])


def test_the_list_of_injected_faults(tmp_path, victim):
    work = tmp_path / 'work'
    work.mkdir()
    ledger = work / 'injected_faults.rank0.txt'
    ledger.symlink_to(victim.parent / 'new')
    for at in (2, 3):
        with pytest.raises(InjectedError):
            fail_at(work, 2, 3).train()
        assert len(ledger.read_text().splitlines()) == at - 1
    fail_at(work, 2, 3).train()
    assert not (victim.parent / 'new').exists()


@pytest.mark.parametrize(
    'content', [b'x' * (2 << 20), b'\xff\xfe'], ids=['long', 'binary']
)
def test_a_list_of_injected_faults_that_is_none(tmp_path, content):
    (tmp_path / 'injected_faults.rank0.txt').write_bytes(content)
    with pytest.raises(ConfigError, match='not the list of faults that it'):
        fail_at(tmp_path, 2).train()


def test_the_upgraded_config(tmp_path, victim):
    (tmp_path / 'old.py').write_text(
        "optimizer = dict(type='SGD', lr=0.1)\ntotal_epochs = 3\n"
    )
    (tmp_path / '.new.py.mmstable-tmp').symlink_to(victim)
    new = tmp_path / 'new.py'
    new.symlink_to(victim)
    assert main(['upgrade', str(tmp_path / 'old.py'), '-o', str(new)]) == 0
    assert 'max_epochs=3' in new.read_text()
