import sys
from pathlib import Path
from types import SimpleNamespace

import numpy


def load_digits():
    files = (Path(path, "sklearn", "datasets", "data", "digits.csv.gz") for path in sys.path)
    table = numpy.loadtxt(next(filter(Path.exists, files)), delimiter=",")
    return SimpleNamespace(images=table[:, :-1].reshape(-1, 8, 8), target=table[:, -1].astype(int))
