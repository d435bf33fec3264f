"""hpclaunch: an elastic launcher for distributed PyTorch, on Slurm and on one machine.

    import hpclaunch

    with hpclaunch.launch("train.py", "--epochs", 3, nproc=2) as job:
        result = job.wait()

See docs/python.md. The launcher is imported only when one of these names is used, since training
scripts import this package too.
"""

__version__ = "0.1.0"
__all__ = ["JobResult", "LaunchedJob", "UsageError", "launch"]

TYPE_CHECKING = False  # type checkers know the name; importing typing would take milliseconds
if TYPE_CHECKING:
    from .core.protocol.errors import UsageError
    from .launching import JobResult, LaunchedJob, launch


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import launching

    return getattr(launching, name)
