"""What became of the keys of a config of mmcv 1.x."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'translated.conflict': Message(
        en='it asks for {said!r}, but `{new}` is {found!r}, which is kept. '
        'Remove one of the two',
        zh_cn='它要求 {said!r}，但 `{new}` 为 {found!r}，保留后者。请删去其中'
        '一个',
    ),
    'translated.not_needed': Message(en='not needed', zh_cn='不再需要'),
    # Checkpoints.
    'translated.other_checkpoint_hook': Message(
        en="'{kind}' is not mmcv's hook; SafeCheckpointHook takes its place",
        zh_cn="'{kind}' 不是 mmcv 的 hook；由 SafeCheckpointHook 代替",
    ),
    'translated.symlink': Message(
        en='not needed, the file `last_checkpoint` names the newest one',
        zh_cn='不再需要，文件 `last_checkpoint` 指明最新的一个',
    ),
    'translated.meta': Message(
        en='mmengine fills in `meta` by itself: its version, the data set, '
        'the time',
        zh_cn='mmengine 自行填写 `meta`：其版本、数据集、时间',
    ),
    # Hooks.
    'translated.default_hook': Message(
        en='{kind} is part of every run of mmengine',
        zh_cn='mmengine 的每次训练都包含 {kind}',
    ),
    'translated.unknown_hook': Message(
        en='{kind} is neither of mmcv nor known to mmengine here. It is kept: '
        'your project must have it for mmengine, whose stages take more '
        'arguments',
        zh_cn='{kind} 既不属于 mmcv，mmengine 在此也不认识它。予以保留：您的'
        '项目必须提供适用于 mmengine 的版本，其各阶段的参数更多',
    ),
    'translated.average_resume': Message(
        en='the average is in the checkpoint that the run resumes from',
        zh_cn='滑动平均在恢复训练所用的 checkpoint 中',
    ),
    'translated.average': Message(
        en='{warm_up}: mmengine averages with the momentum {momentum:g} from '
        'the start',
        zh_cn='{warm_up}：mmengine 从一开始就以动量 {momentum:g} 平均',
    ),
    'translated.no_type': Message(
        en='{path}: must be a dict with a `type`, got {got!r}.',
        zh_cn='{path}：应为含 `type` 的 dict，得到 {got!r}。',
    ),
    # Data.
    'translated.no_loader_setting': Message(
        en='no loader of mmengine takes it; it is left out',
        zh_cn='mmengine 的 dataloader 都不接受它，已略去',
    ),
    'translated.sampler_setting': Message(
        en='{value!r}: not an argument of the loader; in mmengine a sampler '
        'has settings of its own',
        zh_cn='{value!r}：不是 dataloader 的参数；在 mmengine 中 sampler 有'
        '自己的设置',
    ),
    'translated.pipeline': Message(
        en='left as it is; {steps:; }', zh_cn='保持原样；{steps:；}'
    ),
    'translated.step': Message(
        en='instead of {old: and } there is {new}',
        zh_cn='{old:、} 已由 {new} 取代',
    ),
    'translated.preprocessor': Message(
        en='left as it is; in mmengine it normalizes images itself, by a '
        '`data_preprocessor` with the mean and std of the pipeline',
        zh_cn='保持原样；在 mmengine 中由模型自己归一化图像，使用 '
        '`data_preprocessor`，其 mean 和 std 取自 pipeline',
    ),
    # The environment.
    'translated.gpus': Message(
        en='not needed, CUDA_VISIBLE_DEVICES says which GPUs',
        zh_cn='不再需要，由 CUDA_VISIBLE_DEVICES 指定 GPU',
    ),
    'translated.deterministic': Message(
        en='mmengine refuses operations that cannot be; mmcv only told cuDNN',
        zh_cn='mmengine 会拒绝无法确定的运算；mmcv 只设置 cuDNN',
    ),
    # Validation.
    'translated.by_loops': Message(
        en='not needed, the loops see to that',
        zh_cn='不再需要，由训练循环负责',
    ),
    'translated.no_validation': Message(
        en='{best!r} is a result of validation, which there is none of '
        'without a `val_evaluator`',
        zh_cn='{best!r} 是验证的结果，而没有 `val_evaluator` 就没有验证',
    ),
    'translated.has_evaluator': Message(
        en='not used, `val_evaluator` says what is measured',
        zh_cn='不使用，由 `val_evaluator` 决定评测什么',
    ),
    'translated.no_evaluator': Message(
        en='data sets of mmcv evaluated themselves; in mmengine a '
        '`val_evaluator` does, with a metric of your project',
        zh_cn='mmcv 的数据集自行评测；在 mmengine 中由 `val_evaluator` 用您的'
        '项目的指标评测',
    ),
    'translated.put_aside': Message(
        en='kept as {loaders: and }, because there is no {evaluators: and }; '
        'nothing is {done: or } without',
        zh_cn='保留为 {loaders:、}，因为没有 {evaluators:、}；没有它就不'
        '{done:或}',
    ),
    'translated.done.val': Message(en='validated', zh_cn='验证'),
    'translated.done.test': Message(en='tested', zh_cn='测试'),
    # The log.
    'translated.no_backend': Message(
        en='mmengine has no back-end for {kind}',
        zh_cn='mmengine 没有对应 {kind} 的后端',
    ),
    'translated.log_interval': Message(
        en='{asked}: all back-ends have the interval {interval}',
        zh_cn='{asked}：所有后端的间隔都是 {interval}',
    ),
    'translated.log_dir': Message(
        en='{value!r}: mmengine writes to vis_data in the log folder of the '
        'run',
        zh_cn='{value!r}：mmengine 写入该次训练日志目录中的 vis_data',
    ),
    'translated.not_in_backend': Message(
        en='{value!r}: not in the back-end', zh_cn='{value!r}：后端没有此设置'
    ),
    # The loop.
    'translated.other_runner': Message(
        en="'{kind}' is no runner of mmcv 1.7; written as {loop}",
        zh_cn="'{kind}' 不是 mmcv 1.7 的 runner；写成 {loop}",
    ),
    'translated.not_in_loop': Message(
        en='the train loop has nothing like it',
        zh_cn='训练循环没有类似的设置',
    ),
    'translated.same_loop': Message(
        en='`train_cfg` says the same', zh_cn='与 `train_cfg` 一致'
    ),
    'translated.only_trains': Message(
        en='not needed, the loop does nothing but train',
        zh_cn='不再需要，训练循环只做训练',
    ),
    'translated.no_val_losses': Message(
        en='{workflow}: mmengine computes no losses on validation data; '
        'training goes on without them',
        zh_cn='{workflow}：mmengine 不在验证数据上计算 loss；训练不受影响',
    ),
    'translated.without_model': Message(
        en='belongs into the `model`, which this file does not have; mmengine '
        'takes a key of this name for its loop',
        zh_cn='应属于 `model`，但此文件没有；mmengine 把这个名称当作自己的循环'
        '设置',
    ),
    'translated.in_model': Message(
        en='`model.{key}` is there as well, and is kept',
        zh_cn='已有 `model.{key}`，保留后者',
    ),
    'translated.moved_inside': Message(
        en='moved inside, unchanged', zh_cn='移入其中，内容不变'
    ),
    'translated.contradiction': Message(
        en='{path}: {value} contradicts {other}, which is {found}.',
        zh_cn='{path}：{value} 与 {other} 的 {found} 矛盾。',
    ),
    'translated.needs': Message(
        en='{path}: {kind} needs `{name}`.',
        zh_cn='{path}：{kind} 需要 `{name}`。',
    ),
    'translated.workflow': Message(
        en="workflow: must be a list like [('train', 1)], got {got!r}.",
        zh_cn="workflow：应为类似 [('train', 1)] 的列表，得到 {got!r}。",
    ),
    # The optimizer.
    'translated.nothing': Message(en='asks for nothing', zh_cn='没有要求'),
    'translated.scale': Message(
        en='starts at {scale} as before, but backs off on overflows and grows '
        'again; dict(init_scale={scale}, frozen=True) does not',
        zh_cn='与以前一样从 {scale} 开始，但溢出时会回退，之后再增长；'
        'dict(init_scale={scale}, frozen=True) 则保持不变',
    ),
    'translated.scale_without_fp16': Message(
        en='optimizer_config.loss_scale: is for fp16 only; set '
        "`type='Fp16OptimizerHook'` as well.",
        zh_cn='optimizer_config.loss_scale：只用于 fp16；请同时设置 '
        "`type='Fp16OptimizerHook'`。",
    ),
    'translated.other_hook': Message(
        en='{kind!r} is no optimizer hook of mmcv 1.7. Clipping, accumulation '
        'and fp16 are translated, but not what it does besides',
        zh_cn='{kind!r} 不是 mmcv 1.7 的优化器 hook。裁剪、累积和 fp16 已转'
        '换，但它的其他功能没有',
    ),
    'translated.other_hook_and': Message(
        en='{kind!r} is no optimizer hook of mmcv 1.7. Clipping, accumulation '
        'and fp16 are translated, but not what it does besides nor {others}',
        zh_cn='{kind!r} 不是 mmcv 1.7 的优化器 hook。裁剪、累积和 fp16 已转'
        '换，但它的其他功能以及 {others} 没有',
    ),
    'translated.several_optimizers': Message(
        en='several optimizers ({names}) need a `constructor` of your project '
        'in mmengine; they are written as they were',
        zh_cn='多个优化器（{names}）在 mmengine 中需要您的项目提供 '
        '`constructor`；按原样写出',
    ),
    'translated.constructor': Message(
        en="'{name}' is not mmcv's: it is kept, and must be registered in "
        'OPTIM_WRAPPER_CONSTRUCTORS by your project',
        zh_cn="'{name}' 不属于 mmcv：予以保留，您的项目必须在 "
        'OPTIM_WRAPPER_CONSTRUCTORS 中注册它',
    ),
    'translated.exchange': Message(
        en='not needed, torch sees to the exchange of gradients',
        zh_cn='不再需要，由 torch 负责交换梯度',
    ),
    'translated.anomalous': Message(
        en='in a distributed run `model_wrapper_cfg=dict('
        "type='MMDistributedDataParallel', detect_anomalous_params=True)` "
        'does the same',
        zh_cn='分布式训练中 `model_wrapper_cfg=dict('
        "type='MMDistributedDataParallel', detect_anomalous_params=True)` "
        '有同样的作用',
    ),
    'translated.accumulation': Message(
        en='{count} iterations a step', zh_cn='每步 {count} 次迭代'
    ),
    # The schedule.
    'translated.policy': Message(
        en='{name!r} is no policy of mmcv 1.7, which has {known}. A '
        '`param_scheduler` has to take its place',
        zh_cn='{name!r} 不是 mmcv 1.7 的策略，它有 {known}。须用 '
        '`param_scheduler` 代替',
    ),
    'translated.by_epoch': Message(
        en='mmcv goes by epoch in runs by epoch only; in one by iterations it '
        'left the value as it was, and so does this. Write '
        '{key}.by_epoch=False if you want it',
        zh_cn='mmcv 只在按 epoch 的训练中按 epoch 调整；在按迭代的训练中它不'
        '改变数值，这里也一样。如需调整，请写 {key}.by_epoch=False',
    ),
    'translated.no_policy': Message(
        en='{key}: needs a `policy`.', zh_cn='{key}：需要 `policy`。'
    ),
    'translated.by_iterations': Message(
        en="{key}: policy '{policy}' goes by iterations only: set "
        '`by_epoch=False`.',
        zh_cn="{key}：策略 '{policy}' 只能按迭代：请设置 `by_epoch=False`。",
    ),
    'translated.warmup': Message(
        en='{key}: `warmup_by_epoch` needs a run by epochs.',
        zh_cn='{key}：`warmup_by_epoch` 需要按 epoch 的训练。',
    ),
    # Where it starts.
    'translated.resume_first': Message(
        en='{value!r}: `resume_from` goes first, as in mmcv',
        zh_cn='{value!r}：与 mmcv 一样，`resume_from` 优先',
    ),
    'translated.auto_resume': Message(
        en='mmengine resumes by itself only without a `load_from`. Go on with '
        'a run by `mmstable train --resume`',
        zh_cn='mmengine 只在没有 `load_from` 时自动恢复。请用 '
        '`mmstable train --resume` 恢复训练',
    ),
    # The file.
    'translated.unread': Message(
        en='neither mmcv nor mmengine reads a key of this name. Did you mean '
        '{near: or }?',
        zh_cn='mmcv 和 mmengine 都不读取这个键。是否想写 {near: 或 }？',
    ),
    'translated.no_dict': Message(
        en='{key}: must be a dict, got {got!r}.',
        zh_cn='{key}：应为 dict，得到 {got!r}。',
    ),
    'translated.bad_key': Message(
        en='{key!r} cannot be a key of a Python config.',
        zh_cn='{key!r} 不能作为 Python 配置的键。',
    ),
    'translated.unwritable': Message(
        en='{path}: {value!r} cannot be written into a config file.',
        zh_cn='{path}：{value!r} 无法写入配置文件。',
    ),
}
