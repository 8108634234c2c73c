"""For every rule a config that it is about, and one that is close to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmengine.model import BaseModel
from mmengine.registry import MODELS

from mmstable.check.config_tree import ConfigView, changed
from mmstable.check.machine import Machine, Trial

MACHINE = Machine(
    cores=64,
    shared_memory=64 * 10**9,
    gpus=8,
    bf16=lambda: True,
    disk=lambda path: 10**12,
    exists=lambda path: True,
)
# No rule has anything to say about it.
HEALTHY: dict[str, Any] = dict(
    model=dict(type='RuleModel', norm_cfg=dict(type='BN')),
    train_dataloader=dict(
        batch_size=16,
        num_workers=4,
        persistent_workers=True,
        sampler=dict(type='DefaultSampler', shuffle=True),
        dataset=dict(
            type='mmstable.DigitScenes',
            data_root='data/train',
            ann_file='a.json',
            pipeline=[dict(type='RandomCrop', crop_size=(512, 512))],
        ),
    ),
    val_dataloader=dict(batch_size=16, num_workers=4),
    val_cfg=dict(type='ValLoop'),
    val_evaluator=dict(type='Accuracy'),
    train_cfg=dict(
        type='mmstable.SafeEpochBasedTrainLoop', max_epochs=12, val_interval=1
    ),
    optim_wrapper=dict(
        type='mmstable.SafeAmpOptimWrapper',
        dtype='float16',
        loss_scale=dict(init_scale=1024.0),
        optimizer=dict(type='AdamW', lr=1e-4),
        clip_grad=dict(max_norm=1.0),
    ),
    param_scheduler=[
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=100),
        dict(type='CosineAnnealingLR', T_max=12, begin=0, end=12),
    ],
    default_hooks=dict(
        param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
        checkpoint=dict(type='mmstable.SafeCheckpointHook', interval=1),
    ),
    custom_hooks=[dict(type='mmstable.SafeEMAHook')],
    auto_scale_lr=dict(base_batch_size=16),
    randomness=dict(seed=0),
    load_from=None,
    resume=False,
)
ITERATIONS = {
    'train_cfg': dict(
        type='mmstable.SafeIterBasedTrainLoop',
        max_iters=1000,
        val_interval=100,
    ),
    'default_hooks.checkpoint.by_epoch': False,
    'default_hooks.checkpoint.interval': 100,
    'param_scheduler': [
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=100),
        dict(type='PolyLR', by_epoch=False, begin=100, end=1000),
    ],
}
STOCK_AMP = {
    'optim_wrapper.type': 'AmpOptimWrapper',
    'optim_wrapper.loss_scale': 'dynamic',
}
STOCK_CHECKPOINT = {'default_hooks.checkpoint.type': 'CheckpointHook'}
VIT = {'model.backbone': dict(type='VisionTransformer')}
NO_RAMP = {'param_scheduler': [dict(type='StepLR', step_size=4)]}
LARGE = {
    'train_dataloader.dataset.pipeline': [
        dict(type='Resize', scale=(4096, 4096))
    ]
}


@MODELS.register_module()
class RuleModel(BaseModel):
    def __init__(self, **parts):
        super().__init__()

    def train_step(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            return {}


@MODELS.register_module()
class RuleModelWithoutContext(BaseModel):
    def __init__(self, **parts):
        super().__init__()

    def train_step(self, data, optim_wrapper):
        return {}


def several_wrappers(counts: int) -> dict[str, Any]:
    inner = HEALTHY['optim_wrapper']
    second = {**inner, 'accumulative_counts': counts}
    return dict(constructor='C', first=inner, second=second)


@dataclass(frozen=True)
class Case:
    """A rule's two configs, by what differs from the healthy one."""

    fires: Mapping[str, Any] = field(default_factory=dict)
    quiet: Mapping[str, Any] = field(default_factory=dict)
    path: str = ''
    ranks: int = 1
    file: str = 'config.py'
    machine: Mapping[str, Any] = field(default_factory=dict)
    # The same machine is there when it is quiet.
    quiet_machine: Mapping[str, Any] = field(default_factory=dict)
    trial: Trial | None = None

    def view(self, fires: bool) -> ConfigView:
        facts = self.machine if fires else self.quiet_machine
        return ConfigView(
            changed(HEALTHY, self.fires if fires else self.quiet),
            replace(MACHINE, **facts),
            self.ranks,
            self.file,
            trial=self.trial if fires else Trial(parameters=3),
        )


WRAPPER = 'optim_wrapper'
TRAIN = 'train_dataloader'
CATEGORIES = str(Path(__file__).with_name('two_categories.json'))
CASES: dict[str, Case] = {
    'legacy_key': Case(
        {'optimizer_config': dict(grad_clip=None)},
        {'optimizer': dict(type='SGD')},
        'optimizer_config',
    ),
    'unknown_key': Case(
        {'custom_hook': [], 'custom_hooks': None},
        {'custom_hook': []},
        'custom_hook',
    ),
    'text_for_number': Case(
        {f'{WRAPPER}.optimizer.lr': '1e-4'},
        {f'{WRAPPER}.optimizer.foreach': 'yes'},
        f'{WRAPPER}.optimizer.lr',
    ),
    'hook_without_type': Case(
        {'default_hooks.checkpont': dict(interval=1)},
        {'default_hooks.checkpont': None},
        'default_hooks.checkpont',
    ),
    'custom_hooks_no_dicts': Case(
        {'custom_hooks': dict(type='EMAHook')},
        {'custom_hooks': [dict(type='EMAHook')]},
        'custom_hooks',
    ),
    'resume_and_load_from': Case(
        {'resume': True, 'load_from': 'a.pth'},
        {'resume': True},
        'load_from',
    ),
    'incomplete_loop': Case(
        {'val_evaluator': None},
        {'val_evaluator': None, 'val_cfg': None, 'val_dataloader': None},
        'val_cfg',
    ),
    'late_validation': Case(
        {'train_cfg.val_interval': 13},
        {'train_cfg.val_interval': 12},
        'train_cfg.val_interval',
    ),
    'int_scale': Case(
        {**STOCK_AMP, f'{WRAPPER}.loss_scale': 512},
        {f'{WRAPPER}.loss_scale': 512},
        f'{WRAPPER}.loss_scale',
    ),
    'frozen_scale': Case(
        {**STOCK_AMP, f'{WRAPPER}.loss_scale': 512.0},
        {f'{WRAPPER}.loss_scale': 512.0},
        f'{WRAPPER}.loss_scale',
    ),
    'bf16_unsupported': Case(
        {f'{WRAPPER}.dtype': 'bfloat16'},
        {f'{WRAPPER}.dtype': 'float16'},
        f'{WRAPPER}.dtype',
        machine={'bf16': lambda: False},
        quiet_machine={'bf16': lambda: False},
    ),
    'fp16_without_clipping': Case(
        {**VIT, f'{WRAPPER}.clip_grad': None},
        {**VIT, f'{WRAPPER}.clip_grad': None, f'{WRAPPER}.dtype': 'bfloat16'},
        f'{WRAPPER}.clip_grad',
    ),
    'error_if_nonfinite': Case(
        {f'{WRAPPER}.clip_grad.error_if_nonfinite': True},
        {
            f'{WRAPPER}.clip_grad.error_if_nonfinite': True,
            f'{WRAPPER}.type': 'OptimWrapper',
        },
        f'{WRAPPER}.clip_grad.error_if_nonfinite',
    ),
    'bad_batch_size': Case(
        {f'{TRAIN}.batch_size': 4 // 8},
        {f'{TRAIN}.batch_size': 8 // 4},
        f'{TRAIN}.batch_size',
    ),
    'accumulation_too_long': Case(
        {**ITERATIONS, WRAPPER: several_wrappers(1001)},
        {**ITERATIONS, WRAPPER: several_wrappers(1000)},
        f'{WRAPPER}.second.accumulative_counts',
    ),
    'accumulation_of_one_step': Case(
        {**ITERATIONS, f'{WRAPPER}.accumulative_counts': 1001},
        {**ITERATIONS, f'{WRAPPER}.accumulative_counts': 1000},
        f'{WRAPPER}.accumulative_counts',
    ),
    'large_val_batch': Case(
        {'val_dataloader.batch_size': 64},
        {'val_dataloader.batch_size': 63},
        'val_dataloader.batch_size',
    ),
    'batchnorm_of_one': Case(
        {f'{TRAIN}.batch_size': 1},
        {f'{TRAIN}.batch_size': 1, 'model.norm_eval': True},
        'model.norm_cfg',
    ),
    'lr_for_other_batch': Case(
        {'auto_scale_lr': None},
        {'auto_scale_lr.base_batch_size': 32},
        'auto_scale_lr',
        file='resnet_8xb32_in1k.py',
    ),
    'auto_scale_without_accumulation': Case(
        {'auto_scale_lr.enable': True, f'{WRAPPER}.accumulative_counts': 2},
        {'auto_scale_lr.enable': True},
        'auto_scale_lr',
    ),
    'no_warmup': Case(
        {**VIT, **NO_RAMP},
        {**VIT, **NO_RAMP, 'load_from': 'a.pth'},
        'param_scheduler',
    ),
    'schedule_by_epoch': Case(
        {**ITERATIONS, 'param_scheduler': [dict(type='PolyLR', end=1000)]},
        ITERATIONS,
        'param_scheduler.0.by_epoch',
    ),
    'schedule_ends_early': Case(
        {'param_scheduler': [dict(type='PolyLR', end=6)]},
        {'param_scheduler': [dict(type='PolyLR', begin=6)]},
        'param_scheduler.0',
    ),
    'schedule_ends_late': Case(
        {'param_scheduler': [dict(type='MultiStepLR', end=24)]},
        {'param_scheduler': [dict(type='MultiStepLR', end=12)]},
        'param_scheduler.0',
    ),
    'keeps_one_checkpoint': Case(
        {**STOCK_CHECKPOINT, 'default_hooks.checkpoint.max_keep_ckpts': 1},
        {'default_hooks.checkpoint.max_keep_ckpts': 1},
        'default_hooks.checkpoint.max_keep_ckpts',
    ),
    'checkpoints_by_epoch': Case(
        {**ITERATIONS, 'default_hooks.checkpoint.by_epoch': True},
        ITERATIONS,
        'default_hooks.checkpoint',
    ),
    'validation_before_save': Case(
        {'default_hooks.checkpoint.interval': 2},
        {
            'default_hooks.checkpoint.interval': 2,
            'train_cfg.val_interval': 4,
        },
        'default_hooks.checkpoint.interval',
    ),
    'disk_space': Case(
        path='default_hooks.checkpoint.max_keep_ckpts',
        machine={'disk': lambda path: 10 * 10**9},
        trial=Trial(parameters=1, parameter_bytes=10**9),
    ),
    'workers_without_number': Case(
        {f'{TRAIN}.num_workers': 0},
        {f'{TRAIN}.num_workers': 0, f'{TRAIN}.persistent_workers': False},
        f'{TRAIN}.persistent_workers',
    ),
    'too_many_workers': Case(
        {f'{TRAIN}.num_workers': 16},
        {f'{TRAIN}.num_workers': 8},
        f'{TRAIN}.num_workers',
        ranks=8,
    ),
    'shared_memory': Case(
        LARGE,
        {},
        f'{TRAIN}.num_workers',
        machine={'shared_memory': 64 * 2**20},
        quiet_machine={'shared_memory': 128 * 2**20},
    ),
    'sampler_repeats_data': Case(
        {f'{TRAIN}.sampler': dict(type='RandomSampler')},
        {},
        f'{TRAIN}.sampler',
        ranks=2,
    ),
    'endless_epoch': Case(
        {f'{TRAIN}.sampler': dict(type='InfiniteSampler')},
        {**ITERATIONS, f'{TRAIN}.sampler': dict(type='InfiniteSampler')},
        f'{TRAIN}.sampler',
    ),
    'activation_checkpointing': Case(
        {'activation_checkpointing': ['backbone']},
        {'activation_checkpointing': None},
        'activation_checkpointing',
    ),
    'unused_with_checkpointing': Case(
        {'find_unused_parameters': True, 'model.with_cp': True},
        {'find_unused_parameters': True, 'model.with_cp': False},
        'find_unused_parameters',
    ),
    'no_oom_recovery': Case(
        {'model.norm_cfg': dict(type='SyncBN')},
        {'model.norm_cfg': dict(type='BN')},
        'model.norm_cfg',
        ranks=2,
    ),
    'hook_twice': Case(
        {'custom_hooks': [dict(type='EMAHook'), dict(type='SafeEMAHook')]},
        {'custom_hooks': [dict(type='Mine'), dict(type='Mine', a=1)]},
        'custom_hooks.1',
    ),
    'stock_ema': Case(
        {'custom_hooks': [dict(type='EMAHook')]},
        {
            'custom_hooks': [dict(type='EMAHook')],
            f'{WRAPPER}.type': 'OptimWrapper',
        },
        'custom_hooks.0',
    ),
    'stock_param_scheduler': Case(
        {'default_hooks': {}},
        {'default_hooks': {}, f'{WRAPPER}.type': 'OptimWrapper'},
        'default_hooks.param_scheduler',
    ),
    'stock_checkpoint': Case(
        {'default_hooks': {}},
        {'default_hooks.checkpoint': None},
        'default_hooks.checkpoint',
    ),
    'stock_loop': Case(
        {'train_cfg': dict(by_epoch=True, max_epochs=12, val_interval=1)},
        {'train_cfg': dict(type='MyLoop', max_epochs=12)},
        'train_cfg',
    ),
    'deterministic_with_benchmark': Case(
        {
            'randomness.deterministic': True,
            'env_cfg': dict(cudnn_benchmark=True),
        },
        {'env_cfg': dict(cudnn_benchmark=True)},
        'env_cfg.cudnn_benchmark',
    ),
    'deterministic_without_seed': Case(
        {'randomness': dict(deterministic=True)},
        {'randomness': dict(deterministic=True, seed=0)},
        'randomness.seed',
    ),
    'missing_data': Case(
        {},
        {f'{TRAIN}.dataset.backend_args': dict(backend='petrel')},
        f'{TRAIN}.dataset.ann_file',
        machine={'exists': lambda path: not path.endswith('.json')},
        quiet_machine={'exists': lambda path: not path.endswith('.json')},
    ),
    'missing_weights': Case(
        {'model.init_cfg': dict(type='Pretrained', checkpoint='a.pth')},
        {
            'model.init_cfg': dict(
                type='Pretrained', checkpoint='torchvision://resnet50'
            )
        },
        'model.init_cfg.checkpoint',
        machine={'exists': lambda path: not path.endswith('.pth')},
        quiet_machine={'exists': lambda path: not path.endswith('.pth')},
    ),
    'missing_package': Case(
        {'model.type': 'mmdet3d.VoxelNet'}, {}, 'default_scope'
    ),
    'missing_import': Case(
        {'custom_imports': dict(imports=['no_such_module'])},
        {'custom_imports': dict(imports=['json'])},
        'custom_imports',
    ),
    'two_mmengines': Case(
        path='default_scope',
        machine={'mmengines': ('mmengine', 'onedl-mmengine')},
    ),
    'misspelt_type': Case(
        {'custom_hooks': [dict(type='SaveEMAHook')]},
        {'custom_hooks': [dict(type='mmdet3d.SomeHook')]},
        'custom_hooks.0.type',
    ),
    'clips_to_zero': Case(
        {f'{WRAPPER}.clip_grad': dict(max_norm=0)},
        {f'{WRAPPER}.clip_grad': dict(max_norm=1)},
        f'{WRAPPER}.clip_grad.max_norm',
    ),
    'high_adam_lr': Case(
        {f'{WRAPPER}.optimizer': dict(type='AdamW', lr=0.02)},
        {f'{WRAPPER}.optimizer': dict(type='SGD', lr=0.02)},
        f'{WRAPPER}.optimizer.lr',
    ),
    'unserialized_data': Case(
        {
            'train_dataloader.num_workers': 2,
            'train_dataloader.dataset.serialize_data': False,
        },
        {
            'train_dataloader.num_workers': 0,
            'train_dataloader.persistent_workers': False,
            'train_dataloader.dataset.serialize_data': False,
        },
        'train_dataloader.dataset.serialize_data',
    ),
    'not_a_number': Case(
        {f'{WRAPPER}.optimizer.lr': 'abc'},
        {f'{WRAPPER}.optimizer.lr': None},
        f'{WRAPPER}.optimizer.lr',
    ),
    'zero_std': Case(
        {'model.data_preprocessor': dict(std=[1.0, 0.0, 1.0])},
        {'model.data_preprocessor': dict(std=[1.0, 2.0, 1.0])},
        'model.data_preprocessor.std',
    ),
    'unknown_best': Case(
        {
            'default_hooks.checkpoint.save_best': 'coco/bbox_mAP',
            'val_evaluator': dict(type='DumpResults', out_file_path='a.pkl'),
        },
        {
            'default_hooks.checkpoint.save_best': 'mIoU',
            'val_evaluator': dict(type='DumpResults', out_file_path='a.pkl'),
        },
        'default_hooks.checkpoint.save_best',
    ),
    'text_for_classes': Case(
        {'train_dataloader.dataset.metainfo': dict(classes=('whale'))},
        {'train_dataloader.dataset.metainfo': dict(classes=('whale',))},
        'train_dataloader.dataset.metainfo.classes',
        machine={'exists': lambda path: path != 'whale'},
    ),
    'class_count': Case(
        {
            'model.decode_head': dict(num_classes=11),
            'model.auxiliary_head': [dict(num_classes=19)],
        },
        {
            'model.decode_head': dict(num_classes=11),
            'model.auxiliary_head': [dict(num_classes=11)],
        },
        'model.auxiliary_head.0.num_classes',
    ),
    'missing_categories': Case(
        {
            'train_dataloader.dataset.ann_file': CATEGORIES,
            'train_dataloader.dataset.metainfo': dict(classes=['whale']),
        },
        {
            'train_dataloader.dataset.ann_file': CATEGORIES,
            'train_dataloader.dataset.metainfo': dict(classes=['cat', 'dog']),
        },
        'train_dataloader.dataset.ann_file',
    ),
    'unknown_type': Case(
        {'custom_hooks': [dict(type='Qqxyzzy')]},
        {'custom_hooks': [dict(type='mmdet3d.SomeHook')]},
        'custom_hooks.0.type',
    ),
    'unknown_argument': Case(
        {'default_hooks.checkpoint.max_keep_ckpt': 3},
        # Some hooks take anything, as for a class of their own.
        {'custom_hooks': [dict(type='mmstable.SafeEMAHook', gamma=3)]},
        'default_hooks.checkpoint.max_keep_ckpt',
    ),
    'unseen_parameters': Case(
        path=WRAPPER, trial=Trial(parameters=3, unseen=['head.weight'])
    ),
    'no_gradient': Case(
        path='model', trial=Trial(parameters=3, without_gradient=['a.bias'])
    ),
    'deep_failed': Case(
        path='model', trial=Trial(failures=[('model', 'KeyError: a')])
    ),
}
