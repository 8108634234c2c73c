"""What one process is refused, two are refused as well, and told once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from mmstable.io.lock import NAME, locked
from tests.chaos.signal_runs import free_port
from tests.cli.runs import ROOT, run, start
from tests.cli.score_project import saved, train
from tests.patience import wait_until

pytestmark = [
    pytest.mark.dist,
    pytest.mark.usefixtures('in_score_project'),
]
SHORT = ['--cfg-options', 'train_cfg.max_iters=2']
MMSTABLE = [sys.executable, '-m', 'mmstable']


def command(work: Path, *words: str) -> list[str]:
    door = [*MMSTABLE, 'dist-train', '--port', str(free_port())]
    return [*door, 'config.py', '2', '--work-dir', str(work), *words]


def dist_train(folder: Path, work: Path, *words: str) -> tuple[int, str]:
    code, _, err = run(command(work, *words), folder, timeout=60)
    return code, err


@pytest.mark.soak
def test_a_resume_that_does_not_fit(
    score_folder: Path, tmp_path: Path
) -> None:
    work = tmp_path / 'work'
    assert train(work, train_cfg__max_iters=4) == 0
    before = {p.name: p.read_bytes() for p in work.glob('*.pth*')}
    wide = ['--resume', '--cfg-options', 'model.width=6']
    code, err = dist_train(score_folder, work, *wide)
    assert code == 3, err
    assert err.count('the checkpoint does not fit this run; 3 of 4') == 1
    assert 'Traceback' not in err
    last = err.splitlines()[-1]
    # Both leave within the same second.
    assert last.startswith('mmstable dist-train: error: rank ')
    assert 'was the first to fail, with exit code 3' in last
    assert {p.name: p.read_bytes() for p in work.glob('*.pth*')} == before
    assert not (work / NAME).exists()


@pytest.mark.soak
def test_a_folder_in_use(score_folder: Path, tmp_path: Path) -> None:
    with locked([tmp_path], False, print):
        code, err = dist_train(score_folder, tmp_path, *SHORT)
        assert code == 5, err
        text = f"error: '{tmp_path}' is in use: process {os.getpid()} on "
        assert err.count(text) == 1
        assert saved(tmp_path) == []
        code, err = dist_train(score_folder, tmp_path, '--force', *SHORT)
        assert code == 0, err
    assert saved(tmp_path) == ['iter_2.pth']


@pytest.mark.soak
def test_ranks_that_nobody_ends_agree_on_the_exit_code(
    score_folder: Path, tmp_path: Path
) -> None:
    port = str(free_port())
    with locked([tmp_path], False, print):
        ranks = [
            start(
                [*MMSTABLE, 'train', 'config.py', '--launcher', 'slurm']
                + ['--work-dir', str(tmp_path), *SHORT],
                score_folder,
                path=f'{ROOT}:{score_folder}',
                SLURM_PROCID=str(rank),
                SLURM_NTASKS='2',
                SLURM_LOCALID=str(rank),
                SLURM_NODELIST='node7',
                MASTER_PORT=port,
            )
            for rank in range(2)
        ]
        try:
            texts = [rank.communicate(timeout=60)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert [rank.returncode for rank in ranks] == [5, 5], texts
    assert ["error: '" in text for text in texts] == [True, False]


@pytest.mark.soak
def test_signals_to_dist_train(score_folder: Path, tmp_path: Path) -> None:
    long = ['--cfg-options', 'train_cfg.max_iters=100000']
    process = start(command(tmp_path, *long), score_folder)
    try:
        wait_for(tmp_path, 'iter_2.pth')
        # It would end torchrun.
        process.send_signal(signal.SIGUSR1)
        wait_for(tmp_path, 'emergency_iter_*.pth')
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, err
    assert 'Traceback' not in err
    assert err.splitlines()[-1] == 'mmstable dist-train: stopped by SIGTERM'
    assert 'stopped by SIGTERM; the command to resume is above' in err
    assert not (tmp_path / NAME).exists()


def wait_for(folder: Path, pattern: str) -> None:
    wait_until(lambda: any(folder.glob(pattern)))
