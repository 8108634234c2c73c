"""``mmstable train`` and tools/train.py, as a user meets them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmstable.cli.main import main
from tests.cli.runs import ROOT, iterations, log_of, start
from tests.patience import wait_until
from tests.toys import read_saved

pytestmark = pytest.mark.usefixtures('in_project')


def train(arguments: list[str]) -> int:
    return main(['train', *arguments])


def start_tool(project: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / 'tools/train.py'), *args]
    return start(command, project)


def test_script_trains_then_resumes(project: Path, tmp_path: Path) -> None:
    first, second = tmp_path / 'first', tmp_path / 'second'
    out, err = start_tool(
        project, 'config.py', '--work-dir', str(first), '--seed', '7'
    ).communicate(timeout=100)
    assert (first / 'iter_4.pth').exists(), err
    assert 'seed: 7' in out + err
    assert iterations(first) == [1, 2, 3, 4]

    words = ['config.py', '--resume-from', str(first / 'iter_2.pth')]
    assert train([*words, '--work-dir', str(second)]) == 0
    assert iterations(second) == [3, 4]
    weights = [
        read_saved(folder / 'iter_4.pth')['state_dict']['head.weight']
        for folder in (first, second)
    ]
    assert torch.equal(*weights)


def test_resume_without_a_value_takes_the_newest(
    tmp_path: Path,
) -> None:
    work = ['--work-dir', str(tmp_path)]
    longer = ['--cfg-options', 'train_cfg.max_iters=6']
    assert train(['config.py', *work]) == 0
    assert train(['config.py', *work, '--resume', *longer]) == 0
    assert iterations(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_load_from_starts_a_new_run(tmp_path: Path) -> None:
    first, second = tmp_path / 'first', tmp_path / 'second'
    assert train(['config.py', '--work-dir', str(first)]) == 0
    checkpoint = str(first / 'iter_4.pth')
    options = ['--work-dir', str(second), '--load-from', checkpoint]
    assert train(['config.py', *options]) == 0
    assert iterations(second) == [1, 2, 3, 4]


def test_amp_trains_with_the_safe_wrapper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ['optim_wrapper.loss_scale=64', 'train_cfg.max_iters=1']
    code = train(
        ['config.py', '--work-dir', str(tmp_path), '--amp', '--cfg-options']
        + options
    )
    assert code == 0
    log = ''.join(path.read_text() for path in tmp_path.rglob('*.log'))
    assert 'FP16 mixed precision enabled (loss_scale=64.0' in log


@pytest.mark.parametrize(
    ('words', 'line'),
    [(['bf16'], 'BF16 mixed precision enabled'), (['fp16'], 'FP16'), ([], '')],
)
def test_amp_takes_a_precision(
    tmp_path: Path, words: list[str], line: str
) -> None:
    work = ['--work-dir', str(tmp_path), '--amp', *words]
    assert train(['config.py', *work]) == 0
    assert line in log_of(tmp_path)


def test_learning_rate_is_scaled_by_the_batch_size(tmp_path: Path) -> None:
    options = ['--cfg-options', 'auto_scale_lr.base_batch_size=8']
    work = ['--work-dir', str(tmp_path), '--auto-scale-lr']
    assert train(['config.py', *work, *options]) == 0
    saved = read_saved(tmp_path / 'iter_4.pth')['optimizer']['param_groups']
    assert saved[0]['lr'] == pytest.approx(0.1 * 2 / 8)


@pytest.mark.parametrize('clip', ['None', 'dict(max_norm=1)'])
def test_an_option_below_none_is_set(
    project: Path, tmp_path: Path, clip: str
) -> None:
    (project / 'clip.py').write_text(
        f"_base_ = './config.py'\noptim_wrapper = dict(clip_grad={clip})\n"
    )
    options = ['--cfg-options', 'optim_wrapper.clip_grad.max_norm=20']
    work = ['--work-dir', str(tmp_path), '--amp']
    assert train(['clip.py', *work, *options]) == 0
    assert 'clip max_norm=20' in log_of(tmp_path)


def test_work_dir_is_named_after_the_config(project: Path) -> None:
    options = ['--cfg-options', 'train_cfg.max_iters=2']
    assert train(['config.py', *options]) == 0
    assert (project / 'work_dirs/config/iter_2.pth').exists()


def test_fault_in_training_keeps_its_traceback(tmp_path: Path) -> None:
    options = ['--cfg-options', 'model.fail=True']
    with pytest.raises(RuntimeError, match='a fault in the model'):
        train(['config.py', '--work-dir', str(tmp_path), *options])


def test_ctrl_c_is_one_line(project: Path, tmp_path: Path) -> None:
    process = start_tool(
        project,
        *('config.py', '--as-is', '--work-dir', str(tmp_path)),
        *('--cfg-options', 'model.nap=0.2', 'train_cfg.max_iters=1000'),
    )
    wait_until(lambda: iterations(tmp_path), process=process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert 'mmstable train: interrupted' in err
    assert 'Traceback' not in err
