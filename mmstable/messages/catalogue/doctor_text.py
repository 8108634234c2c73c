"""What ``mmstable doctor`` prints around its findings."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    # Parts of these.
    'doctor_text.known_bad': Message(
        en='{names} do not get along.',
        zh_cn='{names} 无法一起正常工作。',
    ),
    'doctor_text.yes': Message(
        en='yes',
        zh_cn='是',
    ),
    'doctor_text.right': Message(
        en='right',
        zh_cn='正确',
    ),
    'doctor_text.emulated': Message(
        en='emulated',
        zh_cn='软件模拟',
    ),
    'doctor_text.wrong_product': Message(
        en='the product is wrong',
        zh_cn='乘积错误',
    ),
    'doctor_text.memory_of': Message(
        en='memory of {device}',
        zh_cn='{device} 的显存',
    ),
    'doctor_text.in_use': Message(
        en='another program uses it, which a full memory would end',
        zh_cn='其他程序正在使用，占满显存会使其终止',
    ),
    'doctor_text.took': Message(
        en='right, in {seconds:.1f} s',
        zh_cn='正确，用时 {seconds:.1f} 秒',
    ),
    'doctor_text.no_start': Message(
        en='rank {rank} has not ended within {seconds:g} s',
        zh_cn='rank {rank} 在 {seconds:g} 秒内没有结束',
    ),
    'doctor_text.rank_failed': Message(
        en='rank {rank} ended with code {code}: {error}',
        zh_cn='rank {rank} 以退出码 {code} 结束：{error}',
    ),
    'doctor_text.wrong_sum': Message(
        en='rank {rank} got {got}, expected {expected: }',
        zh_cn='rank {rank} 得到 {got}，应为 {expected: }',
    ),
    'doctor_text.room': Message(
        en='{left} left of {limit} ({source})',
        zh_cn='剩余 {left}，共 {limit}（{source}）',
    ),
    'doctor_room.machine': Message(
        en='of the machine',
        zh_cn='整机',
    ),
    'doctor_room.cgroup': Message(
        en='limit of the control group',
        zh_cn='cgroup 上限',
    ),
    'doctor_text.free_of': Message(
        en='{free} free of {total}',
        zh_cn='空闲 {free}，共 {total}',
    ),
    'doctor_text.used_of': Message(
        en='{used} used of {total}',
        zh_cn='已用 {used}，共 {total}',
    ),
    'doctor_text.unlimited': Message(
        en='unlimited',
        zh_cn='无限制',
    ),
    'doctor_text.slow': Message(
        en='{name} has not ended within {seconds:g} s',
        zh_cn='{name} 在 {seconds:g} 秒内没有结束',
    ),
    'doctor_text.empty': Message(
        en='nothing to read, or no permission',
        zh_cn='没有内容，或没有权限',
    ),
    'doctor_text.xid': Message(
        en='Xid {code}: {meaning}',
        zh_cn='Xid {code}：{meaning}',
    ),
    'doctor_text.xid_lines': Message(
        en='{what} ({count:line|lines}), at last: {line}',
        zh_cn='{what}（{count} 行），最后一行：{line}',
    ),
    'doctor_text.no_nvml': Message(
        en='nvidia-ml-py is not installed (`pip install nvidia-ml-py`)',
        zh_cn='未安装 nvidia-ml-py（`pip install nvidia-ml-py`）',
    ),
    'doctor_text.of_device': Message(
        en='{device}: {names}',
        zh_cn='{device}：{names}',
    ),
    'doctor_text.title': Message(
        en='This machine',
        zh_cn='本机',
    ),
    'doctor_text.not_seen': Message(
        en='Not looked at:',
        zh_cn='未能检查：',
    ),
    'doctor_text.progress': Message(
        en='test {number} of {count}: {name}',
        zh_cn='测试 {number}/{count}：{name}',
    ),
    'doctor_verdict.fit': Message(
        en='Verdict: fit to train; {errors:error|errors}, '
        '{warnings:warning|warnings}, {hints:hint|hints}, {unseen} not '
        'looked at.',
        zh_cn='结论：可以训练；{errors} 个错误，{warnings} 个警告，{hints} 个'
        '提示，{unseen} 项未能检查。',
    ),
    'doctor_verdict.doubtful': Message(
        en='Verdict: fit to train, with doubts; {errors:error|errors}, '
        '{warnings:warning|warnings}, {hints:hint|hints}, {unseen} not '
        'looked at.',
        zh_cn='结论：可以训练，但有疑点；{errors} 个错误，{warnings} 个警告，'
        '{hints} 个提示，{unseen} 项未能检查。',
    ),
    'doctor_verdict.sick': Message(
        en='Verdict: do not train here yet; {errors:error|errors}, '
        '{warnings:warning|warnings}, {hints:hint|hints}, {unseen} not '
        'looked at.',
        zh_cn='结论：暂时不要在此训练；{errors} 个错误，{warnings} 个警告，'
        '{hints} 个提示，{unseen} 项未能检查。',
    ),
    'doctor_text.watch_title': Message(
        en='This machine at {time}, Ctrl-C ends',
        zh_cn='本机 {time}，按 Ctrl-C 结束',
    ),
    'doctor_watch.memory': Message(
        en='memory',
        zh_cn='内存',
    ),
    'doctor_watch.busy': Message(
        en='utilisation',
        zh_cn='利用率',
    ),
    'doctor_watch.temperature': Message(
        en='temperature',
        zh_cn='温度',
    ),
    'doctor_watch.power': Message(
        en='power',
        zh_cn='功率',
    ),
    'doctor_watch.ecc': Message(
        en='ECC corrected / not',
        zh_cn='ECC 已纠正 / 未纠正',
    ),
    'doctor_watch.throttles': Message(
        en='clock held down by',
        zh_cn='降频原因',
    ),
    'doctor_watch.host': Message(
        en='host',
        zh_cn='主机',
    ),
    # What is refused.
    'doctor_text.no_log': Message(
        en='--log: {path}: {error}',
        zh_cn='--log：{path}：{error}',
    ),
    'doctor_text.binary_log': Message(
        en='--log: {path} is no text; give the log as `dmesg` or '
        '`journalctl -k` print it.',
        zh_cn='--log：{path} 不是文本文件；请提供 `dmesg` 或 `journalctl -k` '
        '输出的日志。',
    ),
    'doctor_text.no_folder': Message(
        en='--work-dir: no folder {path}',
        zh_cn='--work-dir：没有目录 {path}',
    ),
    'doctor_text.bad_seconds': Message(
        en='must be a number of seconds from 0.1 to 3600, got {text}',
        zh_cn='必须是 0.1 到 3600 之间的秒数，实际为 {text}',
    ),
    # Help.
    'command.doctor': Message(
        en='test this machine: versions, GPUs, memory, disk, DDP, Xids',
        zh_cn='检查本机：版本、GPU、内存、磁盘、DDP、Xid',
    ),
    'help.doctor.description': Message(
        en='Say whether this machine is fit to train, and what is wrong '
        'with it. Takes about half a minute. Memory, disk and devices '
        'are tried out; memory of a GPU that others use is left alone. '
        'Exit codes: 0 fit, {warnings} warnings, {errors} errors, 2 a '
        'mistake on the command line.',
        zh_cn='判断本机是否适合训练，并指出问题。大约需要半分钟。会实际测试内'
        '存、磁盘和设备；其他程序正在使用的显存不会触碰。退出码：0 正常'
        '，{warnings} 有警告，{errors} 有错误，2 命令行有误。',
    ),
    'help.doctor.only': Message(
        en='do only these tests, of {names}',
        zh_cn='只做这些测试，可选：{names}',
    ),
    'help.doctor.long': Message(
        en='compute for two minutes on each device, and test half of the RAM',
        zh_cn='每个设备计算两分钟，并测试一半内存',
    ),
    'help.doctor.work_dir': Message(
        en='folder whose disk to test, the current one by default',
        zh_cn='测试该目录所在的磁盘，默认为当前目录',
    ),
    'help.doctor.log': Message(
        en='read Xids from this file, not from the kernel',
        zh_cn='从该文件而不是内核读取 Xid',
    ),
    'help.doctor.json': Message(
        en='print everything as JSON',
        zh_cn='以 JSON 格式输出',
    ),
    'help.doctor.watch': Message(
        en='show memory, utilisation, temperature and ECC on one screen '
        'instead, every SECONDS (1)',
        zh_cn='改为在一屏上持续显示内存、利用率、温度和 ECC，每 SECONDS 秒（'
        '默认 1）刷新',
    ),
}
