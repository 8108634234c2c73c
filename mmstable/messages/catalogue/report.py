"""What ``mmstable report`` says."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'command.report': Message(
        en='show what happened to a run: one HTML file, and a summary',
        zh_cn='展示一次训练发生了什么：一个 HTML 文件和摘要',
    ),
    'help.report.description': Message(
        en='Draw what happened in a work directory, over all its '
        'starts, into one HTML file that opens offline, and print '
        'a summary. With several work directories they are '
        'compared.',
        zh_cn='把一个工作目录中所有启动的经过画成一个可离线打开的'
        ' HTML 文件，并打印摘要。给出多个工作目录时进行比较。',
    ),
    'help.report.paths': Message(
        en='a work directory, the folder of one run, or an event file',
        zh_cn='工作目录、某次运行的目录或事件文件',
    ),
    'help.report.output': Message(
        en='the HTML file; stability_report.html in the first folder '
        'by default',
        zh_cn='HTML 文件；默认为第一个目录中的 stability_report.html',
    ),
    'help.report.serve': Message(
        en='show it on this machine instead, on this port (8321 by '
        'default), and keep it up to date',
        zh_cn='改为在本机该端口（默认 8321）上展示，并持续刷新',
    ),
    'help.report.json': Message(
        en='print the summary and the findings as JSON',
        zh_cn='以 JSON 格式输出摘要和诊断',
    ),
    'report.no_folder': Message(
        en="there is no folder or file '{path}'.",
        zh_cn='没有目录或文件“{path}”。',
    ),
    'report.no_events': Message(
        en="'{path}' has no event file of mmstable "
        '(<run>/stability/events.jsonl). mmstable.EventLogHook '
        'writes it while a run trains; `mmstable train CONFIG` adds that '
        'hook by itself, unless --as-is is given.',
        zh_cn='“{path}”中没有 mmstable 的事件文件（'
        '<run>/stability/events.jsonl）。'
        '训练时由 mmstable.EventLogHook 写入；除非使用 --as-is，'
        '`mmstable train CONFIG` 会自动添加该钩子。',
    ),
    'report.deeper': Message(
        en="'{path}' is no work directory, but has some in it. Name one or "
        'several: {names}.',
        zh_cn='“{path}”不是工作目录，但其中包含工作目录。'
        '请指定一个或多个：{names}。',
    ),
    'report.too_many': Message(
        en='at most {most} work directories can be compared, got {count}.',
        zh_cn='最多比较 {most} 个工作目录，给出了 {count} 个。',
    ),
    'report.cannot_write': Message(
        en="cannot write '{path}': {error}.",
        zh_cn='无法写入“{path}”：{error}。',
    ),
    'report.serve_failed': Message(
        en='cannot listen on port {port} of this machine: {error}.',
        zh_cn='无法监听本机端口 {port}：{error}。',
    ),
    'report.bad_port': Message(
        en='must be a port from 0 to 65535, got {text}',
        zh_cn='必须是 0 到 65535 的端口，得到 {text}',
    ),
    'report.reading': Message(
        en='reading event file {number} of {count}',
        zh_cn='正在读取事件文件 {number}/{count}',
    ),
    'report.written': Message(
        en='written to {path}',
        zh_cn='已写入 {path}',
    ),
    'report.serving': Message(
        en='at {address} for this machine only; Ctrl-C ends it',
        zh_cn='仅本机可访问 {address}；按 Ctrl-C 结束',
    ),
    'report.problem': Message(
        en='left out: {text}',
        zh_cn='已忽略：{text}',
    ),
    'report.bad_lines': Message(
        en='{path}: {count:line was|lines were} not readable',
        zh_cn='{path}：{count} 行无法读取',
    ),
    'report.cut_off': Message(
        en='{path}: the last line is cut off, as a killed process leaves it',
        zh_cn='{path}：最后一行不完整，进程被杀死时会这样',
    ),
    'report.newer': Message(
        en='{path} was written by a newer mmstable: what this one '
        'does not know is shown as it is',
        zh_cn='{path} 由更新版本的 mmstable 写入：无法识别的内容按原样显示',
    ),
    'report.healthy': Message(
        en='Nothing is wrong: {steps:step|steps}, none skipped, no alarm.',
        zh_cn='一切正常：共 {steps} 步，没有跳过，没有警报。',
    ),
    'report.good_enough': Message(
        en='Nothing serious: {steps:step|steps}, {skipped} skipped.',
        zh_cn='没有严重问题：共 {steps} 步，跳过 {skipped} 步。',
    ),
    'report.look': Message(
        en='{count:finding needs|findings need} your attention.',
        zh_cn='有 {count} 条诊断需要处理。',
    ),
    'report.too_short': Message(
        en='Too little has happened to say anything: {steps:step|steps}.',
        zh_cn='记录太少，无法诊断：共 {steps} 步。',
    ),
    'report.why': Message(
        en='why: {text}',
        zh_cn='依据：{text}',
    ),
    'report.fix': Message(
        en='fix: {text}',
        zh_cn='建议：{text}',
    ),
    'report.end_note': Message(
        en='mmstable: {text} Report: {path}',
        zh_cn='mmstable：{text}报告：{path}',
    ),
    'report.failed': Message(
        en='mmstable: the report could not be written; the run is not '
        'affected',
        zh_cn='mmstable：无法写入报告；训练不受影响',
    ),
}
