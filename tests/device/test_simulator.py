"""The simulated device behaves as CUDA does where mmstable relies on it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    'case',
    [
        'copy_is_late',
        'side_stream_is_waited_for',
        'unordered_streams_are_a_race',
        'change_during_a_copy_is_a_race',
        'kernel_fails_late',
        'label_out_of_range_asserts',
        'hung_device_blocks_the_host_only',
        'eight_devices_have_their_own_state',
        'compiling_is_refused',
    ],
)
def test_simulator(tmp_path, device, case):
    device.call(case, tmp_path)
