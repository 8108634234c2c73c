"""Every rule fires where it should, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mmstable.check import rule as rule_module
from mmstable.check.check_config import FAILED, check_config
from mmstable.check.config_tree import ConfigView, changed, look_up
from mmstable.check.rule import RULES, Rule, Violation
from mmstable.cli.check import apply_fixes
from mmstable.finding import Severity
from mmstable.messages import LANGUAGES, use_language
from tests.check.rule_cases import CASES, HEALTHY, MACHINE


def test_every_rule_has_its_cases() -> None:
    assert set(CASES) == set(RULES)


def test_a_healthy_config_is_left_alone() -> None:
    assert check_config(ConfigView(HEALTHY, MACHINE)) == []


@pytest.mark.parametrize('id', CASES)
def test_fires(id: str) -> None:
    found = check_config(CASES[id].view(fires=True))
    mine = [one for one in found if one.id == id]
    assert [one.path for one in mine[:1]] == [CASES[id].path]
    assert mine[0].severity is RULES[id].severity
    assert mine[0].what and mine[0].why and mine[0].fix
    assert FAILED not in {one.id for one in found}


@pytest.mark.parametrize('id', CASES)
def test_stays_quiet(id: str) -> None:
    found = {one.id for one in check_config(CASES[id].view(fires=False))}
    assert not found & {id, FAILED}


@pytest.mark.parametrize('id', CASES)
def test_is_said_in_every_language(id: str) -> None:
    texts = []
    for language in LANGUAGES:
        use_language(language)
        try:
            found = check_config(CASES[id].view(fires=True))
        finally:
            use_language(None)
        texts.append(next(f.why for f in found if f.id == id))
    assert len(set(texts)) == len(LANGUAGES)


@pytest.mark.parametrize('id', CASES)
def test_what_it_changes_mends_it(id: str) -> None:
    view = CASES[id].view(fires=True)
    has_change = [f for f in check_config(view) if f.id == id and f.change]
    __, __, rest = apply_fixes(view)
    left = {one.id for one in rest}
    assert (id in left) == (not has_change)
    # Nothing else has come up on the way.
    assert left <= {one.id for one in check_config(view)}


def test_a_rule_that_fails_does_not_end_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(view: ConfigView) -> Iterator[Violation]:
        raise ZeroDivisionError('by \x1b[31mzero')

    broken = Rule('broken', Severity.ERROR, fails, 'what', 'why')
    monkeypatch.setitem(rule_module.RULES, 'broken', broken)
    view = ConfigView(
        changed(HEALTHY, {'resume': True, 'load_from': 'a'}), MACHINE
    )
    found = {one.id: one for one in check_config(view)}
    assert set(found) == {FAILED, 'resume_and_load_from'}
    assert 'broken raised ZeroDivisionError' in found[FAILED].what
    assert 'by \\x1b[31mzero' in found[FAILED].what


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'int_scale' is registered twice"):
        rule_module.hint(what='a', why='b')(RULES['int_scale'].check)


def test_ignored_rules_are_silent() -> None:
    settings = changed(HEALTHY, {'resume': True, 'load_from': 'a'})
    settings['stability_checks'] = dict(ignore=['resume_and_load_from'])
    assert check_config(ConfigView(settings, MACHINE)) == []


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(ignore=['int_scal']), 'no setting `int_scal`.*mean int_scale'),
        (
            dict(ignored=['int_scale']),
            'no setting `ignored`; there are ignore',
        ),
        (dict(ignore=3), '`ignore` must be a name or a list of names, got 3'),
    ],
)
def test_what_to_ignore_must_exist(
    settings: dict[str, object], message: str
) -> None:
    view = ConfigView({**HEALTHY, 'stability_checks': settings}, MACHINE)
    with pytest.raises((TypeError, ValueError), match=message):
        check_config(view)


@pytest.mark.parametrize(
    ('path', 'meant'),
    [
        ('optim_wrapper.clip_gradd', 'clip_grad'),
        ('optim_wrapper.optimizer.weight_decy', 'weight_decay'),
        ('param_scheduler.1.eta_mn', 'eta_min'),
        ('train_cfg.val_intervall', 'val_interval'),
        ('val_cfg.fp17', 'fp16'),
        ('train_dataloader.dataset.lazy_int', 'lazy_init'),
        ('custom_hooks.0.intervall', 'interval'),
        ('default_hooks.checkpoint.save_optimzer', 'save_optimizer'),
        ('train_dataloader.batchsize', 'batch_size'),
        ('val_dataloader.num_worker', 'num_workers'),
        ('val_dataloader.num_batches_per_epoch', 'num_batch_per_epoch'),
        ('randomness.sed', 'seed'),
        ('log_processor.window', 'window_size'),
    ],
)
def test_misspelt_arguments(path: str, meant: str) -> None:
    hooks = [dict(type='mmstable.EventLogHook')]
    settings = changed(HEALTHY, {'custom_hooks': hooks, path: 7})
    (found,) = check_config(ConfigView(settings, MACHINE))
    assert (found.id, found.path) == ('unknown_argument', path)
    assert found.what.endswith(f'Did you mean {meant}?')


def test_arguments_of_classes_that_take_anything_are_left_alone() -> None:
    hook = dict(type='EMAHook', momentum=0.01, anything=3)
    settings = changed(HEALTHY, {'custom_hooks': [hook]})
    found = {one.id for one in check_config(ConfigView(settings, MACHINE))}
    assert 'unknown_argument' not in found


@pytest.mark.parametrize(
    'changes',
    [
        {'train_dataloader.num_batch_per_epoch': 3},
        {'train_dataloader.disable_subprocess_warning': True},
        {'train_dataloader.worker_init_fn': dict(type='worker_init')},
        {'train_dataloader.batch_sampler': dict(type='Own')},
        # Nobody knows what these do.
        {'train_dataloader.mine': 3, 'runner_type': 'MyRunner'},
        {'train_dataloader.mine': 3, 'train_dataloader.type': 'MyLoader'},
    ],
)
def test_what_mmengine_takes_out_of_a_loader(changes: dict[str, Any]) -> None:
    view = ConfigView(changed(HEALTHY, changes), MACHINE)
    found = {one.id for one in check_config(view)}
    assert 'unknown_argument' not in found


def test_several_wrappers_are_looked_at() -> None:
    inner = dict(type='AmpOptimWrapper', loss_scale=8, optimizer=dict())
    settings = changed(
        HEALTHY, {'optim_wrapper': dict(constructor='C', gen=inner, dis=inner)}
    )
    found = check_config(ConfigView(settings, MACHINE))
    paths = [one.path for one in found if one.id == 'int_scale']
    assert paths == [f'optim_wrapper.{n}.loss_scale' for n in ('gen', 'dis')]


def test_changed_makes_dicts_and_leaves_the_original() -> None:
    before = {'a': [{'b': 1}], 'c': None}
    after = changed(before, {'a.0.b': 2, 'c.d.e': 3})
    assert after == {'a': [{'b': 2}], 'c': {'d': {'e': 3}}}
    assert before == {'a': [{'b': 1}], 'c': None}
    assert look_up(after, 'a.0.b') == 2
    assert look_up(after, 'a.1.b', 'nothing') == 'nothing'


def test_rules_follow_the_size_of_a_config() -> None:
    assert calls_for(200) < 2.2 * calls_for(100)


def calls_for(count: int) -> int:
    """Calls of functions that check a run with so many data sets."""
    dataset = HEALTHY['train_dataloader']['dataset']
    many = dict(type='ConcatDataset', datasets=[dataset] * count)
    settings = changed(HEALTHY, {'train_dataloader.dataset': many})
    calls = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ('call', 'c_call')

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        check_config(ConfigView(settings, MACHINE))
    finally:
        sys.setprofile(before)
    return calls
