"""Why a file cannot be loaded, or is not the one to resume from."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'bad.checkpoint': Message(
        en="checkpoint '{path}' is {reason}",
        zh_cn="checkpoint '{path}'：{reason}",
    ),
    # Each begins with one word for it.
    'bad.missing': Message(en='missing: {error}', zh_cn='无法读取：{error}'),
    'bad.empty': Message(en='empty', zh_cn='是空文件'),
    'bad.truncated': Message(en='truncated: {error}', zh_cn='不完整：{error}'),
    'bad.corrupt': Message(en='corrupt: {error}', zh_cn='已损坏：{error}'),
    'bad.foreign': Message(en='foreign: {error}', zh_cn='格式不符：{error}'),
    'bad.refused': Message(
        en='refused: it asks for {error}, which is not on the list of what '
        'checkpoints may contain. Nothing in it was executed. If you know '
        'who made it and trust them, name it together with '
        '--trust-checkpoint',
        zh_cn='被拒绝：它要求 {error}，而这不在 checkpoint 允许的内容之列。'
        '其中的代码均未执行。如果您知道并信任其来源，请加 --trust-checkpoint '
        '一起指定',
    ),
    'bad.other_file': Message(
        en='corrupt: it is not the file that was verified before',
        zh_cn='已损坏：它不是之前校验过的文件',
    ),
    'bad.digest': Message(
        en='corrupt: its SHA-256 is not as saved',
        zh_cn='已损坏：其 SHA-256 与保存时不同',
    ),
    'bad.saved_so': Message(
        en='non-finite: saved so', zh_cn='含 NaN 或 Inf：保存时即如此'
    ),
    'bad.not_finite': Message(
        en='non-finite: {culprits}', zh_cn='含 NaN 或 Inf：{culprits}'
    ),
    'bad.no_state_dict': Message(
        en='foreign: a dict with a state_dict is expected, got {got}',
        zh_cn='格式不符：应为含 state_dict 的 dict，得到 {got}',
    ),
    'bad.no_dict': Message(
        en='foreign: a dict is expected, got {got}',
        zh_cn='格式不符：应为 dict，得到 {got}',
    ),
    'bad.section': Message(
        en="foreign: its '{name}' is a {kind}, not a dict",
        zh_cn="格式不符：其 '{name}' 是 {kind}，而不是 dict",
    ),
    'bad.weights_only': Message(
        en='foreign: it has weights only, no `meta` with epoch and iter. '
        '--load-from starts a new run with them',
        zh_cn='格式不符：只有权重，没有含 epoch 和 iter 的 `meta`。可用 '
        '--load-from 以这些权重开始新的训练',
    ),
    'bad.no_count': Message(
        en='foreign: its {name} is {value}, not a count',
        zh_cn='格式不符：其 {name} 为 {value}，不是计数',
    ),
    'bad.a': Message(en='a {kind}', zh_cn='一个 {kind}'),
    'bad.dict_of': Message(en='a dict of {keys}', zh_cn='含有 {keys} 的 dict'),
    'bad.empty_dict': Message(en='an empty dict', zh_cn='空 dict'),
    # Why it is not taken, although it can be loaded.
    'search.not_before': Message(
        en='iteration {iteration} is not before {before}',
        zh_cn='第 {iteration} 次迭代不早于第 {before} 次',
    ),
    'search.not_taken': Message(
        en='{name} of iteration {iteration} is not taken: {why}',
        zh_cn='未选用第 {iteration} 次迭代的 {name}：{why}',
    ),
    'search.pointer': Message(
        en='last_checkpoint names another one, which was saved later',
        zh_cn='last_checkpoint 指向之后保存的另一个',
    ),
    'search.newer_run': Message(
        en='a newer run was started in its folder',
        zh_cn='其目录中已开始了更新的训练',
    ),
    'search.older_run': Message(
        en='it is of an older run in the same folder',
        zh_cn='它属于同一目录中更早的训练',
    ),
    'search.went_back': Message(
        en='the run went back and was started again after it',
        zh_cn='训练在它之后已退回并重新开始',
    ),
    'address.no_file': Message(
        en="'{address}' does not name a file to download.",
        zh_cn="'{address}' 没有指明要下载的文件。",
    ),
    'address.no_backend': Message(
        en="mmengine has no file backend for '{address}'.",
        zh_cn="mmengine 没有用于 '{address}' 的文件后端。",
    ),
    # What a run starts with.
    'start.fresh': Message(
        en='starting from the beginning', zh_cn='从头开始训练'
    ),
    'start.resuming': Message(
        en="resuming from '{path}' ({reason})",
        zh_cn="从 '{path}' 恢复训练（{reason}）",
    ),
    'start.weights': Message(
        en="starting with weights of '{path}' ({reason})",
        zh_cn="以 '{path}' 的权重开始训练（{reason}）",
    ),
    'start.by_config': Message(en='the config', zh_cn='来自配置'),
    'start.missing': Message(
        en="{reason}: no checkpoint '{path}'.{hint}",
        zh_cn="{reason}：没有 checkpoint '{path}'。{hint}",
    ),
    'start.trust_one_file': Message(
        en='--trust-checkpoint is for one local file: name it by '
        '--resume-from or --load-from.',
        zh_cn='--trust-checkpoint 只用于一个本地文件：请用 --resume-from 或 '
        '--load-from 指定它。',
    ),
    'start.needs_resume': Message(
        en='{option} goes with --resume.',
        zh_cn='{option} 需与 --resume 同时使用。',
    ),
    'start.nothing_to_choose': Message(
        en="--before-iter chooses a checkpoint, but '{path}' is named by "
        '{reason}.',
        zh_cn='--before-iter 用于选择 checkpoint，但 {reason} 已指定 '
        "'{path}'。",
    ),
    'start.not_shared': Message(
        en="'{path}' is there on rank 0, but not on {nodes}: checkpoints must "
        'be on a disk that all machines share.',
        zh_cn="rank 0 上有 '{path}'，但 {nodes} 上没有：checkpoint 必须在所有"
        '机器共享的磁盘上。',
    ),
    'start.trusted': Message(
        en="--trust-checkpoint: '{path}' is loaded without the guard. If "
        'there is code in it, that code runs now, with all your rights. Other '
        'files are guarded as always.',
        zh_cn="--trust-checkpoint：不加防护地加载 '{path}'。如果其中有代码，"
        '它现在就会以您的全部权限运行。其他文件仍受防护。',
    ),
    'start.skipped': Message(en='skipped {reason}', zh_cn='跳过 {reason}'),
    'start.left': Message(
        en='{note}; --resume-from takes it',
        zh_cn='{note}；可用 --resume-from 选用它',
    ),
    'start.none_good': Message(
        en="no checkpoint in '{folder}' can be resumed, see above. To start "
        'anew, do so without --resume.',
        zh_cn="'{folder}' 中没有可恢复的 checkpoint，见上。如需重新开始，"
        '请去掉 --resume。',
    ),
    'start.none_yet': Message(
        en="no checkpoint in '{folder}' yet",
        zh_cn="'{folder}' 中还没有 checkpoint",
    ),
    'start.used_folder': Message(
        en="'{folder}' has checkpoints of an earlier run, the newest is "
        '{name} of iteration {iteration}. This is a new run, and replaces '
        'files of the same name. To continue the earlier one instead: '
        '{command}',
        zh_cn="'{folder}' 中有以前训练的 checkpoint，最新的是第 {iteration} 次"
        '迭代的 {name}。这是新的训练，会替换同名文件。如需继续以前的训练：'
        '{command}',
    ),
    'lock.impossible': Message(
        en="cannot lock '{folder}': {error}",
        zh_cn="无法锁定 '{folder}'：{error}",
    ),
    'lock.waiting': Message(
        en="'{folder}' is locked from {host}: waiting {seconds:g} s for a "
        'sign of life',
        zh_cn="'{folder}' 已被 {host} 锁定：等待 {seconds:g} 秒，看其是否仍在"
        '运行',
    ),
    'lock.unknown': Message(en='an unknown process', zh_cn='某个未知进程'),
    'lock.process': Message(
        en='process {pid} on {host}', zh_cn='{host} 上的进程 {pid} '
    ),
    'lock.in_use': Message(
        en="'{folder}' is in use: {who} trains there, and two runs in one "
        'folder destroy each other. Choose another --work-dir, or stop that '
        'run. --force starts nevertheless.',
        zh_cn="'{folder}' 正被使用：{who}正在其中训练，同一目录中的两个训练会"
        '互相破坏。请换一个 --work-dir，或停止那个训练。--force 会强行开始。',
    ),
    'start.none_beside': Message(
        en='{error}. There is no good one in its folder.',
        zh_cn='{error}。其目录中没有完好的。',
    ),
    'start.good_beside': Message(
        en='{error}. The newest good one there is of iteration {iteration}: '
        '--resume-from {path}',
        zh_cn='{error}。其目录中最新的完好 checkpoint 是第 {iteration} 次迭代'
        '的：--resume-from {path}',
    ),
}
