"""Nobody but ``runner_view`` reads what mmengine keeps to itself."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict

import mmstable
from mmstable import runner_view
from tests.toys import toy_net, toy_runner

ROOT = Path(mmstable.__file__).parent
FILES = sorted(
    str(path.relative_to(ROOT))
    for path in ROOT.rglob('*.py')
    if path.name != 'runner_view.py'
)
# Private, but of Python, torch and parts of mmengine that no runner holds.
FOREIGN = {
    '_C',
    '_Stop',
    '_Unpickler',
    '_actions',
    '_annealing_cos',
    '_annealing_linear',
    '_asdict',
    '_buffers',
    '_cdata',
    '_cfg_dict',
    '_comm_hooks',
    '_create_work_from_future',
    '_current_autograd_node',
    '_current_frames',
    '_current_graph_task_id',
    '_distributed_c10d',
    '_dump_snapshot',
    '_empty_affine_quantized',
    '_empty_per_channel_affine_quantized',
    '_exit',
    '_fields',
    '_foreach_clamp_max_',
    '_foreach_clamp_min_',
    '_foreach_copy_',
    '_foreach_mul_',
    '_foreach_norm',
    '_get_base_files',
    '_get_cfg_path',
    '_get_default_store',
    '_get_mmengine_home',
    '_get_restore_location',
    '_get_sequence_nr',
    '_get_value',
    '_getframe',
    '_global_step',
    '_growth_tracker',
    '_handle',
    '_init_rule',
    '_is_lazy_import',
    '_iterator',
    '_make',
    '_metadata',
    '_nameToLevel',
    '_non_persistent_buffers_set',
    '_num_yielded',
    '_ops',
    '_orig_mod',
    '_parameters',
    '_params',
    '_rcvd_idx',
    '_replace',
    '_scale',
    '_save_dir',
    '_schema',
    '_sequence_nr',
    '_set_SIGCHLD_handler',
    '_set_grad_enabled',
    '_step_supports_amp_scaling',
    '_storage_type_to_dtype_map',
    '_tags',
    '_task_info',
    '_torchdynamo_orig_callable',
    '_tracking_uri',
    '_untyped_storage',
    '_utils',
    '_values',
    '_version',
    '_with_counter',
    '_workers',
}


def private_reads(tree):
    """Private attributes of other objects than ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, name = node.value, node.attr
            if isinstance(owner, ast.Name) and owner.id in ('self', 'cls'):
                continue
            if isinstance(owner, ast.Call) and _is(owner, 'super'):
                continue
        elif isinstance(node, ast.Call) and (
            _is(node, 'getattr') or _is(node, 'hasattr')
        ):
            # A name that is computed is not looked at.
            constant = node.args[1]
            if not isinstance(constant, ast.Constant):
                continue
            name = constant.value
        else:
            continue
        if name.startswith('_') and not name.startswith('__'):
            yield name


def _is(call, name):
    return isinstance(call.func, ast.Name) and call.func.id == name


def foreign_reads(file):
    tree = ast.parse((ROOT / file).read_text(encoding='utf-8'))
    # A table of a class's own methods is made by the name of the class.
    own = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    return set(private_reads(tree)) - FOREIGN - own


def test_private_parts_are_read_in_one_place():
    found = {file: foreign_reads(file) for file in FILES}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    'code',
    ['runner._resume', "getattr(wrapper, '_accumulative_counts', 1)"],
)
def test_a_private_read_is_found(code):
    assert list(private_reads(ast.parse(code)))


def test_there_are_files_to_read():
    assert len(FILES) > 100


def wrap(net, **settings):
    return OptimWrapper(torch.optim.SGD(net.parameters(), 0.1), **settings)


def test_wrappers_by_name():
    one = wrap(toy_net())
    runner = SimpleNamespace(optim_wrapper=one)
    assert runner_view.wrappers(runner) == {'optim_wrapper': one}
    runner.optim_wrapper = OptimWrapperDict(gen=one)
    assert runner_view.wrappers(runner) == {'gen': one}
    assert runner_view.has_many_wrappers(runner)


def test_accumulation():
    wrapper = wrap(toy_net(), accumulative_counts=3)
    runner = SimpleNamespace(optim_wrapper=wrapper)
    wrapper.initialize_count_status(toy_net(), 0, 10)
    assert runner_view.accumulative_counts(wrapper) == 3
    assert not runner_view.window_is_open(runner)
    wrapper.update_params(torch.ones((), requires_grad=True))
    assert runner_view.window_is_open(runner)


@pytest.mark.parametrize('found', [None, [], {}])
def test_no_schedulers(found):
    runner = SimpleNamespace(
        optim_wrapper=wrap(toy_net()), param_schedulers=found
    )
    assert runner_view.all_schedulers(runner) == []


def test_a_loop_is_not_built_to_look_at_it(tmp_path):
    runner = toy_runner(tmp_path)
    assert runner_view.built_train_loop(runner) is None
    loop = runner.train_loop
    assert runner_view.built_train_loop(runner) is loop


def test_resuming_ends_as_it_was(tmp_path):
    runner = toy_runner(tmp_path)
    with pytest.raises(KeyError), runner_view.as_resuming(runner):
        assert runner_view.is_resuming(runner)
        raise KeyError
    assert not runner_view.is_resuming(runner)
