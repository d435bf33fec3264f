"""Site profiles for job scripts: TOML files in `sites/`, or one of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from hpclaunch.core.protocol.errors import UsageError

SITES = Path(__file__).parent / "sites"
PLACEHOLDERS = {"gpus": "{gpus}", "activate": "{venv}"}


class GpuProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A type of node, described by its GPUs."""

    per_node: Annotated[int, msgspec.Meta(ge=1)]
    type: str = ""  # as Slurm there names it; empty: as the user names it
    cpus: Annotated[int, msgspec.Meta(ge=0)] = 0  # for each GPU; 0: Slurm's default


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The needs of job scripts at a site. The defaults are for an unknown site."""

    account: bool = False  # whether a job needs one
    partition: str = ""
    most_gpus: Annotated[int, msgspec.Meta(ge=0)] = 0  # of a job in `partition`; 0: no limit
    gpus: str = "--gpus-per-node={gpus}"  # {gpus} becomes 4, or v100:4
    memory_per_gpu: Annotated[str, msgspec.Meta(pattern="^([0-9]+[KMGT])?$")] = ""
    modules: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()  # shell commands that put hpclaunch in PATH, without --venv
    activate: str = "source {venv}/bin/activate"  # with --venv
    gpu: tuple[GpuProfile, ...] = ()  # the first is the default


def known() -> list[str]:
    return sorted(path.stem for path in SITES.glob("*.toml"))


def load(said: str) -> Profile:
    """Load a profile by the name of a site or the path of a file. Raises UsageError."""
    path = SITES / f"{said}.toml" if said in known() else Path(said)
    try:
        profile = msgspec.toml.decode(path.read_bytes(), type=Profile)
    except FileNotFoundError:
        raise UsageError(
            f"--profile {said}: neither a file nor one of {', '.join(known())}"
        ) from None
    except OSError as e:
        raise UsageError(f"--profile {said}: {e.strerror}") from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"--profile {said}: {e}") from e
    for key, word in PLACEHOLDERS.items():
        value = getattr(profile, key)
        if value and word not in value:
            raise UsageError(f"--profile {said}: {key} = {value!r} lacks {word}")
    return profile
