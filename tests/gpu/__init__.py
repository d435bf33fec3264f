"""hpclaunch on a real GPU, with the real driver, MPS and NCCL: what stand-ins cannot answer for.

`jobs` starts the command as a user does, `conftest` finds the GPU and looks after every test that
nothing was left running. `scripts` holds what the workers run.

    make test-gpu                      PYTHON=... names the Python whose torch has CUDA
    python -m pytest tests/gpu         skipped where there is no GPU, with the reason
"""
