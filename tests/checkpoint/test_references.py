"""A checkpoint must not make mmengine delete what is not its own."""

from __future__ import annotations

import pytest
import torch

from mmstable.checkpoint.loaders import drop_foreign_references
from mmstable.checkpoint.loading import load_checkpoint
from tests.loops.runs import DropoutModel, Numbered, loader, validation
from tests.toys import toy_runner


def info_after(folder, **info):
    checkpoint = dict(message_hub=dict(runtime_info=info))
    drop_foreign_references(checkpoint, str(folder))
    return checkpoint['message_hub']['runtime_info']


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / 'run'
    run.mkdir()
    (run / 'best_a_iter_1.pth').touch()
    (run / 'sub.pth').mkdir()
    (tmp_path / 'other.pth').touch()
    (tmp_path / 'best_a_iter_1.pth').touch()
    return run


def test_own_files_are_kept(folder):
    own = str(folder / 'best_a_iter_1.pth')
    kept = info_after(folder, best_ckpt=own, best_ckpt_a=own, lr=1)
    assert kept == dict(best_ckpt=own, best_ckpt_a=own, lr=1)


@pytest.mark.parametrize(
    'named', ['/', '../other.pth', 'sub.pth', '', 5, None, ['a'], b'x', 'a\0b']
)
def test_everything_else_is_dropped(folder, named):
    if isinstance(named, str) and named not in ('/', ''):
        named = f'{folder}/{named}'
    assert info_after(folder, best_ckpt=named) == {}


def test_a_copy_of_a_run_uses_its_own_file(folder):
    elsewhere = str(folder.parent / 'best_a_iter_1.pth')
    kept = info_after(folder, best_ckpt=elsewhere)
    assert kept == dict(best_ckpt=str(folder / 'best_a_iter_1.pth'))


@pytest.mark.parametrize('ids', [['../../x'], 'abc', [True], [1.5], 7, None])
def test_numbers_of_checkpoints_are_numbers(folder, ids):
    assert info_after(folder, keep_ckpt_ids=ids) == {}
    assert info_after(folder, keep_ckpt_ids=[1, 2]) == {
        'keep_ckpt_ids': [1, 2]
    }


def spoil(path, **info):
    """Put something into the runtime information of a checkpoint."""
    content = load_checkpoint(path)
    content['message_hub']['runtime_info'].update(info)
    for key in info:
        content['message_hub']['resumed_keys'][key] = True
    torch.save(content, path)
    path.with_name(f'{path.name}.json').unlink(missing_ok=True)


HOOKS = ('CheckpointHook', 'mmstable.SafeCheckpointHook')


@pytest.mark.parametrize('hook', HOOKS)
def test_nothing_outside_is_removed_by_a_resumed_run(tmp_path, hook):
    """A directory and a file elsewhere survive better scores."""
    settings = dict(
        type=hook,
        interval=1,
        by_epoch=False,
        max_keep_ckpts=1,
        save_best='score',
        rule='greater',
    )

    def run(name, iters, **kwargs):
        return toy_runner(
            tmp_path / name,
            model=DropoutModel(),
            train_dataloader=loader(Numbered(6), batch_size=2),
            train_cfg=dict(by_epoch=False, max_iters=iters, val_interval=1),
            default_hooks=dict(checkpoint=settings),
            **validation(),
            **kwargs,
        )

    run('a', 2).train()
    treasure = tmp_path / 'treasure'
    treasure.mkdir()
    (treasure / 'data').write_text('precious')
    victim = tmp_path / 'iter_1.pth'
    victim.write_text('precious')
    last = tmp_path / 'a' / 'iter_2.pth'
    spoil(
        last,
        best_ckpt=str(treasure),
        keep_ckpt_ids=['/../../1', '/../../../1'],
    )
    run('a', 6, load_from=str(last), resume=True).train()
    assert (treasure / 'data').read_text() == 'precious'
    assert victim.read_text() == 'precious'


def test_a_fork_leaves_the_best_of_the_original(tmp_path):
    settings = dict(
        type='mmstable.SafeCheckpointHook',
        interval=1,
        by_epoch=False,
        save_best='score',
        rule='greater',
    )

    def run(name, iters, **kwargs):
        return toy_runner(
            tmp_path / name,
            model=DropoutModel(),
            train_dataloader=loader(Numbered(6), batch_size=2),
            train_cfg=dict(by_epoch=False, max_iters=iters, val_interval=1),
            default_hooks=dict(checkpoint=settings),
            **validation(),
            **kwargs,
        )

    run('a', 2).train()
    (best,) = (tmp_path / 'a').glob('best_*.pth')
    run(
        'b', 6, load_from=str(tmp_path / 'a' / 'iter_2.pth'), resume=True
    ).train()
    assert best.exists()
    assert len(list((tmp_path / 'b').glob('best_*.pth'))) == 1
