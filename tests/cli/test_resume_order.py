"""Which checkpoint ``--resume`` takes, and what it says of the others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.cli.score_project import saved, train

pytestmark = pytest.mark.usefixtures('in_score_project')
STOCK = dict(default_hooks__checkpoint__type='CheckpointHook')


def taken(capsys: pytest.CaptureFixture[str]) -> str:
    """The checkpoint that the last run said to resume from."""
    text = capsys.readouterr().err
    return Path(text.rpartition("resuming from '")[2].split("'")[0]).name


def test_a_clock_that_is_set_back_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(tmp_path, train_cfg__max_iters=4) == 0
    now = time.time()
    monkeypatch.setattr(time, 'time', lambda: now - 3600)
    assert train(tmp_path, '--resume', train_cfg__max_iters=6) == 0
    for path in tmp_path.glob('iter_6*'):
        os.utime(path, (now - 7200, now - 7200))
    capsys.readouterr()
    assert train(tmp_path, '--resume') == 0
    assert taken(capsys) == 'iter_6.pth'


def test_the_newer_run_is_taken_and_the_other_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An old run of mmengine's own hook was further."""
    assert train(tmp_path, **STOCK) == 0
    more = dict(train_cfg__max_iters=3, default_hooks__checkpoint__interval=3)
    assert train(tmp_path, **more) == 0
    capsys.readouterr()
    assert train(tmp_path, '--resume', train_cfg__max_iters=4) == 0
    text = capsys.readouterr().err
    assert f"resuming from '{tmp_path}/iter_3.pth'" in text
    assert (
        'iter_8.pth of iteration 8 is not taken: a newer start of this folder '
        'has left it behind; --resume-from takes it'
    ) in text


def test_a_run_that_went_back_is_not_brought_forward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path) == 0
    back = ['--resume', '--before-iter', '5']
    assert train(tmp_path, *back, train_cfg__max_iters=5) == 0
    assert 'iter_5.pth' in saved(tmp_path)
    capsys.readouterr()
    assert train(tmp_path, '--resume', train_cfg__max_iters=6) == 0
    text = capsys.readouterr().err
    assert f"resuming from '{tmp_path}/iter_5.pth'" in text
    assert 'iter_8.pth of iteration 8 is not taken: a newer start of' in text


@pytest.mark.parametrize('options', [{}, STOCK], ids=['safe', 'stock'])
def test_out_dir_goes_before_a_stale_file(
    tmp_path: Path, options: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    work, out = tmp_path / 'work', tmp_path / 'out'
    assert train(work, **options) == 0
    more = dict(options, default_hooks__checkpoint__out_dir=out)
    assert train(work, train_cfg__max_iters=6, **more) == 0
    assert saved(out / 'work') == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']
    capsys.readouterr()
    assert train(work, '--resume', **more) == 0
    assert f"resuming from '{out}/work/iter_6.pth'" in capsys.readouterr().err


@pytest.mark.parametrize('options', [{}, STOCK], ids=['safe', 'stock'])
def test_names_of_ones_own_are_found(
    tmp_path: Path, options: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    options = dict(
        options, default_hooks__checkpoint__filename_tmpl='mine-{}.ckpt'
    )
    assert train(tmp_path, train_cfg__max_iters=4, **options) == 0
    (tmp_path / 'mine-4.ckpt').write_bytes(b'')
    capsys.readouterr()
    assert train(tmp_path, '--resume', **options) == 0
    assert taken(capsys) == 'mine-2.ckpt'


def test_a_used_folder_is_said_and_resume_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, train_cfg__max_iters=4) == 0
    assert 'earlier run' not in capsys.readouterr().err
    assert train(tmp_path, train_cfg__max_iters=4) == 0
    text = capsys.readouterr().err
    assert (
        f"'{tmp_path}' has checkpoints of an earlier run, the newest is "
        'iter_4.pth of iteration 4. This is a new run, and replaces files of '
        'the same name. To continue the earlier one instead: '
    ) in text
    assert ' --resume\n' in text
