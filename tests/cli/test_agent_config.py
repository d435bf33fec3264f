"""The settings of a job, as its options give them."""

import pytest
from launching import script

from hpclaunch.cli import agent_config, place
from hpclaunch.cli.options import build_parser
from hpclaunch.system.hosts import slurm
from hpclaunch.system.network import secret


@pytest.mark.parametrize(("loss", "beat"), [(2, 1 / 3), (3, 0.5), (60, 0.5)])
def test_a_loss_timeout_has_at_least_six_beats(tmp_path, monkeypatch, loss, beat):
    """The vote lease is the loss timeout and three beats: with short ones, another head leads soon
    after a loss.
    """
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "")
    options = build_parser({}).parse_args([f"--loss-timeout={loss}", "--nproc=1", "train.py"])
    timing = agent_config.configure(options, {}).job.timing
    assert (timing.loss, timing.beat) == (loss, pytest.approx(beat))


@pytest.mark.parametrize("how", [["--node-rank=0", "--master-addr=::1"], ["--rdzv-backend=c10d"]])
def test_machines_with_a_step_each_have_the_names_that_slurm_has_for_them(
    tmp_path, monkeypatch, how
):
    monkeypatch.setattr(slurm, "own_step", lambda: None)
    environ = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n3"}
    environ |= {"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    environ |= {"SLURMD_NODENAME": "n3", secret.VARIABLE: str(tmp_path / "secret")}
    words = ["--nnodes=2", *how, "--rdzv-endpoint=192.0.2.1:29400", "train.py"]
    where, _ = place.locate(build_parser({}).parse_args(words), environ, unique="x")
    assert where.places[where.index].host == "n3"
