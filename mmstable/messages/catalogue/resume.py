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
    'resume.kept': Message(
        en='mmstable: the optimizer settings of the config differ from those '
        'of the checkpoint (in brackets), which are kept: {changes}. To use '
        'those of the config, resume with --override-lr-schedule.',
        zh_cn='mmstable: 配置中的优化器设置与 checkpoint 中的（括号内）不同，'
        '仍使用 checkpoint 中的：{changes}。如需使用配置中的，恢复训练时请加'
        '上 --override-lr-schedule。',
    ),
    'resume.overridden': Message(
        en='mmstable: the optimizer settings of the config replace those of '
        'the checkpoint (in brackets): {changes}.',
        zh_cn='mmstable: 配置中的优化器设置取代 checkpoint 中的（括号内）：'
        '{changes}。',
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
    'resume.result': Message(en='result', zh_cn='结果'),
    'resume.exact': Message(
        en='exact, as without the break', zh_cn='精确，与不中断时逐位一致'
    ),
    'resume.approximate': Message(
        en='approximate: {reasons}', zh_cn='近似：{reasons}'
    ),
    'resume.doubt': Message(
        en='mmstable: this resume is approximate: {reason}.',
        zh_cn='mmstable: 本次恢复是近似的：{reason}。',
    ),
    # Why a resumed run may differ from one without a break.
    'doubt.changed': Message(
        en='the data settings have changed: {changes}',
        zh_cn='数据设置已改变：{changes}',
    ),
    'doubt.rng': Message(en='random numbers are new', zh_cn='随机数重新开始'),
    'doubt.workers': Message(
        en='random numbers drawn inside workers are new; '
        'train_cfg=dict(replay=True) repeats them',
        zh_cn='worker 内的随机数重新开始；train_cfg=dict(replay=True) 可以'
        '重现它们',
    ),
    'doubt.stream': Message(
        en='{dataset} is read again, and its passes may not be alike',
        zh_cn='{dataset} 需要重读；无法得知它的每一遍是否相同',
    ),
    'doubt.iterator': Message(
        en='{sampler}.{attribute} is an iterator, which cannot be saved',
        zh_cn='{sampler}.{attribute} 是迭代器，无法保存',
    ),
    'doubt.sampler': Message(
        en='{attribute} was {before} when this pass began, and is {now} now',
        zh_cn='{attribute} 在这一遍开始时为 {before}，现在为 {now}',
    ),
    'doubt.stock_loop': Message(
        en="mmengine's {loop} reads its first batch before random numbers are "
        'restored; the Safe... loops do not',
        zh_cn='mmengine 的 {loop} 在恢复随机数之前就读取第一个 batch；Safe... '
        '循环没有这个问题',
    ),
    'doubt.repeats': Message(
        en="mmengine's {loop} starts the epoch anew and trains on "
        '{count:batch|batches} twice; SafeEpochBasedTrainLoop does not',
        zh_cn='mmengine 的 {loop} 从头开始这个 epoch，{count} 个 batch 会训练'
        '两次；SafeEpochBasedTrainLoop 没有这个问题',
    ),
    'doubt.buckets': Message(
        en='to rounding: with {ranks} ranks DDP sums the first iteration in '
        'another order',
        zh_cn='仅有舍入误差：{ranks} 个 rank 时 DDP 第一次迭代的求和顺序不同',
    ),
    'doubt.device': Message(
        en='to rounding: kernels on {device} may sum in any order unless '
        'torch.use_deterministic_algorithms(True) is set',
        zh_cn='仅有舍入误差：{device} 上的计算可能以任意顺序求和，除非设置 '
        'torch.use_deterministic_algorithms(True)',
    ),
    'resume.finished': Message(
        en='mmstable: this training is already finished: {iteration} of '
        '{last} iterations are done. To continue, raise max_iters or '
        'max_epochs in `train_cfg`.',
        zh_cn='mmstable: 该训练已经完成：已做 {iteration}/{last} 次迭代。'
        '如需继续，请增大 `train_cfg` 中的 max_iters 或 max_epochs。',
    ),
    # Whether a checkpoint fits the model.
    'fit.one': Message(
        en='{name} is {here} here, {there} there',
        zh_cn='{name} 模型中为 {here}，checkpoint 中为 {there}',
    ),
    'fit.counts': Message(
        en='{count} of {total} tensors differ ({shapes} in shape, {only_here} '
        'only in the model, {only_there} only in the checkpoint): {first}',
        zh_cn='{total} 个张量中有 {count} 个不同（形状不同 {shapes} 个，'
        '仅模型中有 {only_here} 个，仅 checkpoint 中有 {only_there} 个）：'
        '{first}',
    ),
    'fit.wrappers': Message(
        en='the optimizers are {here} here, {there} there',
        zh_cn='优化器在本次训练中为 {here}，checkpoint 中为 {there}',
    ),
    'fit.groups': Message(
        en='the optimizer has {here:parameter group|parameter groups} with '
        '{here_params:parameter|parameters} here, '
        '{there:group|groups} with {there_params:parameter|parameters} there',
        zh_cn='优化器在本次训练中有 {here} 个参数组、{here_params} 个参数，'
        'checkpoint 中有 {there} 个参数组、{there_params} 个参数',
    ),
    'fit.refused': Message(
        en='the checkpoint does not fit this run; {differences}. Nothing was '
        'trained or saved. Check `model` and `optim_wrapper` of the config. '
        'To resume with what fits, add --allow-partial {share}; the optimizer '
        'starts anew then.',
        zh_cn='checkpoint 与本次训练不符；{differences}。未训练，也未保存任何'
        '内容。请检查配置中的 `model` 和 `optim_wrapper`。如只想恢复相符的'
        '部分，请加 --allow-partial {share}，此时优化器重新开始。',
    ),
    'fit.nothing': Message(
        en='the checkpoint has nothing in common with the model; '
        '{differences}. Nothing was trained or saved. It is of another model, '
        'and cannot be resumed.',
        zh_cn='checkpoint 与模型没有任何相同之处；{differences}。未训练，也未'
        '保存任何内容。它属于另一个模型，无法恢复。',
    ),
    'fit.partial': Message(
        en='mmstable: resumed in part: {differences}. What differs starts '
        'with the values that the model was built with; the optimizer starts '
        'anew.',
        zh_cn='mmstable: 部分恢复：{differences}。不同的部分使用模型构建时的'
        '初值；优化器重新开始。',
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
    'legacy.serious': Message(
        en='this config has keys of mmcv 1.x that cannot be translated, so '
        "it would train differently: {findings:; }. 'mmstable upgrade OLD.py "
        "-o NEW.py' translates the rest.",
        zh_cn='此配置中有无法转换的 mmcv 1.x 的键，训练结果会不同：'
        "{findings:；}。'mmstable upgrade OLD.py -o NEW.py' 可转换其余部分。",
    ),
    'legacy.without': Message(
        en='without counterpart, the training does without:',
        zh_cn='没有对应的设置，训练中不使用：',
    ),
}
