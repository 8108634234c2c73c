import pytest
import torch

from mmstable import SafeAmpOptimWrapper
from mmstable.optim.loss_scale import ScalePolicy


def test_the_forms_of_loss_scale():
    assert ScalePolicy.from_config('dynamic') == ScalePolicy()
    assert ScalePolicy.from_config(512) == ScalePolicy(init_scale=512.0)
    assert ScalePolicy.from_config(512.0) == ScalePolicy(init_scale=512.0)
    policy = ScalePolicy.from_config(
        dict(init_scale=2**10, growth_interval=100.0, frozen=True)
    )
    assert policy == ScalePolicy(
        init_scale=1024.0, growth_interval=100, frozen=True
    )
    assert isinstance(policy.growth_interval, int)


@pytest.mark.parametrize('loss_scale', [2.0**40, dict(init_scale=2.0**40)])
def test_a_high_start_lifts_the_default_cap(loss_scale):
    policy = ScalePolicy.from_config(loss_scale)
    assert (policy.init_scale, policy.max_scale) == (2.0**40, 2.0**40)


@pytest.mark.parametrize('loss_scale', [0.5, dict(init_scale=0.5)])
def test_a_low_start_lowers_the_default_floor(loss_scale):
    policy = ScalePolicy.from_config(loss_scale)
    assert (policy.init_scale, policy.min_scale) == (0.5, 0.5)
    assert policy.max_scale == ScalePolicy.max_scale


@pytest.mark.parametrize('enabled', [True, False])
def test_scaling_is_switched_off_as_in_torch(enabled):
    net = torch.nn.Linear(1, 1)
    wrapper = SafeAmpOptimWrapper(
        loss_scale=dict(init_scale=512.0, enabled=enabled),
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
    )
    assert wrapper.loss_scaler.is_enabled() is enabled
    assert wrapper.loss_scaler.get_scale() == (512.0 if enabled else 1.0)


@pytest.mark.parametrize(
    ('loss_scale', 'message'),
    [
        ('static', "must be 'dynamic', a number or a dict, got 'static'"),
        (None, 'must be .* got None'),
        (True, '`init_scale` must be a finite number above 0, got Tr'),
        (0, '`init_scale` must be a finite number above 0, got 0'),
        (-512.0, '`init_scale` must be .* above 0, got -512.0'),
        (float('nan'), '`init_scale` must be a finite .* got nan'),
        (float('inf'), '`init_scale` must be a finite .* got inf'),
        (dict(init_scal=1), 'no setting `init_scal`; .* mean init_scale'),
        (dict(enabled=1), '`enabled` must be a bool, got 1'),
        (dict(min_scale=0), '`min_scale` must be .* above 0, got 0'),
        (dict(growth_factor=1), '`growth_factor` must be .* above 1, got 1'),
        (dict(backoff_factor=1), 'number above 0 and below 1, got 1'),
        (dict(backoff_factor=0), 'number above 0 and below 1, got 0'),
        (dict(growth_interval=0), 'must be an int of at least 1, got 0'),
        (dict(growth_interval=1.5), '`growth_interval` must be an int'),
        (dict(hysteresis='2'), "`hysteresis` must be an int .* got '2'"),
        (dict(frozen=1), '`frozen` must be a bool, got 1'),
        (dict(min_scale=8, max_scale=4), r'`init_scale` .* is outside'),
        (
            dict(init_scale=2.0**40, max_scale=2.0**24),
            r'outside \[`min_scale` 1.0, `max_scale` 16777216.0\]',
        ),
        (
            dict(init_scale=0.5, min_scale=1.0),
            r'`init_scale` 0.5 is outside \[`min_scale` 1.0',
        ),
    ],
)
def test_bad_settings_name_key_and_value(loss_scale, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ScalePolicy.from_config(loss_scale)
