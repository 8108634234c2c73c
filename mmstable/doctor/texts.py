"""Texts of facts and findings, by their ids."""

from __future__ import annotations

from mmstable.finding import FindingText
from mmstable.messages import N_

FACTS = {
    'cores': N_('cores'),
    'ram': N_('RAM'),
    'shm': N_('shared memory'),
    'swap': N_('swap'),
    'disk': N_('space'),
    'disk_speed': N_('written at'),
    'time': N_('time'),
    'clock_sync': N_('set over the network'),
    'float16': N_('computes in float16'),
    'bfloat16': N_('computes in bfloat16'),
    'products': N_('products'),
    'speed': N_('speed'),
    'checksum': N_('checksums'),
    'tested_memory': N_('memory tested'),
    'ddp': N_('DDP and all-reduce'),
    'kernel_log': N_('read from'),
    'xid_lines': N_('Xid lines'),
    'gpu_name': N_('name'),
    'gpu_memory': N_('memory used'),
    'gpu_temperature': N_('temperature (°C)'),
    'gpu_busy': N_('utilisation (%)'),
    'gpu_power': N_('power and its limit (W)'),
    'ecc_corrected': N_('ECC errors, corrected'),
    'ecc_uncorrected': N_('ECC errors, uncorrected'),
    'ecc_uncorrected_ever': N_('ECC errors, uncorrected, of its life'),
    'retired_pages': N_('retired pages'),
    'remapped_rows': N_('remapped rows'),
    'replays': N_('PCI Express packets sent again'),
    'link_width': N_('PCI Express lanes'),
    'link_speed': N_('PCI Express generation'),
    'throttles': N_('clock held down by'),
}
PARTS = {
    'versions': N_('versions'),
    'host': N_('host'),
    'disk': N_('disk'),
    'clock': N_('clock'),
    'precision': N_('half precision'),
    'allocation': N_('host and GPU memory'),
    'arithmetic': N_('matrix products'),
    'gpus': N_('state of the GPUs'),
    'xid': N_('kernel log'),
    'processes': N_('start of DDP'),
    'shm': N_('shared memory'),
    'limits': N_('limits of the process'),
    'disk_clock': N_('clock of the file system'),
    'clock_sync': N_('synchronization of the clock'),
    'gpu_facts': N_('what a GPU does not tell'),
}
FINDINGS = {
    'torch_import': FindingText(
        what=N_('torch cannot be imported: {error}.'),
        why=N_('Nothing can be trained without it.'),
        fix=N_('install it again, see pytorch.org'),
    ),
    'little_ram': FindingText(
        what=N_('{left} of {limit} RAM are left.'),
        why=N_(
            'Data loading and checkpoints take RAM; without it the kernel '
            'kills the training.'
        ),
        fix=N_(
            'end what else is running, lower `num_workers`, or raise the '
            'limit of the container'
        ),
    ),
    'small_shm': FindingText(
        what=N_('{free} of {total} shared memory are free.'),
        why=N_(
            'Workers hand their batches over in it; without room they die of '
            'a bus error.'
        ),
        fix=N_('start the container with `--shm-size=16g` or `--ipc=host`'),
    ),
    'swapping': FindingText(
        what=N_('{used} of {total} swap are used.'),
        why=N_(
            'A machine that swaps is slow, and steps of a training wait for '
            'it.'
        ),
        fix=N_('end what else is running'),
    ),
    'low_limit': FindingText(
        what=N_(
            'the limit is {soft}, at least {least} is advisable ({hard} is '
            'allowed).'
        ),
        why=N_(
            'Many workers, long runs or large checkpoints reach it, and fail.'
        ),
        fix=N_(
            'raise it by `ulimit` before the training starts, or in '
            '/etc/security/limits.conf'
        ),
    ),
    'disk_write': FindingText(
        what=N_('no file can be written: {error}.'),
        why=N_('No checkpoint can be saved there.'),
        fix=N_('name another folder by `--work-dir`, or get the permission'),
    ),
    'no_space': FindingText(
        what=N_('{free} of {total} are free.'),
        why=N_('The next checkpoint does not fit.'),
        fix=N_('delete what is not needed, or train elsewhere'),
    ),
    'little_space': FindingText(
        what=N_('{free} of {total} are free.'),
        why=N_('Checkpoints of a long run may not fit.'),
        fix=N_('delete what is not needed, or set `max_keep_ckpts`'),
    ),
    'no_inodes': FindingText(
        what=N_('only {left} more files can be created.'),
        why=N_('The file system is out of inodes, although it has space.'),
        fix=N_('delete small files'),
    ),
    'disk_corrupt': FindingText(
        what=N_('a file reads different from what was written.'),
        why=N_('Checkpoints and data cannot be trusted.'),
        fix=N_('look at the disk (`smartctl -a`), its cable, and the RAM'),
    ),
    'slow_disk': FindingText(
        what=N_('written at {speed}.'),
        why=N_('All ranks wait while a checkpoint is saved.'),
        fix=N_('write checkpoints to a local disk, or less often'),
    ),
    'wrong_clock': FindingText(
        what=N_('the clock says {time}.'),
        why=N_('Certificates are refused, and logs cannot be compared.'),
        fix=N_('set the clock, or switch NTP on'),
    ),
    'disk_clock': FindingText(
        what=N_('files get a time that is {seconds:+.0f} s off.'),
        why=N_(
            'The file server has another clock. Tools that go by file times '
            'are misled.'
        ),
        fix=N_('switch NTP on, here and there'),
    ),
    'clock_jumps': FindingText(
        what=N_(
            'the clock has jumped by {seconds:+.1f} s while it was looked at.'
        ),
        why=N_('Timeouts and measured speeds are wrong.'),
        fix=N_('look at NTP, or at the host of this virtual machine'),
    ),
    'clock_sync': FindingText(
        what=N_('the clock is not set over the network.'),
        why=N_('The logs of several machines cannot be compared.'),
        fix=N_('switch NTP on (`timedatectl set-ntp true`)'),
    ),
    'half_precision': FindingText(
        what=N_('a product in {name} fails: {error}.'),
        why=N_('Mixed precision cannot be trained with here.'),
        fix=N_('train in float32, or look at driver and torch'),
    ),
    'bf16_emulated': FindingText(
        what=N_('bfloat16 is emulated.'),
        why=N_(
            'GPUs before compute capability 8.0 have no units for it: it is '
            'slow.'
        ),
        fix=N_('train in fp16 (`--amp fp16`)'),
    ),
    'wrong_products': FindingText(
        what=N_(
            '{wrong} of {products} products of the same matrices are wrong.'
        ),
        why=N_(
            'The device computes wrong without an error: losses become NaN '
            'for no reason, and weights cannot be trusted.'
        ),
        fix=N_(
            'do not train here. Undo overclocking, look at heat and power, '
            'test with `dcgmi diag -r 3` (GPU) or memtest86+ (CPU), and have '
            'it replaced'
        ),
    ),
    'bad_memory': FindingText(
        what=N_(
            '{blocks:block|blocks} of memory did not hold what was written.'
        ),
        why=N_('Weights and data change by themselves.'),
        fix=N_(
            'do not train here. Test with `dcgmi diag -r 3` (GPU) or '
            'memtest86+ (RAM), and have it replaced'
        ),
    ),
    'allocation': FindingText(
        what=N_('{held} of {free} could be had.'),
        why=N_(
            'Memory that is called free is not: a training runs out of it '
            'early.'
        ),
        fix=N_('look for other programs on the device, and for limits'),
    ),
    'ddp_start': FindingText(
        what=N_(
            'training with {ranks:process|processes} does not start: {error}.'
        ),
        why=N_('Neither will `mmstable dist-train`, or torchrun.'),
        fix=N_(
            'look at firewall, host name (`ping $(hostname)`), '
            'GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO says '
            'more'
        ),
    ),
    'driver_mismatch': FindingText(
        what=N_(
            'the driver and its library are of different versions: {error}.'
        ),
        why=N_(
            'It was updated while loaded. Programs that start now do not '
            'find the GPUs.'
        ),
        fix=N_('reboot, or unload and load the kernel module'),
    ),
    'nvml_failed': FindingText(
        what=N_(
            'there is a driver, but its library does not answer: {error}.'
        ),
        why=N_('The state of the GPUs cannot be seen.'),
        fix=N_(
            '`pip install nvidia-ml-py`, or look at what `nvidia-smi` says'
        ),
    ),
    'gpu_lost': FindingText(
        what=N_('it does not answer: {error}.'),
        why=N_('It has crashed or fallen off the bus.'),
        fix=N_(
            'reboot; if it happens again, look at power, heat and the slot, '
            'and have it replaced'
        ),
    ),
    'ecc': FindingText(
        what=N_(
            '{count:uncorrected ECC error|uncorrected ECC errors} since the '
            'driver was loaded.'
        ),
        why=N_(
            'Memory of the GPU is defective. Results since then cannot be '
            'trusted.'
        ),
        fix=N_(
            'reset the GPU (`nvidia-smi -r`); have it replaced if they come '
            'again'
        ),
    ),
    'ecc_ever': FindingText(
        what=N_(
            '{count:uncorrected ECC error|uncorrected ECC errors} in its '
            'life, none since the driver was loaded.'
        ),
        why=N_('They may come again.'),
        fix=N_('watch its ECC counters (`nvidia-smi -q -d ECC`)'),
    ),
    'ecc_corrected': FindingText(
        what=N_(
            '{count:corrected ECC error|corrected ECC errors} since the '
            'driver was loaded.'
        ),
        why=N_('They do no harm, but so many announce worse.'),
        fix=N_('watch it, and look at heat'),
    ),
    'remap_failed': FindingText(
        what=N_('a row of its memory could not be remapped.'),
        why=N_('It has no spare rows left.'),
        fix=N_('have it replaced'),
    ),
    'remap_pending': FindingText(
        what=N_(
            'a defective part of its memory is to be replaced by a spare one.'
        ),
        why=N_('Until the next reset the defective one is in use.'),
        fix=N_('reset the GPU (`nvidia-smi -r`), or reboot'),
    ),
    'throttled': FindingText(
        what=N_('its clock is held down: {names}.'),
        why=N_(
            'It is slow, and with it all ranks; power that breaks down makes '
            'GPUs fail.'
        ),
        fix=N_('look at fans, air and the power supply'),
    ),
    'hot': FindingText(
        what=N_('{degrees} degrees Celsius, it slows down at {limit}.'),
        why=N_('Hot GPUs are slow, and compute wrong sooner.'),
        fix=N_(
            'look at fans and air, or lower the power limit (`nvidia-smi -pl`)'
        ),
    ),
    'narrow_link': FindingText(
        what=N_('{width} of {most} PCI Express lanes are in use.'),
        why=N_(
            'Batches and gradients travel slower. The slot may have no more, '
            'or the card is not seated well.'
        ),
        fix=N_('look at the manual of the board; seat the card again'),
    ),
    'slow_link': FindingText(
        what=N_(
            'PCI Express of generation {speed} while busy, it can do {most}.'
        ),
        why=N_('Batches and gradients travel slower.'),
        fix=N_('look at the BIOS, at riser cables, and seat the card again'),
    ),
    'replays': FindingText(
        what=N_('{count} packets had to be sent again over PCI Express.'),
        why=N_('The link is bad; GPUs with such links fall off the bus.'),
        fix=N_('seat the card again, look at riser cables and power'),
    ),
}
