"""The same training with other trainers, each as its guide would have it.

Model, data, batches, optimizer, schedule, clipping, checkpoints and faults
are those of ``survival_runs.quick_config``, in fp32. Each saves five times
in a run and resumes from its newest checkpoint when it is started again.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import Runner
from torch import Tensor, nn

from mmstable import register_all
from mmstable.inject.faults import Scene, disarm
from mmstable.inject.plan import Ledger, plan_fault

# Name of the contender: package that it needs, and its name for pip.
PACKAGES = {
    'lightning': ('lightning', 'lightning'),
    'accelerate': ('accelerate', 'accelerate'),
    'composer': ('composer', 'mosaicml'),
}


def find_peers() -> tuple[dict[str, str], dict[str, str]]:
    """Versions of those that can be imported, reasons for the others."""
    found, missing = {}, {}
    for name, (package, project) in PACKAGES.items():
        try:
            importlib.import_module(package)
            found[name] = version(project)
        except Exception as error:
            missing[name] = f'{type(error).__name__}: {error}'.split('\n')[0]
    return found, missing


class Injector:
    """Does what ``FaultInjectorHook`` does, without a runner."""

    def __init__(self, cfg: Config, folder: Path, run: PeerRun) -> None:
        faults = [f for hook in cfg.custom_hooks for f in hook.faults]
        self._plan = [plan_fault(i, dict(f)) for i, f in enumerate(faults)]
        self._ledger, self._run = Ledger(folder, 0), run
        self._handles: list[Any] = []

    def arm(self, iteration: int, optimizer: Any) -> None:
        """Prepare what is due in this iteration, counted from 1."""
        disarm(self._handles)
        for fault in self._plan:
            entry = (iteration, fault.name)
            if fault.is_due(iteration, 0, 0) and entry not in self._ledger:
                fault.action.arm(self._scene(fault, entry, optimizer))

    def _scene(self, fault: Any, entry: Any, optimizer: Any) -> Scene:
        def report(target: str, value: str) -> None:
            if fault.action.ends_process:
                self._ledger.add(entry)

        return Scene(
            model=self._run.model,
            wrappers={'optim_wrapper': SimpleNamespace(optimizer=optimizer)},
            handles=self._handles,
            report=report,
            note=lambda target, value: None,
        )


class PeerRun:
    """What all trainers are given."""

    def __init__(self, folder: Path) -> None:
        register_all()
        cfg = Config.fromfile(folder / 'survival_config.py')
        init_default_scope('mmengine')
        torch.manual_seed(0)
        self.cfg, self.folder = cfg, folder
        self.iterations: int = cfg.train_cfg.max_iters
        self.interval: int = cfg.default_hooks.checkpoint.interval
        self.max_norm = float(cfg.optim_wrapper.clip_grad.max_norm)
        self.model: nn.Module = MODELS.build(cfg.model)
        self.loader = Runner.build_dataloader(cfg.train_dataloader, seed=0)
        self.injector = Injector(cfg, folder, self)

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the config."""
        settings = dict(self.cfg.optim_wrapper.optimizer)
        kind = getattr(torch.optim, settings.pop('type'))
        return kind(self.model.parameters(), **settings)

    def schedule(self, optimizer: Any) -> torch.optim.lr_scheduler.LambdaLR:
        """The warm-up and the decay of the config."""
        warmup, decay = self.cfg.param_scheduler

        def factor(step: int) -> float:
            low = warmup.start_factor
            if step < warmup.end:
                return low + (1 - low) * step / max(warmup.end - 1, 1)
            left = 1 - (step - warmup.end) / (self.iterations - warmup.end)
            return max(left, 0.0) ** decay.power

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def loss(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        data = self.model.data_preprocessor(batch, True)
        return self.model.parse_losses(self.model(**data, mode='loss'))[0]

    def finish(self) -> None:
        """Save and measure the result, as the others do."""
        state = {
            key: one.cpu() for key, one in self.model.state_dict().items()
        }
        path = self.folder / f'iter_{self.iterations}.pth'
        torch.save({'state_dict': state}, path)
        loader = Runner.build_dataloader(self.cfg.val_dataloader, seed=0)
        evaluator = Evaluator(self.cfg.val_evaluator)
        evaluator.dataset_meta = DATASETS.build(
            self.cfg.val_dataloader.dataset
        ).metainfo
        self.model.eval()
        with torch.no_grad():
            for batch in loader:
                evaluator.process(self.model.val_step(batch), batch)
        metrics = evaluator.evaluate(len(loader.dataset))
        print(f'seg/mIoU: {metrics["seg/mIoU"]:.4f}')


def run_accelerate(folder: Path, resume: bool) -> int:
    """The loop of its quick tour, with ``save_state`` and ``load_state``."""
    from accelerate import Accelerator

    run = PeerRun(folder)
    accelerator = Accelerator(cpu=True)
    optimizer = run.optimizer()
    schedule = run.schedule(optimizer)
    model, optimizer, schedule = accelerator.prepare(
        run.model, optimizer, schedule
    )
    place = folder / 'state'
    done = 0
    if resume and (place / 'done.txt').exists():
        accelerator.load_state(str(place))
        done = int((place / 'done.txt').read_text())
    batches = _skip(run.loader, done)
    model.train()
    for iteration in range(done + 1, run.iterations + 1):
        run.injector.arm(iteration, optimizer.optimizer)
        loss = run.loss(next(batches))
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), run.max_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        _log(run, iteration, loss)
        if iteration % run.interval == 0:
            accelerator.save_state(str(place))
            (place / 'done.txt').write_text(str(iteration))
    run.finish()
    return 0


def run_lightning(folder: Path, resume: bool) -> int:
    """``Trainer`` with ``ModelCheckpoint(save_last=True)``."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    run = PeerRun(folder)

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = run.model

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = run.loss(batch)
            _log(run, self.global_step + 1, loss)
            return loss

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers(use_pl_optimizer=False)
            run.injector.arm(self.global_step + 1, optimizer)

        def transfer_batch_to_device(
            self, batch: Any, device: Any, dataloader_idx: int
        ) -> Any:
            return batch

        def configure_optimizers(self) -> Any:
            optimizer = run.optimizer()
            schedule = {
                'scheduler': run.schedule(optimizer),
                'interval': 'step',
            }
            return {'optimizer': optimizer, 'lr_scheduler': schedule}

    saver = ModelCheckpoint(
        dirpath=folder / 'state',
        every_n_train_steps=run.interval,
        save_last=True,
    )
    trainer = lightning.Trainer(
        max_steps=run.iterations,
        accelerator='cpu',
        gradient_clip_val=run.max_norm,
        callbacks=[saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    last = folder / 'state' / 'last.ckpt'
    start = str(last) if resume and last.exists() else None
    trainer.fit(Net(), run.loader, ckpt_path=start)
    if trainer.global_step < run.iterations:
        return 1
    run.finish()
    return 0


def run_composer(folder: Path, resume: bool) -> int:
    """``Trainer`` with ``save_folder`` and ``autoresume=True``."""
    from composer import Callback, ComposerModel, Time, Trainer

    run = PeerRun(folder)

    class Net(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.net = run.model

        def forward(self, batch: Any) -> Tensor:
            return run.loss(batch)

        def loss(self, outputs: Tensor, batch: Any) -> Tensor:
            return outputs

    class Faults(Callback):
        def batch_start(self, state: Any, logger: Any) -> None:
            iteration = int(state.timestamp.batch) + 1
            run.injector.arm(iteration, state.optimizers[0])

        def batch_end(self, state: Any, logger: Any) -> None:
            _log(run, int(state.timestamp.batch), state.loss)

        def after_backward(self, state: Any, logger: Any) -> None:
            nn.utils.clip_grad_norm_(run.model.parameters(), run.max_norm)

    optimizer = run.optimizer()
    Trainer(
        model=Net(),
        train_dataloader=run.loader,
        optimizers=optimizer,
        schedulers=run.schedule(optimizer),
        step_schedulers_every_batch=True,
        max_duration=Time(run.iterations, 'ba'),
        device='cpu',
        save_folder=str(folder / 'state'),
        save_interval=Time(run.interval, 'ba'),
        run_name='survival',
        autoresume=True,
        callbacks=[Faults()],
        progress_bar=False,
    ).fit()
    run.finish()
    return 0


RUNS: dict[str, Callable[[Path, bool], int]] = {
    'accelerate': run_accelerate,
    'lightning': run_lightning,
    'composer': run_composer,
}


def _skip(loader: Any, count: int) -> Iterator[Any]:
    batches = iter(loader)
    for _ in range(count):
        next(batches)
    return batches


def _log(run: PeerRun, iteration: int, loss: Any) -> None:
    if iteration % 10 == 0:
        value = float(loss.detach() if isinstance(loss, Tensor) else loss)
        print(f'{os.getpid()} Iter(train) {iteration} loss: {value:.4f}')
