from __future__ import annotations

import pytest

from mmstable.report import RunStart, WrapperSetup


@pytest.fixture
def header() -> RunStart:
    return RunStart(
        iteration=0,
        time=1.5,
        schema=1,
        rank=0,
        world_size=1,
        host='box',
        pid=7,
        versions={'torch': '2.13.0'},
        device='cpu',
        device_name=None,
        seed=None,
        max_iterations=100,
        config_sha256='ab' * 32,
        wrappers={
            'optim_wrapper': WrapperSetup(
                type='A',
                optimizer='B',
                accumulative_counts=1,
                dtype=None,
                clip_grad={'max_norm': 35, 'norm_type': float('inf')},
                clip='max_norm=35',
                loss_scale=None,
                scale_policy=None,
            )
        },
        custom_hooks=({'type': 'C', 'limits': [1.0, float('-inf')]},),
    )
