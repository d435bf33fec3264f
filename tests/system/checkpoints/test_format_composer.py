"""Composer's files: names of its own for what torch.save writes. See also test_golden.py."""

from looking import cut_short, damage, newest, passed_over
from test_format_torch_save import save

from hpclaunch.system.checkpoints.finding import search


def test_by_the_batch_and_not_the_epoch(tmp_path):
    save(tmp_path / "ep9-ba9-rank0.pt", at=300)
    new = save(tmp_path / "ep1-ba42-rank0.pt", at=200)
    (tmp_path / "latest-rank0.pt").symlink_to(new.name)
    assert newest(tmp_path) == (str(new), [])
    (found,) = search(str(tmp_path))
    assert found.candidate.format.name == "Composer"
    damage(new, cut_short)
    assert "ep1-ba42-rank0.pt: cut short" in passed_over(tmp_path, tmp_path / "ep9-ba9-rank0.pt")
