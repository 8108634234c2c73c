"""What is said about a run that is in trouble, in Chinese."""

from __future__ import annotations

from mmstable.events import Action, Fault, Intervention
from mmstable.messages.guard_wording import GuardWording
from mmstable.messages.printable import printable

_CAUSES = {
    Fault.OVERFLOW: (
        '改用 bfloat16 (optim_wrapper.dtype="bfloat16")，或让上述模块以 FP32 '
        '计算 (optim_wrapper.fp32_modules)'
    ),
    Fault.NAN_LOSS: (
        '检查这些迭代的数据：输入或标签含 NaN/inf、空标签、log(0)、除以 0'
    ),
    Fault.NAN_GRAD: (
        '检查上述模块：0 处的 sqrt 或范数、除以 0、带掩码的 softmax；让它们'
        '以 FP32 计算 (optim_wrapper.fp32_modules)'
    ),
    Fault.POISONED: (
        '查明是什么在优化器之外改写了上述内容：自定义 hook、自定义层，或显存'
        '故障'
    ),
    Fault.SPIKE: '检查这些迭代的数据：错误标签、离群样本、混合数据集',
}


class ChineseGuard(GuardWording):
    """Chinese; settings and faults keep their names."""

    def bad_steps(self, bad: int, seen: int, in_a_row: int) -> str:
        """Why there are too many bad steps."""
        return f'最近 {seen} 次更新中有 {bad} 次异常，连续 {in_a_row} 次'

    def poisoned(self, names: str) -> str:
        """What is not finite."""
        return f'训练状态中含 NaN/inf：{names}'

    def spike(self, subject: str, value: float, level: float) -> str:
        """What has jumped, and how far."""
        return f'{subject} 从近期水平 {level:.4g} 突增到 {value:.4g}'

    def elsewhere(self, subject: str) -> str:
        """What has jumped on another rank."""
        return f'其他 rank 的 {subject} 突增'

    def snapshots(self, interval: int, mebibytes: float) -> str:
        """That states are kept in memory."""
        return (
            f'每 {interval} 次迭代做一次快照；最新的两份占用主机内存 '
            f'{mebibytes:.3g} MiB'
        )

    def no_snapshots(self, gibibytes: float, limit: float) -> str:
        """That states are too large to be kept in memory."""
        return (
            f'两份快照需要主机内存 {gibibytes:.1f} GiB，超过 '
            f'max_snapshot_memory={limit:g}：回滚时改用最新的完好 checkpoint'
        )

    def intervention(
        self, done: Intervention, budget: str, recovery: int
    ) -> str:
        """One line about what was done."""
        line = f'⚠️  Iter {done.iteration}: {done.fault.value}：{done.reason}'
        back = f'，{recovery} 次迭代内恢复为 1' * bool(recovery)
        rate = f'学习率 x {done.lr_factor:g}{back}'
        if done.action is Action.SKIP:
            return f'{line}，跳过此次更新'
        if done.action is Action.LOWER_LR:
            return f'{line}；{rate}'
        if done.action is Action.ROLLBACK:
            where = (
                '内存快照'
                if done.source == 'memory'
                else printable(done.source)
            )
            return (
                f'{line}。已回滚到第 {done.restored} 次迭代的状态（{where}），'
                f'数据继续向后；{rate}。回滚次数 {budget}'
            )
        return line

    def advice(self, fault: Fault, lr: float | None) -> list[str]:
        """What to change in the config."""
        rate = '降低学习率'
        if lr is not None:
            rate += (
                f'（optim_wrapper.optimizer.lr 为 {lr:g}，可试 {lr / 2:g}）'
            )
        return [
            f'{rate}或延长 warmup',
            '加强梯度裁剪 (optim_wrapper.clip_grad.max_norm)，或选用 '
            'stability/safe.py',
            _CAUSES[fault],
        ]

    def stopped(
        self,
        done: Intervention,
        rollbacks: int,
        advice: list[str],
        resume: str | None,
        file: str,
    ) -> str:
        """One paragraph about a run that is given up."""
        tried = f'降低学习率并回滚 {rollbacks} 次仍无效。' if rollbacks else ''
        ways = '；'.join(advice)
        go_on = f'继续训练：{resume}'
        if resume is None:
            go_on = '此前没有完好的 checkpoint，请重新开始训练。'
        return (
            f'训练在第 {done.iteration} 次迭代停止：自第 {done.since} 次迭代起'
            f'出现 {done.fault.value}：{done.reason}。{tried}此后未做验证，也'
            f'未保存。建议修改：{ways}。{go_on}（详见 {file}）'
        )
