"""About the causes of bad steps."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    # The first line: where it began.
    'forensics.forward': Message(
        en='{where}: {kind} born in {module} ({lines: <- }): '
        '{what}{terms}{samples}',
        zh_cn='⚠️  {where}: {kind} 产生于 {module}（{lines: <- }）：'
        '{what}{terms}{samples}',
    ),
    'forensics.backward': Message(
        en='{where}: {kind} born in the backward pass of {module} '
        '({lines: <- }), {node}: {what}{terms}{samples}',
        zh_cn='⚠️  {where}: {kind} 产生于 {module} 的反向传播'
        '（{lines: <- }），{node}：{what}{terms}{samples}',
    ),
    'forensics.external': Message(
        en='{where}: {kind} was in {source} before the step ({values}), '
        'first used in {module} ({lines: <- }){terms}{samples}',
        zh_cn='⚠️  {where}: 此步之前{source} 中已有 {kind}（{values}），'
        '首次用于 {module}（{lines: <- }）{terms}{samples}',
    ),
    'forensics.poisoned': Message(
        en='{where}: {kind} in {source} ({values}), so the state was not '
        'saved',
        zh_cn='⚠️  {where}: {source} 中有 {kind}（{values}），因此未保存该状态',
    ),
    'forensics.nothing': Message(
        en='{where}: {fault}, cause not found',
        zh_cn='⚠️  {where}: {fault}，未找到原因',
    ),
    'forensics.source.parameter': Message(en='parameter', zh_cn='参数'),
    'forensics.source.buffer': Message(en='buffer', zh_cn='缓冲区'),
    'forensics.source.batch': Message(en='the batch:', zh_cn='批数据'),
    'forensics.source.outside': Message(
        en='a tensor that no operation made', zh_cn='来自算子之外的张量'
    ),
    'forensics.terms': Message(
        en='; reached {terms}', zh_cn='；影响到 {terms}'
    ),
    'forensics.sample': Message(
        en='; in sample {samples}', zh_cn='；来自样本 {samples}'
    ),
    'forensics.all_samples': Message(
        en='; in all {count} samples', zh_cn='；全部 {count} 个样本均如此'
    ),
    'forensics.together': Message(
        en='; in sample {samples}, but only in this company (a statistic of '
        'the batch couples them)',
        zh_cn='；来自样本 {samples}，但仅在与同批样本一起时出现（批统计量使'
        '样本相互耦合）',
    ),
    # What happened in the operation.
    'forensics.too_large': Message(
        en='{op} of values up to {peak:.4g} is beyond {dtype}',
        zh_cn='{op} 的输入最大为 {peak:.4g}，结果超出 {dtype} 的范围',
    ),
    'forensics.point.log_zero': Message(
        en='log(0), {op} of {operand}', zh_cn='log(0)，{op}，输入 {operand}'
    ),
    'forensics.point.log_negative': Message(
        en='log of a negative number, {op} of {operand}',
        zh_cn='对负数取对数，{op}，输入 {operand}',
    ),
    'forensics.point.zero_by_zero': Message(
        en='0/0, {op} by {operand}', zh_cn='0/0，{op}，除数 {operand}'
    ),
    'forensics.point.by_zero': Message(
        en='division by 0, {op} of {operand}',
        zh_cn='除以 0，{op}，操作数 {operand}',
    ),
    'forensics.point.by_almost_zero': Message(
        en='division by almost 0, {op} by {operand}',
        zh_cn='除数接近 0，{op}，除数 {operand}',
    ),
    'forensics.point.nan_number': Message(
        en='the code gives the number NaN to {op}, besides {operand}',
        zh_cn='代码把数值 NaN 传给了 {op}，另一输入 {operand}',
    ),
    'forensics.point.root_negative': Message(
        en='root of a negative number, {op} of {operand}',
        zh_cn='对负数开方，{op}，输入 {operand}',
    ),
    'forensics.point.pow_negative': Message(
        en='fractional power of a negative number, {op} of {operand}',
        zh_cn='负数的非整数次幂，{op}，输入 {operand}',
    ),
    'forensics.point.outside_one': Message(
        en='beyond -1..1, {op} of {operand}',
        zh_cn='超出 -1..1，{op}，输入 {operand}',
    ),
    'forensics.point.masked_row': Message(
        en='softmax over a row that is masked with -Inf everywhere, {op} of '
        '{operand}',
        zh_cn='softmax 的某一行全部被 -Inf 掩码，{op}，输入 {operand}',
    ),
    'forensics.point.one_value': Message(
        en='variance of a single value, {op} of {operand}',
        zh_cn='对单个数值求方差，{op}，输入 {operand}',
    ),
    'forensics.point.empty': Message(
        en='mean over nothing, {op} of {operand}',
        zh_cn='对空张量求平均，{op}，输入 {operand}',
    ),
    'forensics.point.no_target': Message(
        en='average over targets of which none counts, {op} of {operand}',
        zh_cn='没有任何有效标签可供平均，{op}，输入 {operand}',
    ),
    'forensics.point.undefined': Message(
        en='{op} of {operand} is undefined',
        zh_cn='{op} 对输入 {operand} 无定义',
    ),
    # The second line: the verdict.
    'forensics.verdict.fp16_overflow': Message(
        en='Verdict: fp16 overflow. The same batch is finite in '
        'float32{largest}. {advice}',
        zh_cn='结论：FP16 溢出。同一批数据用 FP32 计算为有限值{largest}。'
        '{advice}',
    ),
    'forensics.keep_module': Message(
        en="Keep the module in float32 (fp32_modules=['{module}']) or train "
        'in bfloat16.',
        zh_cn="请让该模块以 FP32 计算 (fp32_modules=['{module}'])，或用 "
        'bfloat16。',
    ),
    'forensics.keep_line': Message(
        en='Compute this line of {model} in float32 (.float()), or train in '
        'bfloat16.',
        zh_cn='请将 {model} 的这一行改用 FP32 计算 (.float())，或用 '
        'bfloat16。',
    ),
    'forensics.largest': Message(
        en=': the value is {value:.4g} there, float16 ends at 65504',
        zh_cn='：该处数值为 {value:.4g}，FP16 上限为 65504',
    ),
    'forensics.largest_backward': Message(
        en=': the gradient, with loss_scale {scale:g}, is {value:.4g} there, '
        'float16 ends at 65504, so loss_scale {fits:g} would fit',
        zh_cn='：该处梯度（loss_scale {scale:g}）为 {value:.4g}，FP16 上限为 '
        '65504，loss_scale 为 {fits:g} 时不会溢出',
    ),
    'forensics.verdict.bad_input': Message(
        en='Verdict: bad input data. {name} holds {values}. Look at the '
        'file, the labels and the data pipeline.',
        zh_cn='结论：输入数据异常。{name} 的内容为 {values}。请检查数据文件、'
        '标签和数据流水线。',
    ),
    'forensics.verdict.bad_weights': Message(
        en='Verdict: bad weights. {name} holds {values}{since}. Go back to a '
        'checkpoint from before; every batch will fail with these.',
        zh_cn='结论：权重异常。{name} 的内容为 {values}{since}。请回退到'
        '此前的 checkpoint；使用这些权重，任何批次都会失败。',
    ),
    'forensics.since': Message(
        en=', since iteration {iteration} at the latest',
        zh_cn='，最迟自第 {iteration} 次迭代起',
    ),
    'forensics.verdict.singular_point': Message(
        en='Verdict: {what} at a singular point. Guard the operand of {op} '
        '(clamp it, add an epsilon, or leave out empty targets).',
        zh_cn='结论：{what} 处于奇异点。请保护 {op} 的操作数（clamp、加 '
        'epsilon，或跳过空标签）。',
    ),
    'forensics.verdict.exploding': Message(
        en='Verdict: exploding activations. Largest values by module: '
        '{peaks: -> }. The learning rate is too high, or the warm-up too '
        'short; clip gradients (clip_grad=dict(max_norm=...)).',
        zh_cn='结论：激活值爆炸。各模块最大值：{peaks: -> }。学习率过高或 '
        'warmup 过短；请启用梯度裁剪 (clip_grad=dict(max_norm=...))。',
    ),
    'forensics.verdict.not_reproduced': Message(
        en='Verdict: not reproducible. The same batch with the same weights '
        'and random numbers is finite: hardware, or an operation that is not '
        'deterministic. Test this machine with `mmstable doctor`.',
        zh_cn='结论：无法复现。同一批数据、同样的权重和随机数计算结果为有限值：'
        '硬件问题，或存在非确定性算子。请用 `mmstable doctor` 检查本机。',
    ),
    'forensics.weights_moved': Message(
        en='Verdict: not reproducible with the weights of now. An optimizer '
        'has changed them in that iteration, so those of before are gone.',
        zh_cn='结论：用当前权重无法复现。该次迭代中已有优化器更新权重，此前的'
        '权重已不存在。',
    ),
    'forensics.verdict.not_examined': Message(
        en='Verdict: not examined, {reason}.',
        zh_cn='结论：未做分析，{reason}。',
    ),
    # Why not, and what limits a finding.
    'forensics.out_of_time': Message(
        en='a replay takes more than {seconds:g} s',
        zh_cn='重放耗时超过 {seconds:g} 秒',
    ),
    'forensics.collective': Message(
        en='the model waits for other ranks in {op}, which do not replay',
        zh_cn='模型在 {op} 中等待其他 rank，而它们不参与重放',
    ),
    'forensics.replay_failed': Message(
        en='the replay failed: {error}', zh_cn='重放失败：{error}'
    ),
    'forensics.no_batch': Message(
        en='the batch of this step was not kept',
        zh_cn='该步的批数据未被保留',
    ),
    'forensics.sharded': Message(
        en='ranks hold parts of the weights (FSDP), and a replay on one rank '
        'would wait for the others',
        zh_cn='权重分布在多个 rank 上 (FSDP)，单个 rank 的重放会等待其他 rank',
    ),
    'forensics.no_memory': Message(
        en='the batch does not fit twice: {needed:.2f} GiB needed, '
        '{free:.2f} GiB free',
        zh_cn='显存或内存不足以再放一份该批数据：需要 {needed:.2f} GiB，空闲 '
        '{free:.2f} GiB',
    ),
    'forensics.unfinished': Message(
        en='time was over before all samples were tried',
        zh_cn='时间已到，未能逐一尝试所有样本',
    ),
    'forensics.only_in_dtype': Message(
        en='only in {dtype}: the same batch is finite in float32',
        zh_cn='仅在 {dtype} 下出现：同一批数据用 FP32 计算为有限值',
    ),
    'forensics.moved_note': Message(
        en='replayed with the weights after the step, which was applied',
        zh_cn='该步已更新权重，重放使用的是更新后的权重',
    ),
    'forensics.batch_written': Message(
        en='{names} of the batch was written to in place, maybe by the model: '
        'then this is not what the step began with',
        zh_cn='批数据中的 {names} 曾被原地改写，可能由模型所为：若如此，它已'
        '不是该步开始时的内容',
    ),
    'forensics.compiled_note': Message(
        en='replayed without torch.compile',
        zh_cn='重放时未使用 torch.compile',
    ),
    'forensics.still_compiled_note': Message(
        en='what torch.compile has made is named by the first line of its '
        'function; torch 2.6 or newer replays it as it was written',
        zh_cn='torch.compile 编译的部分只能给出函数的首行；'
        'torch 2.6 及以上版本可按源码重放',
    ),
    'forensics.local_note': Message(
        en='replayed on this rank alone, as if all others had its batch',
        zh_cn='仅在本 rank 上重放，视其他 rank 的批数据与本 rank 相同',
    ),
    # The third line: the bundle.
    'forensics.bundle': Message(
        en='Saved in {folder}; look at it again with: mmstable replay '
        '{folder} --trust-config',
        zh_cn='已保存到 {folder}；可用以下命令重放：mmstable replay '
        '{folder} --trust-config',
    ),
    'forensics.no_bundle': Message(
        en='The bundle could not be written: {error}',
        zh_cn='无法写入故障包：{error}',
    ),
    'forensics.batch_too_large': Message(
        en='the batch is not saved: {size:.0f} MiB are more than {limit:g}',
        zh_cn='未保存批数据：{size:.0f} MiB 超过上限 {limit:g}',
    ),
    'forensics.left_out': Message(
        en='not saved, because it is no tensor: {path}',
        zh_cn='因不是张量而未保存：{path}',
    ),
    'forensics.model_too_large': Message(
        en='the weights are not saved: {size:.0f} MiB are more than {limit:g}',
        zh_cn='未保存权重：{size:.0f} MiB 超过上限 {limit:g}',
    ),
    'forensics.by_checkpoint': Message(
        en='weights are those of {path}, iteration {iteration}',
        zh_cn='权重取自 {path}（第 {iteration} 次迭代）',
    ),
}
