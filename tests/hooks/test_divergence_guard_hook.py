"""A run in trouble goes back, goes on, or stops with a reason."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import DATASETS, HOOKS, MODELS
from torch import nn

from mmstable.errors import TrainingDiverged
from mmstable.events import Action, Fault
from mmstable.report import GuardIntervention, read_events
from tests.loops.runs import iter_loop, log_of, validation
from tests.toys import (
    NAN,
    Sabotage,
    ToyData,
    ToyModel,
    assert_same,
    toy_runner,
    weights,
)

FUSED = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=64.0,
    optimizer=dict(type='AdamW', lr=0.01, fused=True),
)
PLAIN = dict(
    type='mmstable.SafeOptimWrapper',
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
)
STOCK = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
SCHEDULE = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=50)]


class Poison(Hook):
    """Writes NaN somewhere, right before an iteration."""

    priority = 'HIGHEST'

    def __init__(self, at, where='weight') -> None:
        self.at, self.where = at, where

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 not in self.at:
            return
        weight = runner.model.net.head.weight
        if self.where == 'weight':
            weight.data[0, 0] = NAN
        else:
            runner.optim_wrapper.optimizer.state[weight][self.where].fill_(NAN)


# For the config of a test at the end.
for registry, one, name in (
    (MODELS, ToyModel, 'GuardedToyModel'),
    (DATASETS, ToyData, 'GuardedToyData'),
    (HOOKS, Poison, 'Poison'),
):
    registry.register_module(name=name, module=one, force=True)


class Diary(Hook):
    """Notes what training is done with, and what is done about it."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.lr: list[float] = []
        self.states: dict[int, dict] = {}
        self.done: list = []
        self.bad: list = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.lr.append(runner.optim_wrapper.get_lr()['lr'][0])

    def after_train_iter(self, runner, *args, **kwargs):
        self.states[runner.iter + 1] = weights(runner.model)

    def after_intervention(self, runner, intervention):
        self.done.append(intervention)

    def after_bad_step(self, runner, report):
        self.bad.append(report)


def run(folder, guard=None, faults=(), wrapper=PLAIN, iters=12, **kwargs):
    diary = Diary()
    settings = dict(
        type='mmstable.DivergenceGuardHook',
        snapshot_interval=4,
        **{'max_consecutive_bad': 2, **(guard or {})},
    )
    runner = toy_runner(
        folder,
        json.loads(json.dumps(wrapper)),
        iters,
        [*faults, settings, diary, dict(type='mmstable.EventLogHook')],
        **kwargs,
    )
    runner.diary = diary
    runner.train()
    return runner


def test_bad_steps_in_a_row_lead_back_to_the_last_snapshot(tmp_path):
    faults = [Sabotage(loss=[6, 7])]
    runner = run(tmp_path, faults=faults, iters=7)
    (done,) = runner.diary.done
    assert (done.action, done.fault) == (Action.ROLLBACK, Fault.NAN_LOSS)
    assert (done.iteration, done.since, done.restored) == (7, 6, 4)
    assert (done.source, done.subject) == ('memory', 'optim_wrapper')
    assert [one.iteration for one in runner.diary.bad] == [6, 7]
    assert_same(runner.diary.states[7], runner.diary.states[4])


@pytest.mark.parametrize('wrapper', [PLAIN, FUSED], ids=['plain', 'fused'])
def test_after_a_rollback_training_is_as_if_the_bad_part_never_was(
    tmp_path, wrapper
):
    # Iterations 5 to 7 are given up: what follows is what a run does that
    # never saw their data.
    whole = run(
        tmp_path / 'a',
        dict(lr_factor=1.0),
        [Sabotage(loss=[6, 7])],
        wrapper,
        iters=10,
    )
    data = whole.train_dataloader.dataset
    kept = [i for i in range(10) if i not in (4, 5, 6)]
    order = [i for k in kept for i in (2 * k % 16, (2 * k + 1) % 16)]
    reference = run(
        tmp_path / 'b',
        wrapper=wrapper,
        iters=7,
        train_dataloader=torch.utils.data.DataLoader(
            torch.utils.data.Subset(data, order), batch_size=2
        ),
    )
    assert len(whole.diary.done) == 1
    assert_same(weights(whole.model), weights(reference.model))
    assert_same(
        whole.optim_wrapper.optimizer.state_dict()['state'],
        reference.optim_wrapper.optimizer.state_dict()['state'],
    )


@pytest.mark.parametrize('wrapper', [PLAIN, FUSED], ids=['plain', 'fused'])
def test_a_poisoned_weight_leads_back_at_once(tmp_path, wrapper):
    runner = run(tmp_path, faults=[Poison([7])], wrapper=wrapper)
    (done,) = runner.diary.done
    assert (done.action, done.fault) == (Action.ROLLBACK, Fault.POISONED)
    assert (done.iteration, done.restored) == (7, 4)
    assert [c.name for c in done.culprits] == ['state_dict.net.head.weight']
    assert all(v.isfinite().all() for v in weights(runner.model).values())


def test_a_poisoned_optimizer_leads_back_too(tmp_path):
    runner = run(tmp_path, faults=[Poison([7], 'exp_avg')], wrapper=FUSED)
    assert [one.fault for one in runner.diary.done] == [Fault.POISONED]
    names = [c.name for c in runner.diary.done[0].culprits]
    assert 'optimizer.net.head.weight.exp_avg' in names
    state = runner.optim_wrapper.optimizer.state
    assert all(
        value.isfinite().all()
        for one in state.values()
        for value in one.values()
    )


def test_silent_poison_is_found_before_it_gets_into_a_snapshot(tmp_path):
    class Unused(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            self.net.head.register_buffer('idle', torch.zeros(3))

    class Spoil(Hook):
        def after_train_iter(self, runner, *args, **kwargs):
            if runner.iter + 1 == 6:
                runner.model.net.head.idle[1] = math.inf

    runner = run(tmp_path, faults=[Spoil()], model=Unused())
    (done,) = runner.diary.done
    assert (done.iteration, done.restored) == (8, 4)
    assert done.culprits[0] == ('state_dict.net.head.idle', 'Inf')


def test_a_mask_with_inf_is_no_poison(tmp_path):
    class Masked(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('mask', torch.full((3,), -math.inf))

    runner = run(tmp_path, faults=[Sabotage(loss=[6])], model=Masked())
    assert runner.diary.done == []


def test_the_stock_wrapper_is_rolled_back(tmp_path):
    runner = run(
        tmp_path,
        faults=[Sabotage(grads={6: ('net.head.weight', NAN)})],
        wrapper=STOCK,
    )
    (done,) = runner.diary.done
    assert (done.fault, done.restored) == (Fault.POISONED, 4)
    assert all(v.isfinite().all() for v in weights(runner.model).values())


def test_the_average_goes_back_as_well(tmp_path):
    averages = {}

    class Note(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, *args, **kwargs):
            ema = next(h for h in runner.hooks if isinstance(h, EMAHook))
            averages[runner.iter + 1] = weights(ema.ema_model)

    run(tmp_path, faults=[Poison([7]), EMAHook(momentum=0.5), Note()])
    # Iteration 7 ends with the state of 4, averaged once more.
    assert int(averages[7]['steps']) == int(averages[4]['steps']) + 1
    assert all(v.isfinite().all() for v in averages[12].values())


def test_the_lower_rate_survives_the_schedule_and_recovers(tmp_path):
    clean = run(
        tmp_path / 'clean', param_scheduler=SCHEDULE, iters=16
    ).diary.lr
    runner = run(
        tmp_path / 'bad',
        dict(lr_factor=0.5, lr_recovery=4),
        [Sabotage(loss=[6, 7])],
        param_scheduler=SCHEDULE,
        iters=16,
    )
    lr = runner.diary.lr
    assert lr[:7] == clean[:7]
    # mmengine's own hook lets the schedule lag: it is at 4 again, and steps.
    factors = [a / b for a, b in zip(lr[7:], clean[5:])]
    assert factors[:5] == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0])
    assert factors[5:] == pytest.approx([1.0] * 4)
    scheduled = runner.optim_wrapper.param_groups[0]['lr']
    assert scheduled == pytest.approx(clean[14])


def test_a_rate_that_does_not_recover_stays(tmp_path):
    runner = run(
        tmp_path,
        dict(lr_factor=0.5, lr_recovery=0),
        [Sabotage(loss=[6, 7])],
        iters=12,
    )
    assert runner.diary.lr == [0.1] * 7 + [0.05] * 5


def test_checkpoints_have_the_rate_of_the_schedule(tmp_path):
    runner = run(
        tmp_path,
        dict(actions=dict(nan_loss='lower_lr'), lr_recovery=0),
        [Sabotage(loss=[2, 3])],
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=6, by_epoch=False)
        ),
    )
    assert runner.diary.lr[-1] == 0.05
    saved = torch.load(tmp_path / 'iter_6.pth', weights_only=True)
    assert saved['optimizer']['param_groups'][0]['lr'] == 0.1


def test_a_warm_up_on_top_of_the_schedule(tmp_path):
    runner = run(
        tmp_path, dict(warmup=dict(iters=5, start_factor=0.5)), iters=8
    )
    expected = [0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.1, 0.1]
    assert runner.diary.lr == pytest.approx(expected)
    shown = runner.message_hub.get_scalar('train/stable/lr_factor').data[0]
    assert shown == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])


@pytest.mark.parametrize('action', ['warn', 'lower_lr'])
def test_milder_actions_leave_the_state_alone(tmp_path, action):
    runner = run(
        tmp_path,
        dict(actions=dict(nan_loss=action)),
        [Sabotage(loss=[6, 7])],
        iters=7,
    )
    (done,) = runner.diary.done
    assert done.action is Action(action)
    assert done.restored is None
    assert_same(runner.diary.states[7], runner.diary.states[5])


def test_the_rate_of_bad_steps_counts_over_a_window(tmp_path):
    runner = run(
        tmp_path,
        dict(
            max_bad_rate=0.2,
            window=20,
            actions=dict(nan_loss='warn'),
        ),
        [Sabotage(loss=[2, 5, 8, 11])],
    )
    (done,) = runner.diary.done
    assert done.iteration == 11
    assert done.reason == '4 of the last 11 steps were bad, 1 in a row'


def test_overflows_at_the_start_are_the_scale_finding_its_level(tmp_path):
    wrapper = dict(FUSED, loss_scale=2.0**24)
    runner = run(tmp_path, wrapper=wrapper, iters=6)
    assert runner.optim_wrapper.skipped_steps > 2
    assert runner.diary.done == []


class Jump(Hook):
    """Multiplies the loss of some iterations."""

    priority = 'HIGHEST'

    def __init__(self, at, factor=1000.0) -> None:
        self.at, self.factor = at, factor
        self.handle = None

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 in self.at:
            self.handle = runner.model.register_forward_hook(
                lambda *a: {k: v * self.factor for k, v in a[2].items()}
            )

    def after_train_iter(self, runner, *args, **kwargs):
        if self.handle is not None:
            self.handle.remove()


SPIKES = dict(window=10, warmup=5, threshold=9.0)
CAREFUL = dict(
    type='mmstable.SafeOptimWrapper', optimizer=dict(type='SGD', lr=1e-3)
)


def test_a_spike_is_a_warning_by_default(tmp_path):
    runner = run(tmp_path, dict(spike=SPIKES), [Jump([10])], CAREFUL, iters=11)
    assert {(d.iteration, d.fault, d.action) for d in runner.diary.done} == {
        (10, Fault.SPIKE, Action.WARN)
    }
    assert runner.diary.bad == []
    assert 'Iter 10: spike: ' in log_of(runner)


def test_a_spike_can_be_skipped_before_it_is_made(tmp_path):
    guard = dict(spike=SPIKES, actions=dict(spike='skip'))
    runner = run(tmp_path, guard, [Jump([10])], CAREFUL, iters=10)
    assert runner.optim_wrapper.last_step.fault is Fault.SPIKE
    assert_same(runner.diary.states[10], runner.diary.states[9])
    assert [d.action for d in runner.diary.done] == [Action.SKIP]


def test_a_spike_can_lead_back(tmp_path):
    guard = dict(spike=SPIKES, actions=dict(spike='rollback'))
    runner = run(tmp_path, guard, [Jump([10])], CAREFUL, iters=10)
    (done,) = runner.diary.done
    assert (done.action, done.restored) == (Action.ROLLBACK, 8)
    assert_same(runner.diary.states[10], runner.diary.states[8])


def test_a_rollback_that_did_not_help_is_followed_by_an_older_one(tmp_path):
    faults = [Sabotage(loss=[10, 11, 13, 14, 15, 16])]
    runner = run(tmp_path, faults=faults, iters=16)
    assert [d.restored for d in runner.diary.done] == [8, 4, 4]


def stopped(folder, guard=None, faults=None, **kwargs):
    with pytest.raises(TrainingDiverged) as caught:
        run(folder, guard, faults or [Poison(range(6, 99))], **kwargs)
    return caught.value


def diagnosis(folder: Path) -> dict:
    (path,) = folder.glob('*/stability/diagnosis.json')
    return json.loads(path.read_text(encoding='utf-8'))


def test_a_run_is_given_up_after_so_many_rollbacks(tmp_path):
    error = stopped(tmp_path, dict(max_rollbacks=2))
    assert error.exit_code == 4
    found = diagnosis(tmp_path)
    assert found['text'] == str(error)
    assert found['stop']['fault'] == 'poisoned'
    assert [one['restored'] for one in found['rollbacks']] == [4, 0]
    assert found['stop']['culprits'][0]['name'] == 'state_dict.net.head.weight'
    assert found['wrappers']['optim_wrapper']['lr'] == 0.1
    assert found['checkpoint'] is None
    assert '2 rollbacks with a lower learning rate' in str(error)
    assert 'start a new run' in str(error)


def test_the_diagnosis_names_the_checkpoint_from_before(tmp_path):
    error = stopped(
        tmp_path,
        dict(actions=dict(poisoned='stop')),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
            )
        ),
    )
    found = diagnosis(tmp_path)
    assert found['checkpoint'].endswith('iter_4.pth')
    assert f'--resume-from {found["checkpoint"]}' in found['resume']
    assert found['resume'] in str(error)
    assert found['stop']['since'] == 6


def test_nothing_is_validated_or_saved_after_a_stop(tmp_path):
    seen = []

    class Note(Hook):
        def before_val(self, runner):
            seen.append(runner.iter)

    with pytest.raises(TrainingDiverged):
        run(
            tmp_path,
            dict(actions=dict(poisoned='stop')),
            [
                Poison([6]),
                Note(),
                dict(type='mmstable.EmergencyCheckpointHook'),
            ],
            train_cfg=iter_loop(12, val_interval=3),
            default_hooks=dict(
                checkpoint=dict(
                    type='mmstable.SafeCheckpointHook',
                    interval=3,
                    by_epoch=False,
                )
            ),
            model=Predicting(),
            **validation(),
        )
    assert seen == [3]
    assert sorted(p.name for p in tmp_path.glob('*.pth')) == ['iter_3.pth']


class Predicting(ToyModel):
    def forward(self, inputs, targets, number=None, mode='tensor'):
        outputs = super().forward(inputs, targets, mode)
        return list(outputs) if mode == 'predict' else outputs


def test_a_run_that_starts_poisoned_does_not_start(tmp_path):
    model = ToyModel()
    model.net.head.bias.data[1] = NAN
    error = stopped(tmp_path, faults=[Sabotage()], model=model)
    assert 'stopped at iteration 0' in str(error)
    assert 'state_dict.net.head.bias (NaN)' in str(error)


def test_good_steps_renew_the_rollbacks(tmp_path):
    faults = [Poison([6, 12, 18])]
    runner = run(
        tmp_path,
        dict(max_rollbacks=1, renew_rollbacks=3),
        faults,
        iters=20,
    )
    assert len(runner.diary.done) == 3


def test_a_model_that_is_too_large_goes_back_to_a_checkpoint(tmp_path):
    class Note(Hook):
        def before_train(self, runner):
            runner.averages = next(
                h for h in runner.hooks if isinstance(h, EMAHook)
            )

    runner = run(
        tmp_path,
        dict(max_snapshot_memory=0.0, lr_factor=1.0),
        [Poison([7]), EMAHook(), Note()],
        wrapper=FUSED,
        iters=7,
        param_scheduler=SCHEDULE,
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=3, by_epoch=False
            )
        ),
    )
    (done,) = runner.diary.done
    assert done.restored == 6
    assert done.source.endswith('iter_6.pth')
    assert_same(runner.diary.states[7], runner.diary.states[6])
    assert runner.optim_wrapper.applied_steps == 6
    assert runner.optim_wrapper.skipped_steps == 1
    # Stepped once more after it came back.
    assert runner.param_schedulers[0].last_step == 7
    assert 'max_snapshot_memory=0' in log_of(runner)


def test_without_anything_to_go_back_to_the_run_stops(tmp_path):
    error = stopped(tmp_path, dict(max_snapshot_memory=0.0))
    assert 'because of poisoned since iteration 6' in str(error)


def test_a_checkpoint_that_was_refused_leads_back(tmp_path):
    class Spoil(Hook):
        def after_train_iter(self, runner, *args, **kwargs):
            if runner.iter + 1 == 5:
                runner.model.net.head.bias.data[0] = NAN

    runner = run(
        tmp_path,
        faults=[Spoil()],
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=5, by_epoch=False
            )
        ),
    )
    (done,) = runner.diary.done
    assert (done.fault, done.iteration, done.restored) == (
        Fault.POISONED,
        5,
        4,
    )


def test_everything_is_in_the_event_file(tmp_path):
    run(tmp_path, faults=[Sabotage(loss=[6, 7])])
    (path,) = tmp_path.glob('*/stability/events.jsonl')
    (event,) = (
        e for e in read_events(path) if isinstance(e, GuardIntervention)
    )
    assert (event.iteration, event.action, event.fault, event.restored) == (
        7,
        'rollback',
        'nan_loss',
        4,
    )


def test_accumulation_is_rolled_back_between_two_windows(tmp_path):
    wrapper = dict(PLAIN, accumulative_counts=2)
    runner = run(
        tmp_path,
        faults=[
            Sabotage(grads=dict.fromkeys((9, 11), ('net.head.weight', NAN)))
        ],
        wrapper=wrapper,
        iters=14,
    )
    (done,) = runner.diary.done
    assert (done.iteration, done.restored) == (12, 8)
    assert_same(runner.diary.states[12], runner.diary.states[8])


def test_chinese_is_spoken(tmp_path):
    runner = run(tmp_path, dict(lang='zh_cn'), [Sabotage(loss=[6, 7])])
    assert (
        '已回滚到第 4 次迭代的状态（内存快照），数据不回退，从下一个 batch '
        '继续；学习率 x 0.5，1000 次迭代内恢复为 1。第 1/3 次回滚'
    ) in log_of(runner)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(actions=dict(nan='warn')), '`actions`: no setting `nan`; there'),
        (
            dict(actions=dict(poisoned='skip')),
            r"`actions\['poisoned'\]` must be one of rollback, warn, stop, "
            "got 'skip'",
        ),
        (dict(window=5), '`window` must be an int of at least 20, got 5'),
        (dict(max_bad_rate=0), '`max_bad_rate` must be a finite'),
        (dict(lr_factor=2.0), 'number above 0 and at most 1'),
        (dict(snapshot_interval=0), '`snapshot_interval` must be an int'),
        (dict(max_rollbacks=-1), '`max_rollbacks` must be an int'),
        (
            dict(max_snapshot_memory='x'),
            'must be a finite number of at',
        ),
        (dict(spike=dict(sigma=3)), '`spike`: no setting `sigma`; there'),
        (
            dict(spike=dict(threshold=0)),
            '`spike.threshold` must be .* above 0 and at most 1000',
        ),
        (dict(warmup=dict(start=1)), '`warmup`: no setting `start`; there'),
        (dict(warmup=dict(start_factor=1)), '`warmup.iters` must be an int'),
        (dict(warmup=3), '`warmup` must be a dict, got 3'),
        (dict(window=True), '`window` must be an int .* got True'),
        (dict(lr_recovery=False), '`lr_recovery` must be an int .* got Fal'),
        (dict(lang='fr'), '`lang` must be one of'),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    from mmstable.hooks import DivergenceGuardHook

    with pytest.raises((TypeError, ValueError), match=message):
        DivergenceGuardHook(**settings)


def test_several_optimizers_go_back_together(tmp_path):
    from mmengine.optim import OptimWrapperDict

    from mmstable import SafeOptimWrapper

    class Two(ToyModel):
        def train_step(self, data, optim_wrapper):
            data = self.data_preprocessor(data, True)
            for name in ('body', 'head'):
                one = optim_wrapper[name]
                with one.optim_context(self):
                    losses = self(**data, mode='loss')
                one.update_params(losses['loss'])
            return losses

    torch.manual_seed(0)
    model = Two()

    def wrap(module: nn.Module) -> SafeOptimWrapper:
        return SafeOptimWrapper(
            torch.optim.AdamW(module.parameters(), 0.01, fused=True)
        )

    diary = Diary()
    diary.before_train_iter = lambda *args, **kwargs: None
    runner = toy_runner(
        tmp_path,
        OptimWrapperDict(
            body=wrap(model.net.backbone), head=wrap(model.net.head)
        ),
        8,
        [
            Poison([7]),
            dict(type='mmstable.DivergenceGuardHook', snapshot_interval=4),
            diary,
        ],
        model=model,
    )
    runner.train()
    assert [d.restored for d in diary.done] == [4]
    assert all(v.isfinite().all() for v in weights(model).values())


def test_schedule_and_average_of_mmstable_go_back_exactly(tmp_path):
    from mmstable.hooks import SafeEMAHook

    averages, positions = {}, {}

    class Note(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, *args, **kwargs):
            ema = next(h for h in runner.hooks if isinstance(h, EMAHook))
            averages[runner.iter + 1] = weights(ema.ema_model)
            positions[runner.iter + 1] = runner.param_schedulers[0].last_step

    run(
        tmp_path,
        dict(lr_factor=1.0),
        [Sabotage(loss=[6, 7]), SafeEMAHook(momentum=0.5), Note()],
        iters=20,
        param_scheduler=SCHEDULE,
        default_hooks=dict(
            param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
            checkpoint=dict(type='CheckpointHook', interval=10**6),
        ),
    )
    assert_same(averages[7], averages[4])
    assert positions[7] == positions[4] == 4
    # What is owed is paid back until the end.
    assert positions[20] == 20


def test_an_average_inside_an_open_window_is_not_put_back_again(tmp_path):
    from mmstable.hooks import SafeEMAHook

    ema = SafeEMAHook(momentum=0.5)
    run(
        tmp_path,
        dict(max_consecutive_bad=1),
        [Sabotage(grads={11: ('net.head.weight', NAN)}), ema],
        wrapper=dict(PLAIN, accumulative_counts=2),
        iters=12,
    )
    # The snapshot is of 8; the window began with the average of 10.
    assert int(ema.ema_model.steps) == 8


def test_tools_train_returns_the_exit_code(tmp_path, capsys):
    from mmstable.cli.train import main

    config = tmp_path / 'config.py'
    config.write_text(
        """
custom_imports = dict(imports=['tests.hooks.test_divergence_guard_hook'])
work_dir = 'unused'
model = dict(type='GuardedToyModel')
train_dataloader = dict(
    batch_size=2, sampler=dict(type='InfiniteSampler'),
    collate_fn=dict(type='default_collate'),
    dataset=dict(type='GuardedToyData'))
train_cfg = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=20)
optim_wrapper = dict(
    type='mmstable.SafeOptimWrapper', optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=4, by_epoch=False),
    guard=dict(type='mmstable.DivergenceGuardHook', max_rollbacks=1))
custom_hooks = [
    dict(type='Poison', at=list(range(7, 99))),
    dict(type='mmstable.EmergencyCheckpointHook')]
"""
    )
    code = main([str(config), '--work-dir', str(tmp_path / 'run')])
    assert code == 4
    (file,) = tmp_path.glob('run/*/stability/diagnosis.json')
    assert f'diverged; the reason is above, and in {file}' in (
        capsys.readouterr().err
    )
    assert diagnosis(tmp_path / 'run')['resume'].endswith(
        f'--resume-from {tmp_path}/run/iter_4.pth'
    )
    assert not list((tmp_path / 'run').glob('emergency*'))


SAFE_SCHEDULES = dict(
    param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=10**6),
)


def last_rates(folder, schedule, faults=(), iters=24, **kwargs):
    runner = run(
        folder,
        dict(lr_factor=1.0),
        faults,
        iters=iters,
        param_scheduler=schedule,
        default_hooks=SAFE_SCHEDULES,
        **kwargs,
    )
    assert bool(runner.diary.done) == bool(faults)
    return runner.optim_wrapper.get_lr()


@pytest.mark.parametrize('bad', [6, 14], ids=['warm-up', 'decay'])
def test_a_schedule_of_two_parts_ends_with_the_run(tmp_path, bad):
    schedule = [
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10),
        dict(type='CosineAnnealingLR', by_epoch=False, begin=10, end=24),
    ]
    faults = [Sabotage(loss=[bad, bad + 1])]
    rates = last_rates(tmp_path / 'bad', schedule, faults)
    assert rates['lr'] == pytest.approx(
        last_rates(tmp_path / 'good', schedule)['lr']
    )


def test_a_schedule_by_epoch_goes_on_with_the_epoch(tmp_path):
    schedule = [dict(type='MultiStepLR', milestones=[2, 3], by_epoch=True)]

    def rates(folder, faults=()):
        data = ToyData(8)
        return last_rates(
            folder,
            schedule,
            faults,
            train_cfg=dict(by_epoch=True, max_epochs=6),
            train_dataloader=torch.utils.data.DataLoader(data, batch_size=2),
        )['lr']

    # The snapshot is of the epoch before.
    assert rates(tmp_path / 'bad', [Sabotage(loss=[9, 10])]) == pytest.approx(
        rates(tmp_path / 'good')
    )


def test_the_base_rate_of_many_groups_goes_back_too(tmp_path):
    wrapper = dict(PLAIN, paramwise_cfg=dict(bias_lr_mult=2.0))
    faults = [Sabotage(loss=[6, 7])]
    runner = run(
        tmp_path,
        dict(lr_factor=1.0),
        faults,
        wrapper,
        param_scheduler=SCHEDULE,
    )
    rates = runner.optim_wrapper.get_lr()
    assert rates['base_lr'][0] == pytest.approx(rates['lr'][0])


@pytest.mark.parametrize('missing', ['optimizer', 'param_scheduler'])
def test_a_checkpoint_of_half_a_state_leaves_the_rate_alone(tmp_path, missing):
    runner = run(
        tmp_path,
        dict(max_snapshot_memory=0.0, lr_factor=1.0),
        [Poison([9])],
        param_scheduler=SCHEDULE,
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                interval=3,
                by_epoch=False,
                **{f'save_{missing}': False},
            )
        ),
    )
    assert runner.diary.done[0].restored == 6
    clean = run(tmp_path / 'clean', param_scheduler=SCHEDULE)
    assert runner.diary.lr == pytest.approx(clean.diary.lr)


def test_a_mask_that_is_made_in_the_first_forward_is_no_poison(tmp_path):
    class Lazy(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('mask', None, persistent=False)

        def forward(self, *args, **kwargs):
            if self.mask is None:
                self.mask = torch.full((3, 3), -math.inf).triu(1)
            return super().forward(*args, **kwargs)

    assert run(tmp_path, model=Lazy()).diary.done == []


def test_a_poison_that_is_only_warned_of_leaves_others_to_act(tmp_path):
    with pytest.raises(TrainingDiverged):
        run(
            tmp_path,
            dict(actions=dict(poisoned='warn', nan_loss='stop')),
            [Poison([5])],
        )


def test_buffers_that_change_their_shape_go_back(tmp_path):
    class Growing(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('seen', torch.zeros(1))
            self.register_buffer('flat', torch.ones(1).expand(3))

        def forward(self, *args, **kwargs):
            self.seen = torch.zeros(len(self.seen) + 1)
            return super().forward(*args, **kwargs)

    runner = run(tmp_path, faults=[Poison([7])], model=Growing(), iters=7)
    assert runner.diary.done[0].restored == 4
    assert len(runner.model.seen) == 5


def test_optimizer_state_may_be_of_any_type(tmp_path):
    class Factored(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for param in group['params']:
                    self.state[param]['dims'] = (0, 1, 2)

    from mmengine.registry import OPTIMIZERS

    OPTIMIZERS.register_module(module=Factored, force=True)
    wrapper = dict(PLAIN, optimizer=dict(type='Factored', lr=0.1))
    runner = run(tmp_path, faults=[Poison([7])], wrapper=wrapper)
    assert [d.restored for d in runner.diary.done] == [4]


def test_a_spike_inside_a_window_waits_for_its_end(tmp_path):
    runner = run(
        tmp_path,
        dict(spike=SPIKES, actions=dict(spike='rollback')),
        [Jump([13])],
        dict(CAREFUL, accumulative_counts=4),
        iters=16,
    )
    assert runner.diary.done[0].iteration == 16


def test_a_resumed_run_knows_how_often_it_went_back(tmp_path):
    first = run(
        tmp_path,
        dict(max_rollbacks=1),
        [Poison([6])],
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=8, by_epoch=False)
        ),
    )
    assert len(first.diary.done) == 1
    error = stopped(
        tmp_path / 'rest',
        dict(max_rollbacks=1),
        [Poison([10])],
        load_from=str(tmp_path / 'iter_8.pth'),
        resume=True,
    )
    assert '1 rollback with a lower learning rate' in str(error)


def test_trouble_of_one_optimizer_is_not_ended_by_another():
    from mmstable.events import Outcome, StepReport
    from mmstable.recovery.detector import DivergenceDetector

    limits = dict(
        window=20, max_rate=0.5, max_consecutive_bad=9, calibration_steps=0
    )
    watch = DivergenceDetector(limits, {})
    watch.follow(['a', 'b'])
    for iteration in (1, 2, 3):
        bad = StepReport(iteration, Outcome.SKIPPED, Fault.NAN_LOSS)
        watch.hear_step('a', bad)
        watch.hear_step('b', StepReport(iteration, Outcome.APPLIED))
    assert not watch.is_calm
    assert watch.since(3) == 1


def test_a_sparse_table_is_left_alone(tmp_path):
    class Graph(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            table = torch.eye(3).to_sparse_csr()
            self.register_buffer('graph', table, persistent=False)

    runner = run(tmp_path, faults=[Poison([7])], model=Graph())
    assert [d.restored for d in runner.diary.done] == [4]
    assert torch.equal(runner.model.graph.to_dense(), torch.eye(3))
