"""No setting of an old config is dropped without a report."""

from __future__ import annotations

import copy
import itertools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmengine.config import Config

from mmstable.finding import Severity
from mmstable.legacy.draft import OLD_KEYS, old_keys_of
from mmstable.legacy.render import render
from mmstable.legacy.translate import Translation, translate
from tests.toys import toy_runner

ROOT = Path(__file__).resolve().parents[2]


class OldConfig:
    """A config of mmcv 1.x, with numbers that occur nowhere else.

    Args:
        chance: The source of all choices.
    """

    def __init__(self, chance: random.Random) -> None:
        self.random = chance
        self.numbers = itertools.count(1001)
        self.by_epoch = self.random.random() < 0.5
        self.keys: dict[str, Any] = {}
        parts = [
            getattr(self, name) for name in dir(self) if name.startswith('add')
        ]
        self.random.shuffle(parts)
        for part in parts:
            if self.random.random() < 0.75:
                part()

    def number(self) -> int:
        return next(self.numbers)

    def some(self, **settings: Any) -> dict[str, Any]:
        """A random part of the settings, in random order."""
        names = [n for n in settings if self.random.random() < 0.6]
        self.random.shuffle(names)
        return {name: settings[name] for name in names}

    def add_runner(self) -> None:
        name = 'epochs' if self.by_epoch else 'iters'
        kind = f'{"Epoch" if self.by_epoch else "Iter"}BasedRunner'
        total = self.number()
        if self.random.random() < 0.7:
            self.keys['runner'] = {'type': kind, f'max_{name}': total}
        if self.random.random() < 0.3 or 'runner' not in self.keys:
            self.keys[f'total_{name}'] = total

    def add_optimizer(self) -> None:
        self.keys['optimizer'] = dict(
            type='SGD',
            lr=self.number(),
            **self.some(
                momentum=1 / self.number(),
                weight_decay=1 / self.number(),
                paramwise_cfg=dict(
                    custom_keys={'a.b': dict(lr_mult=self.number())},
                    bias_lr_mult=self.number(),
                ),
            ),
        )

    def add_optimizer_config(self) -> None:
        kind = self.random.choice(
            [
                'OptimizerHook',
                'Fp16OptimizerHook',
                'GradientCumulativeOptimizerHook',
                'GradientCumulativeFp16OptimizerHook',
            ]
        )
        settings = self.some(
            type=kind,
            grad_clip=dict(max_norm=self.number(), norm_type=2),
            cumulative_iters=self.number(),
            coalesce=True,
        )
        self.keys['optimizer_config'] = settings

    def add_fp16(self) -> None:
        scale = self.random.choice(
            [
                float(self.number()),
                'dynamic',
                dict(init_scale=self.number(), growth_interval=self.number()),
            ]
        )
        self.keys['fp16'] = self.some(loss_scale=scale)

    def add_lr_config(self) -> None:
        policy = self.random.choice(
            [
                dict(policy='fixed'),
                dict(policy='step', step=[self.number(), self.number()]),
                dict(policy='exp', gamma=1 / self.number()),
                dict(policy='poly', power=self.number(), min_lr=1e-9),
                dict(policy='inv', gamma=self.number(), power=self.number()),
                dict(policy='CosineAnnealing', min_lr=1 / self.number()),
                dict(policy='cyclic', cyclic_times=self.number()),
                dict(policy='OneCycle', max_lr=self.number()),
                dict(policy='LinearAnnealing', min_lr_ratio=self.number()),
            ]
        )
        warmup = {}
        if self.random.random() < 0.5:
            warmup = dict(
                warmup=self.random.choice(['constant', 'linear', 'exp']),
                warmup_iters=self.number(),
                warmup_ratio=1 / self.number(),
            )
        self.keys['lr_config'] = {**policy, **warmup}

    def add_momentum_config(self) -> None:
        self.keys['momentum_config'] = dict(
            policy='CosineAnnealing',
            min_momentum=1 / self.number(),
            by_epoch=self.by_epoch and self.random.random() < 0.5,
        )

    def add_checkpoint_config(self) -> None:
        self.keys['checkpoint_config'] = self.some(
            interval=self.number(),
            max_keep_ckpts=self.number(),
            out_dir=f'out_{self.number()}',
            create_symlink=False,
            meta=dict(tag=self.number()),
        )

    def add_log_config(self) -> None:
        hooks = [
            dict(type='TextLoggerHook', interval_exp_name=self.number()),
            dict(type='TensorboardLoggerHook'),
            dict(type='WandbLoggerHook', init_kwargs=dict(a=self.number())),
            dict(type='MlflowLoggerHook', exp_name=f'e_{self.number()}'),
            dict(type='PaviLoggerHook', project=self.number()),
            dict(type='MlflowLoggerHook', log_model=self.number()),
        ]
        count = self.random.randrange(4)
        self.keys['log_config'] = dict(
            interval=self.number(), hooks=self.random.sample(hooks, count)
        )

    def add_evaluation(self) -> None:
        self.keys['evaluation'] = self.some(
            interval=self.number(),
            start=self.number(),
            metric=f'metric_{self.number()}',
            save_best=f'best_{self.number()}',
            classwise=self.number(),
        )

    def add_data(self) -> None:
        self.keys['data'] = self.some(
            samples_per_gpu=self.number(),
            workers_per_gpu=self.number(),
            train=dict(type='A', pipeline=[dict(type='B', n=self.number())]),
            val=dict(type='A', n=self.number()),
            test=dict(type='A', n=self.number()),
            train_dataloader=dict(drop_last=True),
            other=dict(n=self.number()),
        )
        if 'train' not in self.keys['data']:
            self.keys['data'].pop('train_dataloader', None)

    def add_rest(self) -> None:
        self.keys.update(
            self.some(
                seed=self.number(),
                cudnn_benchmark=True,
                opencv_num_threads=self.number(),
                mp_start_method='fork',
                dist_params=dict(backend='nccl', port=self.number()),
                resume_from=f'{self.number()}.pth',
                workflow=[('train', self.number())],
                find_unused_parameters=True,
                img_norm_cfg=dict(mean=[1.5, float('inf')], n=self.number()),
                model=dict(type='Net', n=self.number()),
                custom_hooks=[dict(type='MyHook', n=self.number())],
                gpu_ids=range(1),
            )
        )


OLD_CONFIGS = st.randoms(use_true_random=False).map(OldConfig)
# The same examples in every run. The fixture is only a folder to write to.
EXAMPLES = dict(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def leaves(node: Any, path: str = '') -> list[tuple[str, Any]]:
    if isinstance(node, dict):
        items = [(f'{path}.{key}', value) for key, value in node.items()]
    elif isinstance(node, (list, tuple)):
        items = [(f'{path}[{n}]', value) for n, value in enumerate(node)]
    else:
        return [(path.lstrip('.'), node)]
    return [leaf for where, value in items for leaf in leaves(value, where)]


def is_marked(value: Any) -> bool:
    """Whether a value occurs once only."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value > 1000 or 0 < value < 1e-3
    return isinstance(value, str) and any(map(str.isdigit, value))


def is_reported(path: str, translation: Translation) -> bool:
    reported = [
        name for one in translation.findings for name in one.path.split(', ')
    ]
    return any(path.startswith(name) for name in reported)


@given(OLD_CONFIGS)
@settings(max_examples=60, **EXAMPLES)
def test_nothing_is_dropped_without_a_report(config: OldConfig) -> None:
    old = config.keys
    before = copy.deepcopy(old)
    translation = translate(old)
    assert repr(old) == repr(before)
    assert not old_keys_of(translation.settings)
    found = [value for _, value in leaves(translation.settings)]
    for path, value in leaves(old):
        if is_marked(value) and not path.endswith('.type'):
            assert value in found or is_reported(path, translation), path
    named = {key for keys in translation.origins.values() for key in keys}
    for key in old:
        # An empty dict sets nothing.
        if key in OLD_KEYS and key not in named and old[key] != {}:
            paths = [one.path for one in translation.findings]
            assert any(path.startswith(key) for path in paths), key


@given(config=OLD_CONFIGS)
@settings(max_examples=12, **EXAMPLES)
def test_the_text_says_the_same_and_stays(
    tmp_path: Path, config: OldConfig
) -> None:
    translation = translate(config.keys)
    path = tmp_path / 'new.py'
    path.write_text(render(translation, 'old.py'))
    read = Config.fromfile(path)._cfg_dict.to_dict()
    assert repr(read) == repr(translation.settings)
    again = translate(read)
    assert not again.changed
    assert repr(again.settings) == repr(translation.settings)


def test_the_texts_are_formatted(tmp_path: Path) -> None:
    pytest.importorskip('ruff')
    for seed in range(60):
        old = OldConfig(random.Random(seed)).keys
        text = render(translate(old), 'old.py')
        (tmp_path / f'new_{seed}.py').write_text(text)
    done = subprocess.run(
        [sys.executable, '-m', 'ruff', 'format', '--diff']
        + ['--config', str(ROOT / 'pyproject.toml'), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


RUNTIME = (
    'optim_wrapper',
    'param_scheduler',
    'env_cfg',
    'randomness',
    'log_processor',
)


@pytest.mark.parametrize('seed', range(4))
def test_mmengine_takes_what_comes_out(tmp_path: Path, seed: int) -> None:
    old = OldConfig(random.Random(seed))
    old.add_optimizer()
    old.keys['optimizer'].update(lr=0.1, momentum=0.5)
    old.keys.pop('data', None)
    # Thousands of everything are too many for a test.
    old.keys['lr_config'] = dict(
        policy='poly', warmup='exp', warmup_iters=3, by_epoch=False
    )
    if 'optimizer_config' in old.keys:
        old.keys['optimizer_config'].pop('cumulative_iters', None)
    new = translate(old.keys)
    assert not new.of_severity(Severity.ERROR)
    settings = {k: v for k, v in new.settings.items() if k in RUNTIME}
    runner = toy_runner(tmp_path, max_iters=3, **settings)
    runner.train()
    wrapper = runner.optim_wrapper
    assert wrapper.applied_steps + wrapper.skipped_steps == 3
