import random

import numpy as np
import pytest

from mmstable.optim.clipping import PercentileLimit, ZScoreLimit

KINDS = [PercentileLimit, ZScoreLimit]


def test_percentile_is_numpys():
    rng = random.Random(0)
    limit = PercentileLimit(75.0, window=50, warmup=2)
    norms = []
    for _ in range(200):
        norms.append(rng.lognormvariate(0, 1))
        limit.observe(norms[-1])
        if len(norms) >= 2:
            expected = np.percentile(norms[-50:], 75)
            assert limit.current() == pytest.approx(expected)


def test_zscore_of_quiet_norms():
    rng = random.Random(0)
    limit = ZScoreLimit(3.0, window=500, warmup=2)
    norms = [rng.gauss(10, 2) for _ in range(500)]
    # Far below the limit from the start, so that nothing is cut.
    for norm in norms:
        limit.norms.append(norm)
    expected = np.mean(norms) + 3 * np.std(norms)
    assert limit.current() == pytest.approx(expected)


@pytest.mark.parametrize('kind', KINDS)
def test_no_limit_while_it_learns(kind):
    limit = kind(warmup=5)
    for _ in range(4):
        assert limit.current() is None
        limit.observe(1.0)
    limit.observe(1.0)
    assert limit.current() is not None


@pytest.mark.parametrize('kind', KINDS)
def test_max_norm_holds_at_any_time(kind):
    limit = kind(warmup=2, max_norm=0.5)
    assert limit.current() == 0.5
    for _ in range(5):
        limit.observe(10.0)
    assert limit.current() == 0.5


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
@pytest.mark.parametrize('kind', KINDS)
def test_only_finite_norms_are_remembered(kind, bad):
    limit = kind(warmup=2)
    for norm in (1.0, bad, 1.2, bad):
        limit.observe(norm)
    assert list(limit.norms) == [1.0, 1.2]


@pytest.mark.parametrize('kind', KINDS)
def test_norms_of_zero_do_not_stop_training(kind):
    limit = kind(warmup=2)
    for _ in range(5):
        limit.observe(0.0)
    assert limit.current() is None


def test_a_lasting_rise_is_followed():
    limit = ZScoreLimit(window=50, warmup=5)
    for _ in range(50):
        limit.observe(1.0)
    assert limit.current() == pytest.approx(1.25)
    for _ in range(300):
        limit.observe(5.0)
    assert limit.current() > 5.0


@pytest.mark.parametrize('kind', KINDS)
def test_resume_in_the_middle(kind):
    rng = random.Random(1)
    norms = [rng.lognormvariate(0, 1) for _ in range(60)]
    whole, first, second = (kind(window=20, warmup=3) for _ in range(3))
    for norm in norms:
        whole.observe(norm)
    for norm in norms[:30]:
        first.observe(norm)
    second.load_state_dict(first.state_dict())
    for norm in norms[30:]:
        second.observe(norm)
    assert second.current() == whole.current()
    assert second.state_dict() == whole.state_dict()
