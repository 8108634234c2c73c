"""A run removes its own checkpoints only, and leaves none for ever."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from mmengine.logging import MessageHub

from mmstable.checkpoint.manifest import Manifest
from tests.cli.runs import ROOT, run
from tests.cli.score_project import saved, train

pytestmark = pytest.mark.usefixtures('in_score_project')
STOCK = dict(default_hooks__checkpoint__type='CheckpointHook')
BEST = dict(
    default_hooks__checkpoint__save_best='score',
    default_hooks__checkpoint__rule='greater',
    train_cfg__val_interval=2,
)
KEEP = dict(default_hooks__checkpoint__max_keep_ckpts=2)
HOOKS = pytest.mark.parametrize('hook', [{}, STOCK], ids=['safe', 'stock'])


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.glob('*.pth*')}


def orphans(folder: Path) -> list[str]:
    """Manifests without a checkpoint."""
    names = [p.name for p in folder.glob('*.pth.json')]
    return [n for n in names if not (folder / n[: -len('.json')]).exists()]


@HOOKS
def test_a_fork_leaves_the_original_alone(tmp_path: Path, hook: dict) -> None:
    original, fork = tmp_path / 'a', tmp_path / 'b'
    options = {**hook, **BEST, **KEEP}
    assert train(original, train_cfg__max_iters=4, **options) == 0
    before = content(original)
    start = ['--resume-from', str(original / 'iter_4.pth')]
    assert train(fork, *start, **options) == 0
    assert content(original) == before
    assert saved(fork) == ['best_score_iter_8.pth', 'iter_6.pth', 'iter_8.pth']


@HOOKS
def test_a_copy_leaves_the_original_alone(tmp_path: Path, hook: dict) -> None:
    original, copy = tmp_path / 'a', tmp_path / 'b'
    options = {**hook, **BEST, **KEEP}
    assert train(original, train_cfg__max_iters=4, **options) == 0
    before = content(original)
    shutil.copytree(original, copy)
    assert train(copy, '--resume', **options) == 0
    assert content(original) == before
    assert saved(copy) == ['best_score_iter_8.pth', 'iter_6.pth', 'iter_8.pth']


def test_a_copy_with_an_out_dir_leaves_the_original_alone(
    tmp_path: Path,
) -> None:
    original, copy, out = (tmp_path / name for name in ('a', 'b', 'out'))
    options = {**BEST, **KEEP, 'default_hooks__checkpoint__out_dir': out}
    assert train(original, train_cfg__max_iters=4, **options) == 0
    before = content(out / 'a')
    shutil.copytree(original, copy)
    assert train(copy, '--resume', **options) == 0
    assert content(out / 'a') == before
    assert saved(out / 'b')[-1] == 'iter_8.pth'


def test_a_new_run_keeps_the_emergency_checkpoint_of_the_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match='a fault in the model'):
        train(tmp_path, model__fail_at=6, **KEEP)
    assert 'emergency_iter_5.pth' in saved(tmp_path)
    assert train(tmp_path, train_cfg__max_iters=6, **KEEP) == 0
    assert 'emergency_iter_5.pth' in saved(tmp_path)
    assert train(tmp_path, '--resume', **KEEP) == 0
    assert f"resuming from '{tmp_path}/iter_6.pth'" in capsys.readouterr().err


def test_its_own_emergency_checkpoint_goes(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match='a fault in the model'):
        train(tmp_path, model__fail_at=6, **KEEP)
    assert train(tmp_path, '--resume', **KEEP) == 0
    assert saved(tmp_path) == ['iter_6.pth', 'iter_8.pth']
    assert orphans(tmp_path) == []


def test_a_lower_limit_removes_manifests_too(tmp_path: Path) -> None:
    limit = 'default_hooks__checkpoint__max_keep_ckpts'
    assert train(tmp_path, train_cfg__max_iters=6, **{limit: 3}) == 0
    assert len(saved(tmp_path)) == 3
    assert train(tmp_path, '--resume', **{limit: 1}) == 0
    assert saved(tmp_path) == ['iter_8.pth']
    assert orphans(tmp_path) == []


def test_what_was_to_be_kept_is_kept_under_a_new_limit(
    tmp_path: Path,
) -> None:
    assert train(tmp_path, train_cfg__max_iters=4) == 0
    options = dict(default_hooks__checkpoint__max_keep_ckpts=1)
    assert train(tmp_path, '--resume', **options) == 0
    assert saved(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_8.pth']


def test_others_of_the_same_name_are_left(tmp_path: Path) -> None:
    """A fork into a folder in which another run has been."""
    original, fork = tmp_path / 'a', tmp_path / 'b'
    assert train(fork, train_cfg__max_iters=2, **KEEP) == 0
    assert train(original, train_cfg__max_iters=4, **KEEP) == 0
    theirs = (fork / 'iter_2.pth').read_bytes()
    start = ['--resume-from', str(original / 'iter_4.pth')]
    assert train(fork, *start, **KEEP) == 0
    assert (fork / 'iter_2.pth').read_bytes() == theirs


# Kill the process when something is done to a checkpoint.
KILLER = """
import os
import sys
from pathlib import Path

from mmstable.checkpoint.manifest import Manifest
from mmstable.checkpoint.storage import CheckpointStorage

where, name = sys.argv[1:3]


def kill_at(owner, method):
    real = getattr(owner, method)

    def watched(self, path, *args):
        if Path(path).name == name:
            os._exit(9)
        return real(self, path, *args)

    setattr(owner, method, watched)


kill_at(*{
    'remove': (CheckpointStorage, 'remove'),
    'manifest': (Manifest, 'write'),
}[where])
from mmstable.cli.main import main

sys.exit(main(sys.argv[3:]))
"""


def killed(folder: Path, where: str, name: str, **options: object) -> None:
    given = [f'{k.replace("__", ".")}={v}' for k, v in options.items()]
    words = ['train', 'config.py', '--as-is', '--work-dir', str(folder)]
    code, _, errors = run(
        [sys.executable, '-c', KILLER, where, name, *words]
        + ['--cfg-options', *given],
        Path.cwd(),
        path=f'{ROOT}:{Path.cwd()}',
    )
    assert code == 9, errors


@pytest.mark.soak
def test_a_kill_before_pruning_leaves_nothing_for_ever(
    tmp_path: Path,
) -> None:
    killed(tmp_path, 'remove', 'iter_2.pth', **KEEP)
    assert saved(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']
    assert train(tmp_path, '--resume', train_cfg__max_iters=7, **KEEP) == 0
    assert saved(tmp_path) == ['iter_6.pth', 'iter_7.pth']
    assert orphans(tmp_path) == []


@pytest.mark.soak
def test_a_kill_before_the_old_best_goes_leaves_one(tmp_path: Path) -> None:
    options = {**BEST, **KEEP}
    killed(tmp_path, 'remove', 'best_score_iter_2.pth', **options)
    assert 'best_score_iter_2.pth' in saved(tmp_path)
    assert 'best_score_iter_4.pth' in saved(tmp_path)
    # Validation has nothing better from now on.
    worse = {f'val_evaluator__given__{n}': 0 for n in range(5, 9)}
    assert train(tmp_path, '--resume', **options, **worse) == 0
    assert saved(tmp_path) == ['best_score_iter_4.pth'] + [
        'iter_6.pth',
        'iter_8.pth',
    ]


@pytest.mark.soak
def test_a_best_one_that_the_run_does_not_know_is_adopted(
    tmp_path: Path,
) -> None:
    """Killed after it was saved, before a checkpoint that names it."""
    # This loop does not validate once more when it is resumed.
    options = {**BEST, **KEEP, 'train_cfg__type': 'IterBasedTrainLoop'}
    killed(tmp_path, 'manifest', 'best_score_iter_4.pth', **options)
    assert Manifest.read(tmp_path / 'best_score_iter_4.pth') is None
    # Better than the one before, not than the adopted one.
    scores = {'val_evaluator__given__6': 3, 'val_evaluator__given__8': 3.5}
    assert train(tmp_path, '--resume', **options, **scores) == 0
    assert saved(tmp_path)[0] == 'best_score_iter_4.pth'
    assert len([n for n in saved(tmp_path) if 'best' in n]) == 1
    info = MessageHub.get_current_instance().runtime_info
    assert info['best_score'] == 4


def test_a_manifest_without_its_checkpoint_goes(tmp_path: Path) -> None:
    assert train(tmp_path, train_cfg__max_iters=6) == 0
    (tmp_path / 'iter_2.pth').unlink()
    assert orphans(tmp_path) == ['iter_2.pth.json']
    assert train(tmp_path, '--resume') == 0
    assert orphans(tmp_path) == []
