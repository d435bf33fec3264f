"""A worker's report on itself after it has imported and used the libraries of researchers.

libraries.py     prints one line of JSON, which is the same however the worker was started

With the variable UNTIL, a journal, it then waits in its first round until the template has imported
the same, and fails.
"""

import importlib
import json
import os
import random
import sys
import time

import torch

# pytorch_lightning is left to the workers, since torchmetrics reads LOCAL_RANK.
LIBRARIES = (
    *("numpy", "scipy.optimize", "pandas", "sklearn.linear_model", "tqdm", "matplotlib.pyplot"),
    *("pyarrow.parquet", "h5py", "grpc", "omegaconf", "hydra", "datasets", "transformers"),
    *("accelerate", "tensorboard", "torch.utils.tensorboard", "wandb", "deepspeed"),
    "pytorch_lightning",
)
OF_LAUNCH = {"MASTER_PORT", "HPCLAUNCH_STORE", "HPCLAUNCH_PROGRESS", "TORCHELASTIC_ERROR_FILE"}
OF_LAUNCH |= {"TORCHELASTIC_RUN_ID", "HPCLAUNCH_RUN_ID", "UNTIL", "HPCLAUNCH_NOTICE_FILE"}
OF_LAUNCH |= {"TORCHELASTIC_RESTART_COUNT"}


class Plain:
    """To be pickled: its module is the script."""

    value = 7


def square(number):
    return number * number


def plain(thing):
    """Return the text of a thing without its address."""
    return str(thing).partition(" at 0x")[0]


def facts():
    import decimal
    import gc
    import locale
    import logging
    import multiprocessing
    import pickle
    import signal
    import threading
    import warnings

    import numpy

    random.seed(3)
    numpy.random.seed(3)
    torch.manual_seed(3)
    handlers = {int(s): plain(signal.getsignal(s)) for s in signal.valid_signals()}
    environ = {name: value for name, value in os.environ.items() if name not in OF_LAUNCH}
    return {
        "random": [random.random(), numpy.random.random()],
        "torch": torch.rand(1).item(),
        "dtype": str(torch.get_default_dtype()),
        "num_threads": torch.get_num_threads(),
        "warnings": sorted(map(str, warnings.filters)),
        "logging": [[type(h).__name__ for h in logging.root.handlers], logging.root.level],
        "loggers": sorted(
            (name, len(logger.handlers), logger.level)
            for name, logger in logging.root.manager.loggerDict.items()
            if isinstance(logger, logging.Logger) and (logger.handlers or logger.level)
        ),
        "locale": locale.setlocale(locale.LC_ALL),
        "decimal": str(decimal.getcontext()),
        "path": sys.path,
        "hooks": [plain(hook) for hook in (sys.excepthook, sys.displayhook)],
        "threads": [threading.active_count(), threading.main_thread().name],
        "signals": handlers,
        "umask": oct(os.umask(0o077) | os.umask(0o022)),
        "gc": [gc.isenabled(), gc.get_threshold()],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "main": [__name__, type(pickle.loads(pickle.dumps(Plain()))) is Plain],
        "start method": multiprocessing.get_start_method(allow_none=True),
        "environ": environ,
    }


def use():
    """Return the results of a little use of each library."""
    import io
    import multiprocessing

    import numpy
    import pandas
    import sklearn.linear_model
    from torch.utils.data import DataLoader

    frame = pandas.DataFrame({"a": [1, 2, 3]}, dtype="float64")
    model = sklearn.linear_model.LinearRegression().fit(frame[["a"]], [2, 4, 6])
    found = {"fit": [round(float(x), 6) for x in model.predict(frame[["a"]])]}
    found["loader"] = {
        method: [
            batch.tolist()
            for batch in DataLoader(range(4), 2, num_workers=1, multiprocessing_context=method)
        ]
        for method in ("fork", "forkserver")
    }
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found["spawn"] = pool.map(square, [1, 2, 3])
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    found["jit"] = buffer.tell() > 0
    found["figure"] = figure()
    found["arrow"] = table(numpy.arange(3))
    return found


def figure():
    import io

    import matplotlib.pyplot

    buffer = io.BytesIO()
    matplotlib.pyplot.plot([1, 2])
    matplotlib.pyplot.savefig(buffer, format="png")
    return [matplotlib.get_backend(), buffer.tell() > 0]


def table(values):
    import pyarrow

    return pyarrow.table({"a": values}).num_rows


def train():
    """Two steps, and then until a successor of the template has learned from them."""
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    for _ in range(2):
        optimizer.step()
    deadline = time.monotonic() + 300
    while learns() and time.monotonic() < deadline:
        with open(os.environ["UNTIL"]) as journal:
            if journal.read().count('"note":"renewed"') > 1:
                break
        time.sleep(0.1)


def learns():
    return "UNTIL" in os.environ and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def main():
    for name in LIBRARIES:
        importlib.import_module(name)
    train()
    origins = {name: sys.modules[name].__spec__.origin for name in LIBRARIES}
    report = {"origins": origins, **facts(), **use()}
    report |= {f"{name} afterwards": value for name, value in facts().items()}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.exit(learns())


if __name__ == "__main__":
    main()
