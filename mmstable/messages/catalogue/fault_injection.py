"""About faults that are injected on purpose."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'faults.planned': Message(
        en='mmstable: FaultInjectorHook: THIS RUN IS BROKEN ON PURPOSE, by '
        '{count:fault|faults}, seed {seed}:\n{faults:\n}\nTake '
        'FaultInjectorHook out of the config to train for real.',
        zh_cn='mmstable: FaultInjectorHook：本次训练被故意破坏，共 {count} 个'
        '故障，种子 {seed}：\n{faults:\n}\n正式训练时请从配置中去掉 '
        'FaultInjectorHook。',
    ),
    'faults.too_few_ranks': Message(
        en=' (NEVER: this run has {ranks:rank|ranks} only)',
        zh_cn='（不会发生：只有 {ranks} 个 rank）',
    ),
    'faults.too_late': Message(
        en=' (NEVER: the run ends with iteration {last})',
        zh_cn='（不会发生：训练在第 {last} 次迭代结束）',
    ),
    'faults.injected': Message(
        en="mmstable: injected: Iter {iteration}: {kind}, {value} in '{target}"
        "', rank {rank}",
        zh_cn='mmstable: 已注入故障：Iter {iteration}: {kind}，rank {rank} 的 '
        "'{target}' 为 {value}",
    ),
    'faults.missed': Message(
        en='mmstable: FaultInjectorHook: faults[{index}] ({fault}) found '
        'nothing to act on in iteration {iteration}: nothing was injected.',
        zh_cn='mmstable: FaultInjectorHook：第 {iteration} 次迭代中没有 '
        'faults[{index}] ({fault}) 的位置：未注入。',
    ),
    'faults.spared': Message(
        en='mmstable: FaultInjectorHook: {kind} of iteration {iteration} has '
        'happened already, and is not injected again: see {file}',
        zh_cn='mmstable: FaultInjectorHook：第 {iteration} 次迭代不再注入 '
        '{kind}，它已发生过：见 {file}',
    ),
}
