"""Back-ends of the visualizer that fail or block, and full disks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.visualization import Visualizer
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from mmstable.vis_backend import CallQueue, QueuedVisBackend
from tests.cli.runs import ROOT, iterations, log_of
from tests.cli.score_project import saved, train

pytestmark = pytest.mark.usefixtures('in_score_project')


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = CallQueue.wait
    monkeypatch.setattr(
        CallQueue, 'wait', lambda self, seconds: wait(self, min(seconds, 0.5))
    )


def scalars(folder: Path) -> list[dict]:
    (path,) = folder.rglob('scalars.json')
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: one[k] for k in one if not _is_ours(k)} for one in lines]


def _is_ours(name: str) -> bool:
    """Whether it is no value of mmengine, or another one in every run."""
    return 'time' in name or 'stable/' in name


def board(folder: Path) -> list[tuple[str, int, float]]:
    (path,) = folder.rglob('events.out.tfevents*')
    read = EventAccumulator(str(path.parent))
    read.Reload()
    return [
        (name, event.step, event.value)
        for name in read.Tags()['scalars']
        if not _is_ours(name)
        for event in read.Scalars(name)
    ]


def test_a_healthy_run_records_what_mmengine_records(tmp_path: Path) -> None:
    ours, stock = tmp_path / 'ours', tmp_path / 'stock'
    more = dict(train_cfg__val_interval=3, config='dashboards.py')
    assert train(ours, visualizer__vis_backends__2__start=999, **more) == 0
    cfg = Config.fromfile('dashboards.py')
    cfg.work_dir = str(stock)
    cfg.train_cfg.val_interval = 3
    cfg.visualizer.vis_backends.pop()
    Runner.from_cfg(cfg).train()
    assert len(scalars(ours)) == 11
    assert scalars(ours) == scalars(stock)
    assert [list(one) for one in scalars(ours)] == [
        list(one) for one in scalars(stock)
    ]
    assert board(ours) == board(stock)
    assert len(list(ours.rglob('vis_data/config.py'))) == 1


@pytest.mark.parametrize('start', [1, 4])
def test_a_back_end_that_fails_is_said_once(
    tmp_path: Path, start: int
) -> None:
    options = {'visualizer__vis_backends__2__start': start}
    assert train(tmp_path, config='dashboards.py', **options) == 0
    text = log_of(tmp_path)
    assert text.count('Broken does not record everything: OSError: ') == 1
    assert f'Broken has lost {11 - start} records' in text
    # The others are not concerned.
    assert len(scalars(tmp_path)) == 9


@pytest.mark.usefixtures('impatient')
@pytest.mark.parametrize('start', [1, 4])
def test_a_back_end_that_blocks_is_left_behind(
    tmp_path: Path, start: int
) -> None:
    options = {
        'visualizer__vis_backends__2__start': start,
        'visualizer__vis_backends__2__block': True,
    }
    assert train(tmp_path, config='dashboards.py', **options) == 0
    text = log_of(tmp_path)
    assert text.count('Broken does not record everything: it was not') == 1
    assert saved(tmp_path)[-1] == 'iter_8.pth'
    assert len(scalars(tmp_path)) == 9


def test_others_still_find_the_back_end(tmp_path: Path) -> None:
    assert train(tmp_path) == 0
    backend = Visualizer.get_current_instance().get_backend('LocalVisBackend')
    assert isinstance(backend, QueuedVisBackend)
    assert type(backend.experiment).__name__ == 'LocalVisBackend'
    assert backend._scalar_save_file.endswith('scalars.json')


# A small disk of its own, that the process and nobody else sees.
ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=600k none "$1"
shift
exec "$@"
"""


def small_disk(folder: Path) -> list[str]:
    unshare = shutil.which('unshare')
    if unshare is None:
        pytest.skip('needs unshare to have a disk of its own')
    command = [unshare, '-rm', 'sh', '-c', ON_A_SMALL_DISK, 'sh', str(folder)]
    probe = subprocess.run([*command, 'true'], check=False)
    if probe.returncode:
        pytest.skip('this machine does not let users mount a disk')
    return command


@pytest.mark.soak
def test_a_full_disk_does_not_end_the_run(
    tmp_path: Path, score_folder: Path
) -> None:
    done = subprocess.run(
        [
            *small_disk(tmp_path),
            *(sys.executable, '-m', 'mmstable', 'train', 'config.py'),
            *('--work-dir', f'{tmp_path}/work', '--cfg-options'),
            'custom_hooks.0.type=FillDisk',
            f'custom_hooks.0.folder={tmp_path}',
            'custom_hooks.0.at=4',
            'train_cfg.max_iters=40',
        ],
        cwd=score_folder,
        env={'PATH': '/usr/bin:/bin', 'PYTHONPATH': f'{ROOT}'},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    after = done.stdout.partition('the disk is full')[2]
    assert 'Iter(train) [40/40]' in after
    assert 'iter_4.pth is not saved' in after
    assert after.count('LocalVisBackend does not record everything') == 1


def test_a_command_that_ends_ahead_of_time_writes_what_waits(
    tmp_path: Path,
) -> None:
    with pytest.raises(RuntimeError, match='a fault in the model'):
        train(tmp_path, model__fail_at=7)
    assert iterations(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert [one['step'] for one in scalars(tmp_path)] == [1, 2, 3, 4, 5, 6]
