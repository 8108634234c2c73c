"""One wrong leaf in the state of a run: refused, or of no consequence."""

from __future__ import annotations

import copy
import shutil
from random import Random
from typing import Any

import pytest
import torch

from mmstable.checkpoint.catalog import find_checkpoint, verify_checkpoint
from mmstable.checkpoint.loading import BadCheckpoint
from mmstable.errors import CheckpointError
from tests.toys import NAN, read_saved, toy_runner

HOOKS = (
    'GradNanLoggerHook',
    'FaultForensicsHook',
    'DivergenceGuardHook',
    'HeadroomHook',
    'SafeEMAHook',
)
VALUES = [
    None, 'x', '1', -1, 0, True, False, 10**15, 2**62, 10**150, 10**400, NAN,
    float('inf'), -1e308, [], {}, [[1]], (1, 2), b'x', '\x1b[2J\nnew line',
    'a' * 10_000, torch.tensor(NAN), torch.zeros(0), torch.ones(2, 2),
]  # fmt: skip
# What others check: the weights, and the text of a config.
LEFT_OUT = ('state_dict', 'ema_state_dict', 'cfg')


def run(work_dir, max_iters: int, **kwargs: Any):
    runner = toy_runner(
        work_dir,
        dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='Adam', lr=0.01),
        ),
        hooks=[
            *(dict(type=f'mmstable.{name}') for name in HOOKS),
            dict(type='mmstable.GradClipHook', method='percentile'),
        ],
        shuffle=True,
        train_cfg=dict(
            type='mmstable.SafeIterBasedTrainLoop',
            max_iters=max_iters,
            val_interval=10**6,
        ),
        param_scheduler=[
            dict(type='LinearLR', start_factor=0.1, end=3, by_epoch=False),
            dict(type='MultiStepLR', milestones=[3, 5], end=9, by_epoch=False),
            dict(type='CosineAnnealingLR', T_max=9, end=9, by_epoch=False),
        ],
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
            ),
            param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
            logger=dict(type='LoggerHook', interval=1),
        ),
        **kwargs,
    )
    runner.train()
    return runner


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp('genuine')
    run(folder, 4)
    return folder


def leaves(content: Any, path: tuple = ()) -> list[tuple]:
    found = []
    if isinstance(content, dict):
        keys = [key for key in content if key not in LEFT_OUT]
    else:
        keys = list(range(len(content))) if type(content) is list else []
    for key in keys:
        found += [(*path, key), *leaves(content[key], (*path, key))]
    return found


def change(content: Any, random: Random) -> str:
    """Change one leaf or branch, of a section that is not always the same."""
    section = random.choice([one for one in content if one not in LEFT_OUT])
    path = random.choice([p for p in leaves(content) if p[0] == section])
    value = random.choice(VALUES)
    *owners, last = path
    for key in owners:
        content = content[key]
    content[last] = value
    return f'{path} = {value!r}'[:200]


def resume_with_a_change(genuine, folder, seed: int) -> str:
    shutil.copytree(genuine, folder)
    content = copy.deepcopy(read_saved(folder / 'iter_4.pth'))
    what = change(content, Random(seed))
    torch.save(content, folder / 'iter_4.pth')
    (folder / 'iter_4.pth.json').unlink()
    search = find_checkpoint(folder)
    if search.skipped:
        (reason,) = search.skipped
        assert search.found.iteration == 2, what
        assert reason.isprintable() and len(reason) < 700
        return 'refused'
    try:
        run(folder, 6, resume=True, load_from=str(search.found.path))
    except CheckpointError:
        return 'does not fit'
    except BaseException as error:
        raise AssertionError(what) from error
    finally:
        shutil.rmtree(folder)
    return 'trained'


def test_a_genuine_one_is_resumed(saved, tmp_path):
    assert verify_checkpoint(saved / 'iter_4.pth').iteration == 4
    folder = tmp_path / 'again'
    shutil.copytree(saved, folder)
    again = run(folder, 6, resume=True, load_from=str(folder / 'iter_4.pth'))
    whole = run(tmp_path / 'whole', 6)
    for key, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], value)
    assert verify_checkpoint(folder / 'iter_6.pth').iteration == 6


@pytest.mark.parametrize('first', range(0, 60, 10))
def test_one_wrong_leaf(saved, tmp_path, first):
    for seed in range(first, first + 10):
        resume_with_a_change(saved, tmp_path / str(seed), seed)


@pytest.mark.soak
def test_many_wrong_leaves(saved, tmp_path):
    ends = [
        resume_with_a_change(saved, tmp_path / str(seed), seed)
        for seed in range(100, 600)
    ]
    assert ends.count('refused') > 200


STATES = {
    'mmstable.SafeCheckpointHook.rng.0.numpy': torch.zeros(3),
    'mmstable.SafeCheckpointHook.rng.0.pass_start.python': [3, [], None],
    'mmstable.SafeCheckpointHook.train_loop.index': 5,
    'mmstable.SafeCheckpointHook.train_loop.world_size': 0,
    'mmstable.GradNanLoggerHook.optim_wrapper.bad': [[1, 'x', 1.0]],
    'mmstable.DivergenceGuardHook.detector.good_steps': -1,
    'mmstable.GradClipHook.counts': {'all': [1]},
    'mmstable.HeadroomHook': {'points': []},
    'message_hub.runtime_info': [],
    'message_hub.runtime_info.best_score': 'high',
    'message_hub.resumed_keys.train/lr': False,
    'optimizer.state.0.step': -1,
    'optimizer.state.0.exp_avg': 1.0,
    'optimizer.state': [],
    'optimizer': {},
    'optimizer.param_groups.0': True,
    'optimizer.param_groups': [{}],
    'optimizer.param_groups.0.lr': NAN,
    'optimizer.param_groups.0.betas': 0.9,
    'optimizer.param_groups.0.params': [[0]],
    'optimizer.param_groups.0.weight_decay': [],
    'optimizer.param_groups.0.differentiable': b'x',
    'optimizer.param_groups.0.maximize': 10**15,
    'optimizer.param_groups.0.eps': 'x',
    'optimizer.safe_step.applied': None,
    'param_schedulers.0.end': {},
    'param_schedulers.1.end': (1, 2),
    'param_schedulers.2.last_step': 'x',
    'meta.seed': -1,
    'ema_state_dict': 5,
}


def put(content: Any, path: str, value: Any) -> None:
    *owners, last = [int(k) if k.isdigit() else k for k in path.split('.')]
    for key in owners:
        content = content[key]
    content[last] = value


@pytest.mark.parametrize(('path', 'value'), STATES.items())
def test_the_reason_names_the_place(saved, tmp_path, path, value):
    content = read_saved(saved / 'iter_4.pth')
    put(content, path, value)
    torch.save(content, tmp_path / 'iter_4.pth')
    section = path.partition('.')[0]
    with pytest.raises(BadCheckpoint, match=f'no run saves this: `{section}`'):
        verify_checkpoint(tmp_path / 'iter_4.pth')


MISFITS = {
    'optimizer.state.0.exp_avg': torch.zeros(0),
    'optimizer.param_groups.0.amsgrad': True,
    'param_schedulers.2.eta_min_ratio': 10**150,
    'optimizer.state.1.exp_avg_sq': None,
    'param_schedulers.1.milestones': 7,
    'param_schedulers.1.param_name': 'nobody',
    'param_schedulers.2._get_value': 5,
}


@pytest.mark.parametrize(('path', 'value'), MISFITS.items())
def test_a_misfit_ends_in_words(saved, tmp_path, path, value):
    content = read_saved(saved / 'iter_4.pth')
    put(content, path, value)
    torch.save(content, tmp_path / 'iter_4.pth')
    file = str(verify_checkpoint(tmp_path / 'iter_4.pth').path)
    section = path.partition('.')[0]
    with pytest.raises(CheckpointError, match=f'no run saves .*`{section}`'):
        run(tmp_path, 6, resume=True, load_from=file)


def test_a_label_of_another_kind_is_left_alone(saved, tmp_path):
    """The start looks for files of this run that have no manifest."""
    content = read_saved(saved / 'iter_4.pth')
    put(content, 'mmstable.label', (1, 2))
    torch.save(content, tmp_path / 'iter_4.pth')
    file = tmp_path / 'iter_4.pth'
    assert run(tmp_path, 6, resume=True, load_from=str(file)).iter == 6
    assert not file.with_name('iter_4.pth.json').exists()
