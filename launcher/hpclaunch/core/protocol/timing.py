"""Every time-out of a job, in one place: whatever the core waits for.

All are in seconds. Each is counted on one clock only, that of the agent that waits. Limits on a
single helper or system call stand in the file that asks it, as `*_LIMIT`.
"""

from __future__ import annotations

from .values import value

LEARNED = -1.0  # for `hang` and `notice`: it depends on how long steps, or saves, take


@value(frozen=True)
class Timing:
    """The same on all agents of a job. The user sets seven of these: see `hpclaunch --help`."""

    # Loss detection and elections
    beat: float = 0.5  # between two messages, if nothing changes
    quiet: float = 2.0  # the most that `quiet_beat` may be
    loss: float = 3.0  # an agent that is silent for this long counts as lost
    election: float = 1.0  # an agent that was asked to lead must do so within this time
    killing: float = 0.25  # killed workers are gone within this time
    goodbye: float = 10.0  # how long the head waits for all agents to confirm the end
    # Before a round
    join: float = 600.0  # wait for agents that were never heard; torchrun's join_timeout
    last_call: float = 30.0  # the same with the fewest nodes there; torchrun's last_call_timeout
    wait: float = 60.0  # wait for lost nodes, or for a quorum, if too few are left
    visible: float = 20.0  # wait for a file system to show a node what another node has written
    older: float = 2.0  # the same for older checkpoints, after one that did not appear
    # In a round
    look: float = 5.0  # between two searches for a new checkpoint, while a node waits to take part
    hang: float = LEARNED  # workers that do nothing for so long hang; 0: they never do
    least_hang: float = 10.0  # what is learned is at least this
    early_hang: float = 600.0  # the same before the first steps: data is prepared, a compiler runs
    gathering: float = 6.0  # wait for the agents' evidence of a hang, or for a sample
    sampling: float = 10.0  # between two samples of how the ranks keep pace
    # Before the end of the job
    notice: float = LEARNED  # workers have notice for so long before they are ended; 0: none
    least_notice: float = 30.0  # what is learned is this, and twice the longest save
    ask_end: float = 60.0  # between two questions to Slurm: administrators change the time limit
    ask_again: float = 15.0  # the same after one that was not answered
    answer: float = 3.0  # wait for all agents to answer an offer; their ranks may wait meanwhile
    offer: float = 1.0  # until the next offer, after one that nobody could accept
    first_steps: float = 10.0  # wait for ranks that have not made an optimizer yet
    warned: float = 2.0  # wait for the head to report whether SIGTERM means a later end
    announced: float = 1200.0  # SIGTERM at most so long before the time limit announces it
    closing: float = 3.0  # between the last of the workers and that, to ask for another run
    search: float = 10.0  # wait for what was saved since the notice
    # The end of a round
    grace: float = 20.0  # between SIGTERM and SIGKILL
    wave: float = 0.5  # wait for the signal that ends the job to reach the other agents by itself
    stuck: float = 5.0  # the same in a lost round, for a worker that does nothing all this time
    # From the end of stopped workers to SIGKILL for their leftovers. torch_shm_manager needs 2 s.
    leftovers: float = 3.0
    unkillable: float = 30.0  # a worker that survives SIGKILL for this long counts as unkillable
    # Messages to the user meanwhile
    leftovers_notice: float = 1.0  # until a line names the leftovers of the workers
    first_notice: float = 10.0  # until the first one on what the job waits for
    silence_notice: float = 10.0  # until one on a silent agent
    next_notice: float = 60.0  # until the next one
    headless_notice: float = 5.0  # until one on the lack of a head

    @property
    def quiet_beat(self) -> float:
        """The beat while workers run and nobody asks about them: longer where the loss timeout is
        long, since each beat wakes processes on every node.
        """
        return max(self.beat, min(self.quiet, self.loss / 12))

    @property
    def vote_lease(self) -> float:
        """The time after an order in which a follower follows no other head.

        It must outlast the loss timeout by enough that a head which is still answered keeps its
        leader lease: the head learns of an answer up to two beats after it sent the order.
        """
        return self.loss + 3 * self.quiet_beat


DEFAULTS = Timing()
LEAST_HANG = 2.0  # the shortest hang timeout: one look at the workers before its end, and one then
LEAST_LOSS = 2.0  # the shortest loss timeout: four beats
# The loss timeout of a job that can do without no node. Nothing can begin without a silent one, so
# its silence costs nothing: it may be suspended, or its network be gone for a while. Slurm, which
# may end the job for it, waits for as long by default (SlurmdTimeout).
PATIENT_LOSS = 300.0
