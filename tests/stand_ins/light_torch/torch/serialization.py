"""Checkpoints in the format of torch.save; `saving.py` is a link to this module."""

import pickle
import zipfile


def save(what, path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(what, protocol=2))
        archive.writestr("archive/version", "3\n")


def load(path):
    with zipfile.ZipFile(path) as archive:
        return pickle.loads(archive.read("archive/data.pkl"))
