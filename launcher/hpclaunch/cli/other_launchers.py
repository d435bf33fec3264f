"""Options and names of other launchers, and the advice in the error message for each."""

from __future__ import annotations

WORKERS = "write --nproc N, the number of workers on each machine"
NOT_IN_STEP = "or nothing under srun, since Slurm knows it"
HOSTS = "leave it out: srun starts hpclaunch on each host; without Slurm, you do"
GPUS = "set CUDA_VISIBLE_DEVICES"
IN_SCRIPT = "leave it out, and set it in the script"
NOTHING = "leave it out"

# Options of accelerate launch, deepspeed, fabric run, mpirun, srun, and the former
# torch.distributed.launch. Some of them would otherwise pass as abbreviations of our own options.
OPTIONS = {
    "--use-env": "leave it out: every worker has LOCAL_RANK in its environment",
    **dict.fromkeys(("--num-gpus", "--num-accelerators", "--num-processes", "--devices"), WORKERS),
    **dict.fromkeys(("--gpus", "--ngpus", "--gpus-per-node", "--ntasks-per-node"), WORKERS),
    **dict.fromkeys(("-n", "-np", "--ntasks", "-npernode", "--npernode", "-ppn"), WORKERS),
    **dict.fromkeys(
        ("-N", "--nodes", "--num-nodes", "--num-machines"), f"write --nnodes N, {NOT_IN_STEP}"
    ),
    "--machine-rank": f"write --node-rank R, {NOT_IN_STEP}",
    **dict.fromkeys(
        ("--main-process-ip", "--main-address"), f"write --master-addr HOST, {NOT_IN_STEP}"
    ),
    **dict.fromkeys(
        ("--main-process-port", "--main-port"), f"write --master-port P, {NOT_IN_STEP}"
    ),
    **dict.fromkeys(("-H", "--host", "--hosts", "--hostfile", "-hostfile", "-machinefile"), HOSTS),
    **dict.fromkeys(("--gpu-ids", "-i", "--include", "-e", "--exclude"), GPUS),
    "--num-cpu-threads-per-process": "set OMP_NUM_THREADS",
    "-x": "leave it out: workers inherit all variables",
    **dict.fromkeys(("--config-file", "--mixed-precision", "--precision", "--cpu"), IN_SCRIPT),
    **dict.fromkeys(("--use-deepspeed", "--deepspeed-config-file", "--zero-stage"), IN_SCRIPT),
    **dict.fromkeys(("--use-fsdp", "--dynamo-backend", "--strategy", "--accelerator"), IN_SCRIPT),
    **dict.fromkeys(("--multi-gpu", "--same-network", "--launcher", "--no-local-rank"), NOTHING),
    **dict.fromkeys(("--no-ssh-check", "--force-multi", "--mca", "-mca", "--mpi"), NOTHING),
    **dict.fromkeys(("--allow-run-as-root", "--oversubscribe", "--gloo"), NOTHING),
}

# By executable: the words that users write before the script.
PROGRAMS = {
    "accelerate": "accelerate launch",
    "colossalai": "colossalai run",
    "composer": "composer",
    "deepspeed": "deepspeed",
    "fabric": "fabric run",
    "hpclaunch": "hpclaunch",
    "mpiexec": "mpiexec",
    "mpirun": "mpirun",
    "torchrun": "torchrun",
}
# By executable: programs that start a launcher themselves, and what to write instead.
STARTERS = {
    "trl": "trl starts accelerate launch: write -m trl.scripts.sft for trl sft",
    "tune": "tune run starts torchrun: write the recipe's file (tune cp RECIPE FILE copies it)",
}
MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"),
    *("accelerate.commands.launch", "deepspeed.launcher", "hpclaunch"),
)
