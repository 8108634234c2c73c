"""About what a config takes."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'command.estimate': Message(
        en='tell what memory a config takes, and which batch fits',
        zh_cn='估算配置所需的内存，以及能容纳多大的批',
    ),
    'help.estimate.description': Message(
        en='Tell how many bytes of tensors training and validation take at '
        'their peak, without a GPU, and what data loading takes in host RAM. '
        'Exit codes: 0 it fits, or no limit was given, {does_not_fit} it '
        'does not fit, 2 an error in the config.',
        zh_cn='估算训练和验证的张量峰值字节数（不需要 GPU），以及数据加载占用'
        '的主机内存。退出码：0 能容纳或未给出上限，{does_not_fit} 不能容纳，'
        '2 配置有错误。',
    ),
    'help.estimate.device_memory': Message(
        en="memory of the device, as '24GiB'",
        zh_cn="设备的内存，例如 '24GiB'",
    ),
    'help.estimate.batch_size': Message(
        en='samples in a training batch; those of the config by default',
        zh_cn='训练批的样本数；默认取配置中的值',
    ),
    'help.estimate.json': Message(
        en='where to write all figures', zh_cn='写入全部数值的文件'
    ),
    'size.invalid': Message(
        en="a size is a number above 0 with a unit, as '24GiB', got {text}",
        zh_cn="大小应为大于 0 的数加单位，例如 '24GiB'，实际为 {text}",
    ),
    'size.no_unit': Message(
        en="{number} without a unit is {number} bytes: write '{number}GiB' "
        'or whatever is meant',
        zh_cn="没有单位的 {number} 表示 {number} 字节：请写成 '{number}GiB' "
        '等带单位的形式',
    ),
    'estimate.title': Message(
        en='bytes of tensors at the peak', zh_cn='张量字节数（峰值）'
    ),
    'estimate_phase.training': Message(en='training', zh_cn='训练'),
    'estimate_phase.validation': Message(en='validation', zh_cn='验证'),
    'estimate_part.batch_size': Message(en='batch size', zh_cn='批大小'),
    'estimate_part.weights': Message(
        en='weights and buffers', zh_cn='权重与 buffer'
    ),
    'estimate_part.gradients': Message(
        en='gradients, once all are there', zh_cn='梯度（全部算出后）'
    ),
    'estimate_part.optimizer': Message(
        en='optimizer state', zh_cn='优化器状态'
    ),
    'estimate_part.batch': Message(en='the batch', zh_cn='批数据'),
    'estimate_part.activations': Message(
        en='activations, temporaries', zh_cn='激活值与临时张量'
    ),
    'estimate_part.total': Message(en='peak', zh_cn='峰值'),
    'estimate_part.each': Message(en='per sample', zh_cn='每个样本'),
    'estimate_part.largest': Message(
        en='largest batch that fits', zh_cn='可容纳的最大批'
    ),
    'estimate.promise': Message(
        en='These are bytes of tensors. What the device takes besides (its '
        'context, workspaces, unused parts of the cache) comes on top.',
        zh_cn='以上是张量的字节数。设备上的其他占用（上下文、工作区、缓存中未使用'
        '的部分）另计。',
    ),
    'estimate.accumulation': Message(
        en='A step sees {counts} batches, {samples} samples of each rank.',
        zh_cn='每步累积 {counts} 批，每个 rank 共 {samples} 个样本。',
    ),
    'estimate.real': Message(
        en='{phase}: measured on real batches of 4 and 8 and extrapolated, '
        'because the model needs values: {reason}',
        zh_cn='{phase}：用 4 和 8 个样本的真实批测量后外推，因为模型需要张量的'
        '取值：{reason}',
    ),
    'estimate.larger_validation': Message(
        en='Validation takes more than training: {size} samples in a batch, '
        'against {training}. val_dataloader.batch_size={best} would take no '
        'more.',
        zh_cn='验证比训练占用更多：每批 {size} 个样本，而训练为 {training} '
        '个。val_dataloader.batch_size={best} 则不超过训练。',
    ),
    'estimate.host': Message(
        en='Host RAM, {loader}: {workers:worker|workers} x {prefetch} '
        'prefetch: {size} in batches read ahead.',
        zh_cn='主机内存，{loader}：{workers} 个 worker × 预取 {prefetch} 批：'
        '预读的批占 {size}。',
    ),
    'estimate.host_alone': Message(
        en='Host RAM, {loader}: no workers, so nothing is read ahead: {size} '
        'in a batch.',
        zh_cn='主机内存，{loader}：没有 worker，不会预读：一批占 {size}。',
    ),
    'estimate.presets': Message(
        en='the same training with a preset of _base_/memory',
        zh_cn='使用 _base_/memory 预设的同一训练',
    ),
    'estimate_preset.name': Message(en='preset', zh_cn='预设'),
    'estimate_preset.batch': Message(
        en='batch x accumulation', zh_cn='批 × 累积'
    ),
    'estimate_preset.fits': Message(en='fits', zh_cn='能否容纳'),
    'estimate_preset.yes': Message(en='yes', zh_cn='是'),
    'estimate_preset.no': Message(en='no', zh_cn='否'),
    'estimate.no_limit': Message(
        en='Say --device-memory 24GiB to learn which batch fits.',
        zh_cn='加上 --device-memory 24GiB 可得知能容纳多大的批。',
    ),
    'estimate.fits': Message(
        en='Training fits into {limit}.', zh_cn='训练可以容纳在 {limit} 内。'
    ),
    'estimate.validation_too_large': Message(
        en='Training fits into {limit}, but validation does not: '
        'val_dataloader.batch_size={best} would.',
        zh_cn='训练可以容纳在 {limit} 内，但验证不行：'
        'val_dataloader.batch_size={best} 则可以。',
    ),
    'estimate.use': Message(
        en='Training does not fit into {limit}; with '
        "'mmstable::_base_/memory/{preset}.py' it does.",
        zh_cn='训练无法容纳在 {limit} 内；使用 '
        "'mmstable::_base_/memory/{preset}.py' 则可以。",
    ),
    'estimate.too_large': Message(
        en='Training does not fit into {limit}, with no preset either. The '
        'largest batch that fits without one: {largest}.',
        zh_cn='训练无法容纳在 {limit} 内，使用任何预设也不行。不用预设时可容'
        '纳的最大批：{largest}。',
    ),
    'estimate.old_torch': Message(
        en='torch {version} cannot count bytes of tensors '
        '(torch.distributed._tools.mem_tracker is missing); a torch from 2.5 '
        'on can. It may be another one than that of the training.',
        zh_cn='torch {version} 无法统计张量字节数（缺少 '
        'torch.distributed._tools.mem_tracker）；2.5 及以上的 torch 可以。不'
        '必与训练所用的版本相同。',
    ),
    'estimate.no_data': Message(
        en='the config has no `train_dataloader` with samples.',
        zh_cn='配置中没有包含样本的 `train_dataloader`。',
    ),
    'estimate.no_model': Message(
        en='the config has no `model`.', zh_cn='配置中没有 `model`。'
    ),
    'estimate.no_optimizer': Message(
        en='the config has no `optim_wrapper` with one `optimizer`; several '
        'of them are not estimated.',
        zh_cn='配置中没有只含一个 `optimizer` 的 `optim_wrapper`；不支持估算'
        '多个优化器。',
    ),
    'estimate.own_train_step': Message(
        en='{model} has a `train_step` of its own, which is not estimated.',
        zh_cn='{model} 有自己的 `train_step`，无法估算。',
    ),
    'estimate.cannot_run': Message(
        en='a step of the model cannot be run: {error}',
        zh_cn='无法运行模型的一步：{error}',
    ),
    'estimate.no_folder': Message(
        en="there is no folder '{folder}' to write to.",
        zh_cn="没有可写入的文件夹 '{folder}'。",
    ),
}
