"""About data that is looked through before training."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'check_data.raises': Message(
        en='samples that raise',
        zh_cn='读取时抛出异常的样本',
    ),
    'check_data_why.raises': Message(
        en='Training stops at the first of them.',
        zh_cn='训练会在遇到第一个时中断。',
    ),
    'check_data_fix.raises': Message(
        en='Mend or remove the file, or leave them out with SkipSamples.',
        zh_cn='修复或删除文件，或用 SkipSamples 跳过。',
    ),
    'check_data.no_sample': Message(
        en='samples that the pipeline gives up on',
        zh_cn='pipeline 返回 None 的样本',
    ),
    'check_data_why.no_sample': Message(
        en='mmengine silently trains on another one, at random, in their '
        'place.',
        zh_cn='mmengine 会悄悄随机换成另一个样本来训练。',
    ),
    'check_data_fix.no_sample': Message(
        en='Find out which transform returns None, and whether you can do '
        'without them.',
        zh_cn='查明是哪个 transform 返回 None，以及能否舍弃这些样本。',
    ),
    'check_data.non_finite': Message(
        en='NaN or Inf in the data',
        zh_cn='数据中有 NaN 或 Inf',
    ),
    'check_data_why.non_finite': Message(
        en='They become a NaN loss, and spoil the statistics of BatchNorm.',
        zh_cn='会导致 loss 为 NaN，并破坏 BatchNorm 的统计量。',
    ),
    'check_data_fix.non_finite': Message(
        en='Mend the files, or leave them out with SkipSamples.',
        zh_cn='修复文件，或用 SkipSamples 跳过。',
    ),
    'check_data.label_range': Message(
        en='labels that are no class',
        zh_cn='超出类别范围的标签',
    ),
    'check_data_why.label_range': Message(
        en='On a GPU this is a device-side assert, far from its cause; or a '
        'NaN.',
        zh_cn='在 GPU 上会触发远离原因的 device-side assert，或产生 NaN。',
    ),
    'check_data_fix.label_range': Message(
        en='Compare the classes of the data set with the files; see '
        'reduce_zero_label, ignore_index and num_classes.',
        zh_cn='对照数据集的类别与文件；检查 reduce_zero_label、ignore_index '
        '和 num_classes。',
    ),
    'check_data.label_type': Message(
        en='labels that are no whole numbers',
        zh_cn='不是整数的标签',
    ),
    'check_data_why.label_type': Message(
        en='A loss over classes takes whole numbers only.',
        zh_cn='分类 loss 只接受整数标签。',
    ),
    'check_data_fix.label_type': Message(
        en='Load them as integers.',
        zh_cn='以整数类型读取标签。',
    ),
    'check_data.all_ignored': Message(
        en='maps of which no pixel counts',
        zh_cn='所有像素都被忽略的标注',
    ),
    'check_data_why.all_ignored': Message(
        en='A loss that is a mean over the other pixels is 0/0.',
        zh_cn='对其余像素求平均的 loss 会变成 0/0。',
    ),
    'check_data_fix.all_ignored': Message(
        en='Leave them out, or see that the crop keeps some pixels '
        '(cat_max_ratio).',
        zh_cn='跳过这些样本，或保证裁剪后保留有效像素（cat_max_ratio）。',
    ),
    'check_data.empty_mask': Message(
        en='masks of objects without a pixel',
        zh_cn='没有任何像素的目标掩码',
    ),
    'check_data_why.empty_mask': Message(
        en='A mean over the pixels of such a mask is 0/0.',
        zh_cn='对这类掩码的像素求平均会得到 0/0。',
    ),
    'check_data_fix.empty_mask': Message(
        en='Remove such objects after cropping and resizing '
        '(FilterAnnotations).',
        zh_cn='裁剪缩放后删除这类目标（FilterAnnotations）。',
    ),
    'check_data.no_boxes': Message(
        en='samples without a box',
        zh_cn='没有任何框的样本',
    ),
    'check_data_why.no_boxes': Message(
        en='Some heads cannot train on them, others learn from background '
        'only.',
        zh_cn='有些检测头无法用其训练，有些只会学到背景。',
    ),
    'check_data_fix.no_boxes': Message(
        en='Filter them (filter_cfg=dict(filter_empty_gt=True)) unless you '
        'want them.',
        zh_cn='若非有意保留，请过滤（filter_cfg=dict(filter_empty_gt=True)）。',
    ),
    'check_data.inverted_box': Message(
        en='boxes with exchanged corners',
        zh_cn='角点颠倒的框',
    ),
    'check_data_why.inverted_box': Message(
        en='Their width or height is negative, and its logarithm NaN.',
        zh_cn='其宽或高为负，取对数得到 NaN。',
    ),
    'check_data_fix.inverted_box': Message(
        en='Mend the annotations; is it x, y, width, height?',
        zh_cn='修复标注；是否为 x、y、宽、高格式？',
    ),
    'check_data.flat_box': Message(
        en='boxes without an area',
        zh_cn='面积为零的框',
    ),
    'check_data_why.flat_box': Message(
        en='The logarithm of their size is infinite; IoU with them is 0/0.',
        zh_cn='其尺寸的对数为无穷，IoU 为 0/0。',
    ),
    'check_data_fix.flat_box': Message(
        en='Mend the annotations, or filter by size (FilterAnnotations).',
        zh_cn='修复标注，或按尺寸过滤（FilterAnnotations）。',
    ),
    'check_data.no_points': Message(
        en='point clouds without a point',
        zh_cn='没有任何点的点云',
    ),
    'check_data_why.no_points': Message(
        en='Voxel encoders fail on them, or take a mean of nothing.',
        zh_cn='体素编码器会报错，或对空集求平均。',
    ),
    'check_data_fix.no_points': Message(
        en='Leave them out, or widen point_cloud_range.',
        zh_cn='跳过这些样本，或扩大 point_cloud_range。',
    ),
    'check_data.channel_count': Message(
        en='pictures with a wrong number of channels',
        zh_cn='通道数错误的图像',
    ),
    'check_data_why.channel_count': Message(
        en='The model stops with an error, or takes a mask for a colour.',
        zh_cn='模型会报错，或把掩码当成颜色。',
    ),
    'check_data_fix.channel_count': Message(
        en="Load them with color_type='color', or convert the files.",
        zh_cn="用 color_type='color' 读取，或转换文件。",
    ),
    'check_data.map_shape': Message(
        en='maps that do not have the size of their picture',
        zh_cn='与图像尺寸不一致的标注',
    ),
    'check_data_why.map_shape': Message(
        en='Pixels and labels do not belong together.',
        zh_cn='像素与标签无法对应。',
    ),
    'check_data_fix.map_shape': Message(
        en='Is the map resized and cropped by the same transforms?',
        zh_cn='标注是否经过了同样的缩放和裁剪？',
    ),
    'check_data.odd_layout': Message(
        en='samples with another type or number of dimensions than most',
        zh_cn='类型或维数与大多数不同的样本',
    ),
    'check_data_why.odd_layout': Message(
        en='Batches may not be stacked, or change the precision.',
        zh_cn='可能无法组成 batch，或改变精度。',
    ),
    'check_data_fix.odd_layout': Message(
        en='Have the pipeline convert all samples to one type.',
        zh_cn='让 pipeline 把所有样本转换为同一类型。',
    ),
    'check_data.odd_size': Message(
        en='pictures of an unusual size',
        zh_cn='尺寸异常的图像',
    ),
    'check_data_why.odd_size': Message(
        en='Batches are padded to the largest picture, or cannot be stacked; '
        'a tiny one leaves no feature map.',
        zh_cn='batch 会按最大的图像填充，或无法堆叠；过小的图像得不到特征图。',
    ),
    'check_data_fix.odd_size': Message(
        en='Look at the file, and at the resize and crop of the pipeline.',
        zh_cn='检查该文件，以及 pipeline 中的缩放和裁剪。',
    ),
    'check_data.leak': Message(
        en='samples that are in the other split, too',
        zh_cn='同时出现在另一划分中的样本',
    ),
    'check_data_why.leak': Message(
        en='What is trained on is also measured with: the metric is too good.',
        zh_cn='训练数据也用于评测：指标会虚高。',
    ),
    'check_data_fix.leak': Message(
        en='Remove them from one of the splits, or leave them out of the '
        'training with SkipSamples.',
        zh_cn='从其中一个划分中删除，或用 SkipSamples 从训练中跳过。',
    ),
    'check_data.duplicate': Message(
        en='samples with the same content as another',
        zh_cn='与其他样本内容相同的样本',
    ),
    'check_data_why.duplicate': Message(
        en='They count twice; between training and validation they flatter '
        'the metric.',
        zh_cn='它们被重复计数；若跨训练集和验证集会使指标虚高。',
    ),
    'check_data_fix.duplicate': Message(
        en='Remove all but one.',
        zh_cn='只保留一份。',
    ),
    'check_data.dropped': Message(
        en='samples that are filtered out before training',
        zh_cn='训练前就被过滤掉的样本',
    ),
    'check_data_why.dropped': Message(
        en='They are never trained on, and nothing says so: a film that is '
        'shorter than a chunk gives no sample at all.',
        zh_cn='它们从不参与训练，也没有任何提示：短于一个 chunk 的序列不会'
        '产生样本。',
    ),
    'check_data_fix.dropped': Message(
        en='See filter_cfg, the least size and the chunk length.',
        zh_cn='检查 filter_cfg、最小尺寸和 chunk 长度。',
    ),
    'check_data_detail.non_finite': Message(
        en='{bad} of {size} are {kind}',
        zh_cn='{size} 个值中有 {bad} 个为 {kind}',
    ),
    'check_data_detail.label_range': Message(
        en='{values} with {classes} classes',
        zh_cn='共 {classes} 类，却有标签 {values}',
    ),
    'check_data_detail.all_ignored': Message(
        en='{count} pixels', zh_cn='{count} 个像素'
    ),
    'check_data_detail.empty_mask': Message(
        en='{empty} of {count} masks', zh_cn='{count} 个掩码中有 {empty} 个'
    ),
    'check_data_detail.no_boxes': Message(en='no box', zh_cn='没有框'),
    'check_data_detail.bad_boxes': Message(
        en='{count}, first {box}', zh_cn='{count} 个，首个为 {box}'
    ),
    'check_data_detail.no_points': Message(en='no point', zh_cn='没有点'),
    'check_data_detail.channel_count': Message(
        en='{channels} channels, the model wants {wanted}',
        zh_cn='{channels} 个通道，模型需要 {wanted} 个',
    ),
    'check_data_detail.map_shape': Message(
        en='{size}, the picture is {picture}',
        zh_cn='{size}，图像为 {picture}',
    ),
    'check_data_detail.no_sample': Message(
        en='the pipeline gives None', zh_cn='pipeline 返回 None'
    ),
    'check_data_detail.odd': Message(
        en='{found}; usually {usual}', zh_cn='{found}，通常为 {usual}'
    ),
    'check_data_detail.duplicate': Message(
        en='like {name}', zh_cn='与 {name} 相同'
    ),
    'data_table.worker_failed': Message(
        en='a worker failed, the rest was not looked at: {error}',
        zh_cn='某个 worker 异常退出，其余样本未检查：{error}',
    ),
    'data_table.no_loader': Message(
        en='the config has no `{split}_dataloader` with a `dataset`; it has '
        'data for: {known}.',
        zh_cn='配置中没有带 `dataset` 的 `{split}_dataloader`；已有数据：'
        '{known}。',
    ),
    'data_table.not_built': Message(
        en='the data set cannot be built: {error}',
        zh_cn='无法构建数据集：{error}',
    ),
    'data_table.no_samples': Message(
        en='the data set is empty.', zh_cn='数据集为空。'
    ),
    'data_table.no_folder': Message(
        en="there is no folder '{folder}' to write to.",
        zh_cn="没有可写入的目录 '{folder}'。",
    ),
    'data_table.progress': Message(
        en='{done} of {total} samples, about {left} left',
        zh_cn='已检查 {done}/{total} 个样本，约剩 {left}',
    ),
    'data_table.header': Message(
        en='{count:sample|samples} of {total} looked at ({split}, {kind}, '
        '{workers:worker|workers}, {seconds:.1f} s)',
        zh_cn='检查了 {total} 个样本中的 {count} 个（{split}，{kind}，'
        '{workers} 个 worker，{seconds:.1f} 秒）',
    ),
    'data_table.count': Message(
        en='{count} of {total}', zh_cn='{count}，共 {total}'
    ),
    'data_table.first': Message(en='first: {names}', zh_cn='最先：{names}'),
    'data_table.why': Message(en='why: {text}', zh_cn='原因：{text}'),
    'data_table.fix': Message(en='fix: {text}', zh_cn='建议：{text}'),
    'data_table.slowest': Message(
        en='slowest: {names}', zh_cn='最慢：{names}'
    ),
    'data_table.largest': Message(
        en='largest: {names}', zh_cn='最大：{names}'
    ),
    'data_table.clean': Message(
        en='nothing wrong was found', zh_cn='没有发现问题'
    ),
    'severity.error': Message(en='error', zh_cn='错误'),
    'severity.warning': Message(en='warning', zh_cn='警告'),
    'data_table.skip_list': Message(
        en='{count:sample|samples} with errors written to {path}; use it by '
        "dataset=dict(type='mmstable.SkipSamples', dataset=..., "
        "skip_list='{path}')",
        zh_cn='{count} 个有错误的样本已写入 {path}；用法：'
        "dataset=dict(type='mmstable.SkipSamples', dataset=..., "
        "skip_list='{path}')",
    ),
}
