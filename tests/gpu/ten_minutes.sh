#!/bin/bash
# Run the tests and benchmarks for a GPU in ten minutes: the most important ones first, and last those
# that may leave the GPU in a bad state.
#
#     make gpu-bundle                         on a machine with a network; then copy .wheels
#     bash tests/gpu/ten_minutes.sh           on the machine with the GPU; again, to continue
#     bash tests/gpu/ten_minutes.sh nccl mps  these steps, even if they are done
#
# Each step has its own time limit. The output of all calls is also in $OUT/ten_minutes.txt (by
# default in bench/results); $OUT/summary.txt has one line for each step of the last call.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-bench/results} venv=.venv-gpu state=.venv-gpu.done
log=$out/ten_minutes.txt summary=$out/summary.txt
chosen=" $* " python=$venv/bin/python
mkdir -p "$out"
touch "$state"
: > "$summary"
# The Python that has torch, not the one of the environment that is made here.
export PYTHON=$(command -v "${PYTHON:-python3}")
# The directories of the driver's programs and of MPS.
export PATH="$PWD/$venv/bin:$PATH:/usr/local/nvidia/bin:/usr/local/cuda/bin"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64"
[ ! -e .wheels/libfuse3.so.3 ] || export FUSE_LIBRARY_PATH=$PWD/.wheels/libfuse3.so.3
# Limits are for 16 CPUs; `rehearse` stretches them.
stretch=${STRETCH:-1}
export HPCLAUNCH_GPU_REQUIRED=1 HPCLAUNCH_GPU_LIMIT=$((30 * stretch)) PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 COLUMNS=200

# step NAME SECONDS COMMAND...: run a command. Exit code 77 means that the step is impossible here. A
# second call skips steps that succeeded. The output is printed at the end of the step, not piped,
# since a daemon may keep a pipe open beyond the limit. At SIGINT, pytest still shows failures.
step() {
    local name=$1 limit=$(($2 * stretch)) began=$SECONDS status what last
    shift 2
    if [ "$chosen" = "  " ]; then
        ! grep -qx "$name" "$state" || return 0
    else
        [[ $chosen = *" $name "* ]] || return 0
    fi
    printf '\n==== %s (at most %s s)\n' "$name" "$limit" | tee -a "$log"
    timeout --signal=INT --kill-after=10 "$limit" env --default-signal=INT "$@" \
        > "$out/.last" 2>&1 < /dev/null
    status=$?
    tee -a "$log" < "$out/.last"
    case $status in
        0) what=ok ;;
        77) what='not here' ;;
        124 | 137) what="over $limit s" ;;
        *) what="FAILED ($status)" ;;
    esac
    last=$(grep -m1 -E '^(FAILED|ERROR) ' "$out/.last" || grep -v '^\s*$' "$out/.last" | tail -1)
    printf '%-12s %4d s  %-12s %s\n' "$name" $((SECONDS - began)) "$what" "${last:0:150}" >> "$summary"
    case $status in 0 | 77) echo "$name" >> "$state" ;; esac
}

tests() { "$python" -m pytest -q -p pytest_timeout -p no:cacheprovider "$@"; }
figures() { "$python" bench/gpu/figures.py --results "$out" --runs 2 --only "$@"; }
machine() {
    uname -r
    "$PYTHON" --version
    ls -l /dev/nvidia* /usr/local/nvidia/bin
    for program in nvidia-smi nvidia-cuda-mps-control nvidia-cuda-mps-server; do
        command -v $program || echo "no $program in PATH"
    done
    nvidia-smi && nvidia-smi -q -d COMPUTE,PAGE_RETIREMENT,ROW_REMAPPER,ECC | head -60
}
prepare() { bash tests/gpu/prepare "$venv" && touch "$venv/complete"; }
export -f tests figures machine prepare
export python out venv

step machine 20 bash -c machine
[ -e "$venv/complete" ] || chosen='  ' step prepare 150 bash -c prepare
if [ -e "$venv/complete" ]; then
    scripts=tests/gpu/scripts
    step import 60 "$python" $scripts/import_torch.py
    step nvml 20 "$python" $scripts/nvml.py
    step doctor 20 hpclaunch doctor
    step counting 60 bash -c 'tests tests/gpu/test_counting.py'
    step raw_mps 60 "$python" $scripts/raw_mps.py
    step template 60 bash -c 'tests tests/gpu/test_warm.py'
    step health 80 bash -c 'tests tests/gpu/test_health.py'
    step measure 40 hpclaunch doctor --measure
    step nccl 80 bash -c 'tests tests/gpu/test_nccl.py'
    step mps 90 bash -c 'tests tests/gpu/test_sharing.py'
    # The job with a straggler takes half a minute.
    step hangs 150 env HPCLAUNCH_GPU_LIMIT=$((60 * stretch)) \
        bash -c 'tests -rfEP tests/gpu/test_hangs.py'
    step recorder 40 torchrun --standalone --nproc-per-node 1 $scripts/recorder.py
    step resumed 90 bash -c 'tests tests/gpu/test_resuming.py'
    step faults 120 bash -c 'tests -rfEP tests/gpu/test_faults.py'
    step staging 150 bash -c 'figures staging'
    step restart 180 bash -c 'figures restart'
    step memory 60 bash -c 'figures memory'
    step throughput 180 bash -c 'figures throughput'
fi
rm -f "$out/.last"
[ -s "$summary" ] || { echo "no step to run: $*" >&2; exit 2; }
printf '\n==== summary\n'
tee -a "$log" < "$summary"
! grep -qE 'FAILED|over [0-9]+ s' "$summary"
