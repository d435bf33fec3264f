"""Every time-out of a job, in one place: policy, not protocol.

All are seconds, and each is counted on one clock, that of the agent which waits.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """The same on all agents of a job. The user sets four of them: see `hpclaunch --help`."""

    # Who is there, and who leads
    beat: float = 0.5  # between two messages of the same content
    loss: float = 3.0  # without a message, after which an agent counts as lost
    election: float = 1.0  # that an agent has to take over, until the next one is asked
    killing: float = 0.25  # that killed workers may take to be gone
    goodbye: float = 10.0  # that the head waits for everybody to confirm the end
    # Before a round
    join: float = 600.0  # for agents that have never been heard; torchrun's join_timeout
    last_call: float = 30.0  # the same for more than the fewest; torchrun's last_call_timeout
    wait: float = 60.0  # for lost nodes, where fewer than the fewest are left
    visible: float = 20.0  # for a file system to show a node the checkpoint another has written
    older: float = 2.0  # after that, for an older checkpoint
    # In a round
    look: float = 5.0  # between two looks for a new checkpoint, while a node waits to take part
    # The end of a round
    grace: float = 20.0  # between SIGTERM and SIGKILL of a worker
    stuck: float = 5.0  # the same in a lost round, for one that writes nothing all the while
    unkillable: float = 30.0  # after SIGKILL, until a worker counts as unkillable
    # What the user is told meanwhile
    first_notice: float = 10.0  # until the first word about who is waited for
    next_notice: float = 60.0
    headless_notice: float = 5.0  # without a head

    @property
    def vote_lease(self) -> float:
        """For how long an agent follows no other head than the one that it has heard. A head
        learns of it with up to two beats of delay."""
        return self.loss + 3 * self.beat


DEFAULTS = Timing()
