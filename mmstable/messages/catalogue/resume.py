"""About a run that is resumed."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'resume.command': Message(
        en='Resume with: {command}', zh_cn='恢复训练：{command}'
    ),
    'resume.newest': Message(
        en='Resume from the newest checkpoint with --resume auto.',
        zh_cn='用 --resume auto 从最新的 checkpoint 恢复训练。',
    ),
    # The table of what was restored.
    'resume.from': Message(
        en='mmstable: resumed from {checkpoint}',
        zh_cn='mmstable: 已从 {checkpoint} 恢复',
    ),
    'resume.a_checkpoint': Message(en='a checkpoint', zh_cn='某个 checkpoint'),
    'resume.iteration': Message(en='iteration', zh_cn='迭代'),
    'resume.lr': Message(en='learning rate', zh_cn='学习率'),
    'resume.optimizer': Message(en='optimizer', zh_cn='优化器'),
    'resume.rng': Message(en='RNG', zh_cn='随机数'),
    'resume.data': Message(en='data position', zh_cn='数据位置'),
    'resume.done': Message(
        en='{iteration} of {last}', zh_cn='{iteration}，共 {last}'
    ),
    'resume.moved_lr': Message(
        en='{lr} (schedule of the config; was {before})',
        zh_cn='{lr}（按配置的调度；原为 {before}）',
    ),
    'resume.none': Message(en='none', zh_cn='无'),
    'resume.no_scale': Message(
        en='none, losses are not scaled', zh_cn='无，loss 不缩放'
    ),
    'resume.restored': Message(en='restored', zh_cn='已恢复'),
    'resume.starts_anew': Message(
        en='not in the checkpoint, starts anew',
        zh_cn='checkpoint 中没有，重新开始',
    ),
    'resume.rng_of_others': Message(
        en='of {ranks:other rank|other ranks} only in the checkpoint, starts '
        'anew',
        zh_cn='checkpoint 中只有另外 {ranks} 个 rank 的，重新开始',
    ),
    'resume.rng_needs_hook': Message(
        en='not restored, which takes SafeCheckpointHook',
        zh_cn='未恢复，需要 SafeCheckpointHook',
    ),
    'resume.data_by_loop': Message(
        en='up to {loop}, by the iteration',
        zh_cn='由 {loop} 根据迭代数决定',
    ),
    'resume.data_by_iteration': Message(
        en='not in the checkpoint, found by the iteration',
        zh_cn='checkpoint 中没有，根据迭代数推算',
    ),
    'resume.finished': Message(
        en='mmstable: this training is already finished: {iteration} of '
        '{last} iterations are done. To continue, raise max_iters or '
        'max_epochs in `train_cfg`.',
        zh_cn='mmstable: 该训练已经完成：已做 {iteration}/{last} 次迭代。'
        '如需继续，请增大 `train_cfg` 中的 max_iters 或 max_epochs。',
    ),
    # Checkpoints and configs of mmcv 1.x.
    'legacy.checkpoint': Message(
        en='mmstable: checkpoint: {note}.',
        zh_cn='mmstable: checkpoint：{note}。',
    ),
    'legacy.no_history': Message(
        en='written by mmcv 1.x: it has no log history',
        zh_cn='由 mmcv 1.x 写入：没有日志历史',
    ),
    'legacy.loss_scale': Message(
        en='its loss scale is {scale}', zh_cn='其 loss scale 为 {scale}'
    ),
    'legacy.translated': Message(
        en='this config has keys of mmcv 1.x, translated for this run:',
        zh_cn='此配置含有 mmcv 1.x 的键，已为本次训练转换：',
    ),
    'legacy.without': Message(
        en='without counterpart, the training does without:',
        zh_cn='没有对应的设置，训练中不使用：',
    ),
}
