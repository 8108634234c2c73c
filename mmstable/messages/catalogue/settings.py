"""What is wrong with a setting."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'setting.refused': Message(
        en='`{name}` must be {rule}, got {value!r}.{hint}',
        zh_cn='`{name}` 必须是{rule}，得到 {value!r}。{hint}',
    ),
    'setting.unknown': Message(
        en='no setting `{name}`; there are {known}.{hint}',
        zh_cn='没有设置 `{name}`，可用的有 {known}。{hint}',
    ),
    'setting.renamed': Message(
        en='{owner}: `{old}` is called `{new}` now; please rename it.',
        zh_cn='{owner}: `{old}` 现已改名为 `{new}`，请相应修改。',
    ),
    'setting.no_match': Message(
        en='`{name}` {text!r} matches nothing.{hint}',
        zh_cn='`{name}` {text!r} 没有匹配到任何名称。{hint}',
    ),
    'setting.there_is': Message(
        en=' There is {names}.', zh_cn='现有 {names}。'
    ),
    'setting.nothing': Message(en='nothing', zh_cn='（无）'),
    'setting.missing': Message(
        en='`{name}` is missing.', zh_cn='缺少 `{name}`。'
    ),
    'setting.none': Message(en='none', zh_cn='（无）'),
    # What a value must be.
    'rule.int': Message(
        en='an int of at least {least}', zh_cn='不小于 {least} 的整数'
    ),
    'rule.ints': Message(
        en='an int of at least {least} or a list of these',
        zh_cn='不小于 {least} 的整数，或由其组成的列表',
    ),
    'rule.number': Message(en='a finite number', zh_cn='有限数值'),
    'rule.number_within': Message(
        en='a finite number {bounds: and }', zh_cn='{bounds:且}的有限数值'
    ),
    'bound.at_least': Message(
        en='of at least {bound:g}', zh_cn='不小于 {bound:g} '
    ),
    'bound.above': Message(en='above {bound:g}', zh_cn='大于 {bound:g} '),
    'bound.at_most': Message(
        en='at most {bound:g}', zh_cn='不大于 {bound:g} '
    ),
    'bound.below': Message(en='below {bound:g}', zh_cn='小于 {bound:g} '),
    'rule.bool': Message(en='a bool', zh_cn='布尔值（bool）'),
    'rule.one_of': Message(en='one of {known}', zh_cn='以下之一：{known}'),
    'rule.text': Message(en='a str that is not empty', zh_cn='非空的字符串'),
    'rule.names': Message(
        en='a name or a list of names', zh_cn='一个名称或名称的列表'
    ),
    'rule.pattern': Message(
        en='a name or a regular expression', zh_cn='名称或正则表达式'
    ),
    'rule.regex': Message(
        en='a regular expression ({error})', zh_cn='正则表达式（{error}）'
    ),
    'rule.dict': Message(en='a dict', zh_cn='字典（dict）'),
    'rule.dicts': Message(en='a list of dicts', zh_cn='字典的列表'),
    'rule.first_and_last': Message(
        en='(first, last) with 1 <= first <= last',
        zh_cn=' (first, last)，且 1 <= first <= last',
    ),
    'rule.factor': Message(
        en='a finite number above 1 or below -1',
        zh_cn='大于 1 或小于 -1 的有限数值',
    ),
    # Settings that do not go together.
    'scale.init_outside': Message(
        en='loss_scale: `init_scale` {init} is outside [`min_scale` {least}, '
        '`max_scale` {most}].',
        zh_cn='loss_scale: `init_scale` {init} 超出了 [`min_scale` {least}, '
        '`max_scale` {most}] 的范围。',
    ),
    'scale.wrong_type': Message(
        en="loss_scale: must be 'dynamic', a number or a dict, got {value!r}.",
        zh_cn="loss_scale: 必须是 'dynamic'、数值或字典，得到 {value!r}。",
    ),
    'clip.no_dict_or_none': Message(
        en='clip_grad: must be a dict or None, got {value!r}.',
        zh_cn='clip_grad: 必须是字典或 None，得到 {value!r}。',
    ),
    'clip.error_if_nonfinite': Message(
        en='clip_grad: `error_if_nonfinite=True` contradicts a safe wrapper, '
        'which skips a step with a non-finite norm.',
        zh_cn='clip_grad: `error_if_nonfinite=True` 与安全 wrapper 矛盾：后者'
        '会跳过范数非有限的步。',
    ),
    'clip.configs': Message(
        en='{where}: `configs` needs a method that goes by norms ({known}), '
        'got {method!r}.',
        zh_cn='{where}: `configs` 需要按范数裁剪的方法（{known}），得到 '
        '{method!r}。',
    ),
    'clip.no_dict': Message(
        en='{where}: must be a dict, got {value!r}.',
        zh_cn='{where}: 必须是字典，得到 {value!r}。',
    ),
    'clip.no_module': Message(
        en='{where}: `module_name` names no module.',
        zh_cn='{where}: `module_name` 没有给出任何模块。',
    ),
    'clip.warmup': Message(
        en='{where}: `warmup` {warmup} is larger than `window` {window}.',
        zh_cn='{where}: `warmup` {warmup} 大于 `window` {window}。',
    ),
    'clip.needs': Message(
        en='{where}: {method!r} needs `{key}`.',
        zh_cn='{where}: {method!r} 需要 `{key}`。',
    ),
    'clip.overlap': Message(
        en='{module!r} overlaps with {other!r}: both hold {name!r}.',
        zh_cn='{module!r} 与 {other!r} 重叠：二者都包含 {name!r}。',
    ),
    'fault.no_time': Message(
        en='one of `at`, `between` and `probability` must say when.',
        zh_cn='必须用 `at`、`between` 或 `probability` 之一说明何时发生。',
    ),
    'fault.two_times': Message(
        en='`at` names iterations by itself; `between` and `probability` do '
        'not go with it.',
        zh_cn='`at` 本身已指明迭代，不能与 `between` 或 `probability` '
        '同时使用。',
    ),
    'fault.not_enabled': Message(
        en='{owner}: `faults` has {count} of them that would spoil this run. '
        'Set `enabled=True` if that is what you want, or take the hook out '
        'of the config.',
        zh_cn='{owner}: `faults` 中有 {count} 个故障会破坏本次训练。确实需要'
        '时请设置 `enabled=True`，否则请从配置中去掉该 hook。',
    ),
}
