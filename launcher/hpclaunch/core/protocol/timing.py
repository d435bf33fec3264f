"""All time-outs of the core, in seconds.

Each is counted on one clock only, that of the agent that waits. The limit on a single call of a
helper or of the system is a constant `*_LIMIT` in the file of the caller.
"""

from __future__ import annotations

from .values import value

LEARNED = -1.0  # for `hang` and `notice`: the value is learned from the steps, or the saves


@value(frozen=True)
class Timing:
    """The time-outs of a job, the same on all agents. The user sets some: see hpclaunch --help."""

    # Loss detection and elections
    beat: float = 0.5  # between two messages, if nothing changes
    quiet: float = 2.0  # the longest `quiet_beat`
    loss: float = 3.0  # an agent that is silent for this long counts as lost
    election: float = 1.0  # an agent that was asked to lead must do so within this time
    killing: float = 0.25  # killed workers are gone within this time
    goodbye: float = 10.0  # how long the head waits for all agents to confirm the end
    # Before a round
    join: float = 600.0  # wait for agents that were never heard; torchrun's join_timeout
    last_call: float = 30.0  # the same once the fewest nodes are here; torchrun's last_call_timeout
    wait: float = 60.0  # wait for lost nodes, or for a quorum, if too few are left
    visible: float = 20.0  # wait for a file system to show a checkpoint on every node
    older: float = 2.0  # the same for older checkpoints, after one that did not appear
    # In a round
    look: float = 5.0  # between two searches for a new checkpoint, while a node waits to take part
    hang: float = LEARNED  # workers without a sign of life for this long hang; 0: never
    least_hang: float = 10.0  # the least hang timeout that is learned
    early_hang: float = 600.0  # the hang timeout before the first steps, when a compiler may run
    gathering: float = 6.0  # wait for the agents' evidence of a hang, or for a sample
    sampling: float = 10.0  # between two samples of how the ranks keep pace
    # Before the end of the job
    notice: float = LEARNED  # workers get notice this long before they are stopped; 0: none
    least_notice: float = 30.0  # the learned notice is this, plus twice the longest save
    ask_end: float = 60.0  # between two questions to Slurm: administrators change the time limit
    ask_again: float = 15.0  # the same after a question without an answer
    answer: float = 3.0  # wait for all agents to answer an offer; their ranks may wait meanwhile
    offer: float = 1.0  # until the next offer, after one that was not accepted
    first_steps: float = 10.0  # wait for ranks that have not made an optimizer yet
    warned: float = 2.0  # wait for the head to report whether SIGTERM means a later end
    announced: float = 1200.0  # a SIGTERM this long before the time limit, or less, announces it
    closing: float = 3.0  # from the workers' end to that of the job: time to ask for another run
    search: float = 10.0  # wait for the search for a checkpoint saved since the notice
    # From SIGKILL for the workers until the copies from memory are given up, after a SIGTERM that
    # ends the job. With the default `grace`, this is less than Slurm's default KillWait, 30 s.
    flush: float = 7.0
    # The end of a round
    grace: float = 20.0  # between SIGTERM and SIGKILL
    wave: float = 0.5  # wait for the signal that ends the job to reach the other agents by itself
    stuck: float = 5.0  # if a round follows, a worker that writes nothing this long gets SIGKILL
    # From the end of stopped workers to SIGKILL for their leftovers. torch_shm_manager needs 2 s.
    leftovers: float = 3.0
    unkillable: float = 30.0  # a worker that survives SIGKILL for this long counts as unkillable
    # Messages to the user during a wait
    leftovers_notice: float = 1.0  # until a message names the leftovers of the workers
    first_notice: float = 10.0  # until the first message about a wait
    silence_notice: float = 10.0  # until the first message about a silent agent
    next_notice: float = 60.0  # between two messages about the same wait
    headless_notice: float = 5.0  # until the first message about a missing head

    @property
    def quiet_beat(self) -> float:
        """The beat while workers run and nobody watches the job. It grows with the loss timeout,
        since each beat wakes processes on every node.
        """
        return max(self.beat, min(self.quiet, self.loss / 12))

    @property
    def vote_lease(self) -> float:
        """The time after an order in which a follower follows no other head.

        It outlasts the loss timeout by three beats, so that a head with a quorum keeps its leader
        lease: an answer may arrive two beats after the order was sent.
        """
        return self.loss + 3 * self.quiet_beat


DEFAULTS = Timing()
LEAST_HANG = 2.0  # the shortest hang timeout: the workers are looked at twice in this time
LEAST_LOSS = 2.0  # the shortest loss timeout
BEATS = 6  # the least number of beats in a loss timeout
# The loss timeout of a job that needs all its nodes. Waiting for a silent node costs nothing, since
# no round can begin without it: it may be suspended, or cut off for a while. Slurm's own timeout
# for a silent node is as long by default (SlurmdTimeout).
PATIENT_LOSS = 300.0
