"""About looking into a run while it runs."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'probe.opened': Message(
        en='LiveProbeHook: EVERY user of this machine can now run code as you '
        'in this process, through the socket of `probing`, which does not '
        'ask who is there. Use it only on machines whose users you trust, or '
        'set use_probing=False: `mmstable probe` works without.',
        zh_cn='LiveProbeHook: 现在本机的每个用户都能以你的身份在此进程中执行'
        '代码：`probing` 的 socket 不检查连接者是谁。请只在用户可信的机器上使'
        '用，'
        '或设置 use_probing=False：没有它 `mmstable probe` 也能工作。',
    ),
    'probe.not_installed': Message(
        en='LiveProbeHook: `probing` is not installed; only `mmstable probe` '
        'works, without SQL and code. Install it with `pip install '
        'mmstable[probe]`.',
        zh_cn='LiveProbeHook: 未安装 `probing`，只能使用 `mmstable probe`，'
        '不支持 SQL 和执行代码。安装命令：`pip install mmstable[probe]`。',
    ),
    'probe.listens': Message(
        en='LiveProbeHook: look into this run with `mmstable probe {folder}`; '
        'its own socket is open to you only.',
        zh_cn='LiveProbeHook: 可用 `mmstable probe {folder}` 查看本次训练；'
        '它自己的 socket 只对你本人开放。',
    ),
    'probe.no_socket': Message(
        en='LiveProbeHook: `mmstable probe` will not find this run: no socket '
        'can be made for it ({error}). The environment variable '
        'MMSTABLE_PROBE_DIR names another folder.',
        zh_cn='LiveProbeHook: `mmstable probe` 将找不到本次训练：无法为它建立 '
        'socket（{error}）。可用环境变量 MMSTABLE_PROBE_DIR 指定其他文件夹。',
    ),
    'probe.kept': Message(
        en='LiveProbeHook: this run keeps what was changed before it was '
        'resumed: learning rates [{factors}], clip limits [{clips}].',
        zh_cn='LiveProbeHook: 恢复的训练保留此前所做的修改：学习率 '
        '[{factors}]，裁剪上限 [{clips}]。',
    ),
    'probe.ran_at_once': Message(
        en='[mmstable: no step ended within {seconds:g} s, so this was run at '
        'once, on another thread than the training. A learning rate that was '
        'changed is not kept as a factor.]',
        zh_cn='[mmstable: {seconds:g} 秒内没有任何一步结束，因此代码已在训练'
        '线程之外的线程上立即执行。对学习率的修改不会作为系数保留。]',
    ),
    'probe.still_running': Message(
        en='mmstable: code that was sent before is still running',
        zh_cn='mmstable: 之前发送的代码仍在执行',
    ),
    'probe.lr_refused': Message(
        en='[mmstable: {wrapper}: a learning rate must stay above 0; that of '
        'the schedule is used]',
        zh_cn='[mmstable: {wrapper}：学习率必须大于 0；继续使用调度值]',
    ),
    'probe.lr_now': Message(
        en='[mmstable: {wrapper}: learning rate times {factor:g} from '
        'iteration {iteration} on, whatever the schedule does]',
        zh_cn='[mmstable: {wrapper}：从第 {iteration} 次迭代起，无论调度如何'
        '变化，学习率都再乘以 {factor:g}]',
    ),
    'probe.lr_on_all_ranks': Message(
        en='[mmstable: {wrapper}: learning rate times {factor:g} on ALL ranks '
        'within {count} iterations; do not repeat it on the others]',
        zh_cn='[mmstable: {wrapper}：{count} 次迭代之内，所有 rank 的学习率都'
        '再乘以 {factor:g}；不要在其他 rank 上重复执行]',
    ),
    'probe.bad_lr': Message(
        en='the learning rate must be a number above 0, as 0.001, or a factor '
        'above 0, as x0.1',
        zh_cn='学习率必须是大于 0 的数，如 0.001；或大于 0 的系数，如 x0.1',
    ),
    'probe.bad_clip': Message(
        en='the clip limit must be a number above 0, got {value}',
        zh_cn='裁剪上限必须是大于 0 的数，得到 {value}',
    ),
    'probe.lr_is_zero': Message(
        en="{wrapper}: the schedule's learning rate is 0 right now, which no "
        'factor changes; try again later',
        zh_cn='{wrapper}：当前调度的学习率为 0，任何系数都不起作用；请稍后再'
        '试',
    ),
    'probe.no_wrapper': Message(
        en="no optimizer wrapper '{name}', there is {known}",
        zh_cn="没有优化器封装 '{name}'，可用的有 {known}",
    ),
    'probe.no_saver': Message(
        en='nobody saves on request: the run needs '
        'mmstable.EmergencyCheckpointHook and mmstable.SafeCheckpointHook',
        zh_cn='没有组件可按请求保存：训练需要 '
        'mmstable.EmergencyCheckpointHook '
        '和 mmstable.SafeCheckpointHook',
    ),
    'probe.needs_traces': Message(
        en='the times of modules are not measured: set trace_modules=True of '
        'LiveProbeHook, or PROBING_TORCH_PROFILING=on, before the run '
        'starts; `mmstable profile CONFIG` tells more',
        zh_cn='没有测量各模块的耗时：请在启动训练之前设置 LiveProbeHook 的 '
        'trace_modules=True，或设置 PROBING_TORCH_PROFILING=on；'
        '`mmstable profile CONFIG` 给出的信息更多',
    ),
    'probe.needs_probing': Message(
        en='this needs `probing` in the environment of the run: `pip install '
        'mmstable[probe]`, and no use_probing=False',
        zh_cn='这需要训练环境中安装 `probing`：`pip install mmstable[probe]`，'
        '且未设置 use_probing=False',
    ),
    'probe.sql_reads_only': Message(
        en='only one statement that reads: SELECT, WITH, SHOW or DESCRIBE',
        zh_cn='只允许一条读取语句：SELECT、WITH、SHOW 或 DESCRIBE',
    ),
    'probe.sql_failed': Message(
        en='`probing` gives no answer and no reason: is the SQL right, and is '
        'the table there? `SHOW TABLES` lists all',
        zh_cn='`probing` 没有给出结果，也没有说明原因：SQL 是否正确？表是否存'
        '在？'
        '`SHOW TABLES` 可列出所有表',
    ),
    'probe.no_folder': Message(
        en="'{target}' is neither a process number nor a folder",
        zh_cn="'{target}' 既不是进程号，也不是文件夹",
    ),
    'probe.no_process': Message(
        en='process {pid} is no run that can be looked into. Start it with '
        '`mmstable train CONFIG --probe`, or with {hook} in custom_hooks; '
        'right after the start it takes some seconds',
        zh_cn='进程 {pid} 不是可以查看的训练。请用 `mmstable train CONFIG '
        '--probe` 启动，或在 custom_hooks 中加入 {hook}；刚启动时需要等待几秒',
    ),
    'probe.no_run': Message(
        en="no run in '{folder}' can be looked into{owner}. Start it with "
        '`mmstable train CONFIG --probe`, or with {hook} in custom_hooks; '
        'right after the start it takes some seconds',
        zh_cn="'{folder}' 中没有可以查看的训练{owner}。请用 `mmstable train "
        'CONFIG --probe` 启动，或在 custom_hooks 中加入 {hook}；刚启动时需要等'
        '待'
        '几秒',
    ),
    'probe.owner': Message(
        en=', though process {pid} on {host} trains there',
        zh_cn='，虽然 {host} 上的进程 {pid} 正在其中训练',
    ),
    'probe.several_runs': Message(
        en="several runs train in '{folder}': name one of the processes "
        '{pids}',
        zh_cn="'{folder}' 中有多个训练：请指定其中一个进程 {pids}",
    ),
    'probe.no_rank': Message(
        en='no rank {rank} on this machine, there is {known}',
        zh_cn='本机没有 rank {rank}，可用的有 {known}',
    ),
    'probe.silent': Message(
        en='process {pid} does not answer ({error}): it has ended, is '
        "stopped, or a call in C holds Python's lock. `py-spy dump --pid "
        '{pid}` may tell; HangWatchdogHook writes '
        'stability/watchdog.rankN.txt',
        zh_cn='进程 {pid} 没有回应（{error}）：它已结束、被暂停，或某个 C 调用'
        '持有 '
        'Python 的全局锁。可尝试 `py-spy dump --pid {pid}`；HangWatchdogHook '
        '会写入 stability/watchdog.rankN.txt',
    ),
    'probe.no_value': Message(
        en="'{recipe}' takes no value, got {values}",
        zh_cn="'{recipe}' 不接受参数，得到 {values}",
    ),
    'probe.one_value': Message(
        en="'{recipe}' takes one value: {usage}",
        zh_cn="'{recipe}' 需要一个参数：{usage}",
    ),
    'probe.position': Message(
        en='rank {rank} (pid {pid}): iteration {iteration} of {most}, in '
        "'{phase}'{line}",
        zh_cn='rank {rank}（pid {pid}）：第 {iteration}/{most} 次迭代，处于 '
        "'{phase}'{line}",
    ),
    'probe.line': Message(en=', at {line}', zh_cn='，位于 {line}'),
    'probe.wrapper': Message(
        en='  {name}: lr {lr:g}{factor}, clip {clip}, loss scale {scale}, '
        '{skipped:bad step|bad steps} skipped',
        zh_cn='  {name}：学习率 {lr:g}{factor}，裁剪 {clip}，损失缩放 {scale}'
        '，'
        '已跳过 {skipped} 个坏步',
    ),
    'probe.factor': Message(
        en=' (x{factor:g} of the schedule)', zh_cn='（调度值 x{factor:g}）'
    ),
    'probe.checkpoint': Message(
        en='  newest checkpoint: {path}', zh_cn='  最新的checkpoint：{path}'
    ),
    'probe.no_checkpoint': Message(
        en='  no checkpoint yet', zh_cn='  还没有checkpoint'
    ),
    'probe.how_to_save': Message(
        en='`mmstable probe {target} save` saves one now; `mmstable inspect '
        'FILE` shows what is in it.',
        zh_cn='`mmstable probe {target} save` 立即保存；`mmstable inspect '
        'FILE` '
        '可查看其内容。',
    ),
    'probe.stacks_of': Message(
        en='stacks of rank {rank} (pid {pid}):',
        zh_cn='rank {rank}（pid {pid}）的调用栈：',
    ),
    'probe.thread': Message(en='thread {name}:', zh_cn='线程 {name}：'),
    'probe.child': Message(
        en='child process {pid}: {state} {function}',
        zh_cn='子进程 {pid}：{state} {function}',
    ),
    'probe.no_bad_steps': Message(
        en='no bad step since this process began to train',
        zh_cn='本进程开始训练以来没有坏步',
    ),
    'probe.bad_step': Message(
        en='iteration {iteration}: {wrapper}: {fault}, {outcome}, loss scale '
        '{scale:g}, {culprits}',
        zh_cn='第 {iteration} 次迭代：{wrapper}：{fault}，{outcome}，损失缩放 '
        '{scale:g}，{culprits}',
    ),
    'probe.nan_advice': Message(
        en='Between two steps gradients are cleared, so looking at them finds '
        'nothing. See stability/faults/ for the operation a NaN comes from.',
        zh_cn='两步之间梯度已清空，因此查看梯度不会发现任何问题。NaN 来自哪个'
        '运算，请见 stability/faults/。',
    ),
    'probe.speed': Message(
        en='{seconds:.4f} s for an iteration',
        zh_cn='每次迭代 {seconds:.4f} 秒',
    ),
    'probe.memory': Message(
        en='training process {main}, with its {count:child|children} {tree} '
        '(of these {workers}); {left} of {limit} left; {files} open files',
        zh_cn='训练进程 {main}，连同 {count} 个子进程共 {tree}（其中子进程 '
        '{workers}）；{limit} 中剩余 {left}；打开的文件 {files} 个',
    ),
    'probe.done': Message(
        en='rank {rank}: done: {values}', zh_cn='rank {rank}：已完成：{values}'
    ),
    'probe.done_by_all': Message(
        en='all ranks will have it within {count} iterations: {values}',
        zh_cn='所有 rank 将在 {count} 次迭代内生效：{values}',
    ),
    'probe.asked': Message(
        en='asked for after iteration {iteration}; the log says what was '
        'saved, and where',
        zh_cn='已在第 {iteration} 次迭代后提出请求；保存了什么、存在哪里，请看'
        '日志',
    ),
    'probe.later': Message(
        en='the run does not come to the end of a step; it is done as soon as '
        'it does. `mmstable probe {target} hang` shows where it is',
        zh_cn='训练迟迟没有到达一步的结束处；一到就会执行。`mmstable probe '
        '{target} hang` 显示它在哪里',
    ),
    'probe.other_machines': Message(
        en='The other {count:rank|ranks} of {world} are on other machines: '
        'ask there.',
        zh_cn='其余 {count} 个 rank（共 {world} 个）在其他机器上：请到那里查询'
        '。',
    ),
}
