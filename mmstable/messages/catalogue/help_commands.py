"""The help of the other commands."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    # mmstable probe.
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
    # mmstable protect.
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
    # mmstable init.
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
    # mmstable completion.
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
}
