"""What is changed in a config so that its run is protected."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'protect.title': Message(
        en='protected with preset {preset}:',
        zh_cn='已按预设 {preset} 保护：',
    ),
    'protect.title_of_run': Message(
        en='protected with preset {preset} (--as-is changes nothing):',
        zh_cn='已按预设 {preset} 保护（--as-is 则不作任何改动）：',
    ),
    'protect.classes': Message(
        en='made safe, arguments kept: {paths}',
        zh_cn='换成安全的类，参数不变：{paths}',
    ),
    'protect.hooks': Message(
        en='hooks added: {names}', zh_cn='添加的 hook：{names}'
    ),
    'protect.settings': Message(
        en='set: {settings:; }', zh_cn='设置：{settings:；}'
    ),
    'protect.backends': Message(
        en='kept from blocking the run: {names}',
        zh_cn='不会阻塞训练：{names}',
    ),
    'protect.left': Message(
        en='left alone, no safe class fits: {items}',
        zh_cn='保持原样，没有适用的安全类：{items}',
    ),
    'protect.engine': Message(
        en='nothing is protected: {name} brings optimizers and checkpoints '
        'of its own.',
        zh_cn='未作保护：{name} 自带优化器和 checkpoint。',
    ),
    'protect.nothing': Message(
        en="'{path}' is protected already: nothing is written.",
        zh_cn="'{path}' 已受保护：无需写入。",
    ),
    'protect.unchanged': Message(
        en="'{path}' says that already: nothing is written.",
        zh_cn="'{path}' 的内容已是如此：无需写入。",
    ),
    'protect.exists': Message(
        en="'{path}' exists already; --force overwrites it.",
        zh_cn="'{path}' 已存在；使用 --force 可覆盖。",
    ),
    'protect.same_file': Message(
        en="'{path}' would inherit from itself: choose another file.",
        zh_cn="'{path}' 会继承自身：请换一个文件。",
    ),
    # The file that `mmstable init` writes.
    'init.written': Message(
        en='written to {path}; train it with: {command}',
        zh_cn='已写入 {path}；训练命令：{command}',
    ),
    'init.title': Message(
        en='`mmstable train` protects this config as it is. Below are the '
        'settings that people change most: take away the # of what you '
        'need.',
        zh_cn='`mmstable train` 会直接保护此配置。下面是最常改动的设置：'
        '需要哪一项，就去掉它的 #。',
    ),
    'init.optim_wrapper': Message(
        en='Mixed precision: bfloat16, or float16 with a loss scale '
        "(loss_scale=dict(init_scale=1024.0)); 'mmstable.SafeOptimWrapper' "
        'without dtype for float32. accumulative_counts batches make one '
        'step. The norm of the gradients is cut at max_norm.',
        zh_cn='混合精度：bfloat16，或带 loss scale 的 float16（loss_scale='
        "dict(init_scale=1024.0)）；float32 用 'mmstable.SafeOptimWrapper'，"
        '不写 dtype。每 accumulative_counts 个 batch 更新一次。梯度范数超过 '
        'max_norm 时裁剪。',
    ),
    'init.default_hooks': Message(
        en='Checkpoints: how many are kept (interval=... says how often they '
        'are saved). The guard: how often a run goes back, with how much of '
        'the learning rate, and what is done about which fault.',
        zh_cn='checkpoint：保留个数（保存间隔用 interval=... 设置）。'
        'guard：最多回退几次、回退后学习率乘以多少，以及对各类故障的处理。',
    ),
    'init.custom_hooks': Message(
        en='Hooks of mmstable with settings of your own; those that are not '
        'here are added by `mmstable train`.',
        zh_cn='自行设置 mmstable 的 hook；未列出的由 `mmstable train` 添加。',
    ),
    'init.randomness': Message(
        en='The same seed, the same run.', zh_cn='相同的种子，相同的训练。'
    ),
    'init.stability_checks': Message(
        en='What `mmstable check` shall not tell.',
        zh_cn='`mmstable check` 不再提示的规则。',
    ),
    'init.python_style': Message(
        en="'{path}' inherits by read_base: write overrides into a config of "
        'that kind, or use `mmstable protect`.',
        zh_cn="'{path}' 使用 read_base 继承：请在同类配置中修改，或使用 "
        '`mmstable protect`。',
    ),
    # The comments of the file that `mmstable protect` writes.
    'overlay_file.title': Message(
        en='Protects {base} with preset {preset}. Written by `mmstable '
        'protect`; train it with any train script.',
        zh_cn='按预设 {preset} 保护 {base}。由 `mmstable protect` 生成，可用'
        '任何训练脚本训练。',
    ),
    'overlay_file.left': Message(
        en='Left alone, no safe class fits: {items}.',
        zh_cn='保持原样，没有适用的安全类：{items}。',
    ),
    'overlay.optim_wrapper': Message(
        en='Steps with a NaN or Inf are skipped, and named.',
        zh_cn='跳过含 NaN 或 Inf 的 step，并指明来源。',
    ),
    'overlay.strategy': Message(
        en='Checkpoints of FSDP that can be resumed.',
        zh_cn='可续训的 FSDP checkpoint。',
    ),
    'overlay.train_cfg': Message(
        en='Resumes where a checkpoint was saved, and survives a batch that '
        'does not fit in memory.',
        zh_cn='从保存 checkpoint 的位置精确续训，单个 batch 显存不足'
        '也不会中断。',
    ),
    'overlay.val_cfg': Message(
        en='Batches that do not fit in memory are cut.',
        zh_cn='显存放不下的 batch 会被切分。',
    ),
    'overlay.test_cfg': Message(en='As for validation.', zh_cn='与验证相同。'),
    'overlay.default_hooks': Message(
        en='Checkpoints and schedules that bad steps do not spoil; the guard '
        'acts when bad steps do not stay single.',
        zh_cn='checkpoint 和调度不受坏 step 影响；坏 step 接连出现时由 guard '
        '干预。',
    ),
    'overlay.custom_hooks': Message(
        en='What tells, explains and saves.',
        zh_cn='负责报告、解释和保存的 hook。',
    ),
    'overlay.visualizer': Message(
        en='A dashboard or a disk that blocks cannot stop the run.',
        zh_cn='看板或磁盘阻塞时不会影响训练。',
    ),
    'overlay.train_dataloader': Message(
        en='Less memory, as many samples in a step.',
        zh_cn='占用更少内存，每个 step 的样本数不变。',
    ),
    'overlay.val_dataloader': Message(
        en='Fewer batches are read ahead.', zh_cn='减少预读的 batch。'
    ),
    'overlay_file.no_module': Message(
        en="a config with read_base cannot inherit from '{path}': the name "
        'of every folder and file must be one of Python.',
        zh_cn="使用 read_base 的配置无法继承 '{path}'：目录名和文件名都必须是"
        '合法的 Python 标识符。',
    ),
    'protect.several_wrappers': Message(
        en='--memory works with one optimizer wrapper, and the config has '
        '{count}. Set dtype and accumulative_counts of each by hand.',
        zh_cn='--memory 只支持一个优化器封装，而配置中有 {count} 个。请分别'
        '手动设置 dtype 和 accumulative_counts。',
    ),
    'protect.foreign_wrapper': Message(
        en="--memory knows mmengine's own optimizer wrappers and the safe "
        'ones, not {name}.',
        zh_cn='--memory 只认识 mmengine 自带的和安全的优化器封装，'
        '不认识 {name}。',
    ),
    'protect.memory_observed': Message(
        en='--memory changes training, and --preset observe_only does not: '
        'choose one of them.',
        zh_cn='--memory 会改变训练，而 --preset observe_only 不会：请二选一。',
    ),
    'protect.alone': Message(
        en='--as-is changes nothing: it does not go with {option}.',
        zh_cn='--as-is 不作任何改动，不能与 {option} 同时使用。',
    ),
}
