from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.dataset import InfiniteSampler
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import find_latest_checkpoint
from torch.utils.data import DataLoader

from mmstable.checkpoint import storage
from mmstable.checkpoint.catalog import find_checkpoint, verify_checkpoint
from mmstable.checkpoint.folders import finish_saves
from mmstable.checkpoint.manifest import Manifest
from mmstable.errors import ConfigError, ResultNotSaved
from mmstable.hooks import SafeCheckpointHook
from mmstable.io import files as atomic_file
from mmstable.report import CheckpointFailed, read_events
from tests.checkpoint.leftovers import leave_half_a_file
from tests.some_files import some_files
from tests.toys import (
    INF,
    NAN,
    ToyData,
    ToyModel,
    assert_same,
    read_saved,
    toy_runner,
    weights,
)

AMP = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=64.0,
    optimizer=dict(type='AdamW', lr=0.01, fused=True),
)


def make(work_dir, *hooks, max_iters=6, **kwargs):
    checkpoint = dict(
        type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
    )
    checkpoint.update(kwargs.pop('checkpoint', {}))
    return toy_runner(
        work_dir,
        kwargs.pop('optim_wrapper', None),
        max_iters=max_iters,
        hooks=hooks,
        default_hooks=dict(
            checkpoint=checkpoint, logger=dict(type='LoggerHook', interval=1)
        ),
        **kwargs,
    )


def train(work_dir, *hooks, **kwargs):
    runner = make(work_dir, *hooks, **kwargs)
    runner.train()
    return runner


def files(folder):
    return sorted(p.name for p in Path(folder).iterdir() if p.is_file())


def checkpoints(folder):
    return [name for name in files(folder) if name.endswith('.pth')]


def hook_of(runner):
    return next(h for h in runner.hooks if isinstance(h, SafeCheckpointHook))


def log_of(runner):
    return Path(runner.logger.log_file).read_text()


def test_a_misspelt_argument_is_told_before_training(tmp_path):
    message = 'SafeCheckpointHook: no setting `intervals`; .* mean interval'
    with pytest.raises(ValueError, match=message):
        train(tmp_path, checkpoint=dict(intervals=3))
    assert not checkpoints(tmp_path)


class At(Hook):
    """Does something to the runner before given iterations are saved."""

    def __init__(self, **actions):
        self.actions = {int(k[1:]): v for k, v in actions.items()}
        self.poisoned = []

    def after_train_iter(self, runner, *args, **kwargs):
        action = self.actions.get(runner.iter + 1)
        if action is not None:
            # The checkpoint before is not meant.
            finish_saves(runner)
            action(runner)

    def after_poisoned(self, runner, culprits):
        self.poisoned.append((runner.iter + 1, culprits))


def poison(runner):
    with torch.no_grad():
        runner.model.net.head.bias[0] = NAN


def heal(runner):
    with torch.no_grad():
        runner.model.net.head.bias.zero_()


def test_checkpoint_is_complete_and_described(tmp_path):
    runner = train(tmp_path, optim_wrapper=AMP)
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']
    path = tmp_path / 'iter_6.pth'
    checkpoint = read_saved(path)
    assert_same(checkpoint['state_dict'], weights(runner.model))
    state = runner.optim_wrapper.state_dict()
    assert_same(checkpoint['optimizer'], state)
    assert checkpoint['meta']['iter'] == 6
    assert {'rng', 'placeholders'} <= checkpoint['mmstable'][
        'SafeCheckpointHook'
    ].keys()
    side = Manifest.read(path)
    assert side.size == path.stat().st_size
    assert (side.iteration, side.epoch, side.finite) == (6, 0, True)
    assert side.versions['torch'] == torch.__version__
    assert verify_checkpoint(path).iteration == 6
    assert find_latest_checkpoint(str(tmp_path)) == str(path)


def test_saves_what_mmengine_saves(tmp_path):
    more = dict(
        optim_wrapper=AMP,
        param_scheduler=dict(type='PolyLR', by_epoch=False),
    )
    train(tmp_path / 'ours', **more)
    stock = dict(type='CheckpointHook')
    train(tmp_path / 'stock', checkpoint=stock, **more)
    ours, theirs = (
        read_saved(tmp_path / name / 'iter_4.pth')
        for name in ('ours', 'stock')
    )
    assert ours.pop('mmstable')
    assert list(ours) == list(theirs)
    for section in ('state_dict', 'optimizer', 'param_schedulers'):
        assert_same(ours[section], theirs[section])
    assert ours['state_dict']._metadata == theirs['state_dict']._metadata
    assert ours['meta'].keys() == theirs['meta'].keys()
    for name in ('epoch', 'iter', 'seed', 'mmengine_version'):
        assert ours['meta'][name] == theirs['meta'][name]
    hubs = ours['message_hub'], theirs['message_hub']
    for section in ('log_scalars', 'runtime_info', 'resumed_keys'):
        assert hubs[0][section].keys() == hubs[1][section].keys()


def test_side_file_never_speaks_of_another_file(tmp_path, monkeypatch):
    """Saved again under the same name, and cut off before the side file."""
    runner = train(tmp_path, max_iters=2)
    path = tmp_path / 'iter_2.pth'
    before = path.read_bytes()

    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Manifest, 'write', fail)
    with pytest.raises(KeyboardInterrupt):
        # The end of the training: waited for.
        hook_of(runner)._save_checkpoint_with_step(
            runner, 2, dict(epoch=0, iter=2, note='another')
        )
    assert path.read_bytes() != before
    assert verify_checkpoint(path).iteration == 2


def test_mmengine_alone_goes_on_from_it(tmp_path):
    whole = train(tmp_path / 'whole')
    train(tmp_path / 'part', max_iters=4)
    rest = train(
        tmp_path / 'rest',
        checkpoint=dict(type='CheckpointHook'),
        load_from=str(tmp_path / 'part/iter_4.pth'),
        resume=True,
    )
    assert_same(weights(rest.model), weights(whole.model))


def test_one_is_loadable_at_every_instant(tmp_path, monkeypatch):
    seen = []
    for name in ('replace', 'remove', 'unlink', 'fsync'):
        original = getattr(os, name)

        def call(*args, original=original, **kwargs):
            result = original(*args, **kwargs)
            seen.append(find_checkpoint(tmp_path).found is not None)
            return result

        monkeypatch.setattr(os, name, call)
    train(tmp_path, checkpoint=dict(max_keep_ckpts=1))
    first = seen.index(True)
    assert len(seen) > first + 10
    assert all(seen[first:])
    assert files(tmp_path)[-3:] == [
        'iter_6.pth',
        'iter_6.pth.json',
        'last_checkpoint',
    ]


def test_old_ones_are_removed_with_their_side_files(tmp_path):
    train(tmp_path, max_iters=8, checkpoint=dict(max_keep_ckpts=2))
    assert [n for n in files(tmp_path) if n.startswith('iter')] == [
        'iter_6.pth',
        'iter_6.pth.json',
        'iter_8.pth',
        'iter_8.pth.json',
    ]
    # A resumed run knows what to remove.
    train(
        tmp_path,
        max_iters=10,
        checkpoint=dict(max_keep_ckpts=2),
        load_from=str(tmp_path / 'iter_8.pth'),
        resume=True,
    )
    assert checkpoints(tmp_path) == ['iter_10.pth', 'iter_8.pth']


def test_poisoned_state_is_not_saved(tmp_path):
    at = At(_4=poison, _5=heal)
    runner = train(tmp_path, at, checkpoint=dict(max_keep_ckpts=1))
    assert checkpoints(tmp_path) == ['iter_6.pth']
    # Audited in the background of the next iteration.
    assert at.poisoned == [(5, (('state_dict.net.head.bias', 'NaN'),))]
    log = log_of(runner)
    assert (
        'mmstable: poisoned: iter_4.pth is not saved, because the '
        'state of the run is not finite: state_dict.net.head.bias (NaN). The '
        f'last good checkpoint is {tmp_path}/iter_2.pth.'
    ) in log


def test_poison_removes_nothing(tmp_path):
    at = At(_3=poison)
    runner = train(tmp_path, at, checkpoint=dict(max_keep_ckpts=1))
    assert checkpoints(tmp_path) == ['iter_2.pth']
    last = str(tmp_path / 'iter_2.pth')
    assert find_latest_checkpoint(str(tmp_path)) == last
    assert hook_of(runner).last_ckpt == last
    assert runner.message_hub.get_info('last_ckpt') == last
    assert runner.message_hub.get_info('keep_ckpt_ids') == [2]
    assert [iteration for iteration, _ in at.poisoned] == [5, 6]


def poison_average(runner):
    for hook in runner.hooks:
        if isinstance(hook, EMAHook):
            hook.ema_model.module.net.head.weight.data[0] = INF


def poison_momentum(runner):
    state = runner.optim_wrapper.optimizer.state
    next(iter(state.values()))['momentum_buffer'][0] = INF


@pytest.mark.parametrize(
    ('action', 'name'),
    [
        # EMAHook puts the average where mmengine looks for the weights.
        (poison_average, 'state_dict.net.head.weight'),
        (poison_momentum, 'optimizer.net.backbone.weight.momentum_buffer'),
    ],
)
def test_average_and_optimizer_are_audited(tmp_path, action, name):
    at = At(_2=action)
    at.priority = 'LOW'
    train(tmp_path, dict(type='EMAHook'), at, max_iters=2)
    assert checkpoints(tmp_path) == []
    assert at.poisoned == [(2, ((name, 'Inf'),))]


class Masked(ToyModel):
    def __init__(self):
        super().__init__()
        self.register_buffer('mask', torch.tensor([[0.5, -INF], [0.25, 0.0]]))


def test_mask_of_the_model_is_no_poison(tmp_path):
    train(tmp_path, dict(type='EMAHook'), model=Masked())
    found = find_checkpoint(tmp_path)
    assert found.found.iteration == 6
    # The file itself says so, should the side file get lost.
    for path in some_files(tmp_path, '*.json'):
        path.unlink()
    assert find_checkpoint(tmp_path) == found


@pytest.fixture
def full_disk(monkeypatch):
    """Call it to make the disk full or not, as ``write`` or ``usage``."""

    def make(how):
        monkeypatch.undo()
        if how == 'write':

            def write(self, data):
                self.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                raise self.error

            monkeypatch.setattr(atomic_file.HashedStream, 'write', write)
        elif how == 'usage':
            usage = SimpleNamespace(free=1000)
            monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)

    return make


@pytest.mark.parametrize(
    ('how', 'message'),
    [
        ('write', r'[Errno 28] No space left on device'),
        ('usage', 'no space: 1 MiB needed, 0 MiB free'),
    ],
)
def test_full_disk_does_not_end_the_training(
    tmp_path, full_disk, how, message
):
    at = At(_3=lambda r: full_disk(how), _5=lambda r: full_disk(None))
    runner = train(tmp_path, at, checkpoint=dict(max_keep_ckpts=1))
    assert runner.iter == 6
    assert checkpoints(tmp_path) == ['iter_6.pth']
    assert not [n for n in files(tmp_path) if n.startswith('.')]
    log = log_of(runner)
    line = f'mmstable: iter_4.pth is not saved: {message}. Training continues.'
    assert log.count(line) == 1
    assert f'The last good checkpoint is {tmp_path}/iter_2.pth.' in log


def test_what_a_full_disk_has_cost_is_told_in_the_end(tmp_path, full_disk):
    at = At(_3=lambda r: full_disk('usage'))
    with pytest.raises(ResultNotSaved, match='its last checkpoint could not'):
        train(tmp_path, at, dict(type='mmstable.EventLogHook'))
    full_disk(None)
    (path,) = tmp_path.glob('*/stability/events.jsonl')
    events = read_events(path)
    failed = [e for e in events if isinstance(e, CheckpointFailed)]
    assert [(e.iteration, e.name) for e in failed] == [
        (4, 'iter_4.pth'),
        (6, 'iter_6.pth'),
    ]


def test_a_disk_that_is_full_only_at_the_last_interval(tmp_path, full_disk):
    class Cleaner(Hook):
        priority = 'HIGHEST'

        def after_train(self, runner):
            full_disk(None)

    train(tmp_path, At(_5=lambda r: full_disk('usage')), Cleaner())
    assert find_checkpoint(tmp_path).found.iteration == 6


def test_disk_that_stays_full_keeps_the_old_one(tmp_path, full_disk):
    at = At(_3=lambda r: full_disk('write'))
    with pytest.raises(ResultNotSaved) as end:
        train(tmp_path, at, checkpoint=dict(max_keep_ckpts=1))
    assert end.value.exit_code == 12
    full_disk(None)
    assert checkpoints(tmp_path) == ['iter_2.pth']
    assert find_checkpoint(tmp_path).found.iteration == 2


def test_pointer_that_cannot_be_written_removes_nothing(tmp_path, monkeypatch):
    from mmstable.checkpoint import folders as module

    def fail(path, text, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def make_full(runner):
        monkeypatch.setattr(module, 'replace_text', fail)

    one = dict(max_keep_ckpts=1)
    runner = train(tmp_path, At(_3=make_full), max_iters=4, checkpoint=one)
    monkeypatch.undo()
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth']
    assert 'last_checkpoint does not name' in log_of(runner)
    at = At(_3=make_full, _5=lambda r: monkeypatch.undo())
    train(tmp_path / 'b', at, checkpoint=one)
    assert checkpoints(tmp_path / 'b') == ['iter_6.pth']


def test_leftovers_are_cleared_away(tmp_path):
    leave_half_a_file(tmp_path)
    train(tmp_path)
    assert not [n for n in files(tmp_path) if n.startswith('.')]


class Count(BaseMetric):
    """Counts down, so that every validation is the best so far."""

    values = {}

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        self.values['count'] = self.values.get('count', 0) + 1
        return dict(acc=float(self.values['count']))


class Trace(Hook):
    """Which checkpoints there are when a validation starts."""

    def __init__(self):
        self.seen = []

    def before_val(self, runner):
        finish_saves(runner)
        self.seen.append((runner.iter, checkpoints(runner.work_dir)))


def validating(work_dir, *hooks, train_cfg, **kwargs):
    Count.values.clear()
    return make(
        work_dir,
        *hooks,
        train_cfg=train_cfg,
        val_cfg=dict(),
        val_dataloader=DataLoader(ToyData(2), batch_size=1),
        val_evaluator=Evaluator(Count()),
        **kwargs,
    )


@pytest.mark.parametrize(
    ('wanted', 'best'),
    [('accc', []), (['accc', 'acc'], ['best_acc_iter_4.pth'])],
)
def test_a_metric_that_is_not_there_ends_nothing(tmp_path, wanted, best):
    loop = dict(by_epoch=False, max_iters=4, val_interval=2)
    more = dict(save_best=wanted, rule='greater')
    runner = validating(tmp_path, train_cfg=loop, checkpoint=more)
    runner.train()
    assert [n for n in checkpoints(tmp_path) if n.startswith('best')] == best
    line = '`save_best` names accc, which validation does not give; it gives'
    assert log_of(runner).count(f'{line} acc. Did you mean acc?') == 1


EPOCHS = dict(by_epoch=True, max_epochs=2, val_interval=1)
LOADER = dict(
    dataset=ToyData(4),
    batch_size=2,
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
)


def test_iteration_is_saved_before_it_is_validated(tmp_path):
    trace = Trace()
    validating(
        tmp_path,
        trace,
        train_cfg=dict(by_epoch=False, max_iters=4, val_interval=2),
    ).train()
    assert trace.seen == [
        (2, ['iter_2.pth']),
        (4, ['iter_2.pth', 'iter_4.pth']),
    ]


def test_epoch_is_saved_before_it_is_validated(tmp_path):
    trace = Trace()
    validating(
        tmp_path,
        trace,
        train_cfg=EPOCHS,
        train_dataloader=LOADER,
        checkpoint=dict(interval=1, by_epoch=True),
    ).train()
    assert trace.seen == [
        (2, ['epoch_1.pth']),
        (4, ['epoch_1.pth', 'epoch_2.pth']),
    ]


def test_best_is_saved_before_the_old_one_is_removed(tmp_path, monkeypatch):
    removed = []
    remove = os.remove

    def note(path, **kwargs):
        if Path(path).name.startswith('best'):
            removed.append((Path(path).name, checkpoints(tmp_path)))
        remove(path, **kwargs)

    monkeypatch.setattr(os, 'remove', note)
    runner = validating(
        tmp_path,
        train_cfg=dict(by_epoch=False, max_iters=4, val_interval=2),
        checkpoint=dict(save_best='acc', max_keep_ckpts=1),
    )
    runner.train()
    best = 'best_acc_iter_4.pth'
    assert checkpoints(tmp_path) == [best, 'iter_4.pth']
    assert [name for name, _ in removed] == ['best_acc_iter_2.pth']
    assert best in removed[0][1]
    assert Manifest.read(tmp_path / best).finite
    assert not (tmp_path / 'best_acc_iter_2.pth.json').exists()
    saved = read_saved(tmp_path / 'iter_4.pth')['message_hub']['runtime_info']
    assert saved['best_ckpt'] == str(tmp_path / best)
    assert saved['best_score'] == 2.0


def test_a_validation_without_training_saves_nothing(tmp_path):
    runner = validating(
        tmp_path,
        train_cfg=dict(by_epoch=False, max_iters=4, val_interval=2),
        checkpoint=dict(save_best='acc'),
    )
    assert runner.val() == {'acc': 1.0}
    assert checkpoints(tmp_path) == []


def test_best_that_is_poisoned_leaves_the_old_one(tmp_path):
    at = At(_3=poison)
    runner = validating(
        tmp_path,
        at,
        train_cfg=dict(by_epoch=False, max_iters=4, val_interval=2),
        checkpoint=dict(save_best='acc', max_keep_ckpts=1),
    )
    runner.train()
    best = 'best_acc_iter_2.pth'
    assert checkpoints(tmp_path) == [best, 'iter_2.pth']
    assert runner.message_hub.get_info('best_ckpt') == str(tmp_path / best)
    assert runner.message_hub.get_info('best_score') == 1.0
    assert hook_of(runner).best_ckpt_path == str(tmp_path / best)
    assert 'poisoned: best_acc_iter_4.pth is not saved' in log_of(runner)


def test_published_model_is_as_mmengine_makes_it(tmp_path):
    train(tmp_path, checkpoint=dict(published_keys=['meta', 'state_dict']))
    (published,) = tmp_path.glob('iter_6-*.pth')
    assert read_saved(published).keys() == {
        'meta',
        'state_dict',
    }


def accumulating(counts):
    return dict(
        type='mmstable.SafeOptimWrapper',
        optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
        accumulative_counts=counts,
    )


def test_checkpoint_waits_for_the_end_of_a_window(tmp_path):
    # The last window is cut short by the end of the training.
    train(tmp_path, max_iters=8, optim_wrapper=accumulating(3))
    assert checkpoints(tmp_path) == [
        'iter_3.pth',
        'iter_6.pth',
        'iter_8.pth',
    ]
    assert read_saved(tmp_path / 'iter_3.pth')['meta']['iter'] == 3


def test_best_score_waits_for_the_end_of_a_window(tmp_path):
    validating(
        tmp_path,
        train_cfg=dict(by_epoch=False, max_iters=6, val_interval=4),
        optim_wrapper=accumulating(3),
        checkpoint=dict(save_best='acc'),
    ).train()
    best = 'best_acc_iter_{}.pth'.format
    assert checkpoints(tmp_path) == [best(6), 'iter_3.pth', 'iter_6.pth']
    saved = read_saved(tmp_path / 'iter_6.pth')['message_hub']['runtime_info']
    assert saved['best_ckpt'] == str(tmp_path / best(6))


def test_epoch_waits_for_the_end_of_a_window(tmp_path):
    """Three iterations an epoch, two for a step."""
    loader = dict(LOADER, dataset=ToyData(6))
    common = dict(
        train_dataloader=loader,
        checkpoint=dict(interval=1, by_epoch=True),
        optim_wrapper=accumulating(2),
    )

    def loop(epochs):
        return dict(type='mmstable.SafeEpochBasedTrainLoop', max_epochs=epochs)

    whole = make(tmp_path / 'whole', train_cfg=loop(4), **common)
    whole.train()
    found = {
        name: read_saved(tmp_path / 'whole' / name)['meta']
        for name in checkpoints(tmp_path / 'whole')
    }
    assert [
        (name, meta['epoch'], meta['iter']) for name, meta in found.items()
    ] == [
        ('epoch_1.pth', 1, 4),
        ('epoch_2.pth', 2, 6),
        ('epoch_3.pth', 3, 10),
        ('epoch_4.pth', 4, 12),
    ]
    rest = make(
        tmp_path / 'rest',
        train_cfg=loop(4),
        load_from=str(tmp_path / 'whole/epoch_1.pth'),
        resume=True,
        **common,
    )
    rest.train()
    assert_same(weights(rest.model), weights(whole.model))


class Twice(ToyModel):
    """Uses every batch for two parts of a step."""

    def train_step(self, data, optim_wrapper):
        super().train_step(data, optim_wrapper)
        return super().train_step(data, optim_wrapper)


@pytest.mark.parametrize('save_last', [True, False])
def test_the_last_epoch_is_saved_although_its_window_is_open(
    tmp_path, save_last
):
    """Six parts an epoch, four for a step: two are left in the end."""
    runner = make(
        tmp_path,
        model=Twice(),
        train_dataloader=dict(LOADER, dataset=ToyData(6)),
        train_cfg=dict(type='mmstable.SafeEpochBasedTrainLoop', max_epochs=3),
        checkpoint=dict(interval=2, by_epoch=True, save_last=save_last),
        optim_wrapper=accumulating(4),
    )
    runner.train()
    last = ['epoch_3.pth'] if save_last else []
    assert checkpoints(tmp_path) == ['epoch_2.pth', *last]


class Noisy(ToyModel):
    """Draws from all three generators."""

    def forward(self, inputs, targets, mode='tensor'):
        import random

        import numpy as np

        shift = random.random() + np.random.rand() + torch.rand(())
        return super().forward(inputs + 0.1 * shift, targets, mode)


@pytest.mark.parametrize('kind', ['Safe', ''])
@pytest.mark.parametrize('cut', [2, 4])
def test_resumed_run_ends_as_an_unbroken_one(tmp_path, kind, cut):
    name = 'IterBasedTrainLoop'
    loop = dict(type=f'mmstable.Safe{name}' if kind else name, max_iters=6)
    common = dict(optim_wrapper=AMP, train_cfg=loop, shuffle=True)
    whole = train(tmp_path / 'whole', model=Noisy(), **common)
    rest = train(
        tmp_path / 'rest',
        model=Noisy(),
        load_from=str(tmp_path / f'whole/iter_{cut}.pth'),
        resume=True,
        **common,
    )
    assert_same(weights(rest.model), weights(whole.model))
    assert_same(
        rest.optim_wrapper.state_dict(), whole.optim_wrapper.state_dict()
    )
    assert hook_of(rest).restored['RNG'] == 'restored'


def test_order_of_the_data_goes_on(tmp_path):
    """Although the resumed run has drawn another seed for its sampler."""

    def run(name, seed, **kwargs):
        data = ToyData()
        loop = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=6)
        sampler = InfiniteSampler(data, shuffle=True, seed=seed)
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        return train(
            tmp_path / name, train_cfg=loop, train_dataloader=loader, **kwargs
        )

    whole = run('whole', 1)
    path = str(tmp_path / 'whole/iter_4.pth')
    rest = run('rest', 2, load_from=path, resume=True)
    assert_same(weights(rest.model), weights(whole.model))
    assert hook_of(rest).restored['data position'] == 'restored'


def test_loading_weights_leaves_the_generators_alone(tmp_path):
    train(tmp_path / 'first', model=Noisy())
    runs = [
        train(
            tmp_path / name,
            model=Noisy(),
            load_from=str(tmp_path / 'first/iter_4.pth'),
            **kwargs,
        )
        for name, kwargs in (
            ('ours', {}),
            ('stock', dict(checkpoint=dict(type='CheckpointHook'))),
        )
    ]
    assert_same(weights(runs[0].model), weights(runs[1].model))


def test_other_disks_get_it_by_their_back_end(tmp_path, monkeypatch):
    class NotLocal:
        pass

    monkeypatch.setattr(storage, 'LocalBackend', NotLocal)
    at = At(_4=poison)
    train(tmp_path, at, checkpoint=dict(max_keep_ckpts=1))
    assert checkpoints(tmp_path) == ['iter_2.pth']
    assert [iteration for iteration, _ in at.poisoned] == [5, 6]
    path = tmp_path / 'iter_2.pth'
    assert Manifest.read(path).size == path.stat().st_size
    assert find_checkpoint(tmp_path).found.iteration == 2


class LateHook(Hook):
    priority = 'LOWEST'

    def before_save_checkpoint(self, runner, checkpoint):
        checkpoint['late'] = len(checkpoint['state_dict'])


def test_hooks_of_all_priorities_add_their_part(tmp_path):
    train(tmp_path, LateHook())
    assert read_saved(tmp_path / 'iter_6.pth')['late'] == 6


class Odd:
    pass


class OddHook(Hook):
    def before_save_checkpoint(self, runner, checkpoint):
        checkpoint['odd'] = Odd()


def test_content_that_will_be_refused_is_told_when_saved(tmp_path):
    runner = train(tmp_path, OddHook())
    assert log_of(runner).count('resuming will need --trust-checkpoint') == 1
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']


def emergency(runner):
    runner.saved = hook_of(runner).save_emergency(runner)


def test_emergency_is_saved_at_any_iteration(tmp_path):
    at = At(_3=emergency)
    runner = train(tmp_path, at, max_iters=3, checkpoint=dict(save_last=False))
    assert runner.saved == str(tmp_path / 'emergency_iter_3.pth')
    assert find_checkpoint(tmp_path).found.iteration == 3
    assert find_latest_checkpoint(str(tmp_path)) == runner.saved
    # Going on makes it needless.
    rest = train(
        tmp_path,
        max_iters=6,
        checkpoint=dict(max_keep_ckpts=2),
        load_from=runner.saved,
        resume=True,
    )
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']
    whole = train(tmp_path / 'whole')
    assert_same(weights(rest.model), weights(whole.model))


def test_emergency_uses_what_is_there(tmp_path):
    at = At(_2=emergency)
    at.priority = 'LOWEST'
    runner = train(tmp_path, at, max_iters=3, checkpoint=dict(save_last=False))
    assert runner.saved == str(tmp_path / 'iter_2.pth')
    assert checkpoints(tmp_path) == ['iter_2.pth']


def test_there_is_nothing_to_save_before_the_first_iteration(tmp_path):
    hook = SafeCheckpointHook()
    runner = make(tmp_path)
    assert hook.save_emergency(runner) is None
    hook = hook_of(runner)
    hook.before_train(runner)
    runner.model.eval()
    assert hook.save_emergency(runner) is None
    assert checkpoints(tmp_path) == []


def test_other_runners_are_refused():
    with pytest.raises(ConfigError, match='got SimpleNamespace without them'):
        SafeCheckpointHook().before_run(SimpleNamespace())


def test_poisoned_emergency_is_not_saved(tmp_path):
    at = At(_3=lambda r: (poison(r), emergency(r)))
    runner = train(tmp_path, at, max_iters=3)
    assert runner.saved is None
    assert checkpoints(tmp_path) == ['iter_2.pth']
