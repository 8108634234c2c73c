"""Resuming with tools/train.py, as a user does it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config

from mmstable.cli import train
from mmstable.cli.command import Parser, begin
from mmstable.cli.main import main
from mmstable.cli.start import Start, choose_start
from tests.checkpoint.leftovers import leave_half_a_file
from tests.cli.runs import ROOT, iterations, log_of
from tests.cli.runs import run as run_command
from tests.some_files import some_files
from tests.torch_features import skip_without_half
from tests.toys import read_saved

TOY = """
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from torch.utils.data import Dataset


@MODELS.register_module()
class ToyResumeModel(BaseModel):
    def __init__(self, die_at=0):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        self.drop = torch.nn.Dropout(0.5)
        self.die_at, self.calls = die_at, 0

    def forward(self, x, y, mode='loss'):
        self.calls += 1
        if self.calls == self.die_at:
            import os

            os._exit(9)
        out = self.head(self.drop(x))
        return dict(loss=torch.nn.functional.cross_entropy(out, y))


@DATASETS.register_module()
class ToyResumeDataset(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), 0.1 * index), index % 2
"""
CONFIG = """
experiment_name = __import__('uuid').uuid4().hex
custom_imports = dict(imports=['toy_resume_project'])
model = dict(type='ToyResumeModel')
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    dataset=dict(type='ToyResumeDataset'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
)
train_cfg = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=8)
optim_wrapper = dict(
    type='mmstable.SafeAmpOptimWrapper',
    dtype='float16',
    loss_scale=64,
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
)
param_scheduler = [dict(type='PolyLR', by_epoch=False, begin=0)]
default_hooks = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
    ),
    logger=dict(type='LoggerHook', interval=1),
)
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
"""


@pytest.fixture(scope='module')
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('project')
    (folder / 'toy_resume_project.py').write_text(TOY)
    (folder / 'config.py').write_text(CONFIG)
    return folder


def run(project: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / 'tools/train.py'), 'config.py']
    done = run_command([*command, *args], project)
    return subprocess.CompletedProcess(command, *done)


@pytest.fixture(scope='module')
def whole(project: Path) -> Path:
    """The work directory of an unbroken run."""
    skip_without_half()
    work = project / 'whole'
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(project))
        patch.chdir(project)
        assert main(['train', 'config.py', '--work-dir', str(work)]) == 0
    return work


@pytest.fixture
def work(
    whole: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A copy of that directory, to be spoiled."""
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.chdir(project)
    copy = tmp_path / 'work'
    copy.mkdir()
    for path in whole.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    (copy / 'last_checkpoint').write_text(str(copy / 'iter_8.pth'))
    return copy


def same_end(one: Path, other: Path) -> None:
    ours, theirs = (read_saved(w / 'iter_8.pth') for w in (one, other))
    for key, value in theirs['state_dict'].items():
        assert torch.equal(ours['state_dict'][key], value)
    for key in ('loss_scaler', 'safe_step'):
        assert ours['optimizer'][key] == theirs['optimizer'][key]
    assert ours['param_schedulers'] == theirs['param_schedulers']


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.soak
def test_killed_run_is_resumed_by_the_same_command(
    project: Path, whole: Path
) -> None:
    work = project / 'killed'
    command = ['--work-dir', str(work), '--resume', 'auto']
    died = run(project, *command, '--cfg-options', 'model.die_at=6')
    assert died.returncode == 9
    assert 'starting from the beginning' in died.stderr
    # What a crash in the middle of saving leaves behind.
    leave_half_a_file(work)
    truncated = work / 'iter_6.pth'
    shutil.copy(work / 'iter_4.pth', truncated)
    truncate(truncated)

    done = run(project, *command)
    assert done.returncode == 0, done.stderr
    assert 'mmstable train: skipped iter_6.pth: truncated' in done.stderr
    assert f"mmstable train: resuming from '{work}/iter_4.pth'" in done.stderr
    assert iterations(work) == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    same_end(work, whole)
    assert not list(work.glob('.*tmp'))
    report = log_of(work)[log_of(work).index('mmstable: resumed from') :]
    for line in (
        f'resumed from {work}/iter_4.pth\n',
        '  epoch          0\n',
        '  iteration      4 of 8\n',
        '  learning rate  0.0',
        '  loss scale     64\n',
        '  data position  restored\n',
        '  RNG            restored\n',
    ):
        assert line in report


def test_bad_file_fails_and_names_a_good_one(
    project: Path, work: Path
) -> None:
    truncate(work / 'iter_8.pth')
    bad = str(work / 'iter_8.pth')
    done = run(project, '--work-dir', str(work), '--resume-from', bad)
    assert done.returncode == 3
    assert 'Traceback' not in done.stderr
    assert done.stderr.strip().splitlines()[-1] == (
        f"mmstable train: error: checkpoint '{bad}' is truncated: its end is "
        f'missing after {os.path.getsize(bad)} bytes. The newest good one '
        f'there is of iteration 6: --resume-from {work}/iter_6.pth'
    )


def resume(work: Path, *args: str) -> int:
    return main(['train', 'config.py', '--work-dir', str(work), *args])


@pytest.mark.parametrize(
    'options',
    [['--resume-from', 'auto'], ['--resume'], ['--before-iter', '7']],
)
def test_ways_to_say_auto(work: Path, options: list[str]) -> None:
    if '--before-iter' not in options:
        truncate(work / 'iter_8.pth')
    assert resume(work, *options) == 0
    assert iterations(work) == [7, 8]


@pytest.mark.parametrize(
    ('options', 'settings', 'expected'),
    [
        ([], dict(), (None, False, 'the config')),
        ([], dict(load_from='iter_2'), ('iter_2', False, 'the config')),
        (
            [],
            dict(load_from='iter_2', resume=True),
            ('iter_2', True, 'the config'),
        ),
        ([], dict(resume=True), ('iter_8', True, 'the config')),
        (
            ['--load-from', 'iter_4'],
            dict(load_from='iter_2', resume=True),
            ('iter_4', False, '--load-from'),
        ),
        (
            ['--resume'],
            dict(load_from='iter_2', resume=False),
            ('iter_8', True, '--resume'),
        ),
        (['--resume', 'iter_4'], dict(), ('iter_4', True, '--resume')),
        (
            ['--resume-from', 'auto', '--before-iter', '8'],
            dict(load_from='iter_2'),
            ('iter_6', True, '--resume-from'),
        ),
        (
            ['--before-iter', '4'],
            dict(load_from='iter_8'),
            ('iter_2', True, '--before-iter'),
        ),
    ],
)
def test_the_command_line_goes_before_the_config(
    work: Path,
    options: list[str],
    settings: dict[str, Any],
    expected: tuple[str | None, bool, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(value: Any) -> Any:
        named = isinstance(value, str) and value.startswith('iter_')
        return str(work / f'{value}.pth') if named else value

    parser = Parser()
    parser.add(train.COMMAND.options)
    args = parser.parse_args(['config.py', *map(full, options)])
    cfg = Config({key: full(value) for key, value in settings.items()})
    cfg.work_dir = str(work)
    capsys.readouterr()
    begin('train', quiet=False)
    start = choose_start(cfg, args)
    lines = capsys.readouterr().err.splitlines()
    assert replace(start, sha256=None) == Start(*map(full, expected))
    assert (start.sha256 is None) == (start.checkpoint is None)
    if start.checkpoint is None:
        assert 'has checkpoints of an earlier run' in lines[-1]
    else:
        assert lines[-1] == f'mmstable train: {start}'


def test_the_first_start_by_that_command_takes_the_weights_of_the_config(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, weights = tmp_path / 'other', work / 'iter_2.pth'
    options = ['--resume', 'auto', '--cfg-options', f'load_from={weights}']
    assert resume(other, *options) == 0
    assert f"starting with weights of '{weights}' (the config)" in (
        capsys.readouterr().err
    )
    assert f'Load checkpoint from {weights}' in log_of(other)
    assert resume(other, *options, 'train_cfg.max_iters=9') == 0
    assert f"resuming from '{other}/iter_8.pth' (--resume)" in (
        capsys.readouterr().err
    )
    assert iterations(other) == [*range(1, 9), 9]


def test_folder_stands_for_its_newest(work: Path, tmp_path: Path) -> None:
    for name in ('iter_6.pth', 'iter_8.pth'):
        (work / name).unlink()
    other = tmp_path / 'other'
    assert resume(other, '--resume-from', str(work)) == 0
    assert iterations(other) == [5, 6, 7, 8]


def test_before_iter_takes_the_last_one_before(
    work: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(work, '--resume', 'auto', '--before-iter', '6') == 0
    errors = capsys.readouterr().err
    assert 'skipped iter_6.pth: iteration 6 is not before 6' in errors
    assert iterations(work) == [5, 6, 7, 8]
    same_end(work, whole)


def test_flipped_bit_is_skipped(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = work / 'iter_8.pth'
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert resume(work, '--resume') == 0
    assert 'skipped iter_8.pth: corrupt' in capsys.readouterr().err
    assert iterations(work) == [7, 8]


def test_nothing_good_is_no_fresh_start(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in some_files(work, '*.pth'):
        path.write_bytes(b'')
    assert resume(work, '--resume') == 3
    errors = capsys.readouterr().err
    assert errors.count(': empty') == 4
    assert f"no checkpoint in '{work}' can be resumed" in errors
    assert iterations(work) == []


def test_finished_training_is_said(work: Path) -> None:
    assert resume(work, '--resume') == 0
    assert iterations(work) == []
    assert (
        'this training is already finished: 8 of 8 iterations are done'
        in log_of(work)
    )
    longer = ['--cfg-options', 'train_cfg.max_iters=9']
    assert resume(work, '--resume', *longer) == 0
    assert iterations(work) == [9]


def test_schedule_of_the_config_is_asked_for(work: Path) -> None:
    options = ['optim_wrapper.optimizer.lr=0.5']
    code = resume(
        work,
        *('--resume-from', str(work / 'iter_6.pth')),
        *('--override-lr-schedule', '--cfg-options', *options),
    )
    assert code == 0
    # In a line from the start to the last iteration, both times.
    rates = f'{0.5 / 7:g} (schedule of the config; was {0.1 / 7:g})'
    assert f'learning rate  {rates}' in log_of(work)


def hide_payload(path: Path, marker: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(marker),)

    checkpoint = read_saved(path)
    checkpoint['meta']['note'] = Payload()
    torch.save(checkpoint, path)
    for side in some_files(path.parent, '*.json'):
        side.unlink()


def test_payload_is_refused_until_trusted(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker, path = tmp_path / 'marker', work / 'iter_6.pth'
    hide_payload(path, marker)
    for option in ('--resume-from', '--load-from'):
        assert resume(work, option, str(path)) == 3
        assert 'is refused: it asks for posix.mkdir' in capsys.readouterr().err
    (work / 'iter_8.pth').unlink()
    assert resume(tmp_path / 'other', '--resume-from', str(work)) == 0
    assert not marker.exists()
    assert iterations(tmp_path / 'other') == [5, 6, 7, 8]

    code = resume(work, '--resume-from', str(path), '--trust-checkpoint')
    assert code == 0
    assert 'is loaded without the guard' in capsys.readouterr().err
    assert marker.exists()
    assert iterations(work) == [7, 8]
    # Neither that file nor any other is trusted from now on.
    marker.rmdir()
    assert resume(work, '--resume-from', str(path)) == 3
    assert not marker.exists()


@pytest.mark.parametrize(
    ('has_manifest', 'reason'),
    [(True, 'its SHA-256 is not as saved'), (False, 'its check sum')],
)
def test_damaged_weights_do_not_start_a_run(
    work: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    has_manifest: bool,
    reason: str,
) -> None:
    path = work / 'iter_6.pth'
    weight = read_saved(path)['state_dict']['head.weight'].numpy().tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(weight) + 3] ^= 0x40
    path.write_bytes(data)
    if not has_manifest:
        (work / 'iter_6.pth.json').unlink()
    new, config = tmp_path / 'new', ['--cfg-options', f'load_from={path}']
    for options in (['--load-from', str(path)], config):
        assert resume(new, *options) == 3
        text = capsys.readouterr().err
        assert f"checkpoint '{path}' is corrupt: " in text
        assert reason in text
    assert not list(new.glob('*.pth'))
    # Others of the same folder are good.
    assert resume(new, '--load-from', str(work / 'iter_4.pth')) == 0


def test_program_in_an_old_checkpoint_is_not_run(
    work: Path, tmp_path: Path
) -> None:
    marker, path = tmp_path / 'marker', work / 'old.pth'
    checkpoint = read_saved(work / 'iter_6.pth')
    text = f'__import__("os").mkdir({str(marker)!r})'
    checkpoint['meta']['config'] = text
    torch.save(checkpoint, path)
    hooks = 'default_hooks.checkpoint.type=CheckpointHook'
    code = resume(
        work,
        *('--resume-from', str(path), '--as-is', '--cfg-options', hooks),
    )
    assert code == 0
    assert iterations(work) == [7, 8]
    assert not marker.exists()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['--resume', '--trust-checkpoint'], 'is for one local file'),
        (['--override-lr-schedule'], 'goes with --resume'),
        (['--before-iter', '0'], "a number from 1 on is expected, got '0'"),
        (
            ['--before-iter', '3', '--resume-from', 'FILE'],
            'is named by --resume-from',
        ),
        (['--trust-checkpoint', '--resume-from', '.'], 'one local file'),
        (['--before-iter', '3', '--load-from', 'FILE'], 'is named'),
    ],
)
def test_contradiction_is_one_line(
    work: Path,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(work / 'iter_2.pth')
    options = [path if one == 'FILE' else one for one in options]
    assert resume(work, *options) == 2
    assert message in capsys.readouterr().err


def test_weights_alone_cannot_be_resumed(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = work / 'weights.pth'
    torch.save(read_saved(work / 'iter_2.pth')['state_dict'], path)
    assert resume(work, '--resume-from', str(path)) == 3
    assert 'is foreign: a dict with a state_dict' in capsys.readouterr().err
    assert resume(tmp_path / 'new', '--load-from', str(path)) == 0
    assert iterations(tmp_path / 'new')[0] == 1
