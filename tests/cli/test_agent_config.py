"""The settings of a job, as its options give them."""

import pytest
from launching import script

from hpclaunch.cli import agent_config
from hpclaunch.cli.options import build_parser


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
