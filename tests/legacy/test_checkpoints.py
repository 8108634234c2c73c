from __future__ import annotations

import pytest

from mmstable.checkpoint.resume import prepare_to_resume


def mmcv(**fp16):
    return dict(
        meta=dict(epoch=1, iter=10, fp16=fp16),
        state_dict={},
        optimizer=dict(state={}, param_groups=[]),
    )


def test_checkpoint_of_mmengine_is_left_alone():
    checkpoint = dict(
        meta=dict(epoch=1, iter=10), optimizer={}, message_hub={}
    )
    before = {key: dict(value) for key, value in checkpoint.items()}
    assert prepare_to_resume(checkpoint) == []
    assert checkpoint == before


@pytest.mark.parametrize(
    'scaler',
    [
        dict(scale=512.0, _growth_tracker=3),
        dict(cur_scale=512, cur_iter=9, mode='dynamic'),
    ],
)
def test_loss_scale_moves_to_the_optimizer(scaler):
    checkpoint = mmcv(loss_scaler=scaler)
    notes = prepare_to_resume(checkpoint)
    assert notes[-1] == 'its loss scale is 512.0'
    assert checkpoint['optimizer']['loss_scaler']['scale'] == 512.0
    assert checkpoint['message_hub'].keys() == {
        'log_scalars',
        'runtime_info',
        'resumed_keys',
    }
    assert prepare_to_resume(checkpoint) == []


def test_each_of_several_optimizers_gets_it():
    checkpoint = mmcv(loss_scaler=dict(scale=8.0))
    one = checkpoint['optimizer']
    checkpoint['optimizer'] = dict(generator=one, critic=dict(one))
    prepare_to_resume(checkpoint)
    for state in checkpoint['optimizer'].values():
        assert state['loss_scaler'] == dict(scale=8.0)


@pytest.mark.parametrize('checkpoint', [{}, dict(meta=None), dict(weight=1)])
def test_weights_alone_are_left_alone(checkpoint):
    before = dict(checkpoint)
    assert prepare_to_resume(checkpoint) == []
    assert checkpoint == before
