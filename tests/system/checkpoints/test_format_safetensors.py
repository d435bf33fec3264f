"""Files and directories by safetensors, which really writes them."""

import json
import os

import pytest
from looking import cut_short, damage, date, empty, lose_the_last_byte, newest, passed_over
from test_format_torch_save import save
from test_format_torch_save import write as write_with_torch

from hpclaunch.system.checkpoints import archives


def write(path, at):
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1000), "b": torch.zeros(3, 3)}, path, metadata={"format": "pt"})
    date(path, at)
    return path


def test_a_file(tmp_path):
    write(tmp_path / "step-1.safetensors", at=200)
    new = write(tmp_path / "step-2.safetensors", at=100)
    assert newest(tmp_path) == (str(new), [])


def _header(text):
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (cut_short, "cut short"),
        (lose_the_last_byte, "cut short"),
        (empty, "empty"),
        (lambda data: bytes(len(data)), "not written out"),
        (lambda data: data + b"!", "longer than its header says"),
        (lambda data: data[:8] + b"x" * (len(data) - 8), "its header is not that of safetensors"),
        (lambda data: _header(b"[" * 100_000), "its header is not that of safetensors"),
        (lambda data: _header(b'{"a":{"data_offsets":[0,1e999]}}'), "is not that of safetensors"),
        (lambda data: _header(b'{"a":{"data_offsets":[0,"9"]}}'), "cut short"),
    ],
)
def test_a_damaged_one_is_passed_over(tmp_path, change, reason):
    good = write(tmp_path / "step-1.safetensors", at=100)
    damage(write(tmp_path / "step-2.safetensors", at=200), change)
    assert reason in passed_over(tmp_path, good)


def test_no_beginning_is_taken_for_the_whole(tmp_path):
    path = write(tmp_path / "step-1.safetensors", at=100)
    fd = os.open(path, os.O_RDONLY)
    for length in range(path.stat().st_size):
        with pytest.raises(archives.DamagedError):
            archives.check_tensors(archives.Window(fd, length))
    archives.check_tensors(archives.Window(fd, path.stat().st_size))
    os.close(fd)


def export(directory, at):
    """Write a model in several files, like save_pretrained with a large one."""
    directory.mkdir()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name in names:
        write(directory / name, at)
    index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1]}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    date(directory, at)
    return directory


def test_a_model_in_several_files(tmp_path):
    directory = export(tmp_path / "step-1", at=100)
    assert newest(tmp_path) == (str(directory), [])
    damage(directory / "model-00002-of-00002.safetensors", cut_short)
    assert "model-00002-of-00002.safetensors: cut short" in passed_over(tmp_path)
    (directory / "model-00002-of-00002.safetensors").unlink()
    line = passed_over(tmp_path)
    assert "model-00002-of-00002.safetensors is missing, which model.safetensors.index" in line
    (directory / "model.safetensors.index.json").write_text("[" * 100_000)
    assert "model.safetensors.index.json is cut short or damaged" in passed_over(tmp_path)


def test_an_exported_model_beside_full_checkpoints(tmp_path):
    full = tmp_path / "step-1.pt"
    write_with_torch({"model": {}, "optimizer": {"param_groups": []}}, full)
    date(full, 100)
    export(tmp_path / "final", at=200)
    write(tmp_path / "model.safetensors", at=300)
    write(tmp_path / "best.safetensors", at=300)
    assert newest(tmp_path) == (str(full), [])


def test_a_directory_that_has_more_than_a_model_is_the_scripts_own(tmp_path):
    directory = export(tmp_path / "step_200", at=200)
    assert newest(tmp_path) == (str(directory), [])
    save(directory / "optimizer.pt", at=200)
    assert "nothing says that it is complete" in passed_over(tmp_path)


def test_what_the_trainer_has_saved_as_a_model_is_no_resume_point(tmp_path):
    """The Trainer would look for its state, and fail."""
    save(export(tmp_path / "out", at=200) / "training_args.bin", at=200)
    path, (line,) = newest(tmp_path)
    assert not path
    assert line.startswith("out: no resume point: a model that the Trainer has saved")


def test_numbered_files_of_a_script(tmp_path):
    """Beside `model.safetensors`, they are further models of one checkpoint by Accelerate."""
    write(tmp_path / "model_100.safetensors", at=100)
    new = write(tmp_path / "model_200.safetensors", at=200)
    assert newest(tmp_path) == (str(new), [])
    write(tmp_path / "model.safetensors", at=300)
    assert newest(tmp_path) == (str(tmp_path), [])


def test_a_file_of_torch_beside_an_exported_model(tmp_path):
    """A file of torch is no part of an exported model in the same directory."""
    write(tmp_path / "model.safetensors", at=100)
    good = save(tmp_path / "step-10.pt", at=200)
    assert newest(tmp_path) == (str(good), [])
