from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmstable.hooks import ResumeReportHook
from tests.toys import ToyModel, read_saved, toy_runner

AMP = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=64.0,
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
)
HOOKS = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
    ),
    logger=dict(type='LoggerHook', interval=1),
)
SCHEDULE = [
    dict(type='LinearLR', start_factor=0.5, by_epoch=False, begin=0, end=3),
    dict(type='PolyLR', power=0.9, by_epoch=False, begin=3, end=8),
]
LOOP = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=8)


def make(work_dir, *hooks, lr=0.1, schedule=SCHEDULE, **kwargs):
    wrapper = dict(AMP, optimizer=dict(AMP['optimizer'], lr=lr))
    settings = dict(
        default_hooks=HOOKS, train_cfg=LOOP, param_scheduler=schedule
    )
    settings.update(kwargs)
    runner = toy_runner(work_dir, wrapper, hooks=hooks, **settings)
    # As it is when a run is started from a config.
    runner.cfg = Config(dict(param_scheduler=schedule))
    return runner


def report_of(runner):
    log = Path(runner.logger.log_file).read_text()
    found = re.search(r'mmstable: resumed from (.*)((?:\n  .*)+)', log)
    if found is None:
        return None
    lines = [line[2:] for line in found.group(2).strip('\n').splitlines()]
    return found.group(1), {x[:15].strip(): x[15:] for x in lines}


def rates(runner):
    history = runner.message_hub.get_scalar('train/lr')
    return history.data[0].tolist()


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    runner = make(tmp_path_factory.mktemp('whole'))
    runner.train()
    return runner


def resume(tmp_path, whole, hook, **kwargs):
    path = kwargs.pop('load_from', str(Path(whole.work_dir, 'iter_4.pth')))
    runner = make(tmp_path, hook, load_from=path, **{'resume': True, **kwargs})
    runner.train()
    return runner


def test_everything_restored_is_said(tmp_path, whole):
    runner = resume(tmp_path, whole, ResumeReportHook('here.pth'))
    rate = rates(whole)[4]
    assert report_of(runner) == (
        'here.pth',
        {
            'epoch': '0',
            'iteration': '4 of 8',
            'learning rate': f'{rate:g}',
            'loss scale': '64',
            'data position': 'restored',
            'RNG': 'restored',
            'result': 'exact (identical to an uninterrupted run)',
        },
    )
    assert rates(runner) == rates(whole)


def test_what_is_not_restored_is_said_too(tmp_path, whole):
    path = tmp_path / 'bare.pth'
    checkpoint = read_saved(Path(whole.work_dir, 'iter_4.pth'))
    del checkpoint['mmstable'], checkpoint['optimizer']
    torch.save(checkpoint, path)
    report = report_of(
        resume(tmp_path, whole, ResumeReportHook(), load_from=str(path))
    )[1]
    assert report['RNG'] == 'not in the checkpoint, starts anew'
    assert report['optimizer'] == 'not in the checkpoint, starts anew'
    assert 'by the iteration' in report['data position']
    assert report['result'] == 'approximate: random numbers are new'

    stock = resume(
        tmp_path / 'stock',
        whole,
        ResumeReportHook(),
        train_cfg=dict(by_epoch=False, max_iters=8),
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=10**6)
        ),
    )
    report = report_of(stock)[1]
    assert report['RNG'].startswith('not restored')
    assert report['data position'].startswith('up to IterBasedTrainLoop')


def test_new_run_with_old_weights_has_nothing_to_report(tmp_path, whole):
    runner = resume(tmp_path, whole, ResumeReportHook(), resume=False)
    assert report_of(runner) is None
    assert len(rates(runner)) == 8


def test_finished_training_is_said(tmp_path, whole):
    path = str(Path(whole.work_dir, 'iter_8.pth'))
    runner = resume(tmp_path, whole, ResumeReportHook(), load_from=path)
    assert (
        'mmstable: this training is already finished: 8 of 8 iterations are '
        'done.' in Path(runner.logger.log_file).read_text()
    )


def test_schedule_of_the_config_takes_over(tmp_path, whole):
    other = [dict(type='MultiStepLR', milestones=[2, 6], by_epoch=False)]
    straight = make(tmp_path / 'straight', lr=1.0, schedule=other)
    straight.train()
    hook = ResumeReportHook(override_lr_schedule=True)
    runner = resume(tmp_path, whole, hook, lr=1.0, schedule=other)
    expected = rates(straight)
    assert expected[2:6] == pytest.approx([0.1] * 4)
    assert rates(runner)[4:] == pytest.approx(expected[4:])
    assert report_of(runner)[1]['learning rate'] == (
        f'0.1 (schedule of the config; was {rates(whole)[4]:g})'
    )
    # Without being asked, the checkpoint decides.
    kept = resume(tmp_path / 'kept', whole, ResumeReportHook(), lr=1.0)
    assert rates(kept) == rates(whole)


def test_rate_without_a_schedule_is_the_one_of_the_config(tmp_path, whole):
    hook = ResumeReportHook(override_lr_schedule=True)
    runner = resume(tmp_path, whole, hook, lr=0.25, schedule=None)
    assert rates(runner)[4:] == [0.25] * 4


def test_schedule_by_epoch_is_moved_by_epochs(tmp_path):
    schedule = [
        dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=3),
        dict(type='ExponentialLR', gamma=0.5, by_epoch=True),
    ]
    loader = dict(
        dataset=[dict(inputs=torch.ones(4), targets=torch.ones(2))] * 4,
        batch_size=2,
        sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='default_collate'),
    )
    common = dict(
        schedule=schedule,
        train_dataloader=loader,
        train_cfg=dict(type='mmstable.SafeEpochBasedTrainLoop', max_epochs=4),
    )
    whole = make(tmp_path / 'whole', **common)
    whole.train()
    for iteration in (2, 4):
        rest = make(
            tmp_path / f'rest{iteration}',
            ResumeReportHook(override_lr_schedule=True),
            load_from=str(tmp_path / f'whole/iter_{iteration}.pth'),
            resume=True,
            **common,
        )
        rest.train()
        assert rates(rest) == pytest.approx(rates(whole))


def test_checkpoint_of_mmcv_goes_on(tmp_path, whole):
    """As ``mmcv.runner.save_checkpoint`` of 1.x writes it."""
    marker, path = tmp_path / 'marker', tmp_path / 'iter_4.pth'
    model = ToyModel(seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.param_groups[0]['initial_lr'] = 0.3
    scaler = dict(
        scale=2048.0,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        _growth_tracker=5,
    )
    torch.save(
        dict(
            meta=dict(
                epoch=1,
                iter=4,
                config=f'__import__("os").mkdir({str(marker)!r})',
                env_info='none',
                fp16=dict(loss_scaler=scaler),
                hook_msgs={},
            ),
            state_dict=model.state_dict(),
            optimizer=optimizer.state_dict(),
        ),
        path,
    )
    runner = resume(tmp_path, whole, ResumeReportHook(), load_from=str(path))
    assert not marker.exists()
    assert runner.iter == 8
    assert report_of(runner)[1]['loss scale'] == '2048'
    assert rates(runner) == pytest.approx(rates(whole)[4:])
    state = runner.optim_wrapper.state_dict()
    assert state['loss_scaler']['_growth_tracker'] == 9
    log = Path(runner.logger.log_file).read_text()
    assert 'written by mmcv 1.x' in log
