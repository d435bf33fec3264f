"""Notice in the midst of a training, in every framework: all ranks save at one step and leave, and
what another launch makes of that is bit for bit what a training comes to that nothing disturbs.

The notice is given while the training is held after a step. So it comes a step or two later.
"""

import importlib.util
import re
import signal
from pathlib import Path

import pytest
from launching import LIMIT, start, until

from surroundings import entered, environment

HERE = Path(__file__).parent
WORKERS = HERE.parents[1] / "workers"
SCRIPTS = HERE / "leaving"
SAVED = 75
RANKS = 2
OPTIONS = ("--nproc", RANKS, "--checkpoint-dir", "saved", "--notice", 600, "--max-restarts", 0)
HELD_AFTER = 11

pytestmark = [pytest.mark.starts, pytest.mark.timeout(4 * LIMIT)]


def launched(directory, *script, **more):
    directory.mkdir(exist_ok=True)
    environ = environment(**more)
    return start(*OPTIONS, *script, "--dir", "saved", cwd=directory, environ=environ)


def ended(process, code=0):
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == code, out + err
    return err


def left_after_notice(process, directory):
    held = [directory / f"held-{rank}" for rank in range(RANKS)]
    until(lambda: all(file.exists() for file in held) or process.poll() is not None)
    process.send_signal(signal.SIGUSR1)
    until(lambda: was_given(directory) or process.poll() is not None)
    (directory / "go").touch()
    said = ended(process, SAVED)
    assert re.search(r"saved, not finished: .* before step \d+, with .*/saved/", said), said
    assert "not passed on" not in said


def was_given(directory):
    journals = (directory / "hpclaunch-logs").glob("*/journal.jsonl")
    return any('"effect":"GiveNotice"' in journal.read_text() for journal in journals)


def recipe(name, *args, needs=()):
    missing = [n for n in ("sklearn", *needs) if importlib.util.find_spec(n) is None]
    reason = f"needs {', '.join(missing)}"
    return pytest.param(name, args, id=name, marks=pytest.mark.skipif(bool(missing), reason=reason))


def changes_nothing(tmp_path, name, *args, **more):
    """Notice for a script to start from, which asks whether it has any."""
    alone, disturbed = tmp_path / "alone", tmp_path / "disturbed"
    held, script = SCRIPTS / "held.py", WORKERS / f"{name}.py"
    reference = launched(alone, held, 0, script, *args, **more)
    left_after_notice(launched(disturbed, held, HELD_AFTER, script, *args, **more), disturbed)
    ended(reference)
    assert "resuming from" in ended(launched(disturbed, held, 0, script, *args, **more))
    assert results(disturbed) == results(alone)


def results(directory):
    return [(directory / f"result-{rank}").read_text() for rank in range(RANKS)]


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("name", "args"),
    [
        recipe("ddp", "--epochs", 2),
        recipe("fsdp", "--steps", 16),
        recipe("pipeline", "--steps", 16),
        recipe("accelerate_ddp", "--epochs", 1, needs=["accelerate"]),
        recipe("lightning_ddp", "--epochs", 2, needs=["pytorch_lightning"]),
        recipe("hf_trainer", "--epochs", 1, needs=["transformers", "accelerate"]),
    ],
)
def test_the_scripts_to_start_from(tmp_path, name, args):
    changes_nothing(tmp_path, name, *args)


def saves_in_its_handler(directory, *script, **more):
    """Assert that a script saves in its handler and leaves, and that it resumes from what it saved.

    The script itself checks that the result is right.
    """
    left_after_notice(launched(directory, *script, HOLD=HELD_AFTER, **more), directory)
    assert "resuming from" in ended(launched(directory, *script, **more))


@pytest.mark.parametrize("kind", ["fsdp", "stages", "optimizers", "frozen"])
def test_a_handler_with_collectives(tmp_path, kind):
    saves_in_its_handler(tmp_path, SCRIPTS / "in_handler.py", kind)


@pytest.mark.frameworks
def test_a_handler_while_gradients_are_accumulated(tmp_path):
    pytest.importorskip("accelerate")
    saves_in_its_handler(tmp_path, SCRIPTS / "accumulating.py")


compiles = [
    pytest.mark.compiles,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        "locale" in entered, reason="DeepSpeed calls torch.compile: see test_warm_start.py"
    ),
]


@pytest.mark.parametrize("stage", [pytest.param(stage, marks=compiles) for stage in (1, 3)])
def test_a_handler_with_deepspeed(tmp_path, extensions, stage):
    """ZeRO makes a step of the optimizer for each group of weights, or even for parts of one."""
    saves_in_its_handler(tmp_path, SCRIPTS / "zero.py", stage, **extensions)


@pytest.mark.parametrize("name", [pytest.param("deepspeed_zero3", marks=compiles)])
def test_the_script_for_deepspeed(tmp_path, extensions, name):
    changes_nothing(tmp_path, name, "--epochs", 2, **extensions)
