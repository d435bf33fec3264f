"""The GPUs of a task, by the real pynvml over a stand-in for NVML."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins"))
import nvml
from nvml import Driver, Gpu, Instance, Surveyor

from hpclaunch.core.placement import devices
from hpclaunch.system.gpus import inventory


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return Driver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def surveyor(starts, driver):
    surveyor = Surveyor(driver.environ)
    yield surveyor
    surveyor.close()


@pytest.fixture
def survey(driver, surveyor):
    """Return a function that surveys given GPUs under a CUDA_VISIBLE_DEVICES."""

    def look(*found, selection=None, **state):
        driver.gpus = list(found)
        for name, value in {"init": 0, "fails": {}, **state}.items():
            setattr(driver, name, value)
        driver.apply()
        return surveyor.survey(selection)

    return look


A, B, C, D = (f"GPU-{name}-1111" for name in ("aa", "ab", "ba", "bb"))
FOUR = [Gpu(A), Gpu(B), Gpu(C), Gpu(D)]
HIDDEN = Gpu(B, error=nvml.HIDDEN)
DIVIDED = Gpu(B, mig=True, instances=[Instance("MIG-x1", 7, 0), Instance("MIG-y2", 9, 1)])
UNMADE = Gpu(C, mig=True)


@pytest.mark.parametrize(
    ("there", "selection", "entries", "uuids"),
    [
        (FOUR, None, "0 1 2 3", [A, B, C, D]),
        (FOUR, "0,1", "0 1", [A, B]),
        (FOUR, "3,1", "3 1", [D, B]),  # in the order of the list
        (FOUR, "", "", []),
        (FOUR, "-1", "", []),
        (FOUR, "NoDevFiles", "", []),
        (FOUR, " 0 , 1 ", "0 1", [A, B]),
        (FOUR, "0,1,", "0 1", [A, B]),
        (FOUR, f"{D},{A}", f"{D} {A}", [D, A]),
        (FOUR, "GPU-ab,GPU-bb", "GPU-ab GPU-bb", [B, D]),  # as short as is clear
        (FOUR, "0,-1,2", "0", [A]),  # the end, on purpose
        ([Gpu(A), HIDDEN, Gpu(C)], None, "0 1", [A, C]),  # indices skip what a cgroup hides
        ([Gpu(A), HIDDEN, Gpu(C)], "1", "1", [C]),
        ([Gpu(A), DIVIDED], None, "0 MIG-x1 MIG-y2", [A, "MIG-x1", "MIG-y2"]),
        ([Gpu(A), DIVIDED], "1", "MIG-x1 MIG-y2", ["MIG-x1", "MIG-y2"]),
        ([Gpu(A), DIVIDED], B, "MIG-x1 MIG-y2", ["MIG-x1", "MIG-y2"]),
        ([Gpu(A), DIVIDED], "MIG-y2,MIG-x1", "MIG-y2 MIG-x1", ["MIG-y2", "MIG-x1"]),
        ([Gpu(A), DIVIDED], "MIG-y", "MIG-y", ["MIG-y2"]),
        ([Gpu(A), DIVIDED], f"MIG-{B}/9/1", f"MIG-{B}/9/1", ["MIG-y2"]),  # as before R470
        ([Gpu(A), UNMADE], None, "0", [A]),
        ([], "0", "", []),
        ([], None, "", []),
    ],
)
def test_what_a_task_may_use(survey, there, selection, entries, uuids):
    found = survey(*there, selection=selection)
    assert [gpu.entry for gpu in found.gpus] == entries.split()
    assert [gpu.uuid for gpu in found.gpus] == uuids
    assert (found.wrong, found.broken) == ("", "")


@pytest.mark.parametrize(
    ("there", "selection", "count", "named"),
    [
        (
            FOUR,
            "0,9,1",
            1,
            "names GPU 9, which is not there: this task has 4 (0 to 3). Under Slurm",
        ),
        (FOUR, "GPU-ab,GPU-zz", 1, "names GPU GPU-zz, which"),
        (FOUR, "GPU-aa,GPU-b", 1, "names GPU GPU-b, which"),  # short for two
        ([Gpu(A)], "1", 0, "this task has one, number 0"),
        ([Gpu(A), HIDDEN], "1", 0, "this task has one, number 0"),
        (FOUR, "0,1,0", 0, "names GPU 0 twice, and then CUDA shows none"),
        (FOUR, "GPU-aa,GPU-aa-1", 0, "names GPU GPU-aa-1 twice"),
        (FOUR, "0,GPU-ab", 1, "mixes indices and UUIDs, and CUDA stops at GPU-ab"),
        (FOUR, "0,,1", 1, "has an empty entry, at which CUDA stops"),
        ([Gpu(A), DIVIDED], "MIG-z", 0, "names GPU MIG-z, which is not there"),
        ([Gpu(A), UNMADE], "0,1", 1, "names GPU 1, which is divided by MIG, and no instance"),
    ],
)
def test_what_is_wrong_with_a_selection(survey, there, selection, count, named):
    found = survey(*there, selection=selection)
    assert len(found.gpus) == count
    assert f"CUDA_VISIBLE_DEVICES={selection} " in found.wrong
    assert named in found.wrong


def test_all_of_a_gpu(survey):
    """A GPU, and one with what NVML has no word for."""
    near = Gpu(A, name="NVIDIA A100", mode=3, cpus=(0, 1, 64, 65, 700), node=1)
    bare = Gpu(B, name="NVIDIA T4", mode=2)
    found = survey(near, bare, HIDDEN, version="550.54.15")
    assert found.models == "1 x NVIDIA A100, 1 x NVIDIA T4, driver 550.54.15"
    assert found.gpus == (
        devices.Gpu(
            "0", A, 0, "NVIDIA A100", False, "exclusive",
            (0, 1, 64, 65, 700), 1,
        ),
        devices.Gpu("1", B, 1, "NVIDIA T4", False, "prohibited"),
    )  # fmt: skip


def test_an_instance_is_where_its_gpu_is(survey):
    (gpu,) = survey(Gpu(A, mig=True, cpus=(4, 5), node=1, instances=[Instance("MIG-x")])).gpus
    assert gpu.mig
    assert (gpu.index, gpu.cpus, gpu.node) == (0, (4, 5), 1)
    assert gpu.name == "MIG MIG-x"


def test_the_kernel_reports_what_nvml_does_not(monkeypatch, tmp_path):
    device = tmp_path / "0000:07:00.0"
    device.mkdir()
    (device / "local_cpulist").write_text("0-3,8,10-11\n")
    (device / "numa_node").write_text("1\n")
    monkeypatch.setattr(inventory, "PCI", tmp_path)
    assert inventory._local_cpus("00000000:07:00.0") == (0, 1, 2, 3, 8, 10, 11)
    assert inventory._local_node("00000000:07:00.0") == 1
    assert inventory._local_cpus("00000000:08:00.0") == ()
    assert inventory._local_node("") == -1


def test_no_driver_no_gpus(survey):
    assert survey(Gpu(A), init=9) == inventory.GpuSurvey()


def test_a_broken_driver_is_one_line(survey):
    found = survey(Gpu(A), init=18)
    assert not found.gpus
    assert found.broken.startswith("NVML cannot be initialised: RM has detected an NVML/RM version")


OPTIONAL = (
    *("PciInfo", "CpuAffinityWithinScope", "MemoryAffinity", "Name", "ComputeMode"),
    "MigMode",
)


@pytest.mark.parametrize("code", [nvml.UNKNOWN, nvml.UNSUPPORTED])
@pytest.mark.parametrize("call", OPTIONAL)
def test_a_question_that_a_gpu_does_not_answer(survey, call, code):
    found = survey(Gpu(A, fails={f"nvmlDeviceGet{call}": code}), Gpu(B))
    assert [gpu.uuid for gpu in found.gpus] == [A, B]
    assert (found.wrong, found.broken) == ("", "")


@pytest.mark.parametrize("call", [*OPTIONAL, "HandleByIndex", "UUID"])
def test_a_gpu_that_is_lost_at_a_question(survey, call):
    found = survey(Gpu(A, fails={f"nvmlDeviceGet{call}": nvml.LOST}), Gpu(B))
    assert [gpu.uuid for gpu in found.gpus] == [B]
    assert found.broken == "GPU 0: GPU is lost"


@pytest.mark.parametrize("code", [nvml.UNKNOWN, nvml.UNSUPPORTED])
def test_a_driver_that_does_not_report_its_version(survey, code):
    found = survey(Gpu(A), fails={"nvmlSystemGetDriverVersion": code})
    assert [gpu.uuid for gpu in found.gpus] == [A]
    assert found.broken == ""
    assert found.models == "1 x NVIDIA H100 80GB HBM3"


def test_an_instance_that_does_not_report_its_number(survey):
    """Only drivers before 470 name instances by it."""
    gpu = replace(DIVIDED, fails={"nvmlDeviceGetGpuInstanceId": nvml.UNKNOWN})
    found = survey(gpu)
    assert [gpu.uuid for gpu in found.gpus] == ["MIG-x1", "MIG-y2"]
    assert found.broken == ""


def test_a_gpu_that_fell_off_the_bus(survey):
    found = survey(Gpu(A), Gpu(B, error=nvml.LOST), Gpu(C))
    assert [gpu.uuid for gpu in found.gpus] == [A, C]
    assert found.broken == "GPU 1: GPU is lost"


@pytest.mark.parametrize(
    ("environ", "count", "entries", "uuids"),
    [
        ({}, 2, "0 1", "0 1"),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, 2, "0 1", "2 3"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-aa,GPU-bb", "HIP_VISIBLE_DEVICES": "1"}, 1, "1", "GPU-bb"),
        ({"HIP_VISIBLE_DEVICES": "4,5"}, 2, "4 5", "4 5"),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, 2, "4 5", "4 5"),
        ({}, 0, "", ""),
    ],
)
def test_amd(environ, count, entries, uuids):
    found = inventory.amd(environ, count)
    assert [gpu.entry for gpu in found.gpus] == entries.split()
    assert [gpu.uuid for gpu in found.gpus] == uuids.split()
