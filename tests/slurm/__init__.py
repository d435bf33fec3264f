"""hpclaunch on a real Slurm cluster: slurmctld and slurmd on several hosts within this machine.

`hosts` makes the hosts, `cluster` runs Slurm on them, and `conftest` starts both for the session
and checks after every test that no process is left. `scripts` contains the workers' scripts.

    sudo apt install slurm-wlm munge      nothing else: no daemon needs to run
    sudo python -m pytest tests/slurm     skipped, with the reason, where it cannot run
"""
