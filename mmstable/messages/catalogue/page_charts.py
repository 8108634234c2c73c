"""Labels of the charts of the report page; none has fields."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'page.chart_loss': Message(
        en='Loss',
        zh_cn='loss 曲线',
    ),
    'page.chart_loss_note': Message(
        en='skipped steps are marked below',
        zh_cn='下方标出被跳过的步',
    ),
    'page.chart_scale': Message(
        en='Loss scale',
        zh_cn='loss scale 曲线',
    ),
    'page.chart_scale_note': Message(
        en='logarithmic',
        zh_cn='对数坐标',
    ),
    'page.chart_norm': Message(
        en='Gradient norm',
        zh_cn='梯度范数',
    ),
    'page.chart_norm_note': Message(
        en='before and after clipping',
        zh_cn='裁剪前与裁剪后',
    ),
    'page.chart_modules': Message(
        en='Gradient norm by module',
        zh_cn='各模块梯度范数',
    ),
    'page.chart_modules_note': Message(
        en='bright is large, each row by itself',
        zh_cn='越亮越大，每行单独归一',
    ),
    'page.chart_memory': Message(
        en='Memory',
        zh_cn='内存',
    ),
    'page.chart_memory_note': Message(
        en='in MiB',
        zh_cn='单位 MiB',
    ),
    'page.chart_time': Message(
        en='Iteration time',
        zh_cn='迭代时间',
    ),
    'page.chart_time_note': Message(
        en='seconds, by phase',
        zh_cn='秒，按阶段',
    ),
    'page.chart_lr': Message(
        en='Learning rate',
        zh_cn='学习率',
    ),
    'page.chart_lr_note': Message(
        en='with factors of rollbacks',
        zh_cn='含回退带来的系数',
    ),
    'page.chart_validation': Message(
        en='Validation',
        zh_cn='验证',
    ),
    'page.chart_validation_note': Message(
        en='as the evaluator says',
        zh_cn='由评测器给出',
    ),
    'page.series_clipped': Message(
        en='after clipping',
        zh_cn='裁剪后',
    ),
    'page.series_limit': Message(
        en='limit',
        zh_cn='上限',
    ),
    'page.series_host_memory': Message(
        en='training process',
        zh_cn='训练进程',
    ),
    'page.series_host_tree': Message(
        en='host, all processes',
        zh_cn='主机（全部进程）',
    ),
    'page.series_workers': Message(
        en='workers',
        zh_cn='工作进程',
    ),
    'page.series_device_memory': Message(
        en='device',
        zh_cn='设备',
    ),
    'page.series_device_memory_peak': Message(
        en='device, peak',
        zh_cn='设备峰值',
    ),
    'page.series_device_reserved': Message(
        en='device, reserved',
        zh_cn='设备（已保留）',
    ),
    'page.series_time': Message(
        en='iteration',
        zh_cn='迭代',
    ),
    'page.series_iteration': Message(
        en='iteration, sampled',
        zh_cn='迭代（采样）',
    ),
    'page.series_data_time': Message(
        en='waiting for data',
        zh_cn='等待数据',
    ),
    'page.series_data': Message(
        en='data',
        zh_cn='数据',
    ),
    'page.series_forward': Message(
        en='forward',
        zh_cn='前向',
    ),
    'page.series_backward': Message(
        en='backward',
        zh_cn='反向',
    ),
    'page.series_step': Message(
        en='optimizer step',
        zh_cn='优化器更新',
    ),
    'page.series_hooks': Message(
        en='hooks',
        zh_cn='钩子',
    ),
    'page.series_other': Message(
        en='other',
        zh_cn='其他',
    ),
    'page.series_train_step': Message(
        en='train step',
        zh_cn='训练步',
    ),
    'page.series_lr_factor': Message(
        en='factor',
        zh_cn='系数',
    ),
    'page.no_data': Message(
        en='nothing was recorded',
        zh_cn='没有记录',
    ),
    'page.no_scale': Message(
        en='no loss scale was in use',
        zh_cn='未使用 loss scale',
    ),
    'page.drag': Message(
        en='drag to zoom, double-click to go back',
        zh_cn='拖动可放大，双击还原',
    ),
}
