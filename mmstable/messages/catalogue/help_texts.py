"""What ``mmstable --help`` says, and what is wrong with a word."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'help.mmstable': Message(
        en='Keep OpenMMLab training runs alive.',
        zh_cn='让 OpenMMLab 的训练稳定运行。',
    ),
    'help.usage': Message(en='usage: ', zh_cn='用法：'),
    'help.positionals': Message(en='positional arguments', zh_cn='位置参数'),
    'help.options': Message(en='options', zh_cn='选项'),
    'help.help': Message(
        en='show this help message and exit', zh_cn='显示此帮助并退出'
    ),
    'help.version': Message(
        en="show program's version number and exit", zh_cn='显示版本号并退出'
    ),
    'help.lang': Message(
        en='the language of all lines; that of the config or of '
        'MMSTABLE_LANG by default',
        zh_cn='所有输出的语言；默认由配置或 MMSTABLE_LANG 决定',
    ),
    'help.config': Message(en='config file', zh_cn='配置文件'),
    'help.cfg_options': Message(
        en='change values of the config, e.g. '
        'optim_wrapper.clip_grad.max_norm=20',
        zh_cn='修改配置中的值，例如 optim_wrapper.clip_grad.max_norm=20',
    ),
    # The commands.
    'command.check': Message(
        en='say what would go wrong with a config, and how to mend it',
        zh_cn='指出配置会出什么问题，以及如何修正',
    ),
    'command.check_data': Message(
        en='look through the data of a config before it is trained with',
        zh_cn='在训练之前检查配置所用的数据',
    ),
    'command.dist_train': Message(
        en='train on several processes, by torchrun',
        zh_cn='用 torchrun 启动多进程训练',
    ),
    'command.inspect': Message(
        en='say what is in a checkpoint, or in what two differ',
        zh_cn='查看 checkpoint 的内容，或比较两个 checkpoint',
    ),
    'command.probe': Message(
        en='look into a run of yours while it runs, and change it',
        zh_cn='查看并修改正在进行的训练',
    ),
    'command.replay': Message(
        en='do the bad step of a fault again, and show where it began',
        zh_cn='重放出错的训练步，找出异常的起点',
    ),
    'command.train': Message(
        en='train a model from a config of any OpenMMLab package',
        zh_cn='用任意 OpenMMLab 项目的配置训练模型',
    ),
    'command.upgrade': Message(
        en='translate a config of mmcv 1.x to mmengine',
        zh_cn='把 mmcv 1.x 的配置转换为 mmengine 配置',
    ),
    'command.protect': Message(
        en='write a protected version of a config, for any train script',
        zh_cn='生成受保护的配置，可用于任何训练脚本',
    ),
    'help.quiet': Message(
        en='print results and errors only, no notes and no progress',
        zh_cn='只输出结果和错误，不输出说明和进度',
    ),
    'command.init': Message(
        en='write a commented config to start from',
        zh_cn='生成带注释的起步配置',
    ),
    'command.completion': Message(
        en='print a script that completes commands and options in a shell',
        zh_cn='输出 shell 补全脚本，可补全命令和选项',
    ),
    # What is wrong with a word.
    'usage.from': Message(
        en="a number from {least} on is expected, got '{text}'",
        zh_cn="应是从 {least} 开始的整数，得到 '{text}'",
    ),
    'usage.share': Message(
        en="a share is a number above 0 and up to 1, got '{text}'",
        zh_cn="比例应大于 0 且不超过 1，得到 '{text}'",
    ),
    'usage.argument': Message(
        en='argument {name}: {error}', zh_cn='参数 {name}：{error}'
    ),
    'usage.required': Message(
        en='the following arguments are required: {names}',
        zh_cn='缺少以下参数：{names}',
    ),
    'usage.one_expected': Message(
        en='expected one argument', zh_cn='需要一个值'
    ),
    'usage.some_expected': Message(
        en='expected at least one argument', zh_cn='至少需要一个值'
    ),
    'usage.not_with': Message(
        en='not allowed with argument {other}', zh_cn='不能与 {other} 同时使用'
    ),
    'usage.choice': Message(
        en='invalid choice: {word} (choose from {known})',
        zh_cn='无效的选择 {word}（可选 {known}）',
    ),
    'usage.invalid': Message(
        en='invalid {kind} value: {text}', zh_cn='{text} 不是有效的 {kind} 值'
    ),
    'usage.no_value': Message(
        en='ignored explicit argument {text}',
        zh_cn='不接受值，得到 {text}',
    ),
}
