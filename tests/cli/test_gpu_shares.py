"""The GPUs of each worker, through the launcher and NVIDIA's own Python library; only the driver
below that is a stand-in.
"""

import json

import pytest
from launching import hpclaunch, script
from nvml import Driver, Gpu, Instance, uuid

from surroundings import environment

pytestmark = pytest.mark.starts

REPORT = """\
import json, os
names = ("LOCAL_RANK", "HPCLAUNCH_LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
         "HPCLAUNCH_RANKS_PER_GPU", "HPCLAUNCH_SHARED_BACKEND")
with open(f"told-{os.environ['RANK']}.json", "w") as f:
    json.dump({n: os.environ[n] for n in names if n in os.environ}, f)
"""


@pytest.fixture
def launch(tmp_path):
    def launch(gpus, *words, **changes):
        """Return the workers' reports, by rank, and the finished launcher."""
        driver = Driver(tmp_path, [gpu if isinstance(gpu, Gpu) else Gpu() for gpu in gpus])
        more = {k: v for k, v in driver.environ.items() if "NVML" in k or k == "LD_LIBRARY_PATH"}
        env = environment(**more, **changes)
        words = ("--health=off", *words)  # which has a word on the load of a busy machine
        done = hpclaunch(*words, script(tmp_path, REPORT), cwd=tmp_path, env=env)
        reports = {int(p.stem[5:]): json.loads(p.read_text()) for p in tmp_path.glob("told-*")}
        return [reports[rank] for rank in sorted(reports)], done

    return launch


def test_one_worker_per_gpu_and_all_are_seen(launch):
    reports, done = launch([Gpu()] * 4)
    assert [t["LOCAL_RANK"] for t in reports] == ["0", "1", "2", "3"]
    assert all("CUDA_VISIBLE_DEVICES" not in t for t in reports)
    assert {t["CUDA_DEVICE_ORDER"] for t in reports} == {"PCI_BUS_ID"}
    assert done.stderr == ""


def test_slurms_choice_counts(launch):
    reports, _ = launch([Gpu()] * 4, CUDA_VISIBLE_DEVICES="2,3", CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert [t["CUDA_VISIBLE_DEVICES"] for t in reports] == ["2,3", "2,3"]
    assert reports[0]["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_workers_that_share_see_their_own_only(launch):
    reports, done = launch([Gpu()] * 2, "--nproc=4", "--shared-backend=gloo")
    assert [t["CUDA_VISIBLE_DEVICES"] for t in reports] == ["0", "0", "1", "1"]
    assert {t["LOCAL_RANK"] for t in reports} == {"0"}
    assert [t["HPCLAUNCH_LOCAL_RANK"] for t in reports] == ["0", "1", "2", "3"]
    assert {t["HPCLAUNCH_RANKS_PER_GPU"] for t in reports} == {"2"}
    assert {t["HPCLAUNCH_SHARED_BACKEND"] for t in reports} == {"gloo"}
    first, second = done.stderr.splitlines()
    assert "4 workers share 2 GPUs on" in first
    assert "each worker sees only its own, as device 0: LOCAL_RANK is 0" in first
    assert "without MPS: nvidia-cuda-mps-control is not in PATH" in second


def test_several_gpus_for_each_worker(launch):
    reports, done = launch([Gpu()] * 4, "--gpus-per-worker=2")
    assert [t["CUDA_VISIBLE_DEVICES"] for t in reports] == ["0,1", "2,3"]
    assert {t["LOCAL_RANK"] for t in reports} == {"0"}
    assert "HPCLAUNCH_RANKS_PER_GPU" not in reports[0]
    assert done.stderr == ""
    _, done = launch([Gpu()], "--gpus-per-worker=2")
    assert done.returncode == 2
    assert "--gpus-per-worker 2, but this task has 1: ask Slurm for more" in done.stderr


def test_a_virtual_local_rank(launch):
    reports, _ = launch([Gpu()] * 2, "--virtual-local-rank", CUDA_VISIBLE_DEVICES=uuid(1))
    assert [(t["LOCAL_RANK"], t["CUDA_VISIBLE_DEVICES"]) for t in reports] == [("0", uuid(1))]


def test_instances_of_mig_are_dealt_out(launch):
    names = ["MIG-aaaaaaaa-0000-0000-0000-000000000000", "MIG-bbbbbbbb-0000-0000-0000-000000000000"]
    gpu = Gpu(mig=True, instances=[Instance(name, gi=i + 1) for i, name in enumerate(names)])
    reports, _ = launch([gpu])
    assert [t["CUDA_VISIBLE_DEVICES"] for t in reports] == names
    assert {t["LOCAL_RANK"] for t in reports} == {"0"}


def test_a_gpu_that_is_not_there(launch):
    reports, done = launch([Gpu()] * 2, CUDA_VISIBLE_DEVICES="0,7")
    assert (reports, done.returncode) == ([], 2)
    assert done.stderr.count("\n") == 1
    assert "names GPU 7, which is not there: this task has 2 (0 to 1)" in done.stderr
