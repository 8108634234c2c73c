"""Texts of the rules, by their ids."""

from __future__ import annotations

from mmstable.finding import FindingText
from mmstable.messages import N_

# Of `mmstable check`. No fix: every hit has a change.
RULE_TEXTS = {
    'keeps_one_checkpoint': FindingText(
        what=N_("`max_keep_ckpts=1` with mmengine's CheckpointHook."),
        why=N_(
            'It deletes the only checkpoint before it writes the next: a '
            'crash in between leaves none.'
        ),
    ),
    'checkpoints_by_epoch': FindingText(
        what=N_('checkpoints by epoch in a run by iterations.'),
        why=N_(
            'A run by iterations is a single epoch to mmengine: nothing is '
            'saved before its end.'
        ),
    ),
    'validation_before_save': FindingText(
        what=N_('validation every {between}, a checkpoint every {interval}.'),
        why=N_(
            'Validation is where memory runs out and metrics raise; without '
            'a checkpoint right before it, that loses more than the '
            'validation.'
        ),
    ),
    'disk_space': FindingText(
        what=N_(
            '{count} checkpoints of {size:.2f} GB, but {free:.2f} GB are free.'
        ),
        why=N_('A full disk ends the run, or leaves half a checkpoint.'),
        fix=N_('keep fewer, save less often, or make room'),
    ),
    'workers_without_number': FindingText(
        what=N_('`{path}` needs `num_workers` above 0.'),
        why=N_('torch refuses settings of workers if there are no workers.'),
    ),
    'too_many_workers': FindingText(
        what=N_(
            '{workers:worker|workers} x {ranks:rank|ranks} = {all} processes '
            'on {cores:core|cores}.'
        ),
        why=N_(
            'More busy processes than cores wait for each other, take '
            'memory, and slow down training itself.'
        ),
        fix=N_('use fewer workers'),
    ),
    'shared_memory': FindingText(
        what=N_(
            '{workers:worker|workers} x prefetch {prefetch} x '
            '{ranks:rank|ranks} x {size:.2f} GB a batch = {need:.2f} GB, '
            '/dev/shm has {limit:.2f} GB.'
        ),
        why=N_(
            'Workers hand batches over in /dev/shm; when it is full they die '
            'with a bus error.'
        ),
        fix=N_(
            'use fewer workers, a smaller `prefetch_factor` or a smaller batch'
        ),
    ),
    'worker_memory': FindingText(
        what=N_(
            '{workers:worker|workers} x prefetch {prefetch} x '
            '{ranks:rank|ranks} x {size:.2f} GB a batch = {need:.2f} GB, '
            'half of the free memory is {limit:.2f} GB.'
        ),
        why=N_(
            'Batches that wait take memory until the system kills a process.'
        ),
        fix=N_(
            'use fewer workers, a smaller `prefetch_factor` or a smaller batch'
        ),
    ),
    'sampler_repeats_data': FindingText(
        what=N_('{kind} with {ranks:rank|ranks}.'),
        why=N_(
            "torch's own samplers know nothing of ranks: all of them train "
            'on the same samples.'
        ),
    ),
    'endless_epoch': FindingText(
        what=N_('InfiniteSampler in a run by epochs.'),
        why=N_(
            'The first epoch never ends: no validation, no checkpoint, no '
            'schedule.'
        ),
    ),
    'activation_checkpointing': FindingText(
        what=N_('`activation_checkpointing={names!r}`.'),
        why=N_(
            'mmengine wraps modules by reentrant checkpointing: on inputs '
            'without gradients, as images, they get none and are not '
            'trained. SafeActivationCheckpointHook does it right.'
        ),
    ),
    'unused_with_checkpointing': FindingText(
        what=N_('`find_unused_parameters=True` with `{path}=True`.'),
        why=N_(
            'With checkpointed activations DDP marks parameters ready twice, '
            'and raises.'
        ),
        fix=N_(
            '`find_unused_parameters = False`, or `model_wrapper_cfg = '
            "dict(type='MMDistributedDataParallel', static_graph=True)`"
        ),
    ),
    'train_step_without_context': FindingText(
        what=N_('{name} never enters `optim_wrapper.optim_context`.'),
        why=N_(
            'Without it there is no autocast, no accumulation and no '
            'protection of buffers: a run in fp16 trains in fp32.'
        ),
        fix=N_(
            '`with optim_wrapper.optim_context(self):` around the forward pass'
        ),
    ),
    'unseen_parameters': FindingText(
        what=N_(
            'the optimizer has none of {names} ({count} of {total} '
            'parameters).'
        ),
        why=N_('They are never trained, although they may get gradients.'),
        fix=N_(
            'see `optim_wrapper.paramwise_cfg` and `constructor`, or set '
            '`requires_grad=False` if that is meant'
        ),
    ),
    'no_gradient': FindingText(
        what=N_('no gradient for {names} ({count} of {total} parameters).'),
        why=N_(
            'Parameters without gradients are not trained, and make DDP wait '
            'or raise.'
        ),
        fix=N_(
            'use them in the loss, set `requires_grad=False`, or '
            '`find_unused_parameters = True` for DDP'
        ),
    ),
    'deep_failed': FindingText(
        what=N_('{what} failed: {error}'),
        why=N_(
            '`--deep` builds the model and its optimizer, and does one '
            'forward and backward pass on the CPU.'
        ),
        fix=N_('see whether training fails with the same'),
    ),
    'legacy_key': FindingText(
        what=N_('`{key}` is a key of mmcv 1.x.'),
        why=N_(
            'mmengine does not read keys of mmcv 1.x: they have no effect, '
            'and nobody says so.'
        ),
        fix=N_(
            'translate the config by `mmstable upgrade CONFIG -o NEW.py`; '
            '`mmstable train` does it by itself'
        ),
    ),
    'unknown_key': FindingText(
        what=N_('nobody reads `{key}`; `{near}` is read.'),
        why=N_(
            'A misspelt key at the top of a config has no effect, and nobody '
            'says so.'
        ),
    ),
    'text_for_number': FindingText(
        what=N_(
            '`{path}` is the text {text!r}: write {text} without quotes{note}.'
        ),
        why=N_('It fails when it is first computed with.'),
    ),
    'hook_without_type': FindingText(
        what=N_(
            '`{path}` has no `type`, so nothing can be built from it.{hint}'
        ),
        why=N_(
            'mmengine cannot build a hook without `type`: often its name in '
            '`default_hooks` is misspelt.'
        ),
        fix=N_('give it a `type`, or correct its name'),
    ),
    'custom_hooks_no_dicts': FindingText(
        what=N_(
            '`{path}` is {value!r}, but `custom_hooks` is a list of dicts, '
            'each with a `type`.'
        ),
        why=N_('mmengine cannot build a hook from anything else.'),
        fix=N_("write custom_hooks = [dict(type='...'), ...]"),
    ),
    'resume_and_load_from': FindingText(
        what=N_("`resume=True` with `load_from='{file}'`."),
        why=N_(
            'mmengine resumes from that file, not from the newest '
            'checkpoint: every restart loses what came after it.'
        ),
        fix=N_(
            '`load_from = None` to go on with this run, or `resume = False` '
            'to start from these weights'
        ),
    ),
    'incomplete_loop': FindingText(
        what=N_(
            'the config has {given}, but not {missing}: all of them are '
            'needed, or none (set what is not wanted to None).'
        ),
        why=N_('mmengine refuses a loop of which a part is missing.'),
        fix=N_('add what is missing, or set all of them to None'),
    ),
    'late_validation': FindingText(
        what=N_('`{name}={value}`, but the run ends at {length}.'),
        why=N_(
            'The run is not validated on its way: no best checkpoint, and '
            'nobody sees it fail.'
        ),
    ),
    'missing_package': FindingText(
        what=N_('not installed here: {names}.'),
        why=N_(
            'Their classes cannot be looked at, and such a config cannot be '
            'trained here.'
        ),
        fix=N_('install them, or check where you train'),
    ),
    'missing_import': FindingText(
        what=N_('`{name}` cannot be imported: {error}'),
        why=N_(
            'Training cannot start without the modules of `custom_imports`.'
        ),
        fix=N_(
            'install the package, correct the name, or start in the folder '
            'that has it'
        ),
    ),
    'unknown_type': FindingText(
        what=N_('not registered: {names}.'),
        why=N_('Nothing can be built from a type that no module registers.'),
        fix=N_('correct the name, or name its module in `custom_imports`'),
    ),
    'unknown_argument': FindingText(
        what=N_('{kind} has no argument `{name}`.{hint}'),
        why=N_(
            'The class refuses it when it is built; a checkpoint hook only '
            'when it saves for the first time, hours later.'
        ),
        fix=N_('correct the name, or leave it out'),
    ),
    'hook_priority': FindingText(
        what=N_(
            '{kind} at priority {priority} instead of {usual} changes places '
            'with {others}.'
        ),
        why=N_(
            'What reacts to a step must come after what resolves it, and '
            'before what saves it; else skipped steps are averaged, '
            'scheduled or saved.'
        ),
        fix=N_('leave `priority` out'),
    ),
    'hook_twice': FindingText(
        what=N_('{kind} of `{path}` does the work of `{first}` again.'),
        why=N_(
            'Two hooks of a kind do everything twice: schedules move twice, '
            'averages are averaged, files are overwritten.'
        ),
        fix=N_('keep one of them'),
    ),
    'stock_ema': FindingText(
        what=N_("{kind} is mmengine's; there is {safe}."),
        why=N_(
            "A skipped step still moves the average of mmengine's EMAHook."
        ),
    ),
    'stock_param_scheduler': FindingText(
        what=N_("{kind} is mmengine's; there is {safe}."),
        why=N_(
            "A skipped step still moves the schedules of mmengine's "
            'ParamSchedulerHook.'
        ),
    ),
    'stock_checkpoint': FindingText(
        what=N_("{kind} is mmengine's; there is {safe}."),
        why=N_(
            "mmengine's CheckpointHook saves NaN weights, overwrites in "
            'place, and deletes the old file first.'
        ),
    ),
    'stock_loop': FindingText(
        what=N_("{kind} is mmengine's; there is {safe}."),
        why=N_(
            "mmengine's loops do not resume at the same sample, and read all "
            'past batches again.'
        ),
    ),
    'deterministic_with_benchmark': FindingText(
        what=N_('`deterministic=True` and `cudnn_benchmark=True`.'),
        why=N_(
            'The search for the fastest algorithm picks another one in every '
            'run, so mmengine switches it off again.'
        ),
    ),
    'deterministic_without_seed': FindingText(
        what=N_('`deterministic=True` without a seed.'),
        why=N_(
            'Without a seed every run draws its own, and no two are the same.'
        ),
    ),
    'missing_data': FindingText(
        what=N_("'{file}' does not exist."),
        why=N_('A data set cannot be read from a path that is not there.'),
        fix=N_(
            'correct the path, mount the data, or start in the right folder'
        ),
    ),
    'missing_weights': FindingText(
        what=N_("'{file}' does not exist."),
        why=N_('Training cannot start from weights that are not there.'),
        fix=N_('correct the path, or fetch the file'),
    ),
    'int_scale': FindingText(
        what=N_('`loss_scale={scale}` is an int.'),
        why=N_(
            "mmengine's AmpOptimWrapper takes only a float, a dict or "
            "'dynamic', and raises a TypeError for an int."
        ),
    ),
    'frozen_scale': FindingText(
        what=N_('the loss scale {scale} never moves.'),
        why=N_(
            'A fixed loss scale does not back off after an overflow: the '
            'same steps are skipped again and again, in silence.'
        ),
    ),
    'high_scale': FindingText(
        what=N_(
            'the loss scale starts at {scale:g} with a loss weight of '
            '{weight:g}.'
        ),
        why=N_(
            'fp16 ends at 65504: a loss of 1, or its gradient, overflows in '
            'the first steps.'
        ),
    ),
    'bf16_unsupported': FindingText(
        what=N_('bfloat16 on a GPU that does not support it.'),
        why=N_(
            'GPUs before Ampere emulate bfloat16 or refuse it: training is '
            'slow, or fails.'
        ),
    ),
    'fp16_without_clipping': FindingText(
        what=N_('{kinds} in fp16 without `clip_grad`.'),
        why=N_(
            'Gradients of transformers have rare peaks; in fp16 one of them '
            'can end a run.'
        ),
    ),
    'error_if_nonfinite': FindingText(
        what=N_('clipping raises at the first overflow.'),
        why=N_(
            'With AMP an overflow is normal and costs one step; '
            '`error_if_nonfinite=True` ends the run instead.'
        ),
    ),
    'clipped_twice': FindingText(
        what=N_('both GradClipHook and `{path}` clip.'),
        why=N_(
            'GradClipHook takes over the clipping, and refuses to start '
            'beside `clip_grad`.'
        ),
    ),
    'bad_batch_size': FindingText(
        what=N_('{error}'),
        why=N_(
            'No batch has such a size. A division of whole numbers gives 0 '
            'if the second is larger.'
        ),
        fix=N_('set `batch_size` to an int of at least 1'),
    ),
    'accumulation_too_long': FindingText(
        what=N_('{error}'),
        why=N_(
            'The optimizer would never make a step: of several, none makes a '
            'shorter one at the end.'
        ),
        fix=N_('lower `accumulative_counts`, or train longer'),
    ),
    'accumulation_of_one_step': FindingText(
        what=N_(
            'a step takes {counts} iterations, but the whole run has {length}.'
        ),
        why=N_('The optimizer makes a single step, at the end of the run.'),
        fix=N_('lower `accumulative_counts`, or train longer'),
    ),
    'accumulation_not_counted': FindingText(
        what=N_(
            '{length} iterations are {steps:step|steps} with '
            '`accumulative_counts={counts}`; the first schedule ends after '
            '{first} iterations, or {first_steps:step|steps}.'
        ),
        why=N_(
            '`max_iters`, schedules and warm-up count iterations, not steps: '
            'accumulation makes them shorter.'
        ),
        fix=N_(
            'multiply `max_iters`, intervals and schedules by '
            '`accumulative_counts`, if they were meant as steps'
        ),
    ),
    'large_val_batch': FindingText(
        what=N_('`{path}` is {size}, training has {train}.'),
        why=N_(
            'A validation or sampling batch of four times the training batch '
            'or more can run out of memory, hours after the start.'
        ),
    ),
    'batchnorm_of_one': FindingText(
        what=N_('{kind} with one sample at a time.'),
        why=N_(
            'Statistics of a single sample are noise, and fail where a layer '
            'sees one value; accumulation does not help.'
        ),
        fix=N_(
            'use a larger batch, SyncBN over several ranks, or GroupNorm '
            "(`norm_cfg=dict(type='GN', num_groups=32)`)"
        ),
    ),
    'lr_for_other_batch': FindingText(
        what=N_(
            'the learning rate is for {base} samples a step, but a step has '
            '{actual} ({ranks:rank|ranks} x batch_size {size} x accumulation '
            '{counts}): {factor:g} of it.'
        ),
        why=N_(
            'A learning rate for another batch size diverges if it is too '
            'high, and learns slowly if it is too low.'
        ),
        fix=N_(
            'multiply `optim_wrapper.optimizer.lr` by that factor; `mmstable '
            'check --ranks N` checks for another number of ranks'
        ),
    ),
    'auto_scale_without_accumulation': FindingText(
        what=N_(
            '`auto_scale_lr` does not know of `accumulative_counts={counts}`.'
        ),
        why=N_(
            'mmengine scales the learning rate by ranks and batch size only: '
            'with accumulation it stays too low.'
        ),
        fix=N_(
            'divide `auto_scale_lr.base_batch_size` by '
            '`accumulative_counts`, and ignore this rule then'
        ),
    ),
    'no_warmup': FindingText(
        what=N_('{kinds} without warm-up.'),
        why=N_(
            "Adam's moments are poor estimates at first; transformers may "
            'diverge in the first steps at the full rate.'
        ),
        fix=N_('put a LinearLR in front of the schedule'),
    ),
    'schedule_by_epoch': FindingText(
        what=N_('{kind} counts epochs, the run counts iterations.'),
        why=N_(
            'A run by iterations is a single epoch to mmengine: the schedule '
            'never moves. `by_epoch` is True unless it is written.'
        ),
    ),
    'schedule_ends_early': FindingText(
        what=N_('{kind} ends at {end}, the run at {length}.'),
        why=N_(
            'After its end the learning rate stays where it is, often near '
            '0; a cosine with a shorter `T_max` rises again.'
        ),
        fix=N_('let the schedule end with the run'),
    ),
    'schedule_ends_late': FindingText(
        what=N_('{kind} ends at {end}, the run at {length}.'),
        why=N_('The run is over before the learning rate has come down.'),
        fix=N_('let the schedule end with the run'),
    ),
}
# Of `mmstable check-data`.
SAMPLE_TEXTS = {
    'raises': FindingText(
        what=N_('samples that raise'),
        why=N_('Training stops at the first of them.'),
        fix=N_('Mend or remove the file, or leave them out with SkipSamples.'),
    ),
    'no_sample': FindingText(
        what=N_('samples that the pipeline gives up on'),
        why=N_(
            'mmengine silently trains on another one, at random, in their '
            'place.'
        ),
        fix=N_(
            'Find out which transform returns None, and whether you can do '
            'without them.'
        ),
    ),
    'non_finite': FindingText(
        what=N_('NaN or Inf in the data'),
        why=N_(
            'They become a NaN loss, and spoil the statistics of BatchNorm.'
        ),
        fix=N_('Mend the files, or leave them out with SkipSamples.'),
    ),
    'label_range': FindingText(
        what=N_('labels that are no class'),
        why=N_(
            'On a GPU this is a device-side assert, far from its cause; or a '
            'NaN.'
        ),
        fix=N_(
            'Compare the classes of the data set with the files; see '
            'reduce_zero_label, ignore_index and num_classes.'
        ),
    ),
    'label_type': FindingText(
        what=N_('labels that are no whole numbers'),
        why=N_('A loss over classes takes whole numbers only.'),
        fix=N_('Load them as integers.'),
    ),
    'all_ignored': FindingText(
        what=N_('maps of which no pixel counts'),
        why=N_('A loss that is a mean over the other pixels is 0/0.'),
        fix=N_(
            'Leave them out, or see that the crop keeps some pixels '
            '(cat_max_ratio).'
        ),
    ),
    'empty_mask': FindingText(
        what=N_('masks of objects without a pixel'),
        why=N_('A mean over the pixels of such a mask is 0/0.'),
        fix=N_(
            'Remove such objects after cropping and resizing '
            '(FilterAnnotations).'
        ),
    ),
    'no_boxes': FindingText(
        what=N_('samples without a box'),
        why=N_(
            'Some heads cannot train on them, others learn from background '
            'only.'
        ),
        fix=N_(
            'Filter them (filter_cfg=dict(filter_empty_gt=True)) unless you '
            'want them.'
        ),
    ),
    'inverted_box': FindingText(
        what=N_('boxes with exchanged corners'),
        why=N_('Their width or height is negative, and its logarithm NaN.'),
        fix=N_('Mend the annotations; is it x, y, width, height?'),
    ),
    'flat_box': FindingText(
        what=N_('boxes without an area'),
        why=N_(
            'The logarithm of their size is infinite; IoU with them is 0/0.'
        ),
        fix=N_('Mend the annotations, or filter by size (FilterAnnotations).'),
    ),
    'no_points': FindingText(
        what=N_('point clouds without a point'),
        why=N_('Voxel encoders fail on them, or take a mean of nothing.'),
        fix=N_('Leave them out, or widen point_cloud_range.'),
    ),
    'channel_count': FindingText(
        what=N_('pictures with a wrong number of channels'),
        why=N_('The model stops with an error, or takes a mask for a colour.'),
        fix=N_("Load them with color_type='color', or convert the files."),
    ),
    'map_shape': FindingText(
        what=N_('maps that do not have the size of their picture'),
        why=N_('Pixels and labels do not belong together.'),
        fix=N_('Is the map resized and cropped by the same transforms?'),
    ),
    'odd_layout': FindingText(
        what=N_('samples with another type or number of dimensions than most'),
        why=N_('Batches may not be stacked, or change the precision.'),
        fix=N_('Have the pipeline convert all samples to one type.'),
    ),
    'odd_size': FindingText(
        what=N_('pictures of an unusual size'),
        why=N_(
            'Batches are padded to the largest picture, or cannot be '
            'stacked; a tiny one leaves no feature map.'
        ),
        fix=N_(
            'Look at the file, and at the resize and crop of the pipeline.'
        ),
    ),
    'leak': FindingText(
        what=N_('samples that are in the other split, too'),
        why=N_(
            'What is trained on is also measured with: the metric is too good.'
        ),
        fix=N_(
            'Remove them from one of the splits, or leave them out of the '
            'training with SkipSamples.'
        ),
    ),
    'duplicate': FindingText(
        what=N_('samples with the same content as another'),
        why=N_(
            'They count twice; between training and validation they flatter '
            'the metric.'
        ),
        fix=N_('Remove all but one.'),
    ),
}
