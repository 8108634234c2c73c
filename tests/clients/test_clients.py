"""Real mmpretrain, mmsegmentation and mmdetection, protected.

They have an environment of their own, made at first use, and the stubs of
``stubs/sitecustomize.py``. mmagic 1.2.0 cannot be imported without diffusers
and more: its overlay is read and checked, not trained.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmstable.checkpoint.audit import find_poison
from mmstable.checkpoint.loading import load_checkpoint
from mmstable.report import read_events
from tests.clients.tiny_data import write_data
from tests.toys import assert_same

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CLIENTS = ('mmpretrain', 'mmsegmentation', 'mmdetection')
EXAMPLES = (*CLIENTS, 'mmagic')
CULPRITS = {
    'mmpretrain': 'head.fc.weight',
    'mmsegmentation': 'decode_head.conv_seg.weight',
    'mmdetection': 'bbox_head.retina_cls.weight',
}
# What the train scripts of these projects do.
TRAIN = """
import sys
from mmengine.config import Config
from mmengine.runner import Runner
cfg = Config.fromfile(sys.argv[1])
cfg.work_dir = sys.argv[2]
Runner.from_cfg(cfg).train()
"""
pytestmark = pytest.mark.soak


@pytest.fixture(scope='session')
def python() -> str:
    """The Python that has the packages."""
    default = ROOT / '.venvs' / 'clients'
    venv = Path(os.environ.get('MMSTABLE_CLIENTS_VENV', default))
    if not (venv / '.ready').exists():
        script = [str(HERE / 'make_venv.sh'), sys.executable, str(venv)]
        done = run(script, ROOT)
        if done.returncode:
            reason = ' '.join(done.stdout[-300:].split())
            pytest.skip(f'no environment: {reason}')
    return str(venv / 'bin' / 'python')


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(HERE / 'stubs'), str(ROOT)])
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, 'PYTHONPATH': paths, 'OMP_NUM_THREADS': '1'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=900,
    )


def check_run(work_dir: Path, culprit: str) -> None:
    """One step was skipped and named, and all that was saved is finite."""
    (path,) = work_dir.rglob('events.jsonl')
    events = list(read_events(path))
    (bad,) = (one for one in events if one.event == 'step_fault')
    assert (bad.iteration, bad.outcome.value) == (3, 'skipped')
    assert [one.name for one in bad.culprits] == [culprit]
    assert (events[-1].event, events[-1].reason) == ('run_end', 'finished')
    assert events[-1].iteration == 8
    saved = list(work_dir.glob('*.pth'))
    assert saved
    assert not any(find_poison(load_checkpoint(path)) for path in saved)


@pytest.mark.parametrize('name', CLIENTS)
def test_mmstable_train_protects_without_a_line(name, python, tmp_path):
    write_data(tmp_path)
    config = str(HERE / 'configs' / f'{name}.py')
    command = [python, '-m', 'mmstable', 'train', config]
    done = run([*command, '--work-dir', 'run'], tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    check_run(tmp_path / 'run', CULPRITS[name])


@pytest.mark.parametrize('name', CLIENTS)
def test_an_overlay_protects_the_project_s_own_runner(name, python, tmp_path):
    write_data(tmp_path)
    config = str(HERE / 'configs' / f'{name}.py')
    command = [python, '-m', 'mmstable', 'protect', config]
    done = run([*command, '-o', 'protected.py'], tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    done = run([python, '-c', TRAIN, 'protected.py', 'run'], tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    check_run(tmp_path / 'run', CULPRITS[name])


@pytest.mark.parametrize('name', CLIENTS)
def test_without_mmstable_the_same_run_is_lost(name, python, tmp_path):
    write_data(tmp_path)
    config = str(HERE / 'configs' / f'{name}.py')
    done = run([python, '-c', TRAIN, config, 'run'], tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    saved = list((tmp_path / 'run').glob('*.pth'))
    assert any(find_poison(load_checkpoint(path)) for path in saved)


# Without the fault, and with validation in between.
HEALTHY = """
_base_ = [{config!r}]
custom_hooks = []
train_cfg = dict(val_interval={interval})
"""
VAL_INTERVALS = {'mmpretrain': 1, 'mmsegmentation': 3, 'mmdetection': 1}


@pytest.mark.parametrize('name', CLIENTS)
def test_a_healthy_run_is_the_stock_run(name, python, tmp_path):
    write_data(tmp_path)
    config = str(HERE / 'configs' / f'{name}.py')
    interval = VAL_INTERVALS[name]
    (tmp_path / 'healthy.py').write_text(
        HEALTHY.format(config=config, interval=interval)
    )
    stock = run([python, '-c', TRAIN, 'healthy.py', 'stock'], tmp_path)
    assert stock.returncode == 0, stock.stdout[-3000:]
    command = [python, '-m', 'mmstable', 'train', 'healthy.py']
    ours = run([*command, '--work-dir', 'ours'], tmp_path)
    assert ours.returncode == 0, ours.stdout[-3000:]
    assert 'made safe' in ours.stdout
    saved = sorted((tmp_path / 'stock').glob('*.pth'))
    assert saved
    for path in saved:
        found = load_checkpoint(tmp_path / 'ours' / path.name)
        expected = load_checkpoint(path)
        assert_same(found['state_dict'], expected['state_dict'])
        for part in expected['optimizer']:
            assert_same(found['optimizer'][part], expected['optimizer'][part])


@pytest.mark.parametrize('name', EXAMPLES)
def test_examples_protect_all_that_can_be_protected(name, python, tmp_path):
    example = str(ROOT / 'examples' / f'{name}.py')
    done = run([python, '-m', 'mmstable', 'protect', example], tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    # There is nothing left to change.
    assert 'made safe' not in done.stdout
    assert 'hooks added' not in done.stdout
    checked = run([python, '-m', 'mmstable', 'check', example], tmp_path)
    assert 'Traceback' not in checked.stdout
    for line in checked.stdout.splitlines():
        assert 'stock_' not in line
