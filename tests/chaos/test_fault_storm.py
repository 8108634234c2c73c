"""Random faults of all kinds: the run survives, and all of them are told."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
from mmengine.registry import MODELS

from tests.chaos.findings import Findings, judge_run
from tests.chaos.storm import (
    SIGNALS,
    final_miou,
    poison_at_the_end,
    quickstart,
    random_faults,
    run_in_child,
    supervise,
    write_config,
)
from tests.chaos.tiny import TinyModel, TinyRun

ENDING = ('exception', 'signal')


def weather(folder: Path, faults: list[dict], run) -> Findings:
    """Let the run meet the faults, and see that it was up to them."""
    ending = sum(fault['kind'] in ENDING for fault in faults)
    codes = supervise(folder, run, most=ending)
    # As many as ended it, and no more.
    assert len(codes) == ending + 1, codes
    assert poison_at_the_end(folder) == []
    findings = judge_run(folder)
    assert findings.mistakes == []
    assert findings.recall == findings.precision == 1.0
    return findings


def weather_in_children(folder: Path, cfg, faults: list[dict]) -> Findings:
    cfg.custom_hooks[-1]['faults'] = faults
    write_config(folder, cfg)
    return weather(folder, faults, run_in_child)


@pytest.mark.parametrize('seed', [0, 1])
def test_one_of_each(tmp_path, seed):
    model, rng = TinyModel(), random.Random(seed)
    faults = random_faults(model, rng, range(60, 60 + 27 * 18, 27))
    assert len({fault['kind'] for fault in faults}) == 18
    weather(tmp_path, faults, TinyRun(60 + 27 * 19, faults))


def build(cfg):
    import mmstable.demo  # noqa: F401  (registers the model)

    return MODELS.build(dict(cfg.model))


def clean_mious(folder: Path, max_iters: int, seeds) -> list[float]:
    scores = []
    for seed in seeds:
        cfg = quickstart(max_iters, 'float32', seed)
        write_config(folder / str(seed), cfg)
        assert run_in_child(folder / str(seed)) == 0
        findings = judge_run(folder / str(seed))
        assert findings.told == 0, findings.mistakes
        scores.append(final_miou(folder / str(seed)))
    return scores


@pytest.mark.soak
def test_thousands_of_iterations(tmp_path):
    max_iters = 4000
    cfg = quickstart(max_iters, 'float32')
    faults = random_faults(
        build(cfg),
        random.Random(0),
        range(100, max_iters - 50, 50),
        signals=(*SIGNALS, 'SIGKILL'),
    )
    findings = weather_in_children(tmp_path / 'storm', cfg, faults)
    assert findings.injected >= 78
    score = final_miou(tmp_path / 'storm')
    clean = clean_mious(tmp_path / 'clean', max_iters, range(4))
    print(f'mIoU {score}, without faults {clean}; {findings}')
    noise = statistics.stdev(clean)
    assert score > statistics.mean(clean) - 2 * noise


@pytest.mark.soak
def test_the_same_in_fp16(tmp_path):
    cfg = quickstart(1200, 'float16')
    # A thousandfold would overflow, and rightly be called that.
    faults = random_faults(
        build(cfg), random.Random(1), range(100, 1150, 50), factor=200.0
    )
    findings = weather_in_children(tmp_path, cfg, faults)
    assert findings.injected >= 20
