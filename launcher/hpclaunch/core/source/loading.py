"""Whether a program may start warm. This is decided from its source alone; nothing is run.

A warm start forks the program from a process that has loaded torch already. That makes a difference
if the program sets an environment variable before it imports torch, and torch reads this variable
when it is loaded. In this case, and in case of doubt, the program must start cold: that is only
slower, while a variable that is set too late changes what the program does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .names import Names, absolute, leaves, truth

# Prefixes of variables that are read when torch is loaded, each with its reader. Found by tracing
# getenv and os.environ through `import torch, torch.distributed`: torch 2.4, 2.12 and 2.13, with
# CUDA 12 and 13 and for the CPU. Python's own variables are not listed. They are read before any
# program runs, so a program that sets them behaves the same however it is started.
AT_LOAD = (
    "TORCH",  # torch's config modules, its loggers and c10's, c10d's debug level, static flags
    "PYTORCH_",  # the JIT, and the allocators, whose static initializers parse *_ALLOC_CONF
    *("KINETO_", "FX_", "COMPILE_STROBELIGHT_", "GLOG_"),  # other parts of torch
    *("OMP_", "GOMP_", "KMP_"),  # the constructor of whichever OpenMP library is used
    *("MKL_", "MKLDNN_", "DNNL_", "ONEDNN_", "INTEL_"),  # constructors in libtorch_cpu
    *("I_MPI_", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # MKL, to share out the cores
    *("OPENBLAS_", "GOTO", "BLIS_", "NPY_", "NUMPY_"),  # NumPy, which torch imports, and its BLAS
    "OPENSSL_",  # libcrypto, which hashlib loads
    "ATEN_",  # the first operator: that is later, unless torch makes tensors when it is loaded
    # The constructors of cuBLAS and cuSPARSELt start their logging and open the driver's library.
    # What the driver reads then is not documented.
    *("CUDA_", "CUBLAS_", "CUBLASLT_", "NVIDIA_", "NVRTC_", "LIBNVVM_", "CASK_"),
    # ld.so reads these before any program runs. But a program that sets them means libraries that
    # are opened later, such as torch's.
    *("LD_LIBRARY_PATH", "LD_PRELOAD"),
    # The libraries of AMD and Intel. These were not traced.
    *("HIP_", "HSA_", "ROC", "AMD_", "MIOPEN_", "ONEAPI_", "SYCL_", "UR_", "ZE_"),
)
# Exceptions from AT_LOAD that are read later: in Python calls, or when a process group, a handle or
# a compiler is made.
LATER = (
    *("TORCH_NCCL_", "TORCH_GLOO_", "TORCH_FR_", "TORCHELASTIC_", "TORCH_DIST_INIT_BARRIER"),
    *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST", "TORCH_FORCE_"),
    *("TORCHINDUCTOR_CACHE_DIR", "PYTORCH_KERNEL_CACHE_PATH", "PYTORCH_NVML_BASED_CUDA_CHECK"),
    *("PYTORCH_MPS_", "PYTORCH_ENABLE_MPS_FALLBACK"),  # Apple's
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_HOME", "CUDA_PATH"),
)
TORCH = ("torch", "torchvision", "torchaudio", "torchtext", "functorch")  # torch, or they import it

# Functions and methods that only read os.environ if they get it as an argument.
READERS = ("dict", "list", "set", "sorted", "len", "str", "repr", "print", "pprint", "deepcopy")
READING = ("copy", "deepcopy", "pprint", "info", "debug", "execve", "execvpe")
TryStar = getattr(ast, "TryStar", ast.Try)  # from Python 3.11 on
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
CONDITIONAL = (ast.Lambda, ast.IfExp, ast.BoolOp, *COMPREHENSIONS)  # parts may not be evaluated


def is_read_at_load(name: str) -> bool:
    """Whether an environment variable is read when torch is loaded."""
    return name.startswith(AT_LOAD) and not name.startswith(LATER)


@dataclass(frozen=True, slots=True)
class Module:
    name: str  # of its file, for messages
    tree: ast.Module
    package: str = ""  # the package that its relative imports start from


class Opaque(Exception):  # noqa: N818 - not an error, but something that cannot be known
    """The source does not tell what the program does. The text is the reason."""


class SourceReading:
    """Follows a program from file to file, in the order of execution.

    `find` returns a module by its dotted name, or None if it is not the program's own; it may raise
    Opaque. `environ` is the environment that the program is started with: setting a variable to the
    value that it has there changes nothing.
    """

    def __init__(
        self, find: Callable[[str], Module | None], environ: Mapping[str, str] | None = None
    ) -> None:
        self.torch = False  # torch may be imported somewhere
        self.cold = ""  # why the program must start cold: what may come before the import
        self.is_loaded = False  # torch is certainly loaded at the place that is being read
        self.in_function = False  # this place is in a function, which may never be called
        self.environ = environ or {}
        self._find = find
        self._modules: dict[str, bool] = {}  # the modules read so far: whether each loads torch

    def run(self, program: Module, *, package: str = "") -> None:
        """Read a program. With `python -m`, its `package` is imported first."""
        try:
            if package:
                self.load(package)
            _File(self, program, main=True).block(program.tree.body)
        except Opaque as e:
            self.doubt(str(e))
        except RecursionError:
            self.doubt(f"{program.name} is nested too deeply to look into")

    def doubt(self, reason: str) -> None:
        """Something may come before an import of torch: start cold."""
        self.torch = True
        self.cold = self.cold or reason

    @property
    def complete(self) -> bool:
        """Whether the answer is known, so that nothing more need be read."""
        return self.is_loaded or bool(self.torch and self.cold)

    def load(self, dotted: str) -> None:
        """Follow an import. The packages that a module is in are loaded before it."""
        parts = dotted.split(".")
        if parts[0] in TORCH:
            self.torch = True
            # Only torch itself is certain to be installed.
            self.is_loaded = self.is_loaded or parts[0] == "torch"
            return
        for end in range(1, len(parts) + 1):
            if self.is_loaded:
                return
            name = ".".join(parts[:end])
            if name not in self._modules:
                self._modules[name] = False  # while it is being read: imports may be circular
                module = self._find(name)
                if module is not None:
                    _File(self, module, main=False).block(module.tree.body)
                    self._modules[name] = self.is_loaded
            self.is_loaded = self._modules[name]


class _File:
    """One file of the program, with its own names for os.environ."""

    def __init__(self, reading: SourceReading, module: Module, *, main: bool) -> None:
        self.reading = reading
        self.module = module
        self.main = main
        self.names = Names(module.tree)

    # Statements

    def block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.reading.complete:
                return
            self.statement(statement)

    def branch(self, body: Sequence[ast.stmt], *, function: bool = False) -> bool:
        """Read a block that may not be executed. Returns whether torch is certainly loaded where
        execution goes on behind it, if it was executed.
        """
        before = self.reading.is_loaded, self.reading.in_function
        self.reading.in_function |= function
        self.block(body)
        is_loaded = self.reading.is_loaded or leaves(body)
        self.reading.is_loaded, self.reading.in_function = before
        return is_loaded

    def statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Import() | ast.ImportFrom():
                self.imports(s)
            case ast.If():
                self.expressions(s.test)
                value = truth(s.test, main=self.main)
                if value is not None:
                    self.block(s.body if value else s.orelse)
                else:
                    loaded = [self.branch(s.body), self.branch(s.orelse)]
                    self.reading.is_loaded |= all(loaded)
            case ast.Try() | TryStar():
                self.attempt(s)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.expressions(*s.decorator_list)
                self.arguments(s.args)
                self.branch(s.body, function=True)
            case ast.ClassDef():
                self.expressions(*s.decorator_list, *s.bases, *s.keywords)
                self.block(s.body)
            case ast.With() | ast.AsyncWith():
                self.expressions(*s.items)
                self.block(s.body)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.expressions(s.test if isinstance(s, ast.While) else s.iter)
                self.branch(s.body)
                self.branch(s.orelse)
            case ast.Match():
                self.expressions(s.subject, *(case.guard for case in s.cases if case.guard))
                for case in s.cases:
                    self.branch(case.body)
            case ast.Assign():
                self.expressions(s.value)
                for target in s.targets:
                    self.assign(target, s.value)
            case ast.AnnAssign(value=ast.expr() as value):
                self.expressions(value)
                self.assign(s.target, value)
            case ast.AugAssign():
                self.expressions(s.value)
                if self.names.is_environ(s.target):  # |=
                    self.sets(s, self.names.keys(s.value))
                else:
                    self.assign(s.target, None)
            case ast.Delete():
                for target in s.targets:
                    self.assign(target, None)
            case _:
                self.expressions(s)

    def attempt(self, s: ast.Try) -> None:
        """Read a try statement. A handler may run after any part of the body. Only if the body
        begins with an import of torch, that has been tried before any handler runs.
        """
        self.block(s.body[:1])
        tried = self.reading.is_loaded and isinstance(s.body[0], ast.Import | ast.ImportFrom)
        self.block(s.body[1:])
        self.block(s.orelse)
        loaded = [self.reading.is_loaded]
        self.reading.is_loaded = tried
        loaded += [self.branch(handler.body) for handler in s.handlers]
        self.reading.is_loaded = all(loaded)
        self.block(s.finalbody)

    def imports(self, s: ast.Import | ast.ImportFrom) -> None:
        if isinstance(s, ast.Import):
            for alias in s.names:
                self.reading.load(alias.name)
            return
        for alias in s.names:
            self.names.imported(alias)
        base = absolute(s.module or "", s.level, self.module.package)
        if base:
            self.reading.load(base)
            for alias in s.names:
                self.reading.load(f"{base}.{alias.name}")  # it may be a module

    def arguments(self, args: ast.arguments) -> None:
        """Read default values: `def f(env=os.environ)` makes `env` another name for os.environ."""
        positional = [*args.posonlyargs, *args.args][-len(args.defaults) or None :]
        named = [*zip(positional, args.defaults, strict=False)]
        named += zip(args.kwonlyargs, args.kw_defaults, strict=True)  # type: ignore[arg-type]
        for arg, default in named:
            if default is not None:
                self.expressions(default)
                self.assign(ast.Name(arg.arg), default)

    # Setting variables

    def assign(self, target: ast.expr, value: ast.expr | None) -> None:
        """Read an assignment. Without a value, it is a deletion, or the value is unknown."""
        match target:
            case ast.Tuple() | ast.List():
                for element in target.elts:
                    self.assign(element, None)
            case ast.Starred():
                self.assign(target.value, None)
            case ast.Subscript() if self.names.is_environ(target.value):
                self.sets(target, self.names.strings(target.slice), value)
            case ast.Attribute() if self.names.is_environ(target):
                self.sets(target, None)
            case ast.Name() if value is not None and self.names.is_environ(value):
                self.names.environs.add(target.id)
            case _:
                self.expressions(target)

    def sets(
        self,
        node: ast.AST,
        names: set[str] | None,
        value: ast.expr | None = None,
        *,
        default: bool = False,
    ) -> None:
        """Variables are set. `names` None: any name. `value` None: an unknown value, or a deletion.
        `default`: only those are set that are not set yet.
        """
        if names is None:
            self.needs_cold(node, "sets variables by names that only the run knows")
        for name in sorted(filter(is_read_at_load, names or ())):
            given = self.reading.environ.get(name)
            same = default or (isinstance(value, ast.Constant) and value.value == given)
            if given is None or not same:
                self.needs_cold(node, f"sets {name}")

    def needs_cold(self, node: ast.AST, does: str) -> None:
        """Something at this place calls for a cold start. `does` says what it is."""
        line = getattr(node, "lineno", 1)
        perhaps = "perhaps " if self.reading.in_function else ""
        where = f"{self.module.name} {does} in line {line}"
        self.reading.cold = self.reading.cold or f"{where}, {perhaps}before it imports torch"

    # Expressions

    def expressions(self, *nodes: ast.AST) -> None:
        stack = [*nodes]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Call):
                self.call(node)
            parts = ast.iter_child_nodes(node)
            if isinstance(node, CONDITIONAL):
                wrapped = [ast.Expr(part) for part in parts]  # type: ignore[arg-type]
                self.branch(wrapped, function=isinstance(node, ast.Lambda))
            else:
                stack += parts

    def call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(value=owner, attr=name) if self.names.is_environ(owner):
                self.call_on_environ(node, name)
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in self.names.setters:
                self.sets(node, self.first_argument(node))
            case ast.Attribute(attr="load_dotenv" | "read_env") | ast.Name(id="load_dotenv"):
                self.needs_cold(node, "sets the variables of a file")
            case ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"):
                self.load(node)
            case (
                ast.Attribute(attr="run_path" | "run_module")
                | ast.Name(id="exec" | "run_path" | "run_module")
            ):
                self.reading.torch = True
                self.needs_cold(node, "runs other code")
            case ast.Attribute(attr=name) if name in READING:
                pass
            case ast.Name(id=name) if name in READERS:
                pass
            case _ if any(map(self.names.is_environ, node.args)):
                self.sets(node, None)

    def call_on_environ(self, node: ast.Call, method: str) -> None:
        if method in ("setdefault", "__setitem__"):
            value = node.args[1] if len(node.args) > 1 else None
            self.sets(node, self.first_argument(node), value, default=method == "setdefault")
        elif method in ("pop", "__delitem__"):
            self.sets(node, self.first_argument(node))
        elif method in ("update", "__ior__"):
            self.sets(node, self.names.keys_of_arguments(node))
        elif method in ("clear", "popitem"):
            self.sets(node, None)

    def first_argument(self, node: ast.Call) -> set[str] | None:
        return self.names.strings(node.args[0]) if node.args else None

    def load(self, node: ast.Call) -> None:
        modules = self.first_argument(node)
        if modules is None or any(module.startswith(".") for module in modules):
            self.reading.torch = True
            if not self.reading.in_function:
                self.needs_cold(node, "imports a module that only the run knows")
            return
        before = self.reading.is_loaded
        for module in modules:
            self.reading.load(module)
        self.reading.is_loaded = before or (self.reading.is_loaded and len(modules) == 1)
