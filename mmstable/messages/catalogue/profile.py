"""About training that is slow."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'profile.line': Message(
        en='Iter {iteration}: {milliseconds:.1f} ms an iteration (mean of '
        '{count}): {phases}. {verdict}',
        zh_cn='Iter {iteration}: 每次迭代 {milliseconds:.1f} 毫秒（{count} '
        '次的平均）：{phases}。{verdict}',
    ),
    'profile.part': Message(en='{name} {share}', zh_cn='{name} {share}'),
    'profile_phase.data': Message(en='data', zh_cn='数据'),
    'profile_phase.forward': Message(en='forward', zh_cn='前向'),
    'profile_phase.backward': Message(en='backward', zh_cn='反向'),
    'profile_phase.step': Message(en='step', zh_cn='优化器更新'),
    'profile_phase.train_step': Message(
        en='compiled training step', zh_cn='编译后的训练步'
    ),
    'profile_phase.hooks': Message(en='hooks', zh_cn='各个 hook'),
    'profile_phase.other': Message(en='other', zh_cn='其他'),
    'profile.nothing': Message(
        en='Nothing stands out.', zh_cn='没有突出的瓶颈。'
    ),
    'profile.data': Message(
        en='{share} of the time waits for data: {why}.',
        zh_cn='{share} 的时间在等待数据：{why}。',
    ),
    'profile_data.busy': Message(
        en='workers are busy on {cores:core|cores} (raise num_workers '
        '{workers} -> {wanted})',
        zh_cn='worker 一直繁忙，可用 CPU 核心 {cores} 个（将 num_workers 从 '
        '{workers} 提高到 {wanted}）',
    ),
    'profile_data.cores': Message(
        en='{workers:worker is|workers are} busy, and {cores:core is|cores '
        'are} all there is; make the transforms cheaper, prepare the data '
        'once, or take a machine with more cores',
        zh_cn='{workers} 个 worker 一直繁忙，而可用的 CPU 核心只有 {cores} '
        '个；请简化数据变换、预先处理好数据，或换用核心更多的机器',
    ),
    'profile_data.disk': Message(
        en='workers are idle on disk{where}; copy the data to a local disk or '
        'into few large files, or raise num_workers {workers} -> {wanted}',
        zh_cn='worker 空闲，在等待磁盘{where}；请把数据放到本地磁盘或合并成'
        '少量大文件，或将 num_workers 从 {workers} 提高到 {wanted}',
    ),
    'profile_data.idle': Message(
        en='workers are idle{where}, they compute nothing and wait for a '
        'network, a lock or a sleep in the data set; look there, or raise '
        'num_workers {workers} -> {wanted}',
        zh_cn='worker 空闲{where}，没有在计算，而是在等待网络、锁或数据集中的'
        ' sleep；请检查数据集，或将 num_workers 从 {workers} 提高到 {wanted}',
    ),
    'profile_data.kernel': Message(en=' ({function})', zh_cn='（{function}）'),
    'profile_data.starting': Message(
        en='{workers:worker is|workers are} started anew in every pass over '
        'the data; set persistent_workers=True',
        zh_cn='每遍历一次数据都会重新启动 {workers} 个 worker；请设置 '
        'persistent_workers=True',
    ),
    'profile_data.pause': Message(
        en="mmengine's IterBasedTrainLoop sleeps for 2 s after every pass "
        "over the data; type='mmstable.SafeIterBasedTrainLoop' does not",
        zh_cn='mmengine 的 IterBasedTrainLoop 每遍历一次数据都会休眠 2 秒；'
        "type='mmstable.SafeIterBasedTrainLoop' 不会",
    ),
    'profile_data.main': Message(
        en='num_workers=0 reads it in the training process, which computes '
        'for {busy} of that time and waits for the rest; set '
        'num_workers={wanted} and persistent_workers=True',
        zh_cn='num_workers=0 时由训练进程自己读取，其中 {busy} 的时间在计算，'
        '其余在等待；请设置 num_workers={wanted} 与 persistent_workers=True',
    ),
    'profile_data.unknown': Message(
        en='nobody was seen to work on it (num_workers={workers})',
        zh_cn='未能观察到由谁读取（num_workers={workers}）',
    ),
    'profile.hook': Message(
        en='The hook {name} takes {share} of the time.',
        zh_cn='hook {name} 占用 {share} 的时间。',
    ),
    'profile.module': Message(
        en='The forward pass of {name} takes {share} of the time.',
        zh_cn='{name} 的前向占用 {share} 的时间。',
    ),
    'profile.backward': Message(
        en='The backward pass takes {share} of the time, where two thirds are '
        'usual: activation checkpointing computes again there, ranks wait for '
        'each other, and fp16 is slow on a CPU.',
        zh_cn='反向占用 {share} 的时间，通常约为三分之二：激活重计算、rank '
        '之间的等待都发生在反向中，另外 fp16 在 CPU 上很慢。',
    ),
    'profile.step': Message(
        en='The optimizer takes {share} of the time: try fused=True, or '
        'accumulative_counts.',
        zh_cn='优化器更新占用 {share} 的时间：可尝试 fused=True，或 '
        'accumulative_counts。',
    ),
    'profile.straggler': Message(
        en='Rank {rank} comes {milliseconds:.0f} ms later than the others in '
        'every iteration, by its {part}; they wait for it ({share} of the '
        'time).',
        zh_cn='rank {rank} 每次迭代都比其他 rank 晚 {milliseconds:.0f} 毫秒，'
        '慢在{part}；其他 rank 在等它（占 {share} 的时间）。',
    ),
    'profile.validation': Message(
        en='Validation takes {share} of the time: raise val_interval, or '
        'validate on fewer samples.',
        zh_cn='验证占用 {share} 的时间：可增大 val_interval，或减少验证样本。',
    ),
    'profile.rare': Message(
        en='{share} of the time goes to what no sampled iteration has: '
        '{checkpoints:checkpoint was|checkpoints were} saved and '
        '{epochs:epoch was|epochs were} begun meanwhile; save less often, '
        'set persistent_workers=True, or look for other programs on this '
        'machine.',
        zh_cn='{share} 的时间花在采样迭代之外：其间保存了 {checkpoints} 个 '
        'checkpoint，开始了 {epochs} 个 epoch；可减少保存次数、设置 '
        'persistent_workers=True，或检查机器上的其他程序。',
    ),
    'profile.rule': Message(
        en='less than `interval`, which is {interval}',
        zh_cn='小于 `interval`（{interval}）',
    ),
    'profile.compiled': Message(
        en='IterProfileHook: the model is compiled, and looking into it would '
        'compile it again; its training step is measured as a whole.',
        zh_cn='IterProfileHook：模型已编译，检查其内部会触发重新编译，因此只'
        '测量整个训练步。',
    ),
    'command.profile': Message(
        en='measure where the time of an iteration goes',
        zh_cn='测量一次迭代的时间花在哪里',
    ),
    'help.profile.description': Message(
        en='Train a few iterations in a temporary folder, and tell what they '
        'spend their time on, what makes them slow, and what to change. No '
        'checkpoint is read or written. A Chrome trace is left for '
        'chrome://tracing or ui.perfetto.dev.',
        zh_cn='在临时目录中训练若干次迭代，说明时间花在哪里、为什么慢、该改什么。'
        '不读取也不写入 checkpoint。另外留下一份 Chrome trace，可用 '
        'chrome://tracing 或 ui.perfetto.dev 打开。',
    ),
    'help.profile.iters': Message(
        en='iterations to measure (default: {default})',
        zh_cn='测量的迭代次数（默认：{default}）',
    ),
    'help.profile.warmup': Message(
        en='iterations before that (default: {default})',
        zh_cn='测量之前的预热迭代次数（默认：{default}）',
    ),
    'help.profile.depth': Message(
        en="how deep to look into the model, as 2 for 'backbone.layer3' "
        '(default: {default})',
        zh_cn='深入模型的层数，例如 2 对应 backbone.layer3（默认：{default}）',
    ),
    'help.profile.work_dir': Message(
        en='where the trace goes (default: profile/ below the work_dir of '
        'the config)',
        zh_cn='trace 的存放目录（默认：配置的 work_dir 下的 profile/）',
    ),
    'help.profile.json': Message(
        en='write the figures to this file, too',
        zh_cn='同时把数值写入该文件',
    ),
    'profile.begins': Message(
        en='training {warmup} iterations to warm up, {iters} to measure and '
        '{traced} to trace, in a temporary folder',
        zh_cn='在临时目录中训练：预热 {warmup} 次迭代，测量 {iters} 次，'
        '追踪 {traced} 次',
    ),
    'profile.title': Message(
        en='an iteration: {milliseconds:.1f} ms, mean of {count}',
        zh_cn='每次迭代：{milliseconds:.1f} 毫秒，{count} 次的平均',
    ),
    'profile_column.what': Message(en='what', zh_cn='项目'),
    'profile_column.milliseconds': Message(en='ms', zh_cn='毫秒'),
    'profile_column.share': Message(en='share', zh_cn='占比'),
    'profile_table.hook': Message(en='hook {name}', zh_cn='{name}（hook）'),
    'profile_table.module': Message(
        en='forward of {name}', zh_cn='{name} 的前向'
    ),
    'profile_table.data_workers': Message(
        en='num_workers={workers}, {cores:core|cores} for this process.',
        zh_cn='num_workers={workers}，本进程可用 CPU 核心 {cores} 个。',
    ),
    'profile_table.synchronized': Message(
        en='The device was waited for at every boundary, so that times are '
        'put down to who causes them; without that, iterations are a bit '
        'faster.',
        zh_cn='在每个边界都等待了设备，使时间归于真正的来源；不等待时，迭代会'
        '略快一些。',
    ),
    'profile_table.trace': Message(
        en='Chrome trace: {path} (chrome://tracing or ui.perfetto.dev)',
        zh_cn='Chrome trace：{path}（用 chrome://tracing 或 ui.perfetto.dev '
        '打开）',
    ),
    'profile.too_few': Message(
        en='training ended before all iterations were measured; is there '
        'data, and does the train loop train?',
        zh_cn='尚未测完所有迭代，训练就已结束；请检查是否有数据，以及训练循环'
        '是否真的在训练。',
    ),
    'profile.no_training': Message(
        en='the config has no `train_cfg`, so there is no training to measure',
        zh_cn='配置中没有 `train_cfg`，没有可以测量的训练',
    ),
}
