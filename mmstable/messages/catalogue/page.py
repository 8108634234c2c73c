"""Labels of the frame of the report page; none has fields."""

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
    'page.state_killed': Message(
        en='killed, no end recorded',
        zh_cn='被杀死，无结束记录',
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
