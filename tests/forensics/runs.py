"""Runs whose bad steps are explained."""

from __future__ import annotations

from mmengine.hooks import Hook

from tests.forensics.planted_cases import Findings
from tests.loops.runs import iter_loop
from tests.toys import NAN, toy_runner

HOOK = dict(type='mmstable.FaultForensicsHook')
SGD = dict(type='SGD', lr=0.1)


def run(folder, *hooks, settings=None, **kwargs):
    findings = Findings()
    hook = {**HOOK, **(settings or {})}
    kwargs.setdefault('train_cfg', iter_loop(6))
    runner = toy_runner(folder, hooks=[*hooks, hook, findings], **kwargs)
    runner.train()
    return runner, findings.found


class BadData(Hook):
    """Puts a value into the input of given iterations."""

    priority = 'VERY_HIGH'

    def __init__(self, *iterations, value=NAN):
        self.iterations, self.value = iterations, value

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 in self.iterations:
            inputs = data_batch['inputs'].clone()
            inputs[1, 0] = self.value
            # As if it had come so: nobody has written to it.
            data_batch['inputs'] = inputs.clone()
