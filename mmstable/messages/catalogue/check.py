"""What ``mmstable check`` prints, whatever the rule."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'check.rule_failed': Message(
        en='the rule {name} has failed: {error}',
        zh_cn='规则 {name} 失败：{error}',
    ),
    'check_why.rule_failed': Message(
        en='A rule that fails has found nothing, and hides nothing else.',
        zh_cn='失败的规则没有任何结果，也不影响其他规则。',
    ),
    'check_fix.rule_failed': Message(
        en='please report it, with the config',
        zh_cn='请连同配置一起报告',
    ),
    'severity.hint': Message(
        en='hint',
        zh_cn='提示',
    ),
    'check_text.clean': Message(
        en='{path}: {rules:rule|rules}, nothing found',
        zh_cn='{path}：{rules} 条规则，没有发现问题',
    ),
    'check_text.summary': Message(
        en='{path}: {errors:error|errors}, {warnings:warning|warnings}, '
        '{hints:hint|hints} by {rules:rule|rules}',
        zh_cn='{path}：{errors} 个错误，{warnings} 个警告，{hints} 个提示，共'
        ' {rules} 条规则',
    ),
    'check_text.why': Message(
        en='why: {text}',
        zh_cn='原因：{text}',
    ),
    'check_text.fix': Message(
        en='fix: {text}',
        zh_cn='修复：{text}',
    ),
    'check_text.ignored': Message(
        en='ignored by `stability_checks`: {names}',
        zh_cn='被 `stability_checks` 忽略：{names}',
    ),
    'check_text.more': Message(
        en='why, and how to mend it: `{command}`',
        zh_cn='原因和修复方法：`{command}`',
    ),
    'check_text.more_at_start': Message(
        en='why, and how to mend it, before it trains: `{command}`',
        zh_cn='训练开始前显示原因和修复方法：`{command}`',
    ),
    'check_text.hidden': Message(
        en='and {count} more',
        zh_cn='另有 {count} 项',
    ),
    'check_text.no_config': Message(
        en='a config is missing.',
        zh_cn='缺少配置文件。',
    ),
    'check_text.short': Message(
        en='{severity}: {path}: {what} ({name})',
        zh_cn='{severity}：{path}：{what}（{name}）',
    ),
    'check_text.refused': Message(
        en='--check: {errors:error|errors} in the config, nothing is trained',
        zh_cn='--check：配置中有 {errors} 个错误，不开始训练',
    ),
    'check_fix_file.title': Message(
        en='Written by `mmstable check --fix`: {base} without {names}.',
        zh_cn='由 `mmstable check --fix` 写出：{base} 去除 {names}。',
    ),
    'check_fix_file.nothing': Message(
        en='nothing that can be mended by itself; {path} is not written',
        zh_cn='没有可自动修复的问题；未写入 {path}',
    ),
    'check_fix_file.left': Message(
        en='not mended, to be decided by you: {names}',
        zh_cn='未修复，需要您决定：{names}',
    ),
    'check_fix_file.old': Message(
        en='--fix: {path} has keys of mmcv 1.x: translate it first, by '
        '`mmstable upgrade`.',
        zh_cn='--fix：{path} 含有 mmcv 1.x 的键：请先用 `mmstable upgrade` 转'
        '换。',
    ),
    'check_fix_file.new_style': Message(
        en='--fix: {path} is a config in the style of Python imports, '
        'which a file with `_base_` cannot inherit from.',
        zh_cn='--fix：{path} 是 import 风格的配置，带 `_base_` 的文件无法继承'
        '它。',
    ),
    'check_fix_file.options': Message(
        en='--fix: leave --cfg-options out, they are not in the file that '
        'is written.',
        zh_cn='--fix：请去掉 --cfg-options，它们不会写入文件。',
    ),
    'check_list.id': Message(
        en='rule',
        zh_cn='规则',
    ),
    'check_list.severity': Message(
        en='severity',
        zh_cn='严重程度',
    ),
    'check_list.why': Message(
        en='why',
        zh_cn='原因',
    ),
    'check_list.header': Message(
        en='{rules:rule|rules}; ignore one by `stability_checks = '
        'dict(ignore=[...])` in the config',
        zh_cn='共 {rules} 条规则；在配置中用 `stability_checks = '
        'dict(ignore=[...])` 忽略',
    ),
}
