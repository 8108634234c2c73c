"""What NVIDIA's numbers mean.

After https://docs.nvidia.com/deploy/xid-errors/.
"""

from __future__ import annotations

from typing import NamedTuple

from mmstable.finding import Severity
from mmstable.messages import N_

SOURCE = 'https://docs.nvidia.com/deploy/xid-errors/'
_ERROR, _WARNING, _HINT = Severity.ERROR, Severity.WARNING, Severity.HINT
TEXTS = {
    '13': N_('exception of the graphics engine'),
    '31': N_('memory page fault (MMU), an address that is not mapped'),
    '43': N_(
        'the GPU stopped processing, a channel was reset after a fault of a '
        'program; the GPU itself is healthy'
    ),
    '45': N_(
        'channels were cleaned up after an earlier error, or because a '
        'program was killed'
    ),
    '48': N_('double-bit ECC error, an uncorrectable one'),
    '61': N_('breakpoint or warning of the internal microcontroller'),
    '62': N_('the internal microcontroller halted'),
    '63': N_('a page was retired or a row remapped after ECC errors'),
    '64': N_('a page could not be retired, or a row not remapped'),
    '68': N_('exception of the video decoder (NVDEC)'),
    '69': N_('class error of the graphics engine'),
    '74': N_('NVLink error'),
    '79': N_('the GPU has fallen off the bus'),
    '92': N_('many single-bit ECC errors'),
    '94': N_(
        'contained ECC error: uncorrectable, only the program that met it '
        'was ended'
    ),
    '95': N_(
        'uncontained ECC error: uncorrectable, every program on the GPU may '
        'be hit'
    ),
    '109': N_('timeout of a context switch'),
    '119': N_('the processor on the GPU (GSP) did not answer in time'),
    '120': N_('error of the processor on the GPU (GSP)'),
    'off_bus': N_('the GPU has fallen off the bus'),
    'unknown': N_('not in the table of mmstable'),
}
KINDS = {
    'hardware': N_('Most likely hardware.'),
    'driver': N_(
        'Most likely the driver or the firmware, sometimes hardware.'
    ),
    'application': N_('Most likely a program, seldom driver or hardware.'),
    'unknown': N_('NVIDIA has a meaning for it.'),
}
ADVICE = {
    'program': N_(
        'run the program with CUDA_LAUNCH_BLOCKING=1, or by '
        'compute-sanitizer; if different programs meet it on the same GPU '
        'only, test that with `dcgmi diag -r 3`'
    ),
    'before': N_(
        'look at the Xid before it; none is needed if the program was '
        'stopped on purpose'
    ),
    'memory': N_(
        'stop what runs there and reset the GPU, or reboot; have it replaced '
        'if it comes again. Results of that time cannot be trusted'
    ),
    'contained': N_(
        'reset the GPU at the next occasion (see Xid 63 and 64); have it '
        'replaced if it comes again'
    ),
    'controller': N_(
        'reset the GPU or reboot, and update driver and firmware; have it '
        'replaced if it comes again'
    ),
    'remapped': N_(
        'reset the GPU at the next occasion, so that the spare memory is used'
    ),
    'replace': N_('have it replaced, after one reset that does not help'),
    'engine': N_(
        'restart the program; if it comes again, update the driver, then '
        'test with `dcgmi diag -r 3`'
    ),
    'nvlink': N_(
        'reset the GPUs on both ends; if it comes again, look at the bridge '
        'or the NVSwitch (`nvidia-smi nvlink -e`)'
    ),
    'bus': N_(
        'reboot; look at power supply and cables, heat, riser and slot; have '
        'it replaced if it comes again'
    ),
    'single_bit': N_('watch the ECC counts, and look at heat'),
    'gsp': N_(
        'reboot and update the driver; if it comes again, switch the GSP off '
        '(NVreg_EnableGpuFirmware=0) where the driver allows it'
    ),
    'look_up': N_('look the number up in the catalogue of NVIDIA'),
}


class Meaning(NamedTuple):
    """What an Xid tells.

    Args:
        kind (str): Whose fault it most likely is: 'hardware', 'driver',
            'application', or 'unknown'.
        severity (Severity): How bad it is.
        advice (str): What to do.
    """

    kind: str
    severity: Severity
    advice: str


MEANINGS = {
    13: Meaning('application', _WARNING, 'program'),
    31: Meaning('application', _WARNING, 'program'),
    43: Meaning('application', _WARNING, 'program'),
    45: Meaning('application', _HINT, 'before'),
    48: Meaning('hardware', _ERROR, 'memory'),
    61: Meaning('driver', _WARNING, 'controller'),
    62: Meaning('driver', _ERROR, 'controller'),
    63: Meaning('hardware', _WARNING, 'remapped'),
    64: Meaning('hardware', _ERROR, 'replace'),
    68: Meaning('driver', _WARNING, 'engine'),
    69: Meaning('driver', _WARNING, 'engine'),
    74: Meaning('hardware', _ERROR, 'nvlink'),
    79: Meaning('hardware', _ERROR, 'bus'),
    92: Meaning('hardware', _WARNING, 'single_bit'),
    94: Meaning('hardware', _ERROR, 'contained'),
    95: Meaning('hardware', _ERROR, 'memory'),
    109: Meaning('driver', _WARNING, 'engine'),
    119: Meaning('driver', _ERROR, 'gsp'),
    120: Meaning('driver', _ERROR, 'gsp'),
}
OFF_THE_BUS = MEANINGS[79]
UNKNOWN = Meaning('unknown', _WARNING, 'look_up')
