"""Labels of faults and interventions on the report page; none has fields."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
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
    'page.kind_checkpoint_failed': Message(
        en='checkpoint not saved',
        zh_cn='checkpoint 未保存',
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
}
