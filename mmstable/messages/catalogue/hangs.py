"""About runs that hang, and those that are started again."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'hang.found': Message(
        en='mmstable: training hangs: {ranks:; }. The limit is {limit:.0f} s. '
        'All stacks are in {file}. {action} If it hangs again, test the '
        'machine with `mmstable doctor`.',
        zh_cn='mmstable: 训练卡住：{ranks:；}。上限为 {limit:.0f} 秒。'
        '全部调用栈见 {file}。{action}若再次卡住，请用 `mmstable doctor` '
        '检查机器。',
    ),
    'hang.was_held': Message(
        en="mmstable: training hung: {ranks:; }. A call in C held Python's "
        'lock all that time. The limit is {limit:.0f} s. All stacks are in '
        '{file}. {action}',
        zh_cn='mmstable: 训练曾卡住：{ranks:；}。其间一个 C 调用一直持有 '
        'Python 的全局锁。上限为 {limit:.0f} 秒。全部调用栈见 {file}。'
        '{action}',
    ),
    'hang.rank': Message(
        en="rank {rank} has been in '{phase}' for {seconds:.0f} s, after "
        'iteration {iteration}{where}',
        zh_cn="rank {rank} 已在 '{phase}' 中停留 {seconds:.0f} 秒，位于第 "
        '{iteration} 次迭代之后{where}',
    ),
    'hang.rank_waits': Message(
        en='rank {rank} waits for it in {collective}',
        zh_cn='rank {rank} 正在 {collective} 中等待它',
    ),
    'hang.rank_silent': Message(
        en='rank {rank} says nothing: it holds the lock of Python, is '
        'stopped or gone, or is not late yet',
        zh_cn='rank {rank} 没有回应：它持有 Python 的全局锁、已被暂停或失联，'
        '或者尚未超时',
    ),
    'hang.more_ranks': Message(
        en='and {count} more ranks', zh_cn='以及另外 {count} 个 rank'
    ),
    'hang.at': Message(en=': at {line}', zh_cn='：位于 {line}'),
    'hang.samples': Message(
        en=' (samples {samples})', zh_cn='（样本 {samples}）'
    ),
    'hang.worker': Message(
        en=': worker {number} of {count} (pid {pid}) {state}{line}, batch '
        '{batch} of this pass over the data',
        zh_cn='：{count} 个 worker 中的第 {number} 个（pid {pid}）{state}'
        '{line}，本轮数据的第 {batch} 个批次',
    ),
    'hang.line_of_worker': Message(en=' at {line}', zh_cn='，位于 {line}'),
    'hang.kernel': Message(en=' ({function})', zh_cn='（{function}）'),
    'hang.worker_running': Message(en='is busy', zh_cn='正在运行'),
    'hang.worker_sleeping': Message(en='is blocked', zh_cn='被阻塞'),
    'hang.worker_disk': Message(
        en='waits for a disk or a network file system',
        zh_cn='正在等待磁盘或网络文件系统',
    ),
    'hang.worker_stopped': Message(
        en='is stopped (`kill -CONT` lets it continue)',
        zh_cn='已被暂停（可用 `kill -CONT` 让它继续）',
    ),
    'hang.worker_traced': Message(
        en='is held by a debugger', zh_cn='被调试器挂起'
    ),
    'hang.worker_dead': Message(en='is dead', zh_cn='已经死亡'),
    'hang.worker_unknown': Message(en='gives no batch', zh_cn='没有给出批次'),
    'hang.waits': Message(
        en="Training waits; HangWatchdogHook(action='exit') would end it, "
        'and `mmstable train --max-restarts N` start it again.',
        zh_cn="训练继续等待；HangWatchdogHook(action='exit') 可以结束它，"
        '`mmstable train --max-restarts N` 可以重新启动它。',
    ),
    'hang.exits': Message(
        en='This process ends with exit code {code}.',
        zh_cn='本进程以退出码 {code} 结束。',
    ),
    'hang.is_over': Message(en='Training continues.', zh_cn='训练继续进行。'),
    'hang.recovered': Message(
        en="mmstable: training continues after {seconds:.0f} s in '{phase}'.",
        zh_cn="mmstable: 在 '{phase}' 中停留 {seconds:.0f} 秒后，训练继续"
        '进行。',
    ),
    'hang.saved': Message(
        en='mmstable: saved {path} before the end. {resume}',
        zh_cn='mmstable: 结束前已保存 {path}。{resume}',
    ),
    'hang.not_saved': Message(
        en='mmstable: the state is in the middle of something and was not '
        'saved. {resume}',
        zh_cn='mmstable: 状态处于中间阶段，没有保存。{resume}',
    ),
    # What starts a run again.
    'restart.again': Message(
        en='the run ended: {end}. Restart {number} of {most} in '
        '{seconds:.0f} s, from {source}',
        zh_cn='训练已结束：{end}。{seconds:.0f} 秒后进行第 {number} 次重启'
        '（共 {most} 次），起点为 {source}',
    ),
    'restart.ended': Message(
        en='the run ended: {end}. {why}', zh_cn='训练已结束：{end}。{why}'
    ),
    'restart.from_start': Message(
        en='where it was started from', zh_cn='最初的起点'
    ),
    'restart.final': Message(
        en='To start it again would not help.', zh_cn='重新启动无济于事。'
    ),
    'restart.no_progress': Message(
        en='The last {count} restarts brought no new checkpoint, so it is '
        'not started again.',
        zh_cn='最近 {count} 次重启都没有产生新的 checkpoint，因此不再重启。',
    ),
    'restart.used_up': Message(
        en='All restarts ({most}) are used up.',
        zh_cn='全部重启次数（{most}）已用完。',
    ),
    'restart.stuck': Message(
        en="no sign of life, a call in C holds Python's lock; it was killed",
        zh_cn='没有任何响应，一个 C 调用持有 Python 的全局锁；已将其杀死',
    ),
    'restart.killed': Message(
        en='killed by SIGKILL (out of memory? see `dmesg`)',
        zh_cn='被 SIGKILL 杀死（内存不足？请查看 `dmesg`）',
    ),
    'restart.signal': Message(
        en='killed by {signal}', zh_cn='被 {signal} 杀死'
    ),
    'restart.hang': Message(
        en='it hung (exit code {code})', zh_cn='训练卡住（退出码 {code}）'
    ),
    'restart.code': Message(en='exit code {code}', zh_cn='退出码 {code}'),
    'restart.by_torchrun': Message(
        en='--max-restarts is for one process. torchrun starts all ranks '
        'again by itself, on all machines: {command}',
        zh_cn='--max-restarts 只用于单个进程。torchrun 可以自行在所有机器上'
        '重启全部 rank：{command}',
    ),
    'restart.by_scheduler': Message(
        en='--max-restarts is for one process. With --launcher {launcher} '
        'let the scheduler start the job again (`sbatch --requeue`), with '
        '--resume auto.',
        zh_cn='--max-restarts 只用于单个进程。使用 --launcher {launcher} 时，'
        '请让调度器重新启动作业（`sbatch --requeue`），并加上 --resume auto。',
    ),
}
