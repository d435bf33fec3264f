"""Checkpoints in the memory of several nodes (--stage).

Each agent has a stager. That of the leading agent restores before each round, drains and flushes
for all. The core decides whether a round saves in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..core.control import Control
from ..core.protocol import effects, events
from ..core.protocol.crc import checksum
from ..system.staging import messages
from ..system.staging.client import StagingClient
from .config import Checkpoints
from .context import Context
from .stage_waits import Search, Wait
from .staged_paths import StagedPaths
from .staging import Staging

OTHERS = "another node cannot save in memory"

OnSearched: TypeAlias = Callable[[messages.Searched], list[events.Event]]


class SpreadStaging(Staging):
    """Introduces this agent's stager to the others, and reports its state to the core. The stagers
    of a launch know each other by `key`. `identity` is that of the launch (see Allocation).
    """

    _has_several_nodes = True

    def __init__(
        self, context: Context, settings: Checkpoints, key: bytes, identity: str, control: Control
    ) -> None:
        super().__init__(context, settings)
        self._launch = f"{checksum(identity):08x}"  # the same on all nodes
        self._key, self._control = key, control
        self._port = 0  # where the stager listens; 0: it does not yet
        self._refused = ""  # why no script can save in memory here; "": it can
        self._reported = events.StagerFound()
        self._led: effects.LeadStagers | None = None  # the last one; None: this agent does not lead
        self._is_first = False  # no round has begun on any node
        self._search_number = 0  # of the pending search by the stager, or 0
        self._on_searched: OnSearched = lambda _: []

    def begin(self) -> None:
        """Make the staging directory. The head restores before each round."""
        self._open()
        if self._client is not None:
            self._wait = Wait()  # until it listens

    @property
    def spread(self) -> SpreadStaging | None:
        return None if self.paths is None else self

    def close(self) -> None:
        if self._led is None:
            self._leave()
        super().close()

    def _leave(self) -> None:
        super()._leave()
        self._port, self._refused = 0, self._refused or OTHERS

    # The stager, and those of the other nodes

    def _start(self) -> None:
        super()._start()
        self._send_search()

    def _new_client(self, paths: StagedPaths) -> StagingClient:
        client = super()._new_client(paths)
        client.send(messages.Secret(self._key.hex()))
        self._send_lead(client)
        return client

    def lead(self, effect: effects.LeadStagers) -> None:
        """Let this agent's stager lead the others."""
        self._led = effect
        if self._client is not None:  # else the next one leads
            self._send_lead(self._client)

    def _send_lead(self, client: StagingClient) -> None:
        if self._led is None:
            return
        peers = tuple(
            messages.PeerPlace(p.index, p.host, p.address, p.port, p.head_address)
            for p in self._led.others
        )
        index, job = self._control.index, self._control.job
        lease = job.timing.vote_lease + job.timing.election  # by then, another one may lead
        host = job.places[index].host
        client.send(messages.Lead(self._led.term, index, host, lease, peers))

    def _follow(self) -> None:
        """Stop what this agent did as the leader."""
        self._led = self._request = self._wait = None
        self._search_number, self._is_first = 0, False  # another agent may begin a round
        if self._client is not None:
            self._client.send(messages.Follow())

    def update(self, now: float) -> list[events.Event]:
        """Also report a change of the stager's state to the core."""
        if self._led is not None and not self._control.leads:
            self._follow()
        found = super().update(now)
        state = events.StagerFound(self._port, self._refused)
        if state != self._reported:
            self._reported = state
            found.append(state)
        return found

    # Requests

    def before_search(self, search: Search, effect: effects.ChooseCheckpoint) -> list[events.Event]:
        """Call `search` after a restore. If the next round cannot save in memory, call it once
        everything is on storage.
        """
        if self.paths is None:
            return search()
        self._agents, self._tried, self._is_first = effect.agents, set(), effect.is_first
        if effect.stages and not self._is_refused:
            self.restore((), search)
            return []
        self._wait = Wait(search)
        if not self._may_hold:
            return self._end_wait(leave=True)
        self._begin_flush()
        return []

    def forget_search(self) -> None:
        """Do not call the `search` that waits for a restore or a flush: a later one replaces it.
        The wait at the end of the job continues.
        """
        if not self._is_ending:
            self._wait = None

    def search(self, number: int, on_searched: OnSearched) -> None:
        """Have the stager search in the memory of all nodes. `on_searched` gets the answer."""
        self._search_number, self._on_searched = number, on_searched
        self._send_search()

    def _send_search(self) -> None:
        if self._client is not None and self._search_number:
            self._client.send(messages.Search(self._search_number))

    def note_round(self, *, stages: bool) -> None:
        """Note where the next round saves. If on storage, give up the staging directory: all that
        was in it has been flushed.
        """
        self._has_begun |= stages
        if not stages:
            self._leave()
            self._remove()

    # Replies

    def _on_reply(self, reply: messages.Reply) -> list[events.Event]:
        match reply:
            case messages.Listening(port=port):
                self._port = port
                if self._wait is not None and self._wait.search is None and not self._is_ending:
                    self._wait = None
            case messages.Searched(id=number) if number == self._search_number:
                self._search_number = 0
                return self._on_searched(reply)
        return super()._on_reply(reply)

    def _replace(self, lost: StagingClient, now: float) -> list[events.Event]:
        self._port = 0
        return super()._replace(lost, now)

    def _cannot_drain(self, why: str) -> list[events.Event]:
        return self._refuse(why) + super()._cannot_drain(why)

    @property
    def _may_hold(self) -> bool:
        """Whether something may be in memory, here or on another node."""
        return self._has_begun or (self.paths is not None and not self._is_first)

    def _refuse(self, why: str, host: str = "") -> list[events.Event]:
        host = host or self._host
        why = f"{host}: {why}"
        if not self._is_ending:
            self._refused = why
        return super()._refuse(why, host)

    def _flushed(self, reply: messages.Flushed) -> list[events.Event]:
        search = None if self._wait is None else self._wait.search
        if reply.missing and search is not None and self.restore((), search):
            # Files that are missing on storage must be in the memory of each node of the round.
            return []
        return super()._flushed(reply)

    @property
    def _is_filling_memory(self) -> bool:
        return not self._port or super()._is_filling_memory
