"""What the rules of ``mmstable check`` say about keys, hooks and files."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'check.legacy_key': Message(
        en='`{key}` is a key of mmcv 1.x.',
        zh_cn='`{key}` 是 mmcv 1.x 的键。',
    ),
    'check_why.legacy_key': Message(
        en='mmengine does not read keys of mmcv 1.x: they have no effect, '
        'and nobody says so.',
        zh_cn='mmengine 不读取 mmcv 1.x 的键：它们不起作用，也没有任何提示。',
    ),
    'check_fix.legacy_key': Message(
        en='translate the config by `mmstable upgrade CONFIG -o NEW.py`; '
        '`mmstable train` does it by itself',
        zh_cn='用 `mmstable upgrade CONFIG -o NEW.py` 转换配置；`mmstable '
        'train` 会自动转换',
    ),
    'check.unknown_key': Message(
        en='nobody reads `{key}`; `{near}` is read.',
        zh_cn='没有代码读取 `{key}`；会读取的是 `{near}`。',
    ),
    'check_why.unknown_key': Message(
        en='A misspelt key at the top of a config has no effect, and '
        'nobody says so.',
        zh_cn='配置顶层拼错的键不起作用，也没有任何提示。',
    ),
    'check.text_for_number': Message(
        en='`{path}` is the text {text!r}: write {text} without quotes{note}.',
        zh_cn='`{path}` 是文本 {text!r}：请写成不带引号的 {text}{note}。',
    ),
    'check_why.text_for_number': Message(
        en='It fails when it is first computed with.',
        zh_cn='首次参与计算时就会失败。',
    ),
    'check.yaml_exponent': Message(
        en=' (YAML takes 1e-4 for text, but 1.0e-4 for a number)',
        zh_cn='（YAML 把 1e-4 当作文本，1.0e-4 才是数字）',
    ),
    'check.hook_without_type': Message(
        en='`{path}` has no `type`, so nothing can be built from it.{hint}',
        zh_cn='`{path}` 没有 `type`，无法构建。{hint}',
    ),
    'check_why.hook_without_type': Message(
        en='mmengine cannot build a hook without `type`: often its name '
        'in `default_hooks` is misspelt.',
        zh_cn='mmengine 无法构建没有 `type` 的 hook：通常是 `default_hooks` '
        '中的名字拼错了。',
    ),
    'check_fix.hook_without_type': Message(
        en='give it a `type`, or correct its name',
        zh_cn='补上 `type`，或改正名字',
    ),
    'check.custom_hooks_no_dicts': Message(
        en='`{path}` is {value!r}, but `custom_hooks` is a list of dicts, '
        'each with a `type`.',
        zh_cn='`{path}` 是 {value!r}，而 `custom_hooks` 应是由 dict 组成的'
        '列表，每个 dict 都有 `type`。',
    ),
    'check_why.custom_hooks_no_dicts': Message(
        en='mmengine cannot build a hook from anything else.',
        zh_cn='mmengine 无法由其他内容构建 hook。',
    ),
    'check_fix.custom_hooks_no_dicts': Message(
        en="write custom_hooks = [dict(type='...'), ...]",
        zh_cn="写成 custom_hooks = [dict(type='...'), ...]",
    ),
    'check.resume_and_load_from': Message(
        en="`resume=True` with `load_from='{file}'`.",
        zh_cn="`resume=True` 且 `load_from='{file}'`。",
    ),
    'check_why.resume_and_load_from': Message(
        en='mmengine resumes from that file, not from the newest '
        'checkpoint: every restart loses what came after it.',
        zh_cn='mmengine 会从该文件恢复，而不是从最新的 checkpoint：每次重启都'
        '会丢掉其后的进度。',
    ),
    'check_fix.resume_and_load_from': Message(
        en='`load_from = None` to go on with this run, or `resume = '
        'False` to start from these weights',
        zh_cn='继续本次训练用 `load_from = None`，从这些权重开始新训练用 '
        '`resume = False`',
    ),
    'check.incomplete_loop': Message(
        en='the config has {given}, but not {missing}: all of them are '
        'needed, or none (set what is not wanted to None).',
        zh_cn='配置中有 {given}，但没有 {missing}：要么都设置，要么都不设置（'
        '不需要的设为 None）。',
    ),
    'check_why.incomplete_loop': Message(
        en='mmengine refuses a loop of which a part is missing.',
        zh_cn='缺少任何一部分，mmengine 都会拒绝该循环。',
    ),
    'check_fix.incomplete_loop': Message(
        en='add what is missing, or set all of them to None',
        zh_cn='补上缺少的部分，或全部设为 None',
    ),
    'check.late_validation': Message(
        en='`{name}={value}`, but the run ends at {length}.',
        zh_cn='`{name}={value}`，而训练在 {length} 结束。',
    ),
    'check_why.late_validation': Message(
        en='The run is not validated on its way: no best checkpoint, and '
        'nobody sees it fail.',
        zh_cn='训练途中不会验证：没有最佳 checkpoint，也看不到训练失败。',
    ),
    'check.missing_package': Message(
        en='not installed here: {names}.',
        zh_cn='此处没有安装：{names}。',
    ),
    'check_why.missing_package': Message(
        en='Their classes cannot be looked at, and such a config cannot '
        'be trained here.',
        zh_cn='无法查看其中的类，这样的配置也不能在此训练。',
    ),
    'check_fix.missing_package': Message(
        en='install them, or check where you train',
        zh_cn='请安装，或在训练所用的机器上检查',
    ),
    'check.missing_import': Message(
        en='`{name}` cannot be imported: {error}',
        zh_cn='无法导入 `{name}`：{error}',
    ),
    'check_why.missing_import': Message(
        en='Training cannot start without the modules of `custom_imports`.',
        zh_cn='缺少 `custom_imports` 中的模块，训练无法开始。',
    ),
    'check_fix.missing_import': Message(
        en='install the package, correct the name, or start in the folder '
        'that has it',
        zh_cn='安装该包，改正名字，或在包含它的目录中启动',
    ),
    'check.unknown_type': Message(
        en='not registered: {names}.',
        zh_cn='没有注册：{names}。',
    ),
    'check_why.unknown_type': Message(
        en='Nothing can be built from a type that no module registers.',
        zh_cn='没有模块注册的类型无法构建。',
    ),
    'check_fix.unknown_type': Message(
        en='correct the name, or name its module in `custom_imports`',
        zh_cn='改正名字，或在 `custom_imports` 中写上其模块',
    ),
    'check.unknown_argument': Message(
        en='{kind} has no argument `{name}`.{hint}',
        zh_cn='{kind} 没有参数 `{name}`。{hint}',
    ),
    'check_why.unknown_argument': Message(
        en='The class refuses it when it is built; a checkpoint hook only '
        'when it saves for the first time, hours later.',
        zh_cn='构建该类时会报错；保存检查点的钩子则要到数小时后第一次保存时才报错。',
    ),
    'check_fix.unknown_argument': Message(
        en='correct the name, or leave it out',
        zh_cn='改正名字，或去掉它',
    ),
    'check.hook_priority': Message(
        en='{kind} at priority {priority} instead of {usual} changes '
        'places with {others}.',
        zh_cn='{kind} 的优先级为 {priority} 而不是 {usual}，与 {others} 颠倒'
        '了次序。',
    ),
    'check_why.hook_priority': Message(
        en='What reacts to a step must come after what resolves it, and '
        'before what saves it; else skipped steps are averaged, '
        'scheduled or saved.',
        zh_cn='对步骤作出反应的 hook 必须在得出结论之后、保存之前；否则被跳过'
        '的步骤会进入平均、调度或 checkpoint。',
    ),
    'check_fix.hook_priority': Message(
        en='leave `priority` out',
        zh_cn='不要设置 `priority`',
    ),
    'check.hook_twice': Message(
        en='{kind} of `{path}` does the work of `{first}` again.',
        zh_cn='`{path}` 的 {kind} 重复了 `{first}` 的工作。',
    ),
    'check_why.hook_twice': Message(
        en='Two hooks of a kind do everything twice: schedules move '
        'twice, averages are averaged, files are overwritten.',
        zh_cn='同类 hook 有两个，一切都做两遍：调度走两步，平均再平均，文件被'
        '覆盖。',
    ),
    'check_fix.hook_twice': Message(
        en='keep one of them',
        zh_cn='保留其中一个',
    ),
    'check.stock_ema': Message(
        en="{kind} is mmengine's; there is {safe}.",
        zh_cn='{kind} 来自 mmengine；可用 {safe}。',
    ),
    'check_why.stock_ema': Message(
        en="A skipped step still moves the average of mmengine's EMAHook.",
        zh_cn='被跳过的步骤仍会改变 mmengine EMAHook 的滑动平均。',
    ),
    'check.stock_param_scheduler': Message(
        en="{kind} is mmengine's; there is {safe}.",
        zh_cn='{kind} 来自 mmengine；可用 {safe}。',
    ),
    'check_why.stock_param_scheduler': Message(
        en="A skipped step still moves the schedules of mmengine's "
        'ParamSchedulerHook.',
        zh_cn='被跳过的步骤仍会推进 mmengine ParamSchedulerHook 的调度。',
    ),
    'check.stock_checkpoint': Message(
        en="{kind} is mmengine's; there is {safe}.",
        zh_cn='{kind} 来自 mmengine；可用 {safe}。',
    ),
    'check_why.stock_checkpoint': Message(
        en="mmengine's CheckpointHook saves NaN weights, overwrites in "
        'place, and deletes the old file first.',
        zh_cn='mmengine 的 CheckpointHook 会保存 NaN 权重，就地覆盖，并先删除'
        '旧文件。',
    ),
    'check.stock_loop': Message(
        en="{kind} is mmengine's; there is {safe}.",
        zh_cn='{kind} 来自 mmengine；可用 {safe}。',
    ),
    'check_why.stock_loop': Message(
        en="mmengine's loops do not resume at the same sample, and read "
        'all past batches again.',
        zh_cn='mmengine 的循环恢复后不在同一样本处，还要重读之前的所有 '
        'batch。',
    ),
    'check.deterministic_with_benchmark': Message(
        en='`deterministic=True` and `cudnn_benchmark=True`.',
        zh_cn='同时有 `deterministic=True` 和 `cudnn_benchmark=True`。',
    ),
    'check_why.deterministic_with_benchmark': Message(
        en='The search for the fastest algorithm picks another one in '
        'every run, so mmengine switches it off again.',
        zh_cn='搜索最快算法会使每次训练选用不同的算法，因此 mmengine 会把它关'
        '掉。',
    ),
    'check.deterministic_without_seed': Message(
        en='`deterministic=True` without a seed.',
        zh_cn='`deterministic=True`，但没有种子。',
    ),
    'check_why.deterministic_without_seed': Message(
        en='Without a seed every run draws its own, and no two are the same.',
        zh_cn='没有种子时每次训练随机取一个，任何两次都不同。',
    ),
    'check.missing_data': Message(
        en="'{file}' does not exist.",
        zh_cn="'{file}' 不存在。",
    ),
    'check_why.missing_data': Message(
        en='A data set cannot be read from a path that is not there.',
        zh_cn='路径不存在，数据集无法读取。',
    ),
    'check_fix.missing_data': Message(
        en='correct the path, mount the data, or start in the right folder',
        zh_cn='改正路径，挂载数据，或在正确的目录中启动',
    ),
    'check.missing_weights': Message(
        en="'{file}' does not exist.",
        zh_cn="'{file}' 不存在。",
    ),
    'check_why.missing_weights': Message(
        en='Training cannot start from weights that are not there.',
        zh_cn='权重文件不存在，训练无法开始。',
    ),
    'check_fix.missing_weights': Message(
        en='correct the path, or fetch the file',
        zh_cn='改正路径，或获取该文件',
    ),
}
