"""What is said about a step, in Chinese."""

from __future__ import annotations

from mmstable.events import Fault, StepReport
from mmstable.messages.wording import Wording, examples, modules_of

_ADVICE = {
    Fault.OVERFLOW: (
        'loss_scale 已在回退，梯度仍超出 FP16 范围。不要增大 loss_scale：'
        '越大越容易溢出。请降低学习率或延长 warmup，启用梯度裁剪 '
        '(clip_grad=dict(max_norm=...))，或改用数值范围与 FP32 相同的 '
        'bfloat16。'
    ),
    Fault.NAN_LOSS: (
        'loss 在缩放之前就已经是 NaN/inf，调整 loss_scale 无济于事。请检查'
        '这些迭代的数据（输入或标签含 NaN/inf、空标签、log(0)、除以 0）；'
        "让 loss 以 FP32 计算 (fp32_modules=['...'])；降低学习率或延长 "
        'warmup。'
    ),
    Fault.NAN_GRAD: (
        'loss 是有限值，但梯度不是，且与 loss_scale 无关（未启用或已降到'
        '下限）。请检查上述模块（0 处的 sqrt 或范数、除以 0、带掩码的 '
        "softmax）；让它们以 FP32 计算 (fp32_modules=['...'])；降低学习率"
        '或延长 warmup；若使用 bfloat16，可改用 float16 或 FP32。'
    ),
    Fault.SPIKE: (
        'loss 或梯度范数反复远超近期水平。请检查这些迭代的数据（错误标签、'
        '离群样本）；启用梯度裁剪 (clip_grad=dict(max_norm=...))；降低学习率'
        '或延长 warmup。'
    ),
}


class Chinese(Wording):
    """Chinese lines; ``loss_scale`` and ``NaN`` stay searchable."""

    def enabled(self, short_name: str, loss_scale: float) -> str | None:
        """That mixed precision is on."""
        return (
            f'✅ {short_name.upper()}混合精度训练已启用 '
            f'(loss_scale={loss_scale})'
        )

    def bad_step(self, where: str, report: StepReport, scaled: bool) -> str:
        """One line about one bad step."""
        return (
            f'⚠️  {where}: {self._what(report)}，{_done(report)}。'
            f'{_scale(report, scaled)}{_extent(report)}{_origins(report)}'
        )

    def _what(self, report: StepReport) -> str:
        if report.fault is Fault.NAN_LOSS:
            terms = '、'.join(report.loss_terms)
            which = f'（{terms}）' if terms not in ('', 'loss') else ''
            return f'检测到 loss{which} 为 NaN/inf'
        if report.fault is Fault.SPIKE:
            return f'检测到尖峰（梯度范数 {report.grad_norm:.4g}）'
        names = examples(report.culprits, self.max_names)
        listed = '、'.join(map(repr, names))
        return f'检测到参数 {listed} 的梯度为 NaN/inf'

    def left_out(self, count: int, first: int, last: int) -> str:
        """That some bad steps were not printed."""
        return (
            f'Iter {first} 至 Iter {last} 之间另有 {count} 次异常更新 '
            '(NaN/inf) 未逐条打印；每次的 loss_scale 和参数名见事件文件'
        )

    def too_many(
        self, bad: int, seen: int, in_a_row: int, report: StepReport
    ) -> str:
        """That this is no longer normal, and what to do."""
        fault = report.fault or Fault.NAN_GRAD
        return (
            f'⚠️  Iter {report.iteration}: 最近 {seen} 次更新中有 {bad} 次'
            f'异常 ({100 * bad / seen:.1f} %)，连续 {in_a_row} 次；健康训练'
            f'应低于 5 %。{_ADVICE[fault]}'
        )

    def observes_only(self, wrapper: str) -> str:
        """That nothing is protected."""
        return (
            f'⚠️  GradNanLoggerHook 只能观察 {wrapper}：会指出 NaN 所在的'
            '参数，但无法阻止其写入权重。如需保护，请使用 '
            "type='mmstable.SafeOptimWrapper' 或 "
            "'mmstable.SafeAmpOptimWrapper'。"
        )


def _done(report: StepReport) -> str:
    if report.applied and report.fault is Fault.NAN_LOSS:
        return '已从本次累积中剔除'
    return '权重已被其更新！' if report.applied else '跳过此次更新'


def _scale(report: StepReport, scaled: bool) -> str:
    if not scaled:
        return '未使用loss_scale'
    return f'当前loss_scale: {report.next_loss_scale:.2f}'


def _origins(report: StepReport) -> str:
    if not report.origins:
        return ''
    first = report.origins[0]
    others = len(report.origins) - 1
    more = f' 等 {others + 1} 个 rank' if others else ''
    late = '，all-reduce 之后' if first.where == 'reduced_gradient' else ''
    copied = ''
    if report.copied_from is not None:
        copied = (
            f'；它错过了上一次更新，现已换用 rank {report.copied_from} 的状态'
        )
    return (
        f'；源自 rank {first.rank}（{first.node}，{first.device}{late}）'
        f'{more}{copied}'
    )


def _extent(report: StepReport) -> str:
    if report.fault is Fault.NAN_LOSS or not report.culprits:
        return ''
    modules = len(modules_of(report.culprits))
    return f'（{modules} 个模块中共 {len(report.culprits)} 个参数）'
