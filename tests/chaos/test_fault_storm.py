"""Random faults of all kinds: the run survives, and all of them are told."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from tests.chaos.findings import Findings, judge_run
from tests.chaos.storm import (
    FATAL,
    SIGNALS,
    final_miou,
    poison_at_the_end,
    quickstart,
    random_faults,
    run_here,
    run_in_child,
    supervise,
    tiny,
    write_config,
)

ENDING = ('oom', 'exception', 'signal')


def storm(folder: Path, cfg, faults, run) -> Findings:
    cfg.custom_hooks[-1]['faults'] = faults
    write_config(folder, cfg)
    ending = sum(fault['kind'] in ENDING for fault in faults)
    codes = supervise(folder, run, most=ending)
    # As many as ended it, and no more.
    assert len(codes) == ending + 1, codes
    assert poison_at_the_end(folder) == []
    findings = judge_run(folder)
    assert findings.mistakes == []
    assert findings.recall == findings.precision == 1.0
    return findings


def test_one_of_each(tmp_path):
    cfg = tiny(620, [])
    faults = random_faults(cfg, random.Random(0), first=60, slot=27)
    assert len({fault['kind'] for fault in faults}) == 18
    storm(tmp_path, cfg, faults, run_here)


def clean_mious(folder: Path, max_iters: int, seeds) -> list[float]:
    scores = []
    for seed in seeds:
        cfg = quickstart(max_iters, 'float32', [], seed)
        write_config(folder / str(seed), cfg)
        assert run_in_child(folder / str(seed)) == 0
        findings = judge_run(folder / str(seed))
        assert findings.told == 0, findings.mistakes
        scores.append(final_miou(folder / str(seed)))
    return scores


@pytest.mark.soak
@pytest.mark.parametrize('seed', [0])
def test_thousands_of_iterations(tmp_path, seed):
    max_iters = 4000
    cfg = quickstart(max_iters, 'float32', [])
    rng = random.Random(seed)
    faults = random_faults(cfg, rng, first=100, signals=(*SIGNALS, *FATAL))
    findings = storm(tmp_path / 'storm', cfg, faults, run_in_child)
    assert findings.injected >= 70
    scores = clean_mious(tmp_path / 'clean', max_iters, range(4))
    noise = statistics.stdev(scores)
    print(
        f'{findings}\nclean {scores}, storm {final_miou(tmp_path / "storm")}'
    )
    assert final_miou(tmp_path / 'storm') > min(scores) - 2 * noise


@pytest.mark.soak
def test_the_same_in_fp16(tmp_path):
    cfg = quickstart(1200, 'float16', [])
    faults = random_faults(cfg, random.Random(1), first=100)
    findings = storm(tmp_path, cfg, faults, run_in_child)
    assert findings.injected >= 20
