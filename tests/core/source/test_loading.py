"""What comes before torch: small programs, read in the order of their execution."""

import ast
import subprocess
import sys
import textwrap

import pytest

from hpclaunch.core.source.loading import LATER, Module, Opaque, SourceReading, is_read_at_load


def read(program, modules=None, environ=None, package=""):
    """`modules` are sources by dotted name; a name that ends in .__init__ is a package's."""
    modules = modules or {}

    def find(dotted):
        name = f"{dotted}.__init__" if f"{dotted}.__init__" in modules else dotted
        if name not in modules:
            return None
        if modules[name] is None:
            raise Opaque(f"{name} has no source")
        return module(f"{name}.py", modules[name], name.rpartition(".")[0])

    reading = SourceReading(find, environ)
    reading.run(module("train.py", program), package=package)
    return reading


def module(name, source, package=""):
    return Module(name, ast.parse(textwrap.dedent(source)), package)


def sets(what, line, file="train.py"):
    return f"{file} sets {what} in line {line}, before it imports torch"


def may_set(what, line, file="train.py"):
    return f"{file} sets {what} in line {line}, perhaps before it imports torch"


OMP = "OMP_NUM_THREADS"
UNNAMED = "variables by names that only the run knows"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("os.environ['OMP_NUM_THREADS'] = os.environ['MKL_NUM_THREADS'] = '1'", OMP),
        ("os.environ['OMP_NUM_THREADS']: str = '1'", OMP),
        ("os.environ['OMP_NUM_THREADS'] += '1'", OMP),
        ("x, (os.environ['OMP_NUM_THREADS'], *y) = z", OMP),
        ("os.environb[b'OMP_NUM_THREADS'] = b'1'", OMP),
        ("del os.environ['OMP_NUM_THREADS']", OMP),
        ("os.environ.setdefault('OMP_NUM_THREADS', '1')", OMP),
        ("os.environ.__setitem__('OMP_NUM_THREADS', '1')", OMP),
        ("os.environ.pop('OMP_NUM_THREADS', None)", OMP),
        ("os.environ.update(OMP_NUM_THREADS='1')", OMP),
        ("os.environ.update({'WANDB_MODE': 'offline', 'OMP_NUM_THREADS': '1'})", OMP),
        ("os.environ.update(dict({'WANDB_MODE': 'x'}, OMP_NUM_THREADS='1'))", OMP),
        ("os.environ.update({**{'OMP_NUM_THREADS': '1'}})", OMP),
        ("os.environ |= {'OMP_NUM_THREADS': '1'}", OMP),
        ("os.putenv('OMP_NUM_THREADS', '1')", OMP),
        ("os.unsetenv('OMP_NUM_THREADS')", OMP),
        ("print(os.environ.pop('OMP_NUM_THREADS', None))", OMP),
        ("assert os.environ.setdefault('OMP_NUM_THREADS', '1')", OMP),
        ("import os as o; o.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("from os import environ; environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("from os import environ as e; e['OMP_NUM_THREADS'] = '1'", OMP),
        ("from os import putenv as p; p('OMP_NUM_THREADS', '1')", OMP),
        ("from os import *; environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("e = os.environ; e['OMP_NUM_THREADS'] = '1'", OMP),
        ("e = given or os.environ; e['OMP_NUM_THREADS'] = '1'", OMP),
        ("e = given if given else os.environ; e['OMP_NUM_THREADS'] = '1'", OMP),
        ("K = 'OMP_NUM_THREADS'; os.environ[K] = '1'", OMP),
        ("K: str = 'OMP_NUM_THREADS'; os.environ[K] = '1'", OMP),
        ("K = 'A'\nif x: K = 'OMP_NUM_THREADS'\nos.environ[K] = '1'", OMP),
        ("for k in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'): os.environ[k] = '1'", "MKL_NUM_THREADS"),
        ("[os.environ.pop(k, None) for k in ['OMP_NUM_THREADS']]", OMP),
        ("for x in y: os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("while y: os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("with x: os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("with f(os.environ.pop('OMP_NUM_THREADS')): pass", OMP),
        ("if x: os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("if x: pass\nelif y: pass\nelse: os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("try: x()\nexcept E: os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("try: x()\nfinally: os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("match x:\n case 1: os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("class C: os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("@f(os.environ.pop('OMP_NUM_THREADS'))\ndef g(): pass", OMP),
        ("x = 1 if y else os.environ.pop('OMP_NUM_THREADS')", OMP),
        ("y and os.environ.pop('OMP_NUM_THREADS')", OMP),
        ("os.environ[k] = '1'", UNNAMED),
        ("os.environ[f'OMP_{x}'] = '1'", UNNAMED),
        ("K = 'A'; K += 'B'; os.environ[K] = '1'", UNNAMED),
        ("from settings import K; os.environ[K] = '1'", UNNAMED),
        ("for k, v in x.items(): os.environ[k] = v", UNNAMED),
        ("os.environ.update(cfg)", UNNAMED),
        ("os.environ.update(**cfg)", UNNAMED),
        ("os.environ.update({k: v for k, v in x})", UNNAMED),
        ("os.environ |= cfg", UNNAMED),
        ("os.environ.clear()", UNNAMED),
        ("os.environ = cfg", UNNAMED),
        ("prepare(os.environ)", UNNAMED),
        ("with mock.patch.dict(os.environ, cfg): pass", UNNAMED),
        ("with mock.patch.dict('os.environ', cfg): pass", UNNAMED),
        ("from dotenv import load_dotenv; load_dotenv()", "the variables of a file"),
        ("dotenv.load_dotenv(override=True)", "the variables of a file"),
    ],
)
def test_what_sets_a_variable(line, what):
    found = read(f"{line}\nimport torch")
    assert found.torch
    assert found.cold == sets(what, 1 + line.count("\n", 0, line.rfind("os.environ[") + 1)), line
    after = read(f"import torch\n{line}")
    assert (after.torch, after.cold) == (True, "")


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['MASTER_ADDR'] = '127.0.0.1'",
        "os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')",
        "os.environ.update({'WANDB_MODE': 'offline'}, HF_HOME='x')",
        "for k in ('http_proxy', 'https_proxy'): os.environ.pop(k, None)",
        "[os.environ.pop(k, None) for k in ('http_proxy', 'https_proxy')]",
        "x = os.environ['OMP_NUM_THREADS']",
        "x = os.environ.get('OMP_NUM_THREADS', '1')",
        "x = 'OMP_NUM_THREADS' in os.environ",
        "x = {**os.environ, 'OMP_NUM_THREADS': '1'}",
        "x = dict(os.environ, OMP_NUM_THREADS='1')",
        "x = os.environ | {'OMP_NUM_THREADS': '1'}",
        "x = os.environ.copy(); x['OMP_NUM_THREADS'] = '1'",
        "environ = os.environ.copy(); environ['OMP_NUM_THREADS'] = '1'",
        "x = copy.deepcopy(os.environ); print(os.environ); log.info('%s', os.environ)",
        "subprocess.run(['x'], env=os.environ)",
        "os.system('export OMP_NUM_THREADS=1')",
        "config['OMP_NUM_THREADS'] = '1'",
        "self.environ['OMP_NUM_THREADS'] = '1'",
        "if TYPE_CHECKING: os.environ['OMP_NUM_THREADS'] = '1'",
        "if not typing.TYPE_CHECKING: pass\nelse: os.environ['OMP_NUM_THREADS'] = '1'",
        "if 0: os.environ['OMP_NUM_THREADS'] = '1'",
        "if __name__ != '__main__': os.environ['OMP_NUM_THREADS'] = '1'",
    ],
)
def test_what_sets_none_that_matters(line):
    found = read(f"{line}\nimport torch")
    assert (found.torch, found.cold) == (True, "")


SET = "os.environ['OMP_NUM_THREADS'] = '1'"


@pytest.mark.parametrize(
    ("program", "cold"),
    [
        # Where torch is loaded, and where that is not certain
        ("import torch.nn as nn\nSET", ""),
        ("from torch import nn\nSET", ""),
        ("import os, torch\nSET", ""),
        ("from torch.distributed import *\nSET", ""),
        ("__import__('torch')\nSET", ""),
        ("import importlib\nt = importlib.import_module('torch.nn')\nSET", ""),
        ("with x: import torch\nSET", ""),
        ("class C: import torch\nSET", ""),
        ("try: import torch\nexcept ImportError: torch = None\nSET", ""),
        ("try:\n import x\n import torch\nexcept ImportError: raise\nSET", ""),
        ("try:\n import x\n import torch\nexcept ImportError: sys.exit(1)\nSET", ""),
        ("try:\n import x\n import torch\nexcept ImportError: x = None\nSET", sets(OMP, 5)),
        ("try:\n import x\n import torch\nexcept ImportError: SET", sets(OMP, 4)),
        ("try: x()\nfinally: import torch\nSET", ""),
        ("if x: import torch\nelse: from torch import nn\nSET", ""),
        ("if x: import torch\nelse: raise SystemExit\nSET", ""),
        ("if x: import torch\nSET", sets(OMP, 2)),
        ("if x:\n import torch\n SET", ""),
        ("if x: import torch\nelse: SET", sets(OMP, 2)),
        ("if __name__ == '__main__': import torch\nSET", ""),
        ("if TYPE_CHECKING: import torch\nSET\nimport torch", sets(OMP, 2)),
        ("for x in y: import torch\nSET", sets(OMP, 2)),
        ("for x in y:\n import torch\n SET", ""),
        ("x = y and __import__('torch')\nSET", sets(OMP, 2)),
        ("import torchvision\nSET", sets(OMP, 2)),  # it may not be there
        ("import torch_utils\nSET\nimport torch", sets(OMP, 2)),
        # Functions: they may be called at any time
        ("def f():\n SET\nimport torch", may_set(OMP, 2)),
        ("class C:\n def f(self):\n  SET\nimport torch", may_set(OMP, 3)),
        ("async def f():\n SET\nimport torch", may_set(OMP, 2)),
        ("f = lambda: os.environ.pop('OMP_NUM_THREADS')\nimport torch", may_set(OMP, 1)),
        ("def f(e=os.environ):\n e['OMP_NUM_THREADS'] = '1'\nimport torch", may_set(OMP, 2)),
        ("def f(*, a, e=os.environ):\n e['OMP_NUM_THREADS'] = '1'\nimport torch", may_set(OMP, 2)),
        ("import torch\ndef f():\n SET", ""),
        ("def f():\n import torch\n SET", ""),
        ("def f():\n SET\n import torch", may_set(OMP, 2)),
        ("def f(): import torch\ndef g():\n SET", may_set(OMP, 3)),
        ("def f(): import torch\nf()\nSET", sets(OMP, 3)),
        ("f = lambda: __import__('torch')\nSET", sets(OMP, 2)),
        # The first reason stands
        ("SET\nos.environ['MKL_NUM_THREADS'] = '1'\nimport torch", sets(OMP, 1)),
    ],
)
def test_the_order(program, cold):
    found = read(program.replace("SET", SET))
    assert (found.torch, found.cold) == (True, cold)


@pytest.mark.parametrize("program", ["", SET, "import numpy, os", "if TYPE_CHECKING: import torch"])
def test_no_torch(program):
    assert not read(program).torch


@pytest.mark.parametrize(
    ("line", "torch", "cold"),
    [
        ("importlib.import_module(name)", True, "imports a module that only the run knows"),
        ("importlib.import_module('.a', __package__)", True, "imports a module that only the run"),
        ("m = 'a'\nif x: m = 'torch'\n__import__(m)", True, ""),
        ("__import__('numpy')", False, ""),
        ("def f(name): importlib.import_module(name)", True, ""),
        ("exec(open('configurator.py').read())", True, "runs other code in line 1"),
        ("def f(): runpy.run_path(x)", True, "runs other code in line 1, perhaps"),
        ("cursor.exec('x')", False, ""),
    ],
)
def test_what_only_the_run_knows(line, torch, cold):
    found = read(line)
    assert found.torch == torch
    assert cold in found.cold
    assert bool(cold) == bool(found.cold)


@pytest.mark.parametrize(
    ("line", "cold"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '8'", ""),
        ("os.environ['OMP_NUM_THREADS'] = '1'", sets(OMP, 1)),
        ("os.environ['OMP_NUM_THREADS'] = x", sets(OMP, 1)),
        ("os.environ.setdefault('OMP_NUM_THREADS', '1')", ""),
        ("os.environ.setdefault('MKL_NUM_THREADS', '1')", sets("MKL_NUM_THREADS", 1)),
        ("os.environ.pop('OMP_NUM_THREADS')", sets(OMP, 1)),
    ],
)
def test_what_is_set_already(line, cold):
    assert read(f"{line}\nimport torch", environ={OMP: "8"}).cold == cold


@pytest.mark.parametrize(
    ("program", "modules", "cold"),
    [
        ("import a\nimport torch", {"a": SET}, sets(OMP, 1, "a.py")),
        ("import a\nSET", {"a": "import torch"}, ""),
        ("import torch\nimport a", {"a": SET}, ""),
        ("import a", {"a": f"import torch\n{SET}"}, ""),
        ("import a.b", {"a.__init__": SET, "a.b": "import torch"}, sets(OMP, 1, "a.__init__.py")),
        ("import a.b", {"a.__init__": "import torch", "a.b": SET}, ""),
        ("from a import b", {"a.__init__": "", "a.b": f"{SET}\nimport torch"}, "a.b.py"),
        ("from a import f\nSET", {"a.__init__": "from .b import f", "a.b": "import torch"}, ""),
        ("from a import b", {"a.__init__": "from . import c", "a.c": SET, "a.b": "import torch"},
         "a.c.py"),
        ("import a.b.c", {"a.__init__": "", "a.b.__init__": "", "a.b.c": "from ..d import *",
                          "a.d": f"{SET}\nimport torch"}, "a.d.py"),
        ("import a", {"a": f"from ..b import c\n{SET}\nimport torch"}, "a.py"),
        ("import a", {"a": "import b", "b": f"import a\n{SET}\nimport torch"}, "b.py"),
        ("def f(): import a\nimport torch", {"a": SET},
         may_set(OMP, 1, "a.py")),
        ("def f(): import a\nimport a\nSET", {"a": "import torch"}, ""),
        ("def f(): import a\nSET\nimport a", {"a": "import torch"}, sets(OMP, 2)),
        ("def f(): import torch, a\nimport a\nSET", {"a": ""}, sets(OMP, 3)),
        ("import a\nimport torch", {"a": f"if __name__ == '__main__': {SET}"}, ""),
        ("import a\nSET\nimport torch", {"a": "if __name__ == '__main__': import torch"},
         sets(OMP, 2)),
        ("from a import environ as e\ne['OMP_NUM_THREADS'] = '1'\nimport torch",
         {"a": "from os import environ"}, sets(OMP, 2)),
        ("import a\nimport torch", {"a": None}, "a has no source"),
        ("import torch\nimport a", {"a": None}, ""),
    ],
)  # fmt: skip
def test_modules_of_the_program(program, modules, cold):
    found = read(program.replace("SET", SET), modules)
    assert found.torch
    assert cold in found.cold
    assert bool(cold) == bool(found.cold)


def test_a_package_comes_before_its_module_that_is_run():
    modules = {"a.__init__": SET}
    assert read("import torch", modules, package="a").cold == sets(OMP, 1, "a.__init__.py")


def test_deep_nesting():
    chain = "if x: pass\n" + "elif y: pass\n" * 2000
    found = read(chain + "import torch")
    assert (found.torch, found.cold) == (True, "train.py is nested too deeply to look into")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("OMP_PROC_BIND KMP_DUPLICATE_LIB_OK MKL_NUM_THREADS OPENBLAS_NUM_THREADS", True),
        ("TORCH_LOGS TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG TORCHDYNAMO_DISABLE", True),
        ("PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_JIT", True),
        ("CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK", True),
        ("NCCL_DEBUG TORCH_NCCL_BLOCKING_WAIT GLOO_SOCKET_IFNAME MASTER_PORT RANK", False),
        ("HF_HOME WANDB_MODE TOKENIZERS_PARALLELISM TF_CPP_MIN_LOG_LEVEL PATH", False),
        ("CUBLAS_WORKSPACE_CONFIG TORCH_HOME CUDA_HOME TRITON_CACHE_DIR", False),
        ("LD_LIBRARY_PATH", True),
    ],
)
def test_the_list(names, expected):
    assert {is_read_at_load(name) for name in names.split()} == {expected}


SPY = """
import os
read = {}
get = type(os.environ).__getitem__

def spy(self, name):
    frame = sys._getframe(1)
    while frame.f_code.co_filename in library:
        frame = frame.f_back
    read.setdefault(name, frame.f_code.co_filename)
    return get(self, name)

import _collections_abc, sys
library = {os.__file__, _collections_abc.__file__, "<frozen os>", "<frozen _collections_abc>"}
type(os.environ).__getitem__ = spy
import torch.distributed
torch = os.path.dirname(torch.__file__)
print(*(name for name, reader in read.items() if reader.startswith(torch)))
"""


@pytest.mark.starts
def test_the_list_has_all_that_this_torch_reads():
    done = subprocess.run([sys.executable, "-c", SPY], capture_output=True, text=True, check=True)
    names = done.stdout.split()
    assert "TORCH_LOGS" in names
    assert [name for name in names if not is_read_at_load(name)] == []
    assert [name for name in names if name.startswith(LATER)] == []
