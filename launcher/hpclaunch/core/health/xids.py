"""The table of Xids, the NVIDIA driver's numbers for GPU errors: meaning, fault and advice.

Source: NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors, October 2025). Its "immediate action"
decides whether an error is fatal: with RESTART_APP and IGNORE the GPU remains usable, with
RESET_GPU and RESTART_BM it does not. Where the catalog has a flow chart instead (48, 74, 144 to
150), a comment gives the reason for our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fault(str, Enum):
    PROGRAM = "program"  # the node is not to blame
    GPU = "GPU"
    LINK = "link"
    DRIVER = "driver"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Xid:
    number: int
    name: str
    fault: Fault
    fatal: bool = False  # the GPU cannot be used before it is reset, or its node restarted
    advice: str = ""


RESET = "the GPU must be reset (nvidia-smi --gpu-reset, by the administrator)"
REBOOT = "the node must be rebooted; if the error comes back, the GPU or its slot is faulty"
CODE = "an error of the program: compute-sanitizer, or CUDA_LAUNCH_BLOCKING=1, shows where"
SEEN = "harmless alone; if it comes back, report it to the administrator"
LINKS = "check nvidia-smi nvlink --status and the fabric manager's log"
ENGINE = "mostly the program, or a library of it; on one GPU alone, that GPU"


_COPY = {39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)}  # one per copy engine
_LINK5 = {  # NVLink 5; NVML does not report the details that show which are fatal
    144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE",
}  # fmt: skip

_TABLE = (
    Xid(8, "GPU stopped processing", Fault.UNCLEAR, advice=SEEN),
    Xid(11, "invalid or corrupted push buffer stream", Fault.PROGRAM, advice=CODE),
    Xid(13, "graphics engine exception (an illegal instruction or address)", Fault.PROGRAM,
        advice=CODE),
    Xid(25, "invalid or illegal push buffer stream", Fault.PROGRAM, advice=CODE),
    Xid(31, "GPU memory page fault (an illegal address)", Fault.PROGRAM, advice=CODE),
    Xid(32, "invalid or corrupted push buffer stream", Fault.PROGRAM, advice=CODE),
    Xid(37, "driver firmware error", Fault.DRIVER, advice=SEEN),
    Xid(38, "driver firmware error", Fault.DRIVER, advice=SEEN),
    *(Xid(n, "copy engine exception", Fault.UNCLEAR, advice=ENGINE) for n in sorted(_COPY)),
    Xid(43, "GPU stopped processing (a process was ended after its own fault)", Fault.PROGRAM,
        advice=CODE),
    Xid(44, "graphics engine fault during a context switch", Fault.UNCLEAR, advice=SEEN),
    # A consequence: the driver cleans up after a process that dies while its work is running.
    Xid(45, "work was removed (the process was killed, or failed before)", Fault.PROGRAM,
        advice="check the errors before it"),
    Xid(46, "GPU stopped processing", Fault.GPU, True, RESET),
    # Followed by 94 if the fault was contained, and by 95 if not. Without either, the count of
    # uncorrected errors decides; it remains until the driver is loaded again.
    Xid(48, "double bit ECC error", Fault.GPU, advice="the errors with it show whether to reset"),
    Xid(54, "auxiliary power is not connected", Fault.GPU, True, "check the GPU's power cable"),
    Xid(61, "internal micro-controller breakpoint", Fault.UNCLEAR, advice=SEEN),
    Xid(62, "internal micro-controller halt", Fault.GPU, True, RESET),
    Xid(63, "memory was remapped, or a page retired", Fault.GPU,
        advice="goes into effect with the next reset of the GPU, no hurry"),
    Xid(64, "memory could not be remapped, or a page not retired", Fault.GPU, True, RESET),
    Xid(66, "illegal access by the driver", Fault.DRIVER, advice=SEEN),
    Xid(67, "illegal access by the driver", Fault.DRIVER, advice=SEEN),
    Xid(68, "video decoder exception", Fault.PROGRAM, advice=ENGINE),
    Xid(69, "graphics engine class error", Fault.PROGRAM, advice=CODE),
    # Both ends of a link report it, mostly with other Xids that decide. Links that are down, and
    # growing counts of link errors, are found by gpu_rules.py.
    Xid(74, "NVLink error", Fault.LINK, advice=LINKS),
    Xid(78, "vGPU start error", Fault.DRIVER, True, "the driver of the host or the guest is old"),
    Xid(79, "GPU has fallen off the bus", Fault.GPU, True, REBOOT),
    Xid(80, "corrupted data sent to the GPU", Fault.UNCLEAR, advice=ENGINE),
    Xid(92, "high rate of single-bit ECC errors", Fault.GPU, advice=SEEN),
    Xid(93, "wear of the GPU's InfoROM", Fault.GPU, advice=SEEN),
    # Contained: only the processes that used the memory die.
    Xid(94, "contained memory error", Fault.GPU, advice="the GPU can be used again; " + SEEN),
    Xid(95, "uncontained memory error", Fault.GPU, True, RESET),
    # The catalog says to reset the GPU, but NVIDIA's Kubernetes device plugin blames the program.
    Xid(109, "context switch timeout", Fault.UNCLEAR, advice=f"{ENGINE}; then {RESET}"),
    Xid(110, "security fault", Fault.GPU, True, RESET),
    Xid(119, "the GPU's system processor (GSP) does not answer", Fault.DRIVER, True, RESET),
    Xid(120, "error of the GPU's system processor (GSP)", Fault.DRIVER, True, RESET),
    Xid(121, "error of the link to the CPU (C2C)", Fault.LINK, advice=SEEN),
    Xid(136, "NVLink training failed", Fault.LINK, True, RESET),
    # A process on another GPU has written to memory without permission, or that GPU has failed.
    Xid(137, "NVLink privilege error", Fault.UNCLEAR, advice="check the other GPUs of the node"),
    Xid(140, "unrecovered ECC error", Fault.GPU, True, RESET),
    Xid(141, "CUDA fast path error", Fault.UNCLEAR, advice=SEEN),
    Xid(143, "GPU initialisation error", Fault.GPU, True, RESET),
    *(Xid(n, f"NVLink error ({unit})", Fault.LINK, advice=LINKS) for n, unit in _LINK5.items()),
    Xid(151, "key rotation error", Fault.DRIVER, True, "the virtual machine must be started again"),
    # It reports only that the recovery action has changed; gpu_rules.py judges the action.
    Xid(154, "the GPU's recovery action changed", Fault.UNCLEAR, advice="nvidia-smi -q shows it"),
    Xid(155, "NVLink error defined by software", Fault.LINK, True, RESET),
    Xid(156, "a resource of the GPU was retired", Fault.GPU, True, RESET),
    Xid(157, "a resource of the GPU could not be retired", Fault.GPU, advice=SEEN),
    Xid(158, "fatal timeout of the GPU", Fault.GPU, True, RESET),
    # These come together with 48, which decides.
    Xid(171, "uncorrectable DRAM error", Fault.GPU, advice=RESET),
    Xid(172, "uncorrectable SRAM error", Fault.GPU, advice=RESET),
)  # fmt: skip
XIDS = {each.number: each for each in _TABLE}


def xid(number: int) -> Xid:
    """Look up an Xid. One that is not in the table, because it is new or of other GPUs, counts as
    an unclear error that is not fatal.
    """
    return XIDS.get(number) or Xid(number, "an error of the GPU", Fault.UNCLEAR, advice=SEEN)
