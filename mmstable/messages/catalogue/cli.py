"""What the commands print, besides what a run logs."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'cli.error': Message(en='error: {error}', zh_cn='错误：{error}'),
    'cli.interrupted': Message(en='interrupted', zh_cn='已中断'),
    'cli.no_command': Message(
        en="no command '{name}', there is {commands}.{hint}",
        zh_cn="没有命令 '{name}'，可用的有 {commands}。{hint}",
    ),
    'cli.missing_command': Message(
        en='a command is missing', zh_cn='缺少命令'
    ),
    'cli.unrecognized': Message(
        en='unrecognized arguments: {words: }.{hint}',
        zh_cn='无法识别的参数：{words: }。{hint}',
    ),
    'cli.see_help': Message(
        en='{error} (see --help)', zh_cn='{error}（见 --help）'
    ),
    'cli.did_you_mean': Message(
        en=' Did you mean {words: or }?', zh_cn='是否想写 {words: 或 }？'
    ),
    # What takes a while.
    'progress.reading': Message(
        en="reading '{path}'", zh_cn="正在读取 '{path}'"
    ),
    'progress.searching': Message(
        en="looking for a good checkpoint in '{folder}'",
        zh_cn="正在 '{folder}' 中寻找完好的 checkpoint",
    ),
    'progress.measuring': Message(
        en='measuring what the config takes', zh_cn='正在测量配置所需的内存'
    ),
    'progress.trying': Message(
        en='building the config and trying it', zh_cn='正在构建并试运行配置'
    ),
    # The config file.
    'config.no_file': Message(
        en="no config file '{path}'.{hint}",
        zh_cn="没有配置文件 '{path}'。{hint}",
    ),
    'config.wrong_suffix': Message(
        en="a config is a .py, .json, .yaml or .yml file, got '{path}'.",
        zh_cn="配置应是 .py、.json、.yaml 或 .yml 文件，得到 '{path}'。",
    ),
    'config.missing_base': Message(
        en="'{path}' needs '{base}', which does not exist.{hint}",
        zh_cn="'{path}' 需要 '{base}'，但它不存在。{hint}",
    ),
    'config.inherits_itself': Message(
        en="'{path}' inherits from itself: {files: -> }.",
        zh_cn="'{path}' 继承了自身：{files: -> }。",
    ),
    'config.not_installed': Message(
        en="'{path}' has a base 'mmstable::...', which needs an installed "
        "package: run 'pip install -e .' in the checkout first.",
        zh_cn="'{path}' 的 _base_ 含有 'mmstable::...'，需要先安装本包：请在"
        "代码目录中运行 'pip install -e .'。",
    ),
    # What the options change in it.
    'options.no_value': Message(
        en="--cfg-options takes KEY=VALUE, got '{word}'.",
        zh_cn="--cfg-options 的形式是 KEY=VALUE，得到 '{word}'。",
    ),
    'options.unreadable': Message(
        en='--cfg-options: {error}', zh_cn='--cfg-options 有误：{error}'
    ),
    'options.dict': Message(
        en="'{word}' cannot be read: a value is a number, a text, or a list "
        'or tuple of those. Set the values of a dict one by one, as '
        'default_hooks.logger.interval=10.',
        zh_cn="无法解析 '{word}'：值只能是数字、文本，或由它们组成的列表、"
        '元组。dict 中的值请逐个设置，例如 default_hooks.logger.interval=10。',
    ),
    'options.new_section': Message(
        en="--cfg-options: the config has no '{top}', needed by '{key}'."
        '{hint}',
        zh_cn="--cfg-options：配置中没有 '{top}'，而 '{key}' 需要它。{hint}",
    ),
    'options.no_effect': Message(
        en="--cfg-options: nothing reads '{key}' at the top of a config, so "
        'it would have no effect.{hint}',
        zh_cn="--cfg-options：没有任何代码读取配置顶层的 '{key}'，它不会生效。"
        '{hint}',
    ),
    'options.amp_without_wrapper': Message(
        en='--amp: the config has no `optim_wrapper`.',
        zh_cn='--amp：配置中没有 `optim_wrapper`。',
    ),
    'options.amp_wrapper': Message(
        en="--amp: `optim_wrapper.type` must be one of {known}, got '{name}'.",
        zh_cn="--amp：`optim_wrapper.type` 应是 {known} 之一，得到 '{name}'。",
    ),
    'options.no_base_batch_size': Message(
        en='--auto-scale-lr: the config does not say which batch size its '
        'learning rate is for: `auto_scale_lr = dict(base_batch_size=...)`.',
        zh_cn='--auto-scale-lr：配置没有说明其学习率对应的 batch size：'
        '`auto_scale_lr = dict(base_batch_size=...)`。',
    ),
    'options.gpus_ignored': Message(
        en='--gpu-ids {ids}: no such GPU here, the option is ignored',
        zh_cn='--gpu-ids {ids}：没有这样的 GPU，忽略此选项',
    ),
    'options.one_gpu': Message(
        en='only the first of --gpu-ids is used without --launcher',
        zh_cn='没有 --launcher 时只使用 --gpu-ids 中的第一个',
    ),
    # Mistakes in it.
    'mistake.unregistered': Message(
        en="the config asks for the {kind} '{name}', which is not registered "
        "in scope '{scope}'.{hint}",
        zh_cn="配置要求的 {kind} '{name}' 没有在作用域 '{scope}' 中注册。"
        '{hint}',
    ),
    'mistake.argument': Message(
        en='the config has a wrong argument: {error}.{hint}',
        zh_cn='配置中有错误的参数：{error}。{hint}',
    ),
    'mistake.setting': Message(
        en='the config has a wrong setting: {error}',
        zh_cn='配置中有错误的设置：{error}',
    ),
    'mistake.value': Message(
        en='the config has a wrong value for {name}: {error}',
        zh_cn='配置中 {name} 的值有误：{error}',
    ),
    'mistake.no_type': Message(
        en='`{path}` has no `type`, so nothing can be built from it.{hint}',
        zh_cn='`{path}` 没有 `type`，无法构建。{hint}',
    ),
    'mistake.warmup': Message(
        en='param_scheduler: {error}. Is the warm-up longer than the '
        'training (train_cfg)?',
        zh_cn='param_scheduler：{error}。warmup 是否比整个训练 (train_cfg) '
        '还长？',
    ),
    'mistake.work_dir': Message(
        en="the work dir '{path}' cannot be used: {error}.",
        zh_cn="无法使用工作目录 '{path}'：{error}。",
    ),
    'mistake.nothing_to_train': Message(
        en='the config has no train_cfg, train_dataloader and '
        'optim_wrapper: there is nothing to train.',
        zh_cn='配置中没有 train_cfg、train_dataloader 和 optim_wrapper：'
        '没有可训练的内容。',
    ),
    'mistake.not_writable': Message(
        en='it is not writable', zh_cn='没有写权限'
    ),
    'mistake.no_length': Message(
        en='nothing in the config says how long to train: mmcv has `runner` '
        'or `total_epochs` for it.',
        zh_cn='配置没有说明训练多久：mmcv 用 `runner` 或 `total_epochs` '
        '表示。',
    ),
    # How a run ends.
    'train.stopped': Message(
        en='stopped by {signal}; the command to resume is above',
        zh_cn='因 {signal} 停止；恢复训练的命令见上',
    ),
    'train.diverged': Message(
        en='error: diverged; the reason is above, and in {file}',
        zh_cn='错误：训练发散；原因见上，以及 {file}',
    ),
    # What is in a checkpoint.
    'inspect.fact.iteration': Message(en='iteration', zh_cn='迭代'),
    'inspect.fact.epoch': Message(en='epoch', zh_cn='epoch 数'),
    'inspect.fact.time': Message(en='saved at', zh_cn='保存时间'),
    'inspect.fact.versions': Message(en='versions', zh_cn='版本'),
    'inspect.fact.seed': Message(en='seed', zh_cn='随机种子'),
    'inspect.fact.loss_scale': Message(en='loss scale', zh_cn='loss scale 值'),
    'inspect.fact.lr': Message(en='learning rate', zh_cn='学习率'),
    'inspect.fact.finite': Message(en='finite', zh_cn='均为有限值'),
    'inspect.fact.sections': Message(en='sections', zh_cn='内容'),
    'inspect.fact.weights': Message(en='weights', zh_cn='权重'),
    'inspect.yes': Message(en='yes', zh_cn='是'),
    'inspect.no': Message(
        en='NO: {culprits}', zh_cn='否，含 NaN 或 Inf：{culprits}'
    ),
    'inspect.count': Message(
        en='{tensors:tensor|tensors}, {values} values',
        zh_cn='{tensors} 个张量，共 {values} 个数值',
    ),
    'inspect.key': Message(en='key', zh_cn='键'),
    'inspect.kind': Message(en='shape and type', zh_cn='形状与类型'),
    'inspect.equal': Message(
        en='{equal} equal, {differing} different:',
        zh_cn='{equal} 个相同，{differing} 个不同：',
    ),
    'inspect.first': Message(en='only in the first', zh_cn='仅第一个有'),
    'inspect.second': Message(en='only in the second', zh_cn='仅第二个有'),
    'inspect.gap': Message(
        en='differs by up to {gap:.3g}', zh_cn='最大相差 {gap:.3g}'
    ),
    # Translating a config.
    'upgrade.not_imported': Message(
        en='{path}: `custom_imports` is not imported; hooks from there are '
        'not known',
        zh_cn='{path}：未导入 `custom_imports`，其中的 hook 无法识别',
    ),
    'upgrade.not_python': Message(
        en="the new config is a .py file, got '{path}'.",
        zh_cn="新配置应是 .py 文件，得到 '{path}'。",
    ),
    'upgrade.no_folder': Message(
        en="there is no folder '{path}' to write to.",
        zh_cn="没有可写入的目录 '{path}'。",
    ),
    'upgrade.bound_to_folder': Message(
        en="'{path}' is new already, and its `_base_` is found from its own "
        'folder only: use it as it is.',
        zh_cn="'{path}' 已是新格式，且其 `_base_` 只能从它所在的目录找到："
        '请直接使用。',
    ),
    'upgrade.cannot_write': Message(
        en="cannot write '{path}': {error}",
        zh_cn="无法写入 '{path}'：{error}",
    ),
    'upgrade.written': Message(en='written to {path}', zh_cn='已写入 {path}'),
    'upgrade.nothing': Message(
        en='{path} has no keys of mmcv 1.x, nothing to translate',
        zh_cn='{path} 中没有 mmcv 1.x 的键，无需转换',
    ),
    'upgrade.translated': Message(
        en='{path}: translated from mmcv 1.x',
        zh_cn='{path}：已从 mmcv 1.x 转换',
    ),
    'upgrade.notes': Message(en='worth knowing', zh_cn='值得了解'),
    'upgrade.left': Message(en='without counterpart', zh_cn='没有对应的设置'),
    'upgrade.serious': Message(
        en='would train differently, to be resolved by you',
        zh_cn='会导致训练不同，需要您来解决',
    ),
    'upgrade.incomplete': Message(
        en='some settings have no counterpart (exit {code})',
        zh_cn='部分设置没有对应项（退出码 {code}）',
    ),
}
