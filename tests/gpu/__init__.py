"""hpclaunch on a real GPU, with the real driver, MPS and NCCL, where stand-ins are not enough.

`jobs` starts hpclaunch as a user does; `conftest` finds the GPU and checks after every test that no
process is left. `scripts` contains the workers' scripts.

    make test-gpu                      PYTHON=... names the Python whose torch has CUDA
    python -m pytest tests/gpu         skipped, with the reason, without a GPU
"""
