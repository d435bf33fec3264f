"""The environment variables that are read while torch is loaded.

The template records the variables that Python code reads. This table has those of native code.
"""

# Prefixes of variables that are read when torch is loaded, each with its reader. They were found by
# tracing getenv and os.environ through `import torch, torch.distributed`: torch 2.4, 2.12 and 2.13,
# with CUDA 12 and 13 and for the CPU. Python's own variables are not listed. They are read before
# any program runs, so changing them in a program has the same effect, warm or cold.
AT_LOAD = (
    "TORCH",  # torch's config modules, its loggers and c10's, c10d's debug level, static flags
    "PYTORCH_",  # the JIT, and the allocators, whose static initializers parse *_ALLOC_CONF
    *("KINETO_", "FX_", "COMPILE_STROBELIGHT_", "GLOG_"),  # other parts of torch
    *("OMP_", "GOMP_", "KMP_"),  # the constructor of whichever OpenMP library is used
    *("MKL_", "MKLDNN_", "DNNL_", "ONEDNN_", "INTEL_"),  # constructors in libtorch_cpu
    *("I_MPI_", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # MKL, to divide the cores
    *("OPENBLAS_", "GOTO", "BLIS_", "NPY_", "NUMPY_"),  # NumPy, which torch imports, and its BLAS
    "OPENSSL_",  # libcrypto, which hashlib loads
    "ATEN_",  # the first operator; it runs while torch is loaded if torch makes tensors then
    # The constructors of cuBLAS and cuSPARSELt start their logging and open the driver's library.
    # It is not documented which variables the driver then reads.
    *("CUDA_", "CUBLAS_", "CUBLASLT_", "NVIDIA_", "NVRTC_", "LIBNVVM_", "CASK_"),
    # ld.so reads these before any program runs. A program that sets them wants them for libraries
    # that are loaded later, such as torch's.
    *("LD_LIBRARY_PATH", "LD_PRELOAD"),
    # The libraries of AMD and Intel. These were not traced.
    *("HIP_", "HSA_", "ROC", "AMD_", "MIOPEN_", "ONEAPI_", "SYCL_", "UR_", "ZE_"),
)
# Exceptions from AT_LOAD that are read later: in Python calls, or when a process group, a handle or
# a compiler is created.
LATER = (
    *("TORCH_NCCL_", "TORCH_GLOO_", "TORCH_FR_", "TORCHELASTIC_", "TORCH_DIST_INIT_BARRIER"),
    *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST", "TORCH_FORCE_"),
    *("TORCHINDUCTOR_CACHE_DIR", "PYTORCH_KERNEL_CACHE_PATH", "PYTORCH_NVML_BASED_CUDA_CHECK"),
    *("PYTORCH_MPS_", "PYTORCH_ENABLE_MPS_FALLBACK"),  # Apple's
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_HOME", "CUDA_PATH"),
)


def is_read_at_load(name: str) -> bool:
    """Return whether native code reads an environment variable while torch is loaded."""
    return name.startswith(AT_LOAD) and not name.startswith(LATER)
