"""About the back-ends of the visualizer."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'vis.failed': Message(
        en='mmstable: {backend} does not record everything: {reason}. '
        'Training continues; this is said once.',
        zh_cn='mmstable: {backend} 未能记录全部内容：{reason}。训练继续；此'
        '提示只出现一次。',
    ),
    'vis.full': Message(
        en='it blocks, or is slower than the run, and too much is waiting',
        zh_cn='后端阻塞或慢于训练，排队的内容过多',
    ),
    'vis.late': Message(
        en='it was not done after {seconds} s',
        zh_cn='{seconds} 秒后仍未完成',
    ),
    'vis.lost': Message(
        en='mmstable: {backend} has lost {count:record|records} of this run.',
        zh_cn='mmstable: {backend} 丢失了本次训练的 {count} 条记录。',
    ),
}
