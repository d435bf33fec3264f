"""--stage on several nodes: what an agent's stager has to know of the others, and what the core has
to know of the stager. With one node, there is none of this.
"""

from __future__ import annotations

from ..core.control import Control
from ..core.protocol import effects, events
from ..core.protocol.crc import checksum
from ..system.staging.client import StagingClient
from ..system.staging.messages import PeerPlace

OTHERS = "another node cannot save in memory"


class Stagers:
    """`key` is the one by which the stagers of a launch know each other, and `identity` that of the
    launch (see Allocation).
    """

    def __init__(self, key: bytes, identity: str, control: Control) -> None:
        # The name of the launch, the same on all nodes, is also in the path of its staging
        # directory: scripts may send that path to other ranks, or save it in a checkpoint.
        self.launch = f"{checksum(identity):08x}"
        self.port = 0  # where the stager listens; 0: it does not yet
        self.refused = ""  # why no script can save in memory here; "": it can
        self._key, self._control = key, control
        self._led: effects.LeadStagers | None = None  # this agent leads the job, and its stager
        self._reported = events.StagerFound()

    @property
    def leads(self) -> bool:
        return self._led is not None

    def introduce(self, client: StagingClient) -> None:
        """Introduce a stager that was just started."""
        self.port = 0
        client.introduce(self._key.hex())
        if self._led is not None:
            self._lead(client, self._led)

    def lead(self, effect: effects.LeadStagers, client: StagingClient | None) -> None:
        """Let the stager lead the others. Without a client, the next one does."""
        self._led = effect
        if client is not None:
            self._lead(client, effect)

    def _lead(self, client: StagingClient, effect: effects.LeadStagers) -> None:
        peers = tuple(
            PeerPlace(p.index, p.host, p.address, p.port, p.head_address) for p in effect.others
        )
        index, job = self._control.index, self._control.job
        lease = job.timing.vote_lease + job.timing.election  # by then, another one may lead
        client.lead(effect.term, index, job.places[index].host, lease, peers)

    def has_resigned(self) -> bool:
        """Return whether another agent leads since the last call."""
        has_resigned = self.leads and not self._control.leads
        if has_resigned:
            self._led = None
        return has_resigned

    def news(self) -> list[events.Event]:
        """Return what has changed for the core since the last call."""
        found = events.StagerFound(self.port, self.refused)
        if found == self._reported:
            return []
        self._reported = found
        return [found]
