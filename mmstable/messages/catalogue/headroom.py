"""About values that come close to the end of their range."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'headroom.low': Message(
        en='Iter {iteration}: {module} {kind} at {share} of the {dtype} range'
        '{trend}{more}. {advice}',
        zh_cn='Iter {iteration}: {module} 的{kind}已达到 {dtype} 范围的 '
        '{share}{trend}{more}。{advice}',
    ),
    'headroom_kind.output': Message(en='output', zh_cn='输出'),
    'headroom_kind.input': Message(en='input', zh_cn='输入'),
    'headroom_kind.gradient': Message(
        en='gradient, at the smallest loss scale,',
        zh_cn='梯度（按最小的 loss scale 计）',
    ),
    'headroom.trend': Message(
        en=', doubling every {doubling:.0f} iterations; about {left:.0f} left',
        zh_cn='，每 {doubling:.0f} 次迭代翻倍，大约还剩 {left:.0f} 次迭代',
    ),
    'headroom.more': Message(
        en=' ({count:more place is|more places are} close, too)',
        zh_cn='（另有 {count} 处也接近上限）',
    ),
    'headroom.advice_fp16': Message(
        en="It will overflow: try fp32_modules=['{module}'] of "
        "SafeAmpOptimWrapper, dtype='bfloat16', or a lower learning rate.",
        zh_cn='即将溢出：可尝试 SafeAmpOptimWrapper 的 '
        "fp32_modules=['{module}']、dtype='bfloat16'，或降低学习率。",
    ),
    'headroom.advice': Message(
        en='The run is about to diverge: try a lower learning rate, or '
        'clipping.',
        zh_cn='训练即将发散：可尝试降低学习率，或梯度裁剪。',
    ),
    'headroom.underflow': Message(
        en='Iter {iteration}: about {share} of the fp16 gradients are flushed '
        'to zero at loss_scale {scale} (most at {module}: {worst}). The scale '
        'is too small: gradients have room for one up to {largest}.',
        zh_cn='Iter {iteration}: loss_scale 为 {scale} 时约 {share} 的 fp16 '
        '梯度下溢为零（{module} 处最多：{worst}）。loss_scale 太小：按梯度的'
        '余量，最大可以用到 {largest}。',
    ),
    'headroom.underflow_full': Message(
        en='Iter {iteration}: about {share} of the fp16 gradients are flushed '
        'to zero at loss_scale {scale} (most at {module}: {worst}), and the '
        'largest leave no room for a larger scale: no scale fits them all. '
        "Try fp32_modules=['{module}'] or dtype='bfloat16'.",
        zh_cn='Iter {iteration}: loss_scale 为 {scale} 时约 {share} 的 fp16 '
        '梯度下溢为零（{module} 处最多：{worst}），而最大的梯度已没有余量'
        '再增大 loss_scale：任何取值都无法兼顾。可尝试 '
        "fp32_modules=['{module}'] 或 dtype='bfloat16'。",
    ),
    'headroom.compiled': Message(
        en='HeadroomHook: the model is compiled, and looking into it would '
        'compile it again; it is left alone.',
        zh_cn='HeadroomHook：模型已编译，检查其内部会触发重新编译，因此不检查。',
    ),
}
