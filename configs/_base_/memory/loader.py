# Data loading that keeps host RAM low: each worker holds `prefetch_factor`
# batches, and ends with its epoch. Wired by the leaf:
#   train_dataloader = dict(**_base_.memory_loader)
#   val_dataloader = dict(**_base_.memory_loader)
memory_loader = dict(
    # 16 workers with 8 batches each hold 16 times as much.
    num_workers=4,
    prefetch_factor=2,
    # Leaks of a worker do not outlive an epoch.
    persistent_workers=False,
)
