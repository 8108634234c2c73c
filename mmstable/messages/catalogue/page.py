"""Every label of the report page; none has fields."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'page.title': Message(
        en='Training report',
        zh_cn='训练报告',
    ),
    'page.diagnosis': Message(
        en='Diagnosis',
        zh_cn='诊断',
    ),
    'page.charts': Message(
        en='Charts',
        zh_cn='曲线',
    ),
    'page.timeline': Message(
        en='Timeline',
        zh_cn='时间线',
    ),
    'page.incidents': Message(
        en='What happened',
        zh_cn='事件列表',
    ),
    'page.comparison': Message(
        en='Comparison',
        zh_cn='对比',
    ),
    'page.setup': Message(
        en='Setup',
        zh_cn='运行环境',
    ),
    'page.theme': Message(
        en='Light / dark',
        zh_cn='浅色 / 深色',
    ),
    'page.language': Message(
        en='Language',
        zh_cn='语言',
    ),
    'page.why': Message(
        en='Evidence',
        zh_cn='依据',
    ),
    'page.fix': Message(
        en='What to do',
        zh_cn='建议',
    ),
    'page.config': Message(
        en='Put into your config',
        zh_cn='写入配置',
    ),
    'page.command': Message(
        en='Command',
        zh_cn='命令',
    ),
    'page.copy': Message(
        en='Copy',
        zh_cn='复制',
    ),
    'page.copied': Message(
        en='Copied',
        zh_cn='已复制',
    ),
    'page.close': Message(
        en='Close',
        zh_cn='关闭',
    ),
    'page.severity_error': Message(
        en='error',
        zh_cn='错误',
    ),
    'page.severity_warning': Message(
        en='warning',
        zh_cn='警告',
    ),
    'page.severity_hint': Message(
        en='hint',
        zh_cn='提示',
    ),
    'page.severity_good': Message(
        en='good',
        zh_cn='正常',
    ),
    'page.state': Message(
        en='State',
        zh_cn='状态',
    ),
    'page.state_finished': Message(
        en='finished',
        zh_cn='已完成',
    ),
    'page.state_stopped': Message(
        en='stopped',
        zh_cn='已停止',
    ),
    'page.state_exception': Message(
        en='failed',
        zh_cn='出错',
    ),
    'page.state_running': Message(
        en='running',
        zh_cn='运行中',
    ),
    'page.state_silent': Message(
        en='no end recorded',
        zh_cn='无结束记录',
    ),
    'page.iterations': Message(
        en='Iterations',
        zh_cn='迭代',
    ),
    'page.skipped': Message(
        en='Skipped steps',
        zh_cn='跳过的步',
    ),
    'page.wasted': Message(
        en='Wasted',
        zh_cn='浪费',
    ),
    'page.starts': Message(
        en='Starts',
        zh_cn='启动次数',
    ),
    'page.rollbacks': Message(
        en='Rollbacks',
        zh_cn='回退',
    ),
    'page.last_loss': Message(
        en='Loss',
        zh_cn='当前 loss',
    ),
    'page.best_loss': Message(
        en='Best loss',
        zh_cn='最低 loss',
    ),
    'page.seconds': Message(
        en='s / iteration',
        zh_cn='秒 / 迭代',
    ),
    'page.duration': Message(
        en='Time',
        zh_cn='用时',
    ),
    'page.loss_scale': Message(
        en='Loss scale',
        zh_cn='当前 loss scale',
    ),
    'page.faults': Message(
        en='Faults',
        zh_cn='故障',
    ),
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
    'page.lane_runs': Message(
        en='runs',
        zh_cn='运行',
    ),
    'page.lane_faults': Message(
        en='faults',
        zh_cn='故障',
    ),
    'page.lane_actions': Message(
        en='interventions',
        zh_cn='干预',
    ),
    'page.lane_machine': Message(
        en='machine',
        zh_cn='机器',
    ),
    'page.lane_checkpoints': Message(
        en='checkpoints',
        zh_cn='检查点',
    ),
    'page.lane_injected': Message(
        en='injected',
        zh_cn='注入',
    ),
    'page.lane_other': Message(
        en='other',
        zh_cn='其他',
    ),
    'page.click': Message(
        en='click a mark for its story',
        zh_cn='点击标记查看详情',
    ),
    'page.pick': Message(
        en='Pick a row or a mark to see its story.',
        zh_cn='点击一行或一个标记查看详情。',
    ),
    'page.kind_step_fault': Message(
        en='bad step',
        zh_cn='异常步',
    ),
    'page.kind_fault_explained': Message(
        en='cause found',
        zh_cn='原因已查明',
    ),
    'page.kind_poisoned': Message(
        en='state not finite',
        zh_cn='状态含 NaN/Inf',
    ),
    'page.kind_replicas_diverged': Message(
        en='ranks differ',
        zh_cn='各 rank 不一致',
    ),
    'page.kind_intervention': Message(
        en='intervention',
        zh_cn='干预',
    ),
    'page.kind_out_of_memory': Message(
        en='out of memory',
        zh_cn='显存不足',
    ),
    'page.kind_memory_alarm': Message(
        en='memory alarm',
        zh_cn='内存警报',
    ),
    'page.kind_hang': Message(
        en='hang',
        zh_cn='卡住',
    ),
    'page.kind_low_headroom': Message(
        en='close to the range',
        zh_cn='接近范围上限',
    ),
    'page.kind_injected_fault': Message(
        en='injected fault',
        zh_cn='注入的故障',
    ),
    'page.kind_live_change': Message(
        en='live change',
        zh_cn='在线修改',
    ),
    'page.kind_iteration_profile': Message(
        en='profile',
        zh_cn='性能剖析',
    ),
    'page.kind_checkpoint': Message(
        en='checkpoint',
        zh_cn='检查点',
    ),
    'page.kind_start': Message(
        en='start',
        zh_cn='启动',
    ),
    'page.kind_resume': Message(
        en='resumed',
        zh_cn='续训',
    ),
    'page.kind_restart': Message(
        en='restarted',
        zh_cn='自动重启',
    ),
    'page.kind_end': Message(
        en='end',
        zh_cn='结束',
    ),
    'page.fault_overflow': Message(
        en='overflow',
        zh_cn='溢出',
    ),
    'page.fault_nan_loss': Message(
        en='NaN loss',
        zh_cn='loss 为 NaN',
    ),
    'page.fault_nan_grad': Message(
        en='NaN gradient',
        zh_cn='梯度为 NaN',
    ),
    'page.fault_poisoned': Message(
        en='poisoned state',
        zh_cn='状态被污染',
    ),
    'page.fault_spike': Message(
        en='spike',
        zh_cn='尖峰',
    ),
    'page.fault_oom': Message(
        en='out of memory',
        zh_cn='显存不足',
    ),
    'page.action_warn': Message(
        en='warned',
        zh_cn='警告',
    ),
    'page.action_skip': Message(
        en='skipped',
        zh_cn='跳过',
    ),
    'page.action_lower_lr': Message(
        en='lowered the learning rate',
        zh_cn='降低学习率',
    ),
    'page.action_rollback': Message(
        en='rolled back',
        zh_cn='回退',
    ),
    'page.action_stop': Message(
        en='stopped',
        zh_cn='停止',
    ),
    'page.verdict_fp16_overflow': Message(
        en='fp16 overflow',
        zh_cn='fp16 溢出',
    ),
    'page.verdict_bad_input': Message(
        en='bad input',
        zh_cn='输入异常',
    ),
    'page.verdict_bad_weights': Message(
        en='bad weights',
        zh_cn='权重异常',
    ),
    'page.verdict_singular_point': Message(
        en='singular point',
        zh_cn='奇异点',
    ),
    'page.verdict_exploding': Message(
        en='exploding values',
        zh_cn='数值爆炸',
    ),
    'page.verdict_not_reproduced': Message(
        en='not reproduced',
        zh_cn='无法复现',
    ),
    'page.verdict_not_examined': Message(
        en='not examined',
        zh_cn='未检查',
    ),
    'page.iteration': Message(
        en='iteration',
        zh_cn='迭代',
    ),
    'page.when': Message(
        en='time',
        zh_cn='时间',
    ),
    'page.kind': Message(
        en='kind',
        zh_cn='类型',
    ),
    'page.what': Message(
        en='what',
        zh_cn='内容',
    ),
    'page.verdict': Message(
        en='Verdict',
        zh_cn='结论',
    ),
    'page.story': Message(
        en='In words',
        zh_cn='说明',
    ),
    'page.source_line': Message(
        en='Source line',
        zh_cn='代码行',
    ),
    'page.module': Message(
        en='Module',
        zh_cn='模块',
    ),
    'page.operation': Message(
        en='Operation',
        zh_cn='算子',
    ),
    'page.culprits': Message(
        en='Culprits',
        zh_cn='异常参数',
    ),
    'page.samples': Message(
        en='Samples',
        zh_cn='样本',
    ),
    'page.chain': Message(
        en='On the way',
        zh_cn='传播路径',
    ),
    'page.notes': Message(
        en='Limits',
        zh_cn='局限',
    ),
    'page.replay': Message(
        en='Replay it',
        zh_cn='回放',
    ),
    'page.outcome': Message(
        en='Outcome',
        zh_cn='结果',
    ),
    'page.scale': Message(
        en='Loss scale',
        zh_cn='loss scale 变化',
    ),
    'page.loss_terms': Message(
        en='Loss terms',
        zh_cn='loss 项',
    ),
    'page.origins': Message(
        en='Began on',
        zh_cn='起源',
    ),
    'page.reason': Message(
        en='Reason',
        zh_cn='原因',
    ),
    'page.restored': Message(
        en='Back to iteration',
        zh_cn='回到迭代',
    ),
    'page.lr_factor': Message(
        en='Learning rate times',
        zh_cn='学习率系数',
    ),
    'page.file': Message(
        en='File',
        zh_cn='文件',
    ),
    'page.shapes': Message(
        en='Shapes',
        zh_cn='形状',
    ),
    'page.rung': Message(
        en='What helped',
        zh_cn='有效办法',
    ),
    'page.phase': Message(
        en='Phase',
        zh_cn='阶段',
    ),
    'page.other': Message(
        en='Everything recorded',
        zh_cn='全部记录',
    ),
    'page.all': Message(
        en='all',
        zh_cn='全部',
    ),
    'page.more': Message(
        en='more not shown',
        zh_cn='更多未显示',
    ),
    'page.metric': Message(
        en='Figure',
        zh_cn='指标',
    ),
    'page.left_out': Message(
        en='Not readable',
        zh_cn='无法读取',
    ),
    'page.better': Message(
        en='better',
        zh_cn='更好',
    ),
    'page.worse': Message(
        en='worse',
        zh_cn='更差',
    ),
    'page.host': Message(
        en='Host',
        zh_cn='主机',
    ),
    'page.device': Message(
        en='Device',
        zh_cn='设备',
    ),
    'page.versions': Message(
        en='Versions',
        zh_cn='版本',
    ),
    'page.seed': Message(
        en='Seed',
        zh_cn='随机种子',
    ),
    'page.wrapper': Message(
        en='Optimizer wrapper',
        zh_cn='优化器封装',
    ),
    'page.clip': Message(
        en='Clipping',
        zh_cn='梯度裁剪',
    ),
    'page.ranks': Message(
        en='Ranks',
        zh_cn='rank 数',
    ),
    'page.config_sha': Message(
        en='Config',
        zh_cn='配置',
    ),
    'page.generated': Message(
        en='Made',
        zh_cn='生成时间',
    ),
    'page.live': Message(
        en='live',
        zh_cn='实时',
    ),
    'page.offline': Message(
        en='not reachable',
        zh_cn='无法连接',
    ),
}
