"""How many GPUs a task has. NVML is a stand-in: this machine may have none."""

import pytest

from hpclaunch.system import gpus


class Nvml:
    """The calls of pynvml that we use, for `uuids`; None stands for one hidden by a cgroup."""

    class NVMLError(Exception):
        pass

    def __init__(self, uuids, driver=True):
        self.uuids, self.driver, self.open = uuids, driver, 0

    def nvmlInit(self):  # noqa: N802 - NVML's own names
        if not self.driver:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if self.uuids[index] is None:
            raise self.NVMLError("Insufficient Permissions")
        return index

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return self.uuids[handle]


FOUR = ["GPU-aa", "GPU-ab", "GPU-ba", "GPU-bb"]


@pytest.mark.parametrize(
    ("uuids", "selection", "count"),
    [
        (FOUR, None, 4),
        (FOUR, "0,1", 2),
        (FOUR, "3", 1),
        (FOUR, "", 0),
        (FOUR, "-1", 0),
        (FOUR, "0,9,1", 1),  # CUDA stops at the first that is not there
        (FOUR, "GPU-ab,GPU-b", 2),
        (FOUR, "GPU-ab,GPU-zz", 1),
        (FOUR, "MIG-1234", 1),
        (FOUR, " 0 , 1 ", 2),
        (["GPU-aa", None, "GPU-ba", None], None, 2),
        ([], "0", 0),
    ],
)
def test_count(uuids, selection, count):
    nvml = Nvml(uuids)
    environ = {} if selection is None else {"CUDA_VISIBLE_DEVICES": selection}
    assert gpus.visible(environ, nvml) == count
    assert nvml.open == 0


def test_no_driver_no_gpus():
    assert gpus.visible({}, Nvml(FOUR, driver=False)) == 0


@pytest.mark.parametrize(
    ("uuids", "selection", "named"),
    [
        (FOUR, "0,9,1", "GPU 9, which is not there: this task has 4 (0 to 3)"),
        (FOUR, "GPU-ab,GPU-zz", "GPU GPU-zz"),
        (["GPU-aa"], "1", "this task has one, number 0"),
        (FOUR, "0,1,-1,9", ""),  # CUDA's own way to end the list
        (FOUR, "-1", ""),
        (FOUR, "NoDevFiles", ""),
        (FOUR, "", ""),
        (FOUR, None, ""),
        (FOUR, "MIG-1", ""),
        ([], "0", ""),  # no driver to speak of: CUDA has the word
    ],
)
def test_a_selection_of_what_is_not_there(uuids, selection, named):
    environ = {} if selection is None else {"CUDA_VISIBLE_DEVICES": selection}
    wrong = gpus.not_there(environ, Nvml(uuids))
    assert named in wrong
    assert bool(wrong) == bool(named)


def test_the_real_nvml_agrees_with_the_driver():
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        pytest.skip(f"no NVIDIA driver here: {e}")
    count = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    assert gpus.visible({}, pynvml) == count
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "0"}, pynvml) == 1
