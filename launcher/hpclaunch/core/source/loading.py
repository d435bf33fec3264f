"""What a program does before it imports torch, read off its source: it is never run.

A process that has torch already may become the program only if that makes no difference. It makes
one where the program first sets a variable that is read when torch is loaded, or might: a start
from cold is merely slow, but a variable that comes too late changes what the program does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .names import Names, absolute, leaves, truth

# Read when torch is loaded, by whom. Seen by tracing getenv and os.environ through `import torch,
# torch.distributed` with torch 2.4, 2.12 and 2.13, with CUDA 12 and 13 and for the CPU.
AT_LOAD = (
    "TORCH",  # torch's config modules, its loggers and c10's, c10d's debug level, static flags
    "PYTORCH_",  # the allocators, which parse their *_ALLOC_CONF in a static initializer; the JIT
    *("KINETO_", "FX_", "COMPILE_STROBELIGHT_", "GLOG_"),  # parts of torch with names of their own
    *("OMP_", "GOMP_", "KMP_"),  # OpenMP's library, whichever it is: its constructor reads all
    *("MKL_", "MKLDNN_", "DNNL_", "ONEDNN_", "INTEL_"),  # constructors within libtorch_cpu
    *("I_MPI_", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # MKL, to share out the cores
    *("OPENBLAS_", "GOTO", "BLIS_", "NPY_", "NUMPY_"),  # NumPy, which torch imports, and its BLAS
    "OPENSSL_",  # libcrypto, which comes with hashlib
    "ATEN_",  # the first operator: later, but for a torch that makes tensors when it is loaded
    # cuBLAS and cuSPARSELt log from their constructors on and open the driver's library there; what
    # that reads when it is opened nobody says.
    *("CUDA_", "CUBLAS_", "CUBLASLT_", "NVIDIA_", "NVRTC_", "LIBNVVM_", "CASK_"),
    # ld.so has read them before any program runs; whoever sets them means libraries to be opened.
    *("LD_LIBRARY_PATH", "LD_PRELOAD"),
    # The libraries of AMD and Intel: not traced.
    *("HIP_", "HSA_", "ROC", "AMD_", "MIOPEN_", "ONEAPI_", "SYCL_", "UR_", "ZE_"),
)
# But these are read later: in calls of Python, or when a process group, a handle or a compiler is
# made. (Those of Python itself are read before any program runs: that it sets them makes no
# difference, however it is started. So they are not above.)
LATER = (
    *("TORCH_NCCL_", "TORCH_GLOO_", "TORCH_FR_", "TORCHELASTIC_", "TORCH_DIST_INIT_BARRIER"),
    *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST", "TORCH_FORCE_"),
    *("TORCHINDUCTOR_CACHE_DIR", "PYTORCH_KERNEL_CACHE_PATH", "PYTORCH_NVML_BASED_CUDA_CHECK"),
    *("PYTORCH_MPS_", "PYTORCH_ENABLE_MPS_FALLBACK"),  # Apple's
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_HOME", "CUDA_PATH"),
)
TORCH = ("torch", "torchvision", "torchaudio", "torchtext", "functorch")  # the rest import it

# Functions and methods that only read an os.environ among their arguments.
READERS = ("dict", "list", "set", "sorted", "len", "str", "repr", "print", "pprint", "deepcopy")
READING = ("copy", "deepcopy", "pprint", "info", "debug", "execve", "execvpe")
TryStar = getattr(ast, "TryStar", ast.Try)  # from Python 3.11 on
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
CONDITIONAL = (ast.Lambda, ast.IfExp, ast.BoolOp, *COMPREHENSIONS)  # not all of them is evaluated


def is_read_at_load(name: str) -> bool:
    return name.startswith(AT_LOAD) and not name.startswith(LATER)


@dataclass(frozen=True, slots=True)
class Module:
    name: str  # of its file, as messages have it
    tree: ast.Module
    package: str = ""  # where its relative imports start


class Opaque(Exception):  # noqa: N818 - no error, but what cannot be known
    """Something that reading cannot tell; the text is the reason."""


class SourceReading:
    """Follows a program from file to file in the order of its execution.

    `find` gives a module by its dotted name, None when it is not the program's own; it may raise
    Opaque. `environ` is what the program is started with: to set a variable to what it is anyway
    changes nothing.
    """

    def __init__(
        self, find: Callable[[str], Module | None], environ: Mapping[str, str] | None = None
    ) -> None:
        self.torch = False  # torch may be imported somewhere
        self.cold = ""  # the first thing that comes before, or may
        self.settled = False  # at the place that is being read, torch is loaded
        self.in_function = False  # and this place is in a function, which may be called or not
        self.environ = environ or {}
        self._find = find
        self._settling: dict[str, bool] = {}  # the modules read so far: whether they load torch

    def run(self, program: Module, *, package: str = "") -> None:
        """Read a program; `package` is imported before, as by python -m."""
        try:
            if package:
                self.load(package)
            _File(self, program, main=True).block(program.tree.body)
        except Opaque as e:
            self.doubt(str(e))
        except RecursionError:
            self.doubt(f"{program.name} is nested too deeply to look into")

    def doubt(self, reason: str) -> None:
        """There may be a torch, and something before it."""
        self.torch = True
        self.cold = self.cold or reason

    @property
    def complete(self) -> bool:
        return self.settled or bool(self.torch and self.cold)

    def load(self, dotted: str) -> None:
        """An import: the packages on the way to a module are loaded before it."""
        parts = dotted.split(".")
        if parts[0] in TORCH:
            self.torch = True
            # Only of torch itself it is certain that it is there.
            self.settled = self.settled or parts[0] == "torch"
            return
        for end in range(1, len(parts) + 1):
            if self.settled:
                return
            name = ".".join(parts[:end])
            if name not in self._settling:
                self._settling[name] = False  # while it is being read: for circular imports
                module = self._find(name)
                if module is not None:
                    _File(self, module, main=False).block(module.tree.body)
                    self._settling[name] = self.settled
            self.settled = self._settling[name]


class _File:
    """One file, with its own names for os.environ."""

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
        """What may be executed or not. Returns whether torch is loaded when its end is reached."""
        before = self.reading.settled, self.reading.in_function
        self.reading.in_function |= function
        self.block(body)
        settled = self.reading.settled or leaves(body)
        self.reading.settled, self.reading.in_function = before
        return settled

    def statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Import() | ast.ImportFrom():
                self.imports(s)
            case ast.If():
                self.expressions(s.test)
                known = truth(s.test, main=self.main)
                if known is not None:
                    self.block(s.body if known else s.orelse)
                else:
                    ends = [self.branch(s.body), self.branch(s.orelse)]
                    self.reading.settled |= all(ends)
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
        """The handlers come after a part of the body; an import that is its first was tried."""
        self.block(s.body[:1])
        first = self.reading.settled and isinstance(s.body[0], ast.Import | ast.ImportFrom)
        self.block(s.body[1:])
        self.block(s.orelse)
        ends = [self.reading.settled]
        self.reading.settled = first
        ends += [self.branch(handler.body) for handler in s.handlers]
        self.reading.settled = all(ends)
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
                self.reading.load(f"{base}.{alias.name}")  # should it be a module

    def arguments(self, args: ast.arguments) -> None:
        """`def f(environ=os.environ)` is one more name for it."""
        positional = [*args.posonlyargs, *args.args][-len(args.defaults) or None :]
        named = [*zip(positional, args.defaults, strict=False)]
        named += zip(args.kwonlyargs, args.kw_defaults, strict=True)  # type: ignore[arg-type]
        for arg, default in named:
            if default is not None:
                self.expressions(default)
                self.assign(ast.Name(arg.arg), default)

    # What is set

    def assign(self, target: ast.expr, value: ast.expr | None) -> None:
        """An assignment, or without a value a deletion, or one of something unknown."""
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
        """Names that are None may be any. With `default` they are set only where they are not."""
        if names is None:
            self.reason(node, "sets variables by names that only the run knows")
        for name in sorted(filter(is_read_at_load, names or ())):
            given = self.reading.environ.get(name)
            same = default or (isinstance(value, ast.Constant) and value.value == given)
            if given is None or not same:
                self.reason(node, f"sets {name}")

    def reason(self, node: ast.AST, does: str) -> None:
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
                self.of_environ(node, name)
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in self.names.setters:
                self.sets(node, self.first(node))
            case ast.Attribute(attr="load_dotenv" | "read_env") | ast.Name(id="load_dotenv"):
                self.reason(node, "sets the variables of a file")
            case ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"):
                self.load(node)
            case (
                ast.Attribute(attr="run_path" | "run_module")
                | ast.Name(id="exec" | "run_path" | "run_module")
            ):
                self.reading.torch = True
                self.reason(node, "runs other code")
            case ast.Attribute(attr=name) if name in READING:
                pass
            case ast.Name(id=name) if name in READERS:
                pass
            case _ if any(map(self.names.is_environ, node.args)):
                self.sets(node, None)

    def of_environ(self, node: ast.Call, method: str) -> None:
        if method in ("setdefault", "__setitem__"):
            value = node.args[1] if len(node.args) > 1 else None
            self.sets(node, self.first(node), value, default=method == "setdefault")
        elif method in ("pop", "__delitem__"):
            self.sets(node, self.first(node))
        elif method in ("update", "__ior__"):
            self.sets(node, self.names.given(node))
        elif method in ("clear", "popitem"):
            self.sets(node, None)

    def first(self, node: ast.Call) -> set[str] | None:
        return self.names.strings(node.args[0]) if node.args else None

    def load(self, node: ast.Call) -> None:
        modules = self.first(node)
        if modules is None or any(module.startswith(".") for module in modules):
            self.reading.torch = True
            if not self.reading.in_function:
                self.reason(node, "imports a module that only the run knows")
            return
        before = self.reading.settled
        for module in modules:
            self.reading.load(module)
        self.reading.settled = before or (self.reading.settled and len(modules) == 1)
