"""Every planted cause is named right, by a hook in a real run."""

from __future__ import annotations

import pytest
import torch

from mmstable.state.preserve import can_run_uncompiled
from tests.forensics.planted_cases import (
    CASES,
    INNOCENT,
    PATTERN_CASES,
    TWINS,
    Prepare,
    build_runner,
    run_case,
)
from tests.toys import assert_same, weights

pytestmark = pytest.mark.filterwarnings('ignore')
by_name = pytest.mark.parametrize('case', CASES, ids=lambda case: case.name)


def named(*words):
    return [case for case in CASES if any(word in case.name for word in words)]


@by_name
def test_the_cause_is_named(tmp_path, case):
    if case.name == 'compiled part' and not can_run_uncompiled():
        pytest.skip(f'torch {torch.__version__} has no torch.compiler stance')
    check_named(tmp_path, case)


def check_named(tmp_path, case):
    first, *later = run_case(case, tmp_path)
    assert first.iteration == 2
    assert (first.op, first.verdict) == (case.op, case.verdict)
    assert (first.module, first.name) == (case.module, case.source)
    assert (first.loss_terms, first.samples) == (case.terms, case.samples)
    assert first.only_together is case.together
    assert len(first.sample_names) == len(case.samples)
    if case.op:
        assert first.lines[0].endswith(case.code)
        assert '/forensics/planted_' in first.lines[0]
        assert first.bad_share > 0
    if case.samples == (2,):
        assert first.sample_names == ('img_path=data/6.png',)
    # The third batch is fine, unless the weights are not.
    is_lasting = 'exploding' in case.name or case.verdict == 'bad_weights'
    assert bool(later) is is_lasting
    return first


@pytest.mark.soak
@pytest.mark.parametrize('case', PATTERN_CASES, ids=lambda case: case.name)
def test_a_bug_of_the_literature_is_named(tmp_path, case):
    assert case.remedy in check_named(tmp_path, case).text


@pytest.mark.soak
@pytest.mark.parametrize('case', TWINS, ids=lambda case: case.name)
def test_no_twin_of_these_is_blamed(tmp_path, case):
    assert run_case(case, tmp_path) == []


def _atan2_has_a_slope_at_0():
    x = torch.zeros(1, requires_grad=True)
    torch.atan2(x, x).backward()
    return bool(x.grad.isfinite())


@pytest.mark.parametrize('case', INNOCENT, ids=lambda case: case.name)
def test_nothing_innocent_is_blamed(tmp_path, case):
    if case.name == 'atan2 at 0' and not _atan2_has_a_slope_at_0():
        pytest.skip(f'torch {torch.__version__} divides atan2 by 0')
    assert run_case(case, tmp_path) == []


@pytest.mark.parametrize(
    'case',
    named('exp', 'sqrt', 'Inf pixel', 'running', 'checkpoint', 'GAN', 'toge'),
    ids=lambda case: case.name,
)
def test_a_run_with_the_hook_ends_as_one_without(tmp_path, case):
    def run(name, hooks):
        prepare = Prepare(case.prepare)
        runner = build_runner(case, tmp_path / name, [prepare, *hooks])
        runner.train()
        return runner, torch.get_rng_state()

    with_hook, rng = run('a', [dict(type='mmstable.FaultForensicsHook')])
    without, expected = run('b', [])
    assert_same(
        {k: bits(v) for k, v in weights(with_hook.model).items()},
        {k: bits(v) for k, v in weights(without.model).items()},
    )
    assert torch.equal(rng, expected)


def bits(tensor):
    # NaN is not equal to itself.
    return tensor.contiguous().view(-1).view(torch.uint8)


def test_the_backward_pass_is_told_with_its_node(tmp_path):
    (case,) = named('sqrt at 0')
    (found,) = run_case(case, tmp_path)
    assert (found.phase, found.node) == ('backward', 'SqrtBackward0')
    assert found.kind == 'Inf'
    assert found.text.startswith(
        'Iter 2: first Inf in the backward pass of head '
    )
    assert 'division by 0' in found.text


def test_the_caller_of_an_own_function_is_told_too(tmp_path):
    (case,) = named('own autograd')
    (found,) = run_case(case, tmp_path)
    inner, outer = found.lines
    assert inner.endswith('return grad / (1 - flag), None  # cause')
    assert 'Ratio.apply' in outer


def test_fp16_overflow_has_its_value_and_advice(tmp_path):
    (case,) = named('exp, fp16')
    (found,) = run_case(case, tmp_path)
    assert found.largest == pytest.approx(162_755, rel=0.2)
    assert "fp32_modules=['head']" in found.text


REWRITES = {
    'log(0)': 'log_softmax instead of log(softmax)',
    'empty mask': 'Clamp the divisor',
    'sqrt at 0': 'sqrt(x.clamp(min=0) + eps)',
    'norm at 0': 'sqrt(x.clamp(min=0) + eps)',
    'acos beyond': 'Clamp to -1 + eps..1 - eps',
    'softmax, masked': 'instead of -Inf',
    'box decoder': 'logsumexp or log_softmax instead of sums of exp',
    'epsilon of 0': "fp32_modules=['head']) or train in bfloat16. Or use an "
    'epsilon of at least 1e-6',
    'table of numpy': 'from outside of torch, such as numpy',
}


@pytest.mark.parametrize('name', REWRITES)
def test_the_usual_rewrite_is_named(tmp_path, name):
    found, *_ = run_case(named(name)[0], tmp_path)
    assert REWRITES[name] in found.text


def test_exploding_activations_come_with_their_growth(tmp_path):
    (case,) = named('exploding')
    found, *_ = run_case(case, tmp_path)
    line = found.text.splitlines()[1]
    assert line.index('backbone') < line.index('head.fc ')


def test_bad_weights_come_with_the_first_bad_step(tmp_path):
    (case,) = named('NaN weight')
    first, second = run_case(case, tmp_path)
    assert (first.since, second.since) == (2, 2)
    assert 'since iteration 2' in second.text


def test_the_chain_leads_from_the_cause_to_the_loss(tmp_path):
    (case,) = named('softmax, masked row')
    (found,) = run_case(case, tmp_path)
    mask, softmax = found.chain
    assert 'masked_fill' in mask
    assert 'aten._softmax' in softmax


def test_what_was_compiled_is_said_to_be_replayed_without(tmp_path):
    (case,) = named('compiled part')
    (found,) = run_case(case, tmp_path)
    is_said = 'replayed without torch.compile' in found.text
    assert is_said is can_run_uncompiled()


def test_a_fault_of_one_precision_is_said_to_be_one(tmp_path):
    (case,) = named('bfloat16')
    (found,) = run_case(case, tmp_path)
    assert 'only in bfloat16: the same batch is finite' in found.text


def test_the_number_that_is_bad_is_named(tmp_path):
    (case,) = named('a number')
    (found,) = run_case(case, tmp_path)
    assert 'the code gives the number NaN to aten.mul' in found.text
