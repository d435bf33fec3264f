"""The stager: the process that copies checkpoints between the staging directory and storage.

It looks into the staging directory once a second, and copies ("drains") the newest complete
checkpoint that is not on storage yet. It serves requests (`messages.py`) also between two pieces of
a copy. If its agent dies without having closed its client, it drains what is left, removes the
staging directory, and ends. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from hpclaunch.system.shared.helper import say_now
from hpclaunch.worker.json_lines import AgentChannel

from . import messages, stage_directory
from .copying import GivenUpError
from .draining import Draining
from .launch import Launch
from .looking import Looking
from .other_files import OtherFiles
from .publishing import same
from .removal import rmtree
from .requests import Requests
from .restoring import Restoring

GRACE = 0.5  # seconds for workers to die with their agent
NICE = 10


class Stager:
    """The work of the process."""

    def __init__(self, channel: AgentChannel, launch: Launch) -> None:
        self._launch = launch
        self._lock = stage_directory.hold(launch.own)
        self.requests = Requests(channel)
        self.looking = Looking(launch, self.requests)
        self.others = OtherFiles(launch)
        self.draining = Draining(launch, self.requests, self.looking, self.others)

    def close(self) -> None:
        os.close(self._lock)

    def run(self) -> None:
        """Work until the agent is gone."""
        stage_directory.await_orphans(self._launch.own, self._launch.storage)
        with contextlib.suppress(OSError):  # storage is away: the first drain reports it
            self.draining.sweep()
        requests = self.requests
        while True:
            requests.serve(max(0.0, self.looking.due - time.monotonic()))
            while requests.pending:
                match requests.pending.popleft():
                    case messages.Restore() as request:
                        requests.send(self.restore(request))
                    case messages.Flush(id=number):
                        requests.send(self.flush(number))
            if requests.is_gone:
                self._end()
                return
            if time.monotonic() >= self.looking.due:
                self.work()

    def _end(self) -> None:
        """Drain what a dead agent has left, and remove the staging directory."""
        if os.path.isdir(self._launch.stage):
            time.sleep(GRACE)
            left = self.flush(0)
            for path in left.missing:
                say_now(f"{path} could not be written, and is lost: {left.why}")
        rmtree(self._launch.own)

    def restore(self, request: messages.Restore) -> messages.Reply:
        """Copy a checkpoint from storage, with the small files of the script."""
        if why := self._lack_of_links():
            return messages.Refused(request.id, why)
        record = self._launch.record
        restoring = Restoring(self._launch, self.requests.rounds)
        reply = restoring.run(request, is_first=not record.moved)
        if (restored := restoring.restored) is not None:
            record.add(restored)
            record.add_copied(restoring.beside)
            if same(restored, self._launch.storage):  # else the script has saved a newer one
                self.draining.note_drained(restored)
        if isinstance(reply, messages.Restored) and not request.avoid:
            self.others.restore()
        return reply

    def _lack_of_links(self) -> str:
        """Return why no hard links can be made, which `hold` needs; "" if they can."""
        own = self._launch.own
        path = os.path.join(own, stage_directory.LOCK)
        try:
            with contextlib.suppress(FileExistsError):  # by a stager that was killed
                os.link(path, f"{path}.link")
            os.unlink(f"{path}.link")
        except OSError as e:
            return f"no hard links can be made in {own}: {e.strerror}"
        return ""

    def work(self) -> None:
        """Drain a checkpoint if there is a new one, and delete what is not needed any more."""
        draining = self.draining
        found = self.looking.look()
        complete = list(self.looking.complete(found))
        draining.check_room(complete)
        for each, contents in complete:
            if draining.is_waiting(contents):
                break
            if not draining.is_on_storage(contents):
                if not draining.drain(each, contents, found):
                    self.looking.due = 0.0
                    with contextlib.suppress(OSError, GivenUpError):  # the flush reports it
                        between = draining.between(None)
                        self.others.drain(found, between, draining.absent(found))
                break
        draining.rotate()
        draining.make_room([c for _, c in complete])

    # The end

    def flush(self, number: int) -> messages.Flushed:
        """Copy everything that is left, and try once more what could not be copied."""
        self.looking.has_ended = True
        try:
            missing, why, newest = self._flush_once()
            if missing:
                missing, why, newest = self._flush_once()
        finally:
            self.looking.has_ended = False
        return messages.Flushed(number, tuple(missing), why, newest)

    def _flush_once(self) -> tuple[list[str], str, str]:
        draining, on_storage = self.draining, self._launch.on_storage
        if not draining.is_swept:
            with contextlib.suppress(OSError):
                draining.sweep()
        missing, first, newest = [], "", ""
        found = self.looking.look()
        complete = list(self.looking.complete(found))
        if not os.path.isdir(self._launch.stage):
            storage = self._launch.storage
            return [storage], "somebody has deleted the staging directory", ""
        failed: list[tuple[str, str]] = []
        for batch in (complete[:1], complete[1:]):  # older ones are worth less than other files
            for each, contents in batch:
                if not draining.is_on_storage(contents) and (
                    why := draining.drain(each, contents, found)
                ):
                    path = on_storage(contents.key)
                    missing.append(path)
                    first = first or why
                    newest = path if contents is complete[0][1] else newest
            failed = self.others.flush(found, draining.between(None), draining.absent(found))
        draining.rotate()
        missing += (on_storage(name) for name, _ in failed)
        return missing, first or next((why for _, why in failed), ""), newest


def main(fd: str, _blocked: str, settings: str) -> None:
    channel = AgentChannel(fd)
    os.nice(NICE)  # it works while the workers compute
    with contextlib.suppress(FileNotFoundError):  # the agent has gone, and another has swept
        Stager(channel, Launch(**json.loads(settings))).run()
