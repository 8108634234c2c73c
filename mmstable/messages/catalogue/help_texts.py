"""What ``--help`` prints, and how a command line is refused."""

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
    'help.probe.description': Message(
        en='Ask a run on this machine that has LiveProbeHook (`mmstable train '
        'CONFIG --probe`). Recipes: hang: where all ranks are, and all '
        'stacks. nan: the newest bad steps. slow: the speed, and the slowest '
        'modules (needs `probing`). memory: of each rank with its workers. '
        'lr, clip: show, or change until the run ends. checkpoint, save, '
        'stop: the newest one, one now, one and the end. ranks, events, '
        'status, stacks; sql "SELECT ..." (needs `probing`).',
        zh_cn='查询本机上启用了 LiveProbeHook 的训练（`mmstable train CONFIG '
        '--probe`）。可用的查询：hang：各 rank 的位置与全部调用栈。'
        'nan：最近的坏步。slow：速度与最慢的模块（需要 `probing`）。'
        'memory：各 rank 及其 worker 的内存。lr、clip：查看，或修改直到训练'
        '结束。checkpoint、save、stop：最新的 checkpoint、立即保存、保存并'
        '结束。ranks、events、status、stacks；sql "SELECT ..."（需要 '
        '`probing`）。',
    ),
    'help.probe.target': Message(
        en='a process of the run, one that has started it, or its work '
        'directory',
        zh_cn='训练进程的进程号、启动它的进程的进程号，或其工作目录',
    ),
    'help.probe.recipe': Message(
        en='what to ask: {names}; status by default',
        zh_cn='要查询的内容：{names}；默认为 status',
    ),
    'help.probe.value': Message(
        en='for lr: 0.001, or x0.1 for a factor; for clip: the largest norm; '
        'for sql: the query',
        zh_cn='用于 lr：0.001，或以 x0.1 表示系数；用于 clip：最大范数；'
        '用于 sql：查询语句',
    ),
    'help.probe.rank': Message(
        en='ask this rank only', zh_cn='只查询这个 rank'
    ),
    'help.probe.wrapper': Message(
        en='change this optimizer wrapper only, if there are several',
        zh_cn='有多个优化器封装时，只修改这一个',
    ),
    'help.train.probe': Message(
        en='let `mmstable probe` look into the run, and `probing`, if it is '
        'installed; the latter lets every user of the machine run code as '
        'you',
        zh_cn='允许 `mmstable probe` 查看训练；如果安装了 `probing`，也允许它'
        '查看，但后者会让本机的每个用户都能以你的身份执行代码',
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
    'command.protect': Message(
        en='write a protected version of a config, for any train script',
        zh_cn='生成受保护的配置，可用于任何训练脚本',
    ),
    'help.protect.description': Message(
        en='Write a config that inherits from CONFIG, and changes what '
        '`mmstable train` would change: safe classes, and hooks that tell, '
        'explain and save.',
        zh_cn='生成一个继承 CONFIG 的配置，其改动与 `mmstable train` 所作的'
        '相同：安全的类，以及负责报告、解释和保存的 hook。',
    ),
    'help.protect.output': Message(
        en='where to write it; to stdout by default',
        zh_cn='写入的文件；默认输出到 stdout',
    ),
    'help.protect.force': Message(
        en='overwrite a file that exists', zh_cn='覆盖已存在的文件'
    ),
    'help.quiet': Message(
        en='print results and errors only, no notes and no progress',
        zh_cn='只输出结果和错误，不输出说明和进度',
    ),
    'command.init': Message(
        en='write a commented config to start from',
        zh_cn='生成带注释的起步配置',
    ),
    'help.init.description': Message(
        en='Write a config next to CONFIG that inherits from it and shows the '
        'settings that people change most, all commented out. Without '
        'CONFIG, one that trains the demo of mmstable.',
        zh_cn='在 CONFIG 旁边生成一个继承它的配置，列出最常改动的设置，全部'
        '处于注释状态。不给 CONFIG 时，生成训练 mmstable 演示的配置。',
    ),
    'help.init.config': Message(
        en='your config; none for the demo', zh_cn='你的配置；不给则用演示'
    ),
    'help.init.output': Message(
        en='where to write it; by default next to CONFIG',
        zh_cn='写入的文件；默认放在 CONFIG 旁边',
    ),
    'command.completion': Message(
        en='print a script that completes commands and options in a shell',
        zh_cn='输出 shell 补全脚本，可补全命令和选项',
    ),
    'help.completion.description': Message(
        en='Print the script. For bash: eval "$(mmstable completion bash)"; '
        'for zsh: eval "$(mmstable completion zsh)"; '
        'for fish: mmstable completion fish > '
        '~/.config/fish/completions/mmstable.fish',
        zh_cn='输出脚本。bash：eval "$(mmstable completion bash)"；'
        'zsh：eval "$(mmstable completion zsh)"；'
        'fish：mmstable completion fish > '
        '~/.config/fish/completions/mmstable.fish',
    ),
    'help.completion.shell': Message(en='your shell', zh_cn='你的 shell'),
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
    # mmstable dist-train.
    'help.dist.description': Message(
        en='Train on several processes of this machine, or of several '
        'machines: torchrun starts mmstable train on each. Its own options '
        'come before CONFIG, those of mmstable train after N.',
        zh_cn='在本机或多台机器上用多个进程训练：由 torchrun 启动各个 '
        'mmstable train。本命令的选项写在 CONFIG 之前，mmstable train 的选项'
        '写在 N 之后。',
    ),
    'help.dist.processes': Message(
        en='processes on this machine, one for each GPU as a rule',
        zh_cn='本机的进程数，通常每块 GPU 一个',
    ),
    'help.dist.options': Message(
        en='options of mmstable train', zh_cn='mmstable train 的选项'
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
    # mmstable check.
    'help.check.description': Message(
        en='Say what would go wrong in a training, before it starts. The '
        'config is run, as in training; nothing is built from it without '
        '--deep. Exit codes: 0 nothing but hints, {warnings} warnings, '
        '{errors} errors, 2 the config cannot be read.',
        zh_cn='在训练开始之前指出会出什么问题。配置会像训练时一样被执行；没有 '
        '--deep 时不会用它构建任何对象。退出码：0 只有提示，{warnings} '
        '有警告，{errors} 有错误，2 无法读取配置。',
    ),
    'help.check.ranks': Message(
        en='processes that will train; WORLD_SIZE, or one for each GPU here, '
        'by default',
        zh_cn='将要训练的进程数；默认取环境变量 WORLD_SIZE，否则本机每块 GPU '
        '一个',
    ),
    'help.check.deep': Message(
        en='also build the model and the optimizer, and do one step with two '
        'samples on the CPU',
        zh_cn='同时构建模型和优化器，并在 CPU 上用两个样本训练一步',
    ),
    'help.check.fix': Message(
        en='write a config that inherits from this one, and mends what can '
        'be mended',
        zh_cn='写出一个继承自该配置的新配置，修正其中可以修正的问题',
    ),
    'help.check.format': Message(
        en='how to print it; github is for annotations of its actions',
        zh_cn='输出格式；github 用于 GitHub Actions 的注释',
    ),
    'help.check.list': Message(
        en='list all rules, and stop', zh_cn='列出所有规则后退出'
    ),
    # mmstable check-data.
    'help.data.description': Message(
        en='Run the data of a config through its pipeline, with its own '
        'workers, and tell what is wrong with it. Exit codes: 0 no errors, '
        '{bad} errors in the data, 2 an error in the config, 1 a worker '
        'failed, 130 interrupted; what is known by then is told.',
        zh_cn='用配置自己的 worker 让数据通过其 pipeline，并指出其中的问题。'
        '退出码：0 没有错误，{bad} 数据有错误，2 配置有错误，1 worker 失败，'
        '130 被中断；此前的检查结果仍会输出。',
    ),
    'help.data.split': Message(
        en='which data; train by default', zh_cn='检查哪部分数据；默认 train'
    ),
    'help.data.against': Message(
        en='find samples that are in this split as well, by their content',
        zh_cn='按内容查找同时出现在这部分数据中的样本',
    ),
    'help.data.max': Message(
        en='look at no more than N samples, spread over all',
        zh_cn='最多检查 N 个样本，均匀分布于全部数据',
    ),
    'help.data.workers': Message(
        en='worker processes; those of the config by default',
        zh_cn='worker 进程数；默认与配置相同',
    ),
    'help.data.ignore_index': Message(
        en='the label of pixels that do not count; that of the config, or '
        '255, by default',
        zh_cn='不计入的像素的标签；默认取配置中的值，否则为 255',
    ),
    'help.data.num_classes': Message(
        en='how many classes there are; those of the data set by default',
        zh_cn='类别数；默认取数据集的类别数',
    ),
    'help.data.json': Message(
        en='where to write all that was found',
        zh_cn='把全部检查结果写入此文件',
    ),
    'help.data.skip_list': Message(
        en='where to write the samples with errors, for SkipSamples',
        zh_cn='把有错误的样本写入此文件，供 SkipSamples 使用',
    ),
    # mmstable inspect.
    'help.inspect.description': Message(
        en='Say what is in a checkpoint, or in what two of them differ. '
        'Files are read as data: no code in them is run.',
        zh_cn='查看 checkpoint 的内容，或比较两个 checkpoint。文件只作为数据'
        '读取，不运行其中的任何代码。',
    ),
    'help.inspect.other': Message(
        en='another one, to compare the first with',
        zh_cn='用来与第一个比较的另一个 checkpoint',
    ),
    # mmstable replay.
    'help.replay.description': Message(
        en='Do the training step of a fault again, on the CPU of this '
        'machine, and show where its first bad value comes from. The bundle '
        'is read as data; only the config that you name, or trust, is run. '
        'Exit codes: 0 it happens again, {not_again} it does not, 3 the '
        'bundle or checkpoint is damaged or something else, 2 another '
        'mistake, 1 the step cannot be done again.',
        zh_cn='在本机 CPU 上重放出错的训练步，找出第一个异常值的来源。bundle '
        '只作为数据读取；只运行您指定或信任的配置。退出码：0 再次出现，'
        '{not_again} 没有再出现，3 bundle 或 checkpoint 已损坏或不是所需的'
        '文件，2 其他错误，1 无法重放。',
    ),
    'help.replay.bundle': Message(
        en='folder, as stability/faults/iter_N',
        zh_cn='目录，例如 stability/faults/iter_N',
    ),
    'help.replay.config': Message(
        en='the config that builds the model', zh_cn='用于构建模型的配置'
    ),
    'help.replay.trust_config': Message(
        en='use the config in the bundle, which is code: for bundles of '
        'your own',
        zh_cn='使用 bundle 中的配置（它是代码）：仅用于您自己的 bundle',
    ),
    'help.replay.checkpoint': Message(
        en='use these weights: does it happen there, too?',
        zh_cn='改用这些权重：异常是否同样出现？',
    ),
    'help.replay.dtype': Message(
        en='what to compute in; as in the run by default',
        zh_cn='计算精度；默认与原训练相同',
    ),
    'help.replay.sample': Message(
        en='use only this sample of the batch, counted from 0; may be given '
        'several times',
        zh_cn='只用 batch 中的这个样本，从 0 数起；可多次给出',
    ),
    'help.replay.pdb': Message(
        en='stop in the debugger where the bad value is born',
        zh_cn='在异常值产生之处进入调试器',
    ),
    # mmstable upgrade.
    'help.upgrade.description': Message(
        en='Translate a config of mmcv 1.x (mmseg 0.x, mmdet 2.x, ...) to '
        'mmengine. What became of each key is told on stderr. Exit codes: 0 '
        'all translated or nothing to do, {incomplete} translated but some '
        'settings have no counterpart, 2 an error.',
        zh_cn='把 mmcv 1.x（mmseg 0.x、mmdet 2.x 等）的配置转换为 mmengine '
        '配置。每个键的去向输出到 stderr。退出码：0 全部转换或无需转换，'
        '{incomplete} 已转换但部分设置没有对应项，2 出错。',
    ),
    'help.upgrade.config': Message(
        en='config file, with or without bases',
        zh_cn='配置文件，可含 _base_',
    ),
    'help.upgrade.output': Message(
        en='where to write the new config; on stdout if not given',
        zh_cn='新配置写入此文件；未给出时输出到 stdout',
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
