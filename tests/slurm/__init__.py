"""hpclaunch on a real Slurm cluster: slurmctld and slurmd on three hosts that live on this machine.

`hosts` makes the hosts, `cluster` runs Slurm on them, `conftest` brings both up for the session and
looks after every test that nothing was left running. `scripts` holds what the workers run.

    sudo apt install slurm-wlm munge      nothing else: no daemon has to run beforehand
    sudo python -m pytest tests/slurm     skipped where it cannot run, with the reason
"""
