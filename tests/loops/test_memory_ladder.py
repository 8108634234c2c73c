"""A batch that does not fit is trained on nevertheless."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from torch.utils.data import DataLoader

from mmstable.errors import TrainingOutOfMemory
from mmstable.events import Fault, Outcome
from tests.loops.runs import log_of
from tests.memory.scenes import (
    OutOfMemoryError,
    SceneNet,
    Scenes,
    run_out,
    scene_run,
)
from tests.toys import assert_same, weights

SGD = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9))


def distance(runner, reference):
    mine = torch.cat([p.flatten() for p in runner.model.parameters()])
    other = torch.cat([p.flatten() for p in reference.model.parameters()])
    return float((mine - other).detach().norm() / other.detach().norm())


class Once:
    """Fails as often as it is told, whatever is tried."""

    def __init__(self, times):
        self.left = times

    def __call__(self, module, args):
        if self.left and module.training:
            self.left -= 1
            raise OutOfMemoryError('CUDA out of memory')


def failing(times, where='head', **kwargs):
    model = SceneNet(**kwargs)
    getattr(model, where).register_forward_pre_hook(Once(times))
    return model


@pytest.mark.parametrize(
    ('times', 'rung', 'norm'),
    [(1, 'retry', 'bn'), (2, 'offload', 'bn'), (3, 'recompute', 'bn')],
)
def test_mild_remedies_change_nothing(tmp_path, times, rung, norm):
    kwargs = dict(norm=norm, loss='ignore_index', dropout=0.3)
    reference, _ = scene_run(tmp_path / 'a', model=SceneNet(**kwargs))
    runner, hook = scene_run(
        tmp_path / 'b',
        model=failing(times, **kwargs),
        oom=dict(offload=True),
    )
    assert [event.rung for event in hook.events] == [rung]
    assert hook.events[0].gradients == 'equal'
    assert_same(weights(runner.model), weights(reference.model))
    assert runner.optim_wrapper.applied_steps == 6


def test_a_host_has_no_other_memory(tmp_path):
    _, hook = scene_run(tmp_path, model=failing(2))
    assert [event.rung for event in hook.events] == ['recompute']


@pytest.mark.parametrize('loss', ['mean', 'ignore_index', 'avg_factor'])
@pytest.mark.parametrize(
    'limits', [(2, 10**6), (10**6, 2)], ids=['forward', 'backward']
)
def test_chunks_end_like_the_whole_batch(tmp_path, loss, limits):
    reference, _ = scene_run(tmp_path / 'a', model=SceneNet(loss=loss))
    model = SceneNet(loss=loss)
    runner, hook = scene_run(
        tmp_path / 'b', {2: limits, 4: limits}, model=model
    )
    (first,) = hook.events
    assert (first.iteration, first.rung) == (2, 'chunk/2')
    assert first.gradients == 'rounding'
    phase = 'forward' if limits[0] == 2 else 'backward'
    assert first.phase == phase
    assert first.requested == 2 * 2**30
    assert 'inputs (4, 3, 8, 8) float32' in first.shapes
    assert first.samples[0] == 'img_path=scenes/4.png'
    assert distance(runner, reference) < 1e-5
    # Whole batch, retry, recompute failed in iteration 2 only.
    assert model.limited.failures == 3


def test_what_helped_is_where_the_next_begins(tmp_path):
    model = SceneNet()
    limits = dict.fromkeys(range(2, 7), (2, 10**6))
    _, hook = scene_run(tmp_path, limits, model=model)
    assert len(hook.events) == 1
    assert model.limited.failures == 3


def test_a_resumed_run_begins_there_too(tmp_path):
    limits = dict.fromkeys(range(2, 7), (2, 10**6))
    saver = dict(
        checkpoint=dict(
            type='mmstable.SafeCheckpointHook', interval=3, by_epoch=False
        )
    )
    scene_run(tmp_path, limits, default_hooks=saver, max_iters=4)
    model = SceneNet()
    _, hook = scene_run(
        tmp_path / 'rest',
        limits,
        model=model,
        default_hooks=saver,
        load_from=str(tmp_path / 'iter_3.pth'),
        resume=True,
    )
    assert (hook.events, model.limited.failures) == ([], 0)


def test_a_calm_period_leads_back(tmp_path):
    model = SceneNet()
    runner, hook = scene_run(
        tmp_path,
        {2: (2, 10**6)},
        model=model,
        oom=dict(calm_period=2),
        max_iters=8,
    )
    # Iterations 3 and 4 in chunks, 5 and 6 computed again, then as before.
    log = log_of(runner)
    assert 'Iter 4: batches of these shapes have come through' in log
    assert 'with chunk/2 for 2 iterations; trying recompute' in log
    assert 'Iter 6' in log and 'trying the whole batch from now on' in log


def test_what_is_too_mild_is_tried_ever_more_rarely(tmp_path):
    model = SceneNet()
    limits = dict.fromkeys(range(2, 10), (2, 10**6))
    runner, hook = scene_run(
        tmp_path,
        limits,
        model=model,
        oom=dict(calm_period=2),
        max_iters=9,
    )
    assert [event.iteration for event in hook.events] == [2, 5]
    assert 'after 4 of them something milder' in log_of(runner)


@pytest.mark.parametrize(
    'limits', [(1, 10**6), (10**6, 1)], ids=['forward', 'backward']
)
def test_accumulation_ends_like_the_whole_batch(tmp_path, limits):
    wrapper = dict(
        type='mmstable.SafeOptimWrapper', accumulative_counts=3, **SGD
    )
    kwargs = dict(optim_wrapper=wrapper)
    reference, _ = scene_run(tmp_path / 'a', **kwargs)
    # In the middle and at the end of a window.
    at = {2: limits, 6: limits}
    runner, hook = scene_run(tmp_path / 'b', at, **kwargs)
    assert hook.events[0].rung == 'chunk/4'
    assert 0 < distance(runner, reference) < 1e-5
    assert runner.optim_wrapper.applied_steps == 2


@pytest.mark.parametrize('times', [1, 2])
def test_accumulation_is_bit_equal_after_a_mild_remedy(tmp_path, times):
    wrapper = dict(
        type='mmstable.SafeOptimWrapper', accumulative_counts=3, **SGD
    )
    kwargs = dict(optim_wrapper=wrapper)
    reference, _ = scene_run(tmp_path / 'a', model=SceneNet('bn'), **kwargs)
    model, left = SceneNet('bn'), [times]

    def fail(grad):
        # The head has its gradients already, the backbone has not.
        if model.fails and left[0]:
            left[0] -= 1
            raise OutOfMemoryError('CUDA out of memory')

    model.fails = False
    model.backbone[5].weight.register_hook(fail)

    class Second(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            model.fails = runner.iter == 1

    runner, hook = scene_run(
        tmp_path / 'b', model=model, hooks=(Second(),), **kwargs
    )
    (event,) = hook.events
    assert event.phase == 'backward'
    assert_same(weights(runner.model), weights(reference.model))


@pytest.mark.parametrize(
    'limits', [(2, 10**6), (10**6, 2)], ids=['forward', 'backward']
)
def test_half_precision_with_a_scaler(tmp_path, limits):
    wrapper = dict(
        type='mmstable.SafeAmpOptimWrapper', loss_scale=256.0, **SGD
    )
    kwargs = dict(optim_wrapper=wrapper)
    reference, _ = scene_run(tmp_path / 'a', **kwargs)
    runner, hook = scene_run(tmp_path / 'b', {3: limits}, **kwargs)
    assert [event.rung for event in hook.events] == ['chunk/2']
    # fp16 has three digits.
    assert 0 < distance(runner, reference) < 1e-3
    assert runner.optim_wrapper.loss_scaler.get_scale() == 256.0


def test_wrappers_of_mmengine(tmp_path):
    kwargs = dict(optim_wrapper=dict(type='OptimWrapper', **SGD))
    reference, _ = scene_run(tmp_path / 'a', **kwargs)
    runner, hook = scene_run(tmp_path / 'b', {3: (2, 10**6)}, **kwargs)
    assert [event.rung for event in hook.events] == ['chunk/2']
    assert 0 < distance(runner, reference) < 1e-5


def test_the_report_says_what_to_change(tmp_path):
    _, hook = scene_run(tmp_path, {2: (2, 10**6)})
    text = Path(hook.events[0].report).read_text()
    assert 'Iteration 2: out of memory in the forward pass' in text
    assert 'Asked for: 2.0 GiB' in text
    assert 'inputs (4, 3, 8, 8) float32' in text
    assert 'img_path=scenes/4.png' in text
    # 4 x 8 x 8 x 8 floats.
    assert re.search(r'backbone\.\d +8\.0 KiB', text)
    assert "SafeActivationCheckpointHook', modules=['backbone']" in text
    assert 'batch_size=2' in text and 'accumulative_counts=2' in text


NEVER = (0, 10**6)


def test_a_batch_that_never_fits_is_left_out(tmp_path):
    runner, hook = scene_run(tmp_path, {3: NEVER}, oom=dict(max_skipped=1))
    (event,) = hook.events
    assert (event.rung, event.gradients) == ('skip', '')
    assert hook.outputs[2] is None
    report = hook.reports[2]
    assert (report.outcome, report.fault) == (Outcome.SKIPPED, Fault.OOM)
    wrapper = runner.optim_wrapper
    assert (wrapper.applied_steps, wrapper.skipped_steps) == (5, 1)
    log = log_of(runner)
    assert 'left out (1 of at most 1)' in log
    assert 'img_path=scenes/8.png' in log


def test_leaving_out_is_as_if_the_batch_had_not_been(tmp_path):
    class Gap(Scenes):
        def __getitem__(self, index):
            return super().__getitem__(index + 4 * (index >= 8))

    data = DataLoader(Gap(), batch_size=4)
    reference, _ = scene_run(
        tmp_path / 'a',
        model=SceneNet('bn'),
        train_dataloader=data,
        max_iters=5,
    )
    runner, _ = scene_run(tmp_path / 'b', {3: NEVER}, model=SceneNet('bn'))
    assert_same(weights(runner.model), weights(reference.model))


def test_leaving_out_of_a_window_averages_the_rest(tmp_path):
    wrapper = dict(
        type='mmstable.SafeOptimWrapper', accumulative_counts=3, **SGD
    )
    runner, hook = scene_run(tmp_path, {2: NEVER}, optim_wrapper=wrapper)
    first = hook.reports[0]
    assert (first.outcome, first.fault) == (Outcome.APPLIED, Fault.OOM)
    assert (first.micro_batches, first.dropped_micro_batches) == (3, 1)
    assert runner.optim_wrapper.applied_steps == 2


def test_a_window_with_half_a_batch_in_it_is_skipped(tmp_path):
    class Later(Scenes):
        def __getitem__(self, index):
            return super().__getitem__(index + 12)

    wrapper = dict(
        type='mmstable.SafeOptimWrapper', accumulative_counts=3, **SGD
    )
    reference, _ = scene_run(
        tmp_path / 'a',
        train_dataloader=DataLoader(Later(), batch_size=4),
        max_iters=3,
        optim_wrapper=wrapper,
    )
    # The head has got its gradients whenever the backbone fails.
    runner, hook = scene_run(
        tmp_path / 'b', {2: (10**6, 0)}, optim_wrapper=wrapper
    )
    first = hook.reports[0]
    assert (first.outcome, first.fault) == (Outcome.SKIPPED, Fault.OOM)
    assert [event.rung for event in hook.events] == ['skip']
    assert_same(weights(runner.model), weights(reference.model))


def test_mmengines_wrapper_leaves_out_a_batch(tmp_path):
    wrapper = dict(type='OptimWrapper', **SGD)
    runner, hook = scene_run(tmp_path, {3: NEVER}, optim_wrapper=wrapper)
    assert [event.rung for event in hook.events] == ['skip']


def test_too_many_end_the_run(tmp_path):
    limits = dict.fromkeys(range(1, 7), NEVER)
    with pytest.raises(TrainingOutOfMemory, match='max_skipped=2') as caught:
        scene_run(tmp_path, limits, oom=dict(max_skipped=2))
    text = str(caught.value)
    assert '3 batches have not fit' in text
    assert 'img_path=scenes/8.png' in text and 'batch_size=2' in text
    assert 'the mildest first: (1) custom_hooks' in text
    assert ' (2) train_dataloader = dict(batch_size=2);' in text
    assert '\n' not in text
    assert caught.value.exit_code == 10


@pytest.mark.soak
def test_several_in_a_row_come_with_advice(tmp_path, capsys):
    limits = dict.fromkeys(range(1, 6), NEVER)
    logger = dict(type='mmstable.GradNanLoggerHook')
    runner, _ = scene_run(tmp_path, limits, hooks=(logger,))
    assert runner.iter == 6
    text = ' '.join(capsys.readouterr().out.split())
    assert '5 in a row, are too many. Batches do not fit in memory' in text


def test_parts_only_if_allowed(tmp_path):
    reference, _ = scene_run(tmp_path / 'a', max_iters=2)

    def run(name, **oom):
        model = SceneNet()
        # The head fails, too: chunks of the backbone do not help.
        model.head.register_forward_pre_hook(
            lambda module, args: run_out() if len(args[0]) > 2 else None
        )
        return scene_run(tmp_path / name, model=model, oom=oom, max_iters=2)

    _, hook = run('b')
    assert {event.rung for event in hook.events} == {'skip'}
    runner, hook = run('c', allow_approximate=True)
    (event,) = hook.events
    assert (event.rung, event.gradients) == ('split/2', 'approximate')
    assert 'approximate, because losses' in event.reason
    # The mean over all pixels is the mean of the parts.
    assert distance(runner, reference) < 1e-5
    assert hook.outputs[-1]['loss'].item() > 0


def test_an_optimizer_that_fails_is_not_run_again(tmp_path):
    class Fail(Hook):
        def before_train(self, runner):
            optimizer = runner.optim_wrapper.optimizer
            optimizer.register_step_pre_hook(lambda *args: run_out())

    with pytest.raises(OutOfMemoryError, match='2.00 GiB') as caught:
        scene_run(tmp_path, hooks=(Fail(),))
    note, advice = caught.value.__notes__[:2]
    assert 'cannot do this step again' in note
    assert 'while the optimizer worked' in note
    assert 'out of memory in the optimizer step, not in the model' in advice


def test_it_can_be_switched_off(tmp_path):
    with pytest.raises(OutOfMemoryError):
        scene_run(tmp_path, {2: (2, 10**6)}, oom=dict(enabled=False))


@pytest.mark.parametrize(
    ('oom', 'error', 'match'),
    [
        (dict(chunks=['x']), ValueError, 'no setting `chunks`.*mean chunk'),
        (dict(max_skipped=-1), ValueError, '`max_skipped` must be an int'),
        (dict(offload=1), TypeError, '`offload` must be a bool, got 1'),
        ([], TypeError, '`oom` must be a dict'),
        (dict(chunk=['bakbone']), ValueError, "'bakbone' matches nothing"),
    ],
)
def test_wrong_settings(tmp_path, oom, error, match):
    with pytest.raises(error, match=f'SafeIterBasedTrainLoop: .*{match}'):
        scene_run(tmp_path, oom=oom, max_iters=1)


class Renamed(SceneNet):
    """Has no backbone."""

    def __init__(self):
        super().__init__()
        self.body = self._modules.pop('backbone')

    @property
    def limited(self):
        return self.body[3]

    def forward(self, inputs, targets, mode='tensor', **kwargs):
        return dict(loss=self.loss(self.head(self.body(inputs)), targets))


def test_modules_by_name(tmp_path):
    limits = {2: (2, 10**6)}
    runner, hook = scene_run(tmp_path / 'a', limits, model=Renamed())
    assert hook.events[0].rung == 'skip'
    assert "no module called 'backbone'" in hook.events[0].reason
    _, hook = scene_run(
        tmp_path / 'b', limits, model=Renamed(), oom=dict(chunk=['bod.'])
    )
    assert [event.rung for event in hook.events] == ['chunk/2']
