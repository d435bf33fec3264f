"""The meaning of a failed worker's last lines: the cause, advice, and whether a restart may help.

The patterns match messages of Python, torch 2.13, gloo, NCCL, the C library and hpclaunch.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection

from ..protocol.model import OUT_OF_MEMORY, EndCause, Failure
from ..protocol.values import value


@value(frozen=True)
class Meaning:
    """The meaning of last lines that the pattern `words` matches. "" or None: it is not known.

    The pattern is compiled only when it is used, to keep an agent's start short.
    """

    words: str
    advice: str = ""
    cause: EndCause | None = None
    may_pass: bool | None = None  # whether a restart may help; for a match in the very last line
    code: int = 0  # `may_pass` is for this exit code only; 0: for any

    def is_in(self, text: str) -> bool:
        return re.search(self.words, text, re.MULTILINE) is not None


def _words(*literal: str, pattern: str = "") -> str:
    return "|".join([*map(re.escape, literal), *filter(None, [pattern])])


_GPU_MEMORY = (
    "the GPU's memory is full. Lower the batch size per worker, or the memory per sample "
    "(activation checkpointing, bfloat16, FSDP). If much is reserved but unallocated, export "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. nvidia-smi on that host shows whether "
    "somebody else is on the GPU."
)

# For each field, the first matching row that has it counts. So causes precede their
# consequences, and special cases precede general ones.
MEANINGS = (
    # Backends that this torch does not have
    Meaning(
        _words("have MPI built in"),
        "this torch has no MPI backend; only one that was built from source beside an MPI library "
        'does. Write init_process_group("nccl") for GPUs or init_process_group("gloo") for CPUs: '
        "neither needs MPI or mpirun.",
    ),
    Meaning(
        _words("have NCCL built in", "Torch not compiled with CUDA enabled", "'_cuda_setDevice'"),
        "the workers' torch is a build for CPUs only. Install one with CUDA into the environment "
        'that the job activates, or write init_process_group("gloo") and leave out .cuda() to '
        "train on CPUs.",
    ),
    # GPUs
    Meaning(
        _words(
            "no GPUs found!",
            "No CUDA GPUs are available",
            "Found no NVIDIA driver",
            "no CUDA-capable device is detected",
        ),
        "this worker sees no GPU. Ask Slurm for some (#SBATCH --gpus-per-node=N), check whether "
        "CUDA_VISIBLE_DEVICES is empty in the job script, and whether a container is "
        'started with --nv; on CPUs write init_process_group("gloo").',
    ),
    Meaning(
        _words("Duplicate GPU detected", "Multiple Ranks are using the same GPU"),
        "two ranks use the same GPU. Before init_process_group, every worker has to call "
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])): LOCAL_RANK, neither 0 nor RANK. If '
        "it does, there are more workers than GPUs on the host: lower --nproc, or start with "
        "--shared-backend gloo, which changes nothing in the script.",
    ),
    Meaning(
        _words("invalid device ordinal"),
        "the script asks for a GPU with a number that this worker does not have: its own are "
        "numbered from 0. Use LOCAL_RANK, not RANK; start no more workers than GPUs (--nproc gpu); "
        "do not set CUDA_VISIBLE_DEVICES in the job script; where Slurm gives each task one GPU "
        "(--gpus-per-task=1), start one worker per task (--nproc 1).",
    ),
    Meaning(
        _words(
            "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
            "cudaErrorMpsMaxClientsReached",
            "required to create MPS client have been exhausted",
            "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
            "cudaErrorMpsMaxConnectionsReached",
            "device connections have been exhausted",
        ),
        "MPS accepts no further clients on this GPU. Every process with a CUDA context is one: "
        "each worker, and each process of its own that uses CUDA, such as a DataLoader worker that "
        "moves tensors to the GPU. Fewer fit if CUDA_DEVICE_MAX_CONNECTIONS is above 2: leave it "
        "unset. Else start fewer workers (--nproc), use CUDA in them only, or start without MPS "
        "(--mps off): the workers then take turns.",
    ),
    Meaning(
        _words("is free. Process ", "memory in use. Process "),
        "the GPU's memory is full, and another process uses it as well (see the last lines): "
        "several workers share this GPU. Start one worker per GPU (--nproc gpu) that calls "
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first, and load checkpoints with '
        'torch.load(..., map_location="cpu").',
    ),
    Meaning(
        _words(
            "OutOfMemoryError", pattern="(?:CUDA|HIP|XPU)(?: (?:driver )?error:)? out of memory"
        ),
        _GPU_MEMORY,
        EndCause.GPU_MEMORY,
    ),
    Meaning(_words("error: out of memory"), _GPU_MEMORY),  # no cause: it may be the host's memory
    # The memory of the host, and what it is limited to
    Meaning(
        _words(
            "unable to allocate shared memory(shm)",
            "insufficient shared memory (shm)",
            "is killed by signal: Bus error",
        ),
        "shared memory (/dev/shm) is full: the DataLoader's workers pass batches through it. Give "
        "it more room (a container's --shm-size or --ipc=host), or lower num_workers, "
        "prefetch_factor or the batch size. hpclaunch doctor shows its size.",
    ),
    Meaning(
        _words("is killed by signal: Killed", "DataLoader worker (pid(s)"),
        "a process of the DataLoader was killed, most likely because the job's memory was used up: "
        "sacct -j JOBID -o JobID,MaxRSS,State. Ask for more (#SBATCH --mem=...), or lower "
        "num_workers, of which every training worker has its own.",
    ),
    Meaning(
        _words(
            "DefaultCPUAllocator: can't allocate memory",
            "Cannot allocate memory",
            OUT_OF_MEMORY,
            pattern="(?<!OutOf)MemoryError",
        ),
        "the host's memory, or the job's share of it, is used up. Ask for more (#SBATCH --mem=...; "
        "--mem=0 is all of a node), or lower --nproc or num_workers.",
        EndCause.MEMORY,
    ),
    Meaning(
        _words(pattern=r"\bXid \d+|uncorrectable ECC|CUDA error: (?:unspecified|device-side)"),
        cause=EndCause.GPU,
    ),
    Meaning(
        _words("Too many open files"),
        "the limit of open files is reached (ulimit -n). Raise it in the job script: ulimit -n "
        "$(ulimit -Hn); or call torch.multiprocessing.set_sharing_strategy('file_system').",
    ),
    Meaning(
        # The last two are what torch.save says of it.
        _words(
            "No space left on device", "Disk quota exceeded", "iostream error", "unexpected pos"
        ),
        "a file system is full, or your quota on it is used up: df -h and quota -s on that host. "
        "Old checkpoints and a cache below $HOME or /tmp are the usual reasons.",
        EndCause.DISK,
    ),
    # Programs and their environment
    Meaning(
        _words("Weights only load failed"),
        "torch.load accepts only tensors and plain values by default, and the checkpoint has other "
        "objects, such as the script's arguments. If you trust the file, write torch.load(..., "
        "weights_only=False), or export TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the job script.",
    ),
    Meaning(
        _words("No module named"),
        "the workers' Python has no such module. It is the one that hpclaunch runs with, unless "
        "PYTHON_EXEC names another: activate the environment in the job script before srun, on a "
        "file system that all nodes see, and install the module there. For a module of your own, "
        "start in its directory or set PYTHONPATH.",
    ),
    Meaning(
        _words("KeyError: 'SLURM_", 'KeyError: "SLURM_'),
        "the script reads a variable of Slurm's that is not set here. Many exist only where their "
        "option was given (SLURM_CPUS_PER_TASK with --cpus-per-task, SLURM_NTASKS_PER_NODE with "
        "--ntasks-per-node), and none outside of a job. Give #SBATCH that option, or write "
        "os.environ.get(NAME, DEFAULT). RANK, WORLD_SIZE and LOCAL_RANK are always set.",
    ),
    Meaning(
        _words(
            "version `GLIBC",
            "cannot open shared object file",
            "Could not load this library",
            "undefined symbol",
        ),
        "a library does not fit the workers' environment. Load the same modules as when it was "
        "installed (module load ... in the job script, before srun), build extensions again for "
        "this torch, and check whether all nodes have the same system.",
    ),
    # Finding each other
    Meaning(
        _words("EADDRINUSE", "ddress already in use"),
        "the script listens on a port of its own choice, and it is taken: by another job on that "
        "host, or by another rank of this one. For init_process_group, write "
        'init_method="env://" and do not set MASTER_PORT: a free port is chosen at every start. '
        "For a server of your own, bind to port 0.",
    ),
    Meaning(
        _words("rank parameter missing", "size parameter missing", "world_size parameter missing"),
        'init_method="tcp://..." needs rank= and world_size= as well. Simpler: leave init_method '
        "out; the environment that hpclaunch sets has everything.",
    ),
    Meaning(
        _words("expected, but not set"),
        "a variable that hpclaunch gives to every worker did not arrive here. The process is one "
        "that the script started itself, or a container cleans the environment (leave out "
        "--cleanenv, or pass the variable on with --env).",
    ),
    Meaning(
        _words("Unable to find address for", "no socket interface found"),
        "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names a network interface that this host does "
        "not have. Remove the export from the job script, or set it to a name that ip -br addr "
        "shows on every node.",
    ),
    Meaning(
        _words("client socket has timed out", "TCP client failed to connect"),
        "this worker could not reach the address where the ranks meet. Do not set MASTER_ADDR or "
        "MASTER_PORT in the script or job script, because hpclaunch chooses both; if it does not, "
        "srun hpclaunch doctor shows whether the hosts reach each other.",
    ),
    Meaning(
        _words("connectFullMesh failed", "socketPollConnect", "No route to host"),
        "the ranks have met, but cannot connect to each other: a firewall between the nodes, or "
        "the wrong network. Set GLOO_SOCKET_IFNAME (gloo) or NCCL_SOCKET_IFNAME (NCCL) to the "
        "interface that joins the nodes; ip -br addr lists them, srun hpclaunch doctor names ours.",
    ),
    # Timeouts
    Meaning(
        _words("doesn't match expected size", "Mismatch between collective operation types"),
        "the ranks called different collectives, or with tensors of different sizes. Look for a "
        "collective below an `if rank == 0`, and for a last batch that differs from rank to rank "
        "(DistributedSampler(drop_last=True)). TORCH_DISTRIBUTED_DEBUG=DETAIL names the call.",
    ),
    Meaning(
        _words("waiting for clients", "wait timeout after", "barrier timeout after"),
        "not all ranks reached the same point before the timeout. One of them is late (a first "
        "import or download: init_process_group(timeout=timedelta(hours=1))), "
        "never gets there (init_process_group, new_group or a collective below an `if`), or hangs: "
        "see the last lines of every rank in the log directory.",
        EndCause.TIMEOUT,
    ),
    Meaning(
        _words(
            "Watchdog caught collective operation timeout",
            "WorkNCCL::checkTimeout",
            "failed to pass monitoredBarrier",
            "Timed out waiting ",
        ),
        "a collective waited for another rank until its timeout. That rank hangs, is late (saving, "
        "evaluating, or reading data on rank 0 only), or calls another collective; the last lines "
        "of every rank in the log directory show which. If it is only late, raise "
        "init_process_group(timeout=...); TORCH_DISTRIBUTED_DEBUG=DETAIL names the call.",
        EndCause.TIMEOUT,
    ),
    Meaning(
        _words(pattern=r"[Tt]imed? ?out|checkTimeout|monitoredBarrier"), cause=EndCause.TIMEOUT
    ),
    Meaning(
        _words(
            "Connection closed by peer",
            "Connection closed by remote peer",
            "Connection reset by peer",
            "ncclRemoteError",
        ),
        "this rank failed because another one had gone: the cause is there. Look at the last lines "
        "of the other ranks in the log directory; a rank that ended with 0 too early, before the "
        "others were done, is named nowhere else.",
        EndCause.PEER,
    ),
    # The end of the script
    Meaning(
        _words("terminate called without an active exception", "FATAL: exception not rethrown"),
        "the script ended while torch's threads were still communicating. Make "
        "torch.distributed.destroy_process_group() its last call, after the last collective is "
        "done (work.wait() for async_op=True).",
    ),
    # Words of many programs
    Meaning(
        _words(pattern=r"Connection (?:closed by|reset by|refused)|Broken pipe"),
        cause=EndCause.PEER,
    ),
    # Code 2 is argparse's, and Python's for a script that does not exist.
    Meaning(_words("error: ", "can't open file"), may_pass=False, code=2),
    Meaning(_words(pattern=r"^(?:Import|ModuleNotFound|Syntax|Indentation)Error:"), may_pass=False),
    Meaning(  # Python itself cannot find the module of -m
        _words(pattern=r"^\S*python\S*: (?:No module named|Error while finding module spec)"),
        may_pass=False,
    ),
    Meaning(
        # These are OSErrors: of ctypes, and of torch.ops.load_library.
        _words("cannot open shared object file: No such file", "Could not load this library"),
        may_pass=False,
    ),
    # Exceptions of the file system or the network. FileNotFoundError and the like are left out: a
    # wrong path stays wrong.
    Meaning(
        _words(
            pattern=r"(?i)^(?:\w+\.)*(?:OSError|IOError|BlockingIOError|BrokenPipeError|gaierror"
            r"|SSLError|IncompleteRead|ProtocolError|DistNetworkError|DistStoreError"
            r"|\w*Connect\w*(?:Error|Exception)|\w*Timeout\w*)(?::|$)"
        ),
        may_pass=True,
    ),
    Meaning(
        _words(
            pattern="(?i)timed out|connection (?:reset|closed|refused)|input/output error"
            "|stale file handle|no space left on device|disk quota exceeded"
            r"|iostream error|unexpected pos \d"
        ),
        may_pass=True,
    ),
    Meaning(
        _words(pattern=r"^Traceback |^(?:\w+\.)*\w*(?:Error|Exception)\b"),
        cause=EndCause.EXCEPTION,
    ),
)

# The words of these causes are also in many lines that have nothing to do with a failure.
IN_MESSAGE = (EndCause.TIMEOUT, EndCause.PEER)

SIGNALS: dict[int, str] = {
    signal.SIGKILL: "only the kernel or a person sends this signal. Most likely the job's memory "
    "was used up: sacct -j JOBID -o JobID,MaxRSS,State shows OUT_OF_MEMORY; ask for more (#SBATCH "
    "--mem=...), or lower num_workers or --nproc. Or somebody called kill -9.",
    signal.SIGBUS: "mapped memory was not available: most likely /dev/shm is full, through "
    "which the DataLoader's workers pass batches. Give it more room (a container's --shm-size or "
    "--ipc=host), or lower num_workers. hpclaunch doctor shows its size.",
    signal.SIGSEGV: "native code crashed. Export PYTHONFAULTHANDLER=1 in the job script to see the "
    "line. Extensions that were built for another torch or CUDA are the usual reason: install "
    "them again.",
    signal.SIGILL: "this host's CPU lacks an instruction that a library was built with: the nodes "
    "differ. Ask for those like the one where it was built (#SBATCH --constraint=...).",
    signal.SIGXCPU: "the limit of CPU time is reached (ulimit -t), which login nodes have: start "
    "the training in a job.",
    signal.SIGXFSZ: "the limit of file size is reached (ulimit -f): raise it in the job script.",
}


def without_ranks(tail: str) -> str:
    """Return last lines without the rank with which torch begins those of an exception, once the
    script has a process group.
    """
    return re.sub(r"^\[rank\d+\]: ?", "", tail, flags=re.MULTILINE)


def advise(failure: Failure) -> str:
    """Return a short paragraph on why this worker failed and what to do, or "".

    For a worker that was killed by a signal, the signal decides: its last lines do not show why it
    was killed.
    """
    if failure.signal in SIGNALS:
        return SIGNALS[failure.signal]
    return next((m.advice for m in MEANINGS if m.advice and m.is_in(failure.tail)), "")


def cause_in(
    tail: str, message: str, among: Collection[EndCause] = tuple(EndCause)
) -> EndCause | None:
    """Return the first cause `among` these that the last lines name, or None. Causes in IN_MESSAGE
    are searched for only in the `message`, which is a part of the lines.
    """
    for m in MEANINGS:
        if m.cause in among and m.is_in(message if m.cause in IN_MESSAGE else tail):
            return m.cause
    return None


def names(cause: EndCause, line: str) -> bool:
    """Return whether this line names the cause."""
    return any(m.cause is cause and m.is_in(line) for m in MEANINGS)


def may_pass(last_line: str, code: int) -> bool | None:
    """Return True if a worker with this last line and exit code may succeed when it is started
    again: the file system or the network failed. Return False if it fails in the same way each
    time; None if that is not known.
    """
    known = [m for m in MEANINGS if m.may_pass is not None and m.code in (0, code)]
    return next((m.may_pass for m in known if m.is_in(last_line)), None)
