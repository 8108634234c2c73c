"""Rules about classes, metrics and names, on the quick start's classes."""

from __future__ import annotations

import json
import re

import pytest

from mmstable.check.check_config import check_config
from mmstable.check.config_tree import ConfigView, changed
from mmstable.check.machine import Machine
from mmstable.check.rule import RULES

DATA = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='mmstable.DigitScenes',
        split='train',
        pipeline=[dict(type='mmstable.PackScene')],
    ),
)
GOOD = dict(
    default_scope='mmengine',
    model=dict(
        type='mmstable.TinyFCN',
        num_classes=11,
        data_preprocessor=dict(type='ImgDataPreprocessor', std=[1.0] * 3),
    ),
    train_dataloader=DATA,
    val_dataloader=DATA,
    val_evaluator=dict(type='mmstable.MeanIoU'),
    val_cfg=dict(),
    train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=3, val_interval=3),
    optim_wrapper=dict(
        type='mmstable.SafeOptimWrapper',
        optimizer=dict(type='SGD', lr=0.01),
        clip_grad=dict(max_norm=35),
    ),
    default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=10)),
)


@pytest.fixture(autouse=True)
def classes():
    pytest.importorskip('mmcv')
    import mmstable.demo  # noqa: F401


def findings(change):
    settings = changed(GOOD, change)
    found = check_config(ConfigView(settings, Machine.here()))
    # Those on mmengine's own classes are in every config.
    return {one.id: one for one in found if not one.id.startswith('stock_')}


def test_nothing_is_wrong():
    # The last checkpoint covers the only validation.
    assert findings({}) == {}


@pytest.mark.parametrize(
    ('id', 'change', 'text'),
    [
        ('class_count', {'model.num_classes': 80}, 'is 80, .* 11 classes'),
        (
            'misspelt_type',
            {'val_evaluator.type': 'mmstable.MeanIou'},
            "did you mean 'mmstable.MeanIoU'",
        ),
        (
            'misspelt_type',
            {'param_scheduler': [dict(type='LinearLRR', end=3)]},
            "did you mean 'LinearLR'",
        ),
        (
            'unknown_argument',
            {'val_evaluator.prefx': 'seg'},
            'no argument `prefx`',
        ),
        (
            'validation_before_save',
            {'train_cfg.val_interval': 1},
            'a checkpoint every 10',
        ),
    ],
)
def test_one_mistake(id, change, text):
    found = findings(change)
    assert list(found) == [id]
    assert re.search(text, found[id].what)


def test_settings_of_a_policy_are_not_unknown():
    policy = dict(type='PolicyLR', policy='step', step=[2], gamma=0.5)
    assert findings({'param_scheduler': [policy]}) == {}


def test_classes_that_the_annotations_do_not_have(tmp_path):
    file = tmp_path / 'ann.json'
    names = [dict(id=1, name='cat'), dict(id=2, name='dog')]
    file.write_text(json.dumps(dict(categories=names, images=[])))
    data = dict(
        type='CocoDataset',
        data_root=str(tmp_path),
        ann_file='ann.json',
        metainfo=dict(classes=('cat', 'whale')),
    )
    settings = dict(train_dataloader=dict(dataset=data))
    view = ConfigView(settings, Machine.here())
    (one,) = RULES['missing_categories'].check(view)
    assert one.fields['missing'] == 1
    file.write_text('[' * 100_000)
    assert list(RULES['missing_categories'].check(view)) == []


def test_keys_of_mmcv_that_are_translated_are_no_errors():
    assert RULES['legacy_key'].severity.value == 'warning'
