"""Programs as files: which torch they may import, and what keeps them from a warm start."""

import os
import py_compile
import subprocess
import sys
import sysconfig
import textwrap
import zipfile

import pytest

from hpclaunch.cli.program import RUN_PATH
from hpclaunch.system import source_files
from hpclaunch.system.source_files import SourceSurvey

NO_TORCH = SourceSurvey(False, "")
WARM = SourceSurvey(True, "")
SET = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"


def sets(file, line=2):
    return SourceSurvey(
        True, f"{file} sets OMP_NUM_THREADS in line {line}, before it imports torch"
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, with a function that writes files below it."""
    monkeypatch.chdir(tmp_path)

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return tmp_path

    return write


def survey(*words, **environ):
    return source_files.survey((sys.executable, "-u", *map(str, words)), environ)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch", WARM),
        ("print('hello')", NO_TORCH),
        ("", NO_TORCH),
        (SET, NO_TORCH),
        (f"{SET}import torch", sets("train.py")),
        ("import no_such_module", NO_TORCH),
        ("import numpy, scipy.linalg, sklearn, yaml", NO_TORCH),
        ("def main():\n  import torchvision", WARM),
        ("import importlib; importlib.import_module(x)",
         SourceSurvey(True, "train.py imports a module that only the run knows in line 1, before "
                      "it imports torch")),
        ("import torch (", NO_TORCH),  # a syntax error: Python says so
        ("import torch\n\0", NO_TORCH),
        (b"# coding: latin-1\n# \xe9\nimport torch", WARM),
        (b"x = '\xe9'\nimport torch", NO_TORCH),  # no UTF-8: Python says so
        (b"\xef\xbb\xbfimport torch", WARM),
        (b"# coding: utf-7-not\nimport torch", NO_TORCH),
        ("#!/usr/bin/env python\r\nimport torch\r\n", WARM),
        ("x = '\\d'\nassert (x, 'warns')\nimport torch", WARM),
    ],
)  # fmt: skip
def test_a_script(here, text, expected):
    here({"train.py": text})
    assert survey("train.py", "--epochs", "3") == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": SET, "train.py": "import a, torch"}, sets("a.py")),
        ({"a.py": "import torch", "train.py": f"import a\n{SET}"}, WARM),
        ({"a.py": SET, "train.py": "import torch, a"}, WARM),
        ({"a/__init__.py": SET, "a/b.py": "", "train.py": "import a.b\nimport torch"},
         sets("a/__init__.py")),
        ({"a/b/c.py": SET, "train.py": "from a.b import c\nimport torch"}, sets("a/b/c.py")),
        ({"a/__init__.py": "from .b import *", "a/b.py": SET, "train.py": "import a, torch"},
         sets("a/b.py")),
        ({"queue.py": SET, "train.py": "import queue, torch"}, sets("queue.py")),
        ({"numpy/a.txt": "", "train.py": "import numpy"}, NO_TORCH),  # no package: the real one is
        ({"numpy.py": "import torch", "train.py": "import numpy"}, WARM),
        ({"a.py": "import torch (", "train.py": f"import a\n{SET}import torch"},
         sets("train.py", 3)),
        ({"a.py": "def f():\n  import torch", "train.py": "import a"}, WARM),
        ({"a.py": "import json", "train.py": "import a"}, NO_TORCH),
        ({"a.so": b"\x7fELF", "train.py": "import a, torch"}, WARM),
    ],
)  # fmt: skip
def test_its_own_modules(here, files, expected):
    here(files)
    assert survey("train.py") == expected


def test_a_script_elsewhere(here):
    """Its modules are beside it, and beside what a link to it leads to; others are not there."""
    here({"src/train.py": "import a, torch", "src/a.py": SET, "a.py": ""})
    assert survey("src/train.py") == sets("src/a.py")
    os.symlink("src/train.py", "link.py")
    assert survey("link.py") == sets("src/a.py")


def test_a_script_by_runpy(here):
    """There sys.path begins with the current directory."""
    here({"src/train.py": "import a, torch", "src/a.py": SET, "a.py": ""})
    assert survey("-c", RUN_PATH, "src/train.py") == WARM
    assert survey("-c", RUN_PATH, "src") == NO_TORCH
    here({"a.py": SET})
    assert survey("-c", RUN_PATH, "src/train.py") == sets("a.py")


def test_code(here):
    here({"a.py": SET})
    assert survey("-c", "import torch") == WARM
    assert survey("-cimport a, torch") == sets("a.py")
    assert survey("-c", f"{SET}import torch") == sets("the code after -c")
    assert survey("-c", "") == survey("-c") == NO_TORCH


@pytest.mark.parametrize(
    ("files", "module", "expected"),
    [
        ({"train.py": "import torch"}, "train", WARM),
        ({"a/__init__.py": SET, "a/train.py": "import torch"}, "a.train", sets("a/__init__.py")),
        ({"a/__init__.py": "import torch", "a/train.py": SET}, "a.train", WARM),
        ({"a/train.py": "from . import b\nimport torch", "a/b.py": SET}, "a.train",
         sets("a/b.py")),
        ({"a/__init__.py": "", "a/__main__.py": f"{SET}import torch"}, "a",
         sets("a/__main__.py")),
        ({"a/__init__.py": "import torch", "a/__main__.py": SET}, "a", WARM),
        ({"a.py": f"if __name__ == '__main__':\n  {SET.splitlines()[1]}\nimport torch"}, "a",
         sets("a.py")),
        ({}, "no_such_module", NO_TORCH),
        ({}, "no.such.module", NO_TORCH),
        ({}, "torch.utils.collect_env", WARM),
        ({}, "json.tool", NO_TORCH),
        ({}, "sympy", NO_TORCH),
    ],
)  # fmt: skip
def test_a_module(here, files, module, expected):
    here(files)
    assert survey("-m", module) == survey("-Bm", module, "x") == expected


def test_pythons_own_runners_run_other_code(here):
    found = survey("-m", "cProfile", "train.py")
    assert found.torch
    assert "cProfile.py runs other code in line" in found.cold


def test_a_directory_and_an_archive(here):
    here({"app/__main__.py": "import a\nimport torch", "app/a.py": SET})
    assert survey("app") == sets("app/a.py")
    with zipfile.ZipFile("app.pyz", "w") as archive:
        for name in ("__main__.py", "a.py"):
            archive.write(f"app/{name}", name)
    assert survey("app.pyz") == sets("app.pyz/a.py")
    assert survey(os.path.abspath("app.pyz")) == sets("app.pyz/a.py")


def test_what_can_be_read_only_once(here):
    os.mkfifo("pipe")
    once = " can be read only once"
    assert survey("pipe") == SourceSurvey(True, f"pipe{once}")
    assert survey("/dev/null") == SourceSurvey(True, f"/dev/null{once}")
    assert survey("-") == survey() == SourceSurvey(True, f"standard input{once}")


def test_what_is_not_there_or_closed(here):
    assert survey("no-such-file.py") == NO_TORCH
    here({"empty/a.txt": ""})
    assert survey("empty") == NO_TORCH


def test_compiled_files(here):
    """A module without its source is a riddle; a script without, as good as no Python at all."""
    here({"a.py": SET, "train.py": "import a, torch"})
    py_compile.compile("a.py", "a.pyc")
    os.unlink("a.py")
    assert survey("train.py") == SourceSurvey(True, "a.pyc has no source to look into")
    assert survey("a.pyc") == NO_TORCH


@pytest.mark.parametrize(
    ("words", "cold"),
    [
        ("-O -X dev -W error -P -b -B -s -q -d -i", ""),
        ("-OBqW ignore -Xdev --check-hash-based-pycs never", ""),
        ("-E", "the option -E keeps hpclaunch out of the interpreter"),
        ("-IS", "the option -I keeps hpclaunch out of the interpreter"),
        ("-sE", "the option -E keeps hpclaunch out of the interpreter"),
        ("-S", "the option -S keeps hpclaunch out of the interpreter"),
        ("-v", "the option -v is to show all imports"),
        ("-X importtime", "the option -X importtime is to measure all imports"),
        ("-Ximporttime=2", "the option -X importtime is to measure all imports"),
    ],
)
def test_options_of_the_interpreter(here, words, cold):
    here({"train.py": "import torch", "plain.py": ""})
    assert survey(*words.split(), "train.py") == SourceSurvey(True, cold)
    assert survey(*words.split(), "-c", "import torch") == SourceSurvey(True, cold)
    assert survey(*words.split(), "--", "train.py") == SourceSurvey(True, cold)
    assert survey(*words.split(), "plain.py") == NO_TORCH


@pytest.mark.parametrize("word", ["-V", "-h", "-?", "--version", "--help-env", "-VV"])
def test_options_that_run_nothing(here, word):
    here({"train.py": "import torch"})
    assert survey(word, "train.py") == NO_TORCH


def test_the_first_line_may_be_another_languages(here):
    here({"train.py": "@echo off\nimport torch"})
    assert survey("train.py") == NO_TORCH
    assert survey("-x", "train.py") == WARM


@pytest.mark.parametrize("name", ["PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME"])
def test_variables_of_the_interpreter(here, name):
    here({"train.py": "import torch", "plain.py": ""})
    assert survey("train.py", **{name: "1"}) == SourceSurvey(True, f"{name} is to show all imports")
    assert survey("train.py", **{name: ""}) == WARM
    assert survey("plain.py", **{name: "1"}) == NO_TORCH


def test_the_path(here):
    here({"train.py": "import a, torch", "a.py": SET, "lib/a.py": "", "lib/b.py": SET,
          "uses.py": "import b, torch"})  # fmt: skip
    assert survey("train.py", PYTHONPATH="lib") == sets("a.py")
    assert survey("train.py", PYTHONSAFEPATH="1") == WARM
    assert survey("-P", "train.py") == WARM
    assert survey("-P", "train.py", PYTHONPATH="lib:.") == WARM
    assert survey("-P", "train.py", PYTHONPATH=".") == sets("a.py")
    assert survey("uses.py") == WARM
    assert survey("uses.py", PYTHONPATH=f"x:{os.path.abspath('lib')}") == sets("lib/b.py")
    assert survey("-P", "-m", "train") == NO_TORCH
    assert survey("-P", "-m", "train", PYTHONPATH=".") == sets("a.py")


def distribution(name, *requires, **files):
    metadata = [f"Name: {name}", *(f"Requires-Dist: {what}" for what in requires)]
    text = "\n".join(("Metadata-Version: 2.1", *metadata, "", "Requires-Dist: torch"))
    info = f"site-packages/{name}-1.0.dist-info"
    return {f"{info}/METADATA": text} | {f"{info}/{key}": text for key, text in files.items()}


@pytest.mark.parametrize(
    ("requires", "torch"),
    [
        (["numpy>=1.17", "torch>=2.0"], True),
        (["torch (>=1.9)"], True),
        (["torch;extra=='torch'"], True),
        (["Torch"], True),
        (["torchvision==0.26"], True),
        (["torch-geometric", "pytorch", "torchmetrics", "torch_xla", "torch.x"], False),
        ([], False),
    ],
)
def test_a_distribution_that_needs_torch(here, requires, torch):
    """Its modules are another's: they are not looked into."""
    here({"train.py": "import lightly", "site-packages/lightly/__init__.py": f"{SET}import torch"})
    here(distribution("Lightly", *requires))
    assert survey("train.py", PYTHONPATH="site-packages") == SourceSurvey(torch, "")


@pytest.mark.parametrize(
    ("files", "torch"),
    [
        ({"top_level.txt": "_mod\nmod\n"}, True),
        ({"RECORD": "mod/__init__.py,sha256=,1\n"}, True),
        ({"RECORD": "x.py,,\nmod.py,sha256=,1\n"}, True),
        ({"top_level.txt": "mod2\n", "RECORD": "mod/__init__.py,,\n"}, True),  # unknown
        ({"top_level.txt": "mod\n"}, False),
    ],
)
def test_a_distribution_of_another_name(here, files, torch):
    here({"train.py": "import mod", "site-packages/mod/__init__.py": ""})
    requires = ["torch"] if torch else []
    here(distribution("py_mod", *requires, **files) | distribution("other", "torch"))
    assert survey("train.py", PYTHONPATH="site-packages").torch == torch


def test_an_installed_directory_by_another_name(here):
    """pip install --target=lib; an installer's notes in the script's own directory say nothing."""
    here({"train.py": "import a, torch", "lib/a.py": SET, "lib/a-1.0.dist-info/METADATA": ""})
    assert survey("train.py", PYTHONPATH="lib") == WARM
    here({"a.py": SET, "own-1.0.dist-info/METADATA": ""})
    assert survey("train.py") == sets("a.py")


def test_an_installed_program_is_a_program(here, monkeypatch):
    """Its package is looked into: python -m, a script within it, a script that pip made for it."""
    root = here({
        "site-packages/tool/__main__.py": "import tool.go",
        "site-packages/tool/run.py": "import other\nfrom tool import go",
        "site-packages/tool/go.py": f"{SET}import other, torch",
        "site-packages/other.py": SET,
        "bin/tool": "#!/usr/bin/python\nimport re\nfrom tool.go import main\nimport other",
    })  # fmt: skip
    found = sets("site-packages/tool/go.py")
    path = {"PYTHONPATH": "site-packages"}
    assert survey("-m", "tool", **path) == found
    assert survey("site-packages/tool/run.py", **path) == found
    assert survey("bin/tool", **path) == SourceSurvey(
        True, ""
    )  # of nobody's: not known what it needs
    monkeypatch.setattr(sys, "prefix", str(root))
    assert survey("bin/tool", **path) == found


def test_a_project_that_pip_put_into_the_path(here, monkeypatch):
    """pip install --editable: by a line of a .pth file, or by a finder."""
    root = here({"train.py": "import a, torch", "src/a.py": SET})
    assert survey("train.py") == WARM
    monkeypatch.setattr(sys, "path", [*sys.path, str(root / "src")])
    assert survey("train.py") == sets("src/a.py")


@pytest.mark.starts
def test_a_project_that_pip_put_into_the_path_by_a_finder(here, tmp_path):
    here({"project/pyproject.toml": """
              [build-system]
              requires = ["setuptools"]
              build-backend = "setuptools.build_meta"
              [project]
              name = "proj"
              version = "1"
              [tool.setuptools]
              packages = ["proj"]
              package-dir = {proj = "code"}
          """, "project/code/__init__.py": SET, "train.py": "import proj, torch"})  # fmt: skip
    pip = [sys.executable, "-m", "pip", "-q", "install", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*pip, "-t", "site", "-e", "project"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = (
        f"import site; site.addsitedir({str(tmp_path / 'site')!r})\n"
        "import sys; from hpclaunch.system import source_files\n"
        "print(source_files.survey((sys.executable, 'train.py'), {}).cold)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sets('project/code/__init__.py').cold}\n"


@pytest.mark.parametrize(
    "files",
    [
        {f"m{n}.py": f"import m{n + 1}" for n in range(source_files.MOST_FILES + 1)},
        {"m0.py": "#" * source_files.MOST_BYTES},
    ],
    ids=["files", "bytes"],
)
def test_too_much(here, files):
    here({"train.py": "import m0\nimport torch", **files})
    found = survey("train.py")
    assert found.torch
    assert found.cold == (
        "it would take more than 100 files or 1 MB to know what is set before torch is imported"
    )
    here({"train.py": "import torch\nimport m0"})
    assert survey("train.py") == WARM
    here({"train.py": "#" * (source_files.MOST_BYTES + 1)})
    assert survey("train.py").cold == found.cold


def test_what_is_set_already(here):
    here({"train.py": f"{SET}import torch"})
    assert survey("train.py", OMP_NUM_THREADS="1") == WARM
    assert survey("train.py", OMP_NUM_THREADS="2") == sets("train.py")


def test_nothing_is_run(here):
    """Neither the program nor its modules, and what was found leaves no module behind."""
    here({"train.py": "import a\nraise SystemExit", "a.py": "raise SystemExit",
          "b/__init__.py": "raise SystemExit", "b/__main__.py": "raise SystemExit"})  # fmt: skip
    before = set(sys.modules)
    assert survey("train.py") == survey("-m", "b") == NO_TORCH
    assert set(sys.modules) == before


def test_the_stdlib_is_where_it_is_looked_for():
    assert sysconfig.get_path("stdlib") == source_files.LIB
