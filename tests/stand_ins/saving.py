"""Files of the form in which torch.save writes them, without an import of torch."""

import pickle
import zipfile


def save(what, path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(what, protocol=2))
        file.writestr("archive/version", "3\n")


def load(path):
    with zipfile.ZipFile(path) as file:
        return pickle.loads(file.read("archive/data.pkl"))
