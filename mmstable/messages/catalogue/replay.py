"""About a fault that is looked at again."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'replay.no_config': Message(
        en='a bundle is data, and none of it is run. Name the config that '
        'builds the model with --config FILE; or, if you trust it, use '
        "'{path}' with --trust-config.",
        zh_cn='故障包只是数据，其中没有任何内容会被执行。请用 --config FILE '
        "给出构建模型的配置；若信任 '{path}'，可用 --trust-config 使用它。",
    ),
    'replay.no_model': Message(
        en="'{path}' has no `model`.", zh_cn="'{path}' 中没有 `model`。"
    ),
    'replay.not_built': Message(
        en='the model cannot be built: {error}',
        zh_cn='无法构建模型：{error}',
    ),
    'replay.no_batch': Message(
        en='it has no batch to do the step with ({notes:; })',
        zh_cn='其中没有可用于重放的批数据（{notes:；}）',
    ),
    'replay.no_weights': Message(
        en='the bundle has no weights and names no checkpoint; name one with '
        '--checkpoint FILE.',
        zh_cn='故障包中没有权重，也没有记录 checkpoint；请用 '
        '--checkpoint FILE 指定。',
    ),
    'replay.other_model': Message(
        en='the config builds another model than the one of the bundle, '
        'which has no such {names}.',
        zh_cn='该配置构建的模型与故障包中的不同，故障包中没有相符的 {names}。',
    ),
    'replay.does_not_fit': Message(
        en="'{path}' does not fit the model: it has no such {names}.",
        zh_cn="'{path}' 与模型不符：其中没有相符的 {names}。",
    ),
    'replay.no_sample': Message(
        en='--sample {index}: the batch has {size:sample|samples}, counted '
        'from 0.',
        zh_cn='--sample {index}：批数据共有 {size} 个样本，从 0 开始计数。',
    ),
    'replay.in_the_run': Message(
        en='in the run: {line}', zh_cn='训练中：{line}'
    ),
    'replay.versions': Message(
        en='other versions here: {versions}', zh_cn='此处版本不同：{versions}'
    ),
    'replay.note': Message(en='note: {note}', zh_cn='说明：{note}'),
    'replay.finite': Message(
        en='The step is finite here: the same batch, weights and random '
        'numbers give no NaN or Inf on this machine. Compare the versions, '
        'the device and the precision.',
        zh_cn='此处计算结果为有限值：同样的批数据、权重和随机数在本机不产生 '
        'NaN 或 Inf。请对比版本、设备和精度。',
    ),
    'replay.finite_with': Message(
        en='The step is finite with {changes}; in the run it was not.',
        zh_cn='使用 {changes} 时结果为有限值；训练中并非如此。',
    ),
    'replay.another': Message(
        en='This is another fault than in the run, where it began in {was}.',
        zh_cn='这与训练中的故障不同，当时始于 {was}。',
    ),
    'replay.here': Message(en='{kind} begins here', zh_cn='{kind} 始于此处'),
    'replay.chain': Message(
        en='From there to the loss or the gradient:',
        zh_cn='由此到 loss 或梯度的过程：',
    ),
    'replay.pass.forward': Message(en='forward', zh_cn='前向'),
    'replay.pass.backward': Message(en='backward', zh_cn='反向'),
    'replay.not_reached': Message(en='not reached', zh_cn='未执行到'),
    'replay.more': Message(en='({count} more)', zh_cn='（另有 {count} 个）'),
    'replay.no_frame': Message(
        en='This is a derivative: no line of the model is running. `p birth` '
        'shows what is known.',
        zh_cn='这是求导过程，模型的代码并未在执行。`p birth` 可查看已知信息。',
    ),
}
