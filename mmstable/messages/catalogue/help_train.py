"""The help of the commands that train."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    # mmstable train.
    'help.train.work_dir': Message(
        en='folder for logs and checkpoints; '
        'work_dirs/<name of the config> if neither this nor the config says',
        zh_cn='存放日志和 checkpoint 的目录；此处和配置都未指定时为 '
        'work_dirs/<配置名>',
    ),
    'help.train.as_is': Message(
        en='train the config as it is: no class is made safe, no hook added',
        zh_cn='按配置原样训练：不替换任何类，也不添加任何 hook',
    ),
    'help.preset': Message(
        en='how the config is protected: default (a healthy run stays what '
        'it is), safe and ultra_safe (clip harder, act earlier), '
        'observe_only (tell, and change nothing of the training)',
        zh_cn='保护配置的方式：default（正常的训练保持不变），safe 和 '
        'ultra_safe（裁剪更严，干预更早），observe_only（只报告，不改变训练）',
    ),
    'help.memory': Message(
        en='take less memory: bf16 (not conservative), activations of the '
        'backbone computed again, smaller batches with accumulation',
        zh_cn='减少内存占用：bf16（conservative 除外）、重算 backbone 的激活、'
        '以梯度累积配合更小的 batch',
    ),
    'help.train.force': Message(
        en='train although another run seems to use the work dir',
        zh_cn='即使工作目录似乎正被另一个训练使用，也继续训练',
    ),
    'help.train.amp': Message(
        en='train in mixed precision with mmstable.SafeAmpOptimWrapper; '
        'in fp16 if neither this nor the config says',
        zh_cn='用 mmstable.SafeAmpOptimWrapper 进行混合精度训练；'
        '此处和配置都未指定时为 fp16',
    ),
    'help.train.auto_scale_lr': Message(
        en='scale the learning rate by the batch size of all ranks over '
        'auto_scale_lr.base_batch_size of the config',
        zh_cn='按所有 rank 的总 batch size 与配置中 '
        'auto_scale_lr.base_batch_size 之比缩放学习率',
    ),
    'help.train.max_restarts': Message(
        en='start the run again up to N times after a crash, a hang or a '
        'kill, from its newest good checkpoint',
        zh_cn='崩溃、卡住或被杀死之后，从最新的完好 checkpoint 重新启动，'
        '最多 N 次',
    ),
    'help.train.seed': Message(
        en='seed of all generators', zh_cn='所有随机数生成器的种子'
    ),
    'help.train.deterministic': Message(
        en='let torch use deterministic algorithms only',
        zh_cn='让 torch 只使用确定性算法',
    ),
    'help.train.no_validate': Message(
        en='do not validate during training', zh_cn='训练期间不做验证'
    ),
    'help.train.check': Message(
        en='say all that `mmstable check` would say, and train only if there '
        'are no errors; without it the worst is told in a few lines',
        zh_cn='先完整输出 `mmstable check` 的检查结果，没有错误才训练；'
        '不给出时只用几行说明最严重的问题',
    ),
    'help.train.resume': Message(
        en='resume from a checkpoint; from the newest good one of the work '
        'dir by default',
        zh_cn='从 checkpoint 恢复训练；默认用工作目录中最新的完好 checkpoint',
    ),
    'help.train.resume_from': Message(
        en='the same; a folder stands for its newest good checkpoint',
        zh_cn='同上；给出目录时，用其中最新的完好 checkpoint',
    ),
    'help.train.load_from': Message(
        en='start a new run with the weights of this checkpoint',
        zh_cn='以此 checkpoint 的权重开始新的训练',
    ),
    'help.train.before_iter': Message(
        en='resume from the newest good checkpoint before iteration N',
        zh_cn='从第 N 次迭代之前最新的完好 checkpoint 恢复',
    ),
    'help.train.override_lr_schedule': Message(
        en='use the learning rate, the other numbers of the optimizer and '
        'the schedule of the config, moved to where the run is, not those '
        'in the checkpoint',
        zh_cn='使用配置中的学习率、优化器的其他数值和学习率计划（推进到当前'
        '进度），而不是 checkpoint 中的',
    ),
    'help.train.trust_checkpoint': Message(
        en='load the named checkpoint even if that runs code in it',
        zh_cn='即使会运行其中的代码，也加载指定的 checkpoint',
    ),
    'help.train.allow_partial': Message(
        en='resume although up to this share of the weights does not fit '
        'the model; 0.5 without a number',
        zh_cn='即使有不超过此比例的权重与模型不符，也恢复训练；不写数字时为 '
        '0.5',
    ),
    'help.train.launcher': Message(
        en='what started the processes of a distributed run',
        zh_cn='分布式训练的进程由什么启动',
    ),
    'help.train.gpu_ids': Message(en='GPUs to use', zh_cn='要使用的 GPU'),
    'help.train.gpu_id': Message(
        en='the one GPU to use', zh_cn='要使用的那一块 GPU'
    ),
    'help.train.probe': Message(
        en='let `mmstable probe` look into the run, and `probing`, if it is '
        'installed; the latter lets every user of the machine run code as '
        'you',
        zh_cn='允许 `mmstable probe` 查看训练；如果安装了 `probing`，也允许它'
        '查看，但后者会让本机的每个用户都能以你的身份执行代码',
    ),
    # mmstable dist-train.
    'help.dist.description': Message(
        en='Train on several processes of this machine, or of several '
        'machines: torchrun starts mmstable train on each. Options of '
        'mmstable train come after N.',
        zh_cn='在本机或多台机器上用多个进程训练：由 torchrun 启动各个 '
        'mmstable train。mmstable train 的选项写在 N 之后。',
    ),
    'help.dist.processes': Message(
        en='processes on this machine, one for each GPU as a rule',
        zh_cn='本机的进程数，通常每块 GPU 一个',
    ),
    'help.dist.options': Message(
        en='options of mmstable train, and those below',
        zh_cn='mmstable train 的选项，以及下列选项',
    ),
    'help.dist.nnodes': Message(
        en='number of machines; NNODES, or 1, by default',
        zh_cn='机器数；默认取环境变量 NNODES，否则为 1',
    ),
    'help.dist.node_rank': Message(
        en='which of them this is, from 0 on; NODE_RANK, or 0, by default',
        zh_cn='本机的序号，从 0 开始；默认取环境变量 NODE_RANK，否则为 0',
    ),
    'help.dist.master_addr': Message(
        en='the first machine; MASTER_ADDR, or 127.0.0.1, by default',
        zh_cn='第一台机器；默认取环境变量 MASTER_ADDR，否则为 127.0.0.1',
    ),
    'help.dist.port': Message(
        en='where all processes meet; PORT, or 29500, by default',
        zh_cn='各进程会合的端口；默认取环境变量 PORT，否则为 29500',
    ),
}
