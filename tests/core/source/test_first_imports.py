"""What the text of a script shows of its imports."""

import ast

import pytest

from hpclaunch.core.source.first_imports import first_imports

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


def test_the_names_that_it_takes_from_them():
    shown = first_imports(ast.parse("from a.b import c as d, e\nfrom f import *"))
    assert shown == [("a.b", ""), ("a.b", "c"), ("a.b", "e"), ("f", "")]
