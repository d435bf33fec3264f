"""The imports of a script, read from its text."""

import ast
import sys

import pytest

from hpclaunch.core.source.first_imports import first_change, first_imports, is_plain

SHOWN = {
    "import numpy, torch.nn as nn\nfrom x.y import z": ["numpy", "torch.nn", "x.y"],
    "from . import x\nimport wave": ["wave"],
    "if __name__ == '__main__':\n    import wave": ["wave"],
    "try:\n    import wave\nexcept ImportError: pass": [],
    "def f():\n    import wave": [],
    "import torch\ntorch.optim.SGD([])": ["torch", "torch._dynamo"],
    "from transformers import Trainer": ["transformers", "torch._dynamo"],
    "import os\nprint(os.environ['RANK'], os.environ.get('X'))\nimport wave": ["os", "wave"],
    "import os\nos.environ['HF_HOME'] = '/x'\nimport transformers": [],
    "import os\nos.environ.setdefault('A', '1')\nimport torch.optim": ["torch._dynamo"],
    "from os import environ as e\ne['A'] = '1'\nimport wave": [],
    "from dotenv import load_dotenv\nload_dotenv()\nimport wave": [],
    "import os, wave\nos.putenv('A', '1')": [],
}  # fmt: skip


@pytest.mark.parametrize("text", SHOWN)
def test_what_a_script_imports_in_any_case(text):
    shown = first_imports(ast.parse(text))
    assert [module for module, name in shown if not name] == SHOWN[text]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("", True),
        ("import json, os.path\nfrom xml import etree\ndef f():\n    import wave", True),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'", True),
        ("import torch", False),
        ("import json, numpy", False),
        ("def f():\n    from torch import nn", False),
        ("from . import x", False),
        ("import mine", False),
        ("import importlib\nimportlib.import_module(name)", False),
        ("exec(open('configuration.py').read())", False),
        ("import runpy\nrunpy.run_path('x.py')", False),
    ],
)
def test_a_script_that_needs_nothing_but_python(text, plain):
    assert is_plain(ast.parse(text), sys.stdlib_module_names) is plain


OMP = ("OMP_NUM_THREADS", 2)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch", OMP),
        ("import os as o\no.environ['OMP_NUM_THREADS'] = x\nimport torch", OMP),
        ("from os import environ\nenviron['OMP_NUM_THREADS'] = '2'\nimport torch", OMP),
        ("import os\nos.environ.setdefault('OMP_PROC_BIND', '1')\nimport torch",
         ("OMP_PROC_BIND", 2)),
        ("import os\nos.environ.setdefault('OMP_NUM_THREADS', '1')\nimport torch", None),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", None),
        ("import os\nos.environ['HF_HOME'] = '/x'\nimport torch", None),
        ("import os, torch\nos.environ['OMP_NUM_THREADS'] = '2'", None),
        # A worker finds these out itself.
        ("import os\nos.environ.update(OMP_NUM_THREADS='2')\nimport torch", None),
        ("import os\nif x: os.environ['OMP_NUM_THREADS'] = '2'\nimport torch", None),
        ("import os, mine\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch", None),
    ],
)  # fmt: skip
def test_a_variable_that_a_script_plainly_sets_too_late(text, change):
    def matters(name):
        return name.startswith("OMP_")

    environ = {"OMP_NUM_THREADS": "1"}
    assert first_change(ast.parse(text), sys.stdlib_module_names, matters, environ) == change


def test_the_names_that_it_takes_from_them():
    shown = first_imports(ast.parse("from a.b import c as d, e\nfrom f import *"))
    assert shown == [("a.b", ""), ("a.b", "c"), ("a.b", "e"), ("f", "")]
