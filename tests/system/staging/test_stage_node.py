"""The files of one node, in this process: what it lists, and what others get from it."""

import errno
import os
import stat
from types import SimpleNamespace

import pytest
from saving_scripts import picture

from hpclaunch.core.staging.copies import Transfer
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import LastRestore, manifest
from hpclaunch.system.staging import copying
from hpclaunch.system.staging import node as stage_node
from hpclaunch.system.staging.copying import GivenUpError
from hpclaunch.system.staging.fetching import END, PIECE, fetch_ends
from hpclaunch.system.staging.node import StageNode
from hpclaunch.system.staging.publishing import DRAFT

LARGE = 3 * PIECE + 7


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a node. Nothing unfinished is left of any in the end."""

    def made(name):
        stage = tmp_path / name / "ckpt"
        stage.mkdir(parents=True)
        return StageNode(str(stage), str(tmp_path / "storage"))

    (tmp_path / "storage").mkdir()
    yield made
    left = [path for path in tmp_path.rglob("*") if path.name.startswith(DRAFT)]
    assert not left


@pytest.fixture
def node(make):
    """A node that has saved a checkpoint with every kind of entry."""
    node = make("saved")
    write(node, "step-1/model.pt", os.urandom(LARGE))
    write(node, "step-1/empty")
    write(node, "step-1/odd \udcff\n名", b"x")
    os.mkdir(f"{node.stage}/step-1/nothing")
    os.symlink("step-1", f"{node.stage}/latest")
    os.symlink(f"{node.stage}/step-1/model.pt", f"{node.stage}/absolute")
    os.symlink("/nowhere", f"{node.stage}/outside")
    os.mkfifo(f"{node.stage}/fifo")
    os.chmod(f"{node.stage}/step-1/empty", 0o640)
    os.chmod(f"{node.stage}/step-1/nothing", 0o750)
    for path in (f"{node.stage}/step-1/empty", f"{node.stage}/step-1/nothing"):
        os.utime(path, (1, 1))
    return node


@pytest.fixture
def other(make):
    return make("other")


def write(node, name, data=b""):
    path = os.path.join(node.stage, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return path


def wanted(node, source=0, kept=""):
    return [Transfer(0, file, source, kept) for file in node.inventory().entries]


def files(node):
    return [entry for entry in node.inventory().entries if entry.is_file]


def entry_of(node, name):
    return next(entry for entry in node.inventory().entries if entry.name == name)


def known(root):
    """Return kind, mode, size and time of all below a directory, without times of links."""
    return {
        str(path.relative_to(root)): (
            stat.S_IFMT((found := path.lstat()).st_mode),
            stat.S_IMODE(found.st_mode),
            not path.is_dir() and not path.is_symlink() and found.st_size,
            found.st_mtime_ns,
        )
        for path in root.rglob("*")
        if not path.is_fifo()
    }


class Reading:
    """A source that does something before one of its reads."""

    def __init__(self, node, at, action):
        self._node, self._at, self._action = node, at, action
        self._number = 0

    def read(self, *which):
        self._number += 1
        if self._number == self._at:
            self._action()
        return self._node.read(*which)


def generation_of(node):
    found = files(node)
    return manifest("step-1", found, found[0].name, frozenset(e.name for e in found))


def test_an_inventory(node):
    found = {entry.name: entry for entry in node.inventory().entries}
    assert "fifo" not in found
    assert found["step-1/model.pt"].identity == (
        LARGE,
        os.stat(f"{node.stage}/step-1/model.pt").st_mtime_ns,
    )
    assert found["absolute"].target == "step-1/model.pt"  # the path is another on other nodes
    assert found["outside"].target == "/nowhere"
    assert list(found).index("step-1") < list(found).index("step-1/empty")
    assert node.inventory().free.free > 0


def test_a_copy_is_like_the_original(node, other, tmp_path):
    other.fetch(wanted(node), "", {0: node})
    saved, fetched = tmp_path / "saved" / "ckpt", tmp_path / "other" / "ckpt"
    assert known(fetched) == known(saved)
    assert picture(fetched) == picture(saved)


def test_files_of_several_nodes_in_one_directory(make):
    one, two, other = make("one"), make("two"), make("other")
    write(one, "step-1/rank0.pt", os.urandom(LARGE))
    write(two, "step-1/rank1.pt", os.urandom(PIECE))
    write(other, "step-1/rank2.pt", b"mine")
    other.fetch([*wanted(one, 1), *wanted(two, 2)], "", {1: one, 2: two})
    assert sorted(os.listdir(f"{other.stage}/step-1")) == ["rank0.pt", "rank1.pt", "rank2.pt"]
    assert other.inventory().fetched == {"step-1/rank0.pt", "step-1/rank1.pt"}


def test_a_fetched_file_that_the_script_writes_is_its_own(node, other):
    other.fetch(wanted(node), "", {0: node})
    assert other.inventory().fetched == {entry.name for entry in files(node)}
    write(other, "step-1/empty", b"new")
    assert "step-1/empty" not in other.inventory().fetched
    other.fetch([], "", {})
    write(other, "step-1/empty")
    os.utime(f"{other.stage}/step-1/empty", (1, 1))
    assert "step-1/empty" not in other.inventory().fetched  # marks of other files are forgotten


def test_what_a_directory_has_instead_is_replaced(node, other, tmp_path):
    write(other, "step-1", b"a file")
    write(other, "latest/file", b"a directory")
    other.fetch(wanted(node), "", {0: node})
    assert picture(tmp_path / "other" / "ckpt") == picture(tmp_path / "saved" / "ckpt")


def test_skeletons(node, other, tmp_path):
    """A skeleton has the size and the ends of a large file, and another inode after a change."""
    root = tmp_path / "other" / "view"
    root.mkdir()
    fetch_ends(wanted(node), {0: node}, str(root), other.stage)
    assert known(root) == known(tmp_path / "saved" / "ckpt")
    model, whole = root / "step-1" / "model.pt", tmp_path / "saved" / "ckpt" / "step-1" / "model.pt"
    data, inode = whole.read_bytes(), model.stat().st_ino
    assert model.read_bytes() == data[:END] + bytes(LARGE - 2 * END) + data[-END:]
    write(node, "step-1/model.pt", data[: 2 * END])
    fetch_ends(wanted(node), {0: node}, str(root), other.stage)
    assert model.read_bytes() == data[: 2 * END]
    assert model.stat().st_ino != inode


@pytest.mark.parametrize("when", [1, 3])
@pytest.mark.parametrize("change", ["written", "shorter", "replaced", "deleted"])
def test_a_file_that_changes_while_it_is_fetched(when, change, make):
    node, other = make("node"), make("kept")
    path = write(node, "model.pt", os.urandom(LARGE))
    os.utime(path, (1, 1))

    def act():
        if change == "written":
            with open(path, "r+b") as file:
                file.write(b"new")
        elif change == "shorter":
            os.truncate(path, PIECE)
        elif change == "replaced":
            os.replace(write(node, "new", bytes(LARGE)), path)
        else:
            os.unlink(path)

    kind = FileNotFoundError if change == "deleted" else copying.GivenUpError
    with pytest.raises(kind):
        other.fetch(wanted(node), "", {0: Reading(node, when, act)})
    assert other.inventory().entries == ()


def test_progress_and_its_end(node, other):
    progress = []
    other.fetch(wanted(node), "", {0: node}, lambda done, _: progress.append(done))
    assert progress == sorted(progress)
    assert progress[-1] == LARGE + 1

    def give_up(*_):
        raise copying.GivenUpError("enough")

    with pytest.raises(copying.GivenUpError):
        other.fetch(wanted(node), "", {0: node}, give_up)


def test_a_full_directory(node, other, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="No space"):
            other.fetch(wanted(node), "", {0: node})
    assert other.inventory().entries == ()


def test_a_source_that_sends_other_sizes(node, other):
    for data in (b"", bytes(2 * PIECE)):
        source = SimpleNamespace(read=lambda *_, data=data: data)
        with pytest.raises(OSError, match="wrong number"):
            other.fetch(wanted(node), "", {0: source})


def test_a_source_that_is_not_there(node, other):
    with pytest.raises(OSError, match="has left"):
        other.fetch(wanted(node, source=5), "", {0: node})


def test_a_generation_that_is_kept(node, other):
    generation = generation_of(node)
    name = generation.generation
    other.keep(generation)
    (kept,) = other.inventory().kept
    assert (kept.manifest, kept.names) == (generation, frozenset())
    other.fetch([Transfer(0, entry, 0) for entry in files(node)], name, {0: node})
    (kept,) = other.inventory().kept
    assert kept.names == generation.essential
    assert other.inventory().entries == ()
    # Back to the node, after the script has written the file there.
    saved = entry_of(node, "step-1/model.pt")
    data = other.read(saved.name, name, saved.identity, 0, PIECE)
    write(node, "step-1/model.pt", b"torn")
    node.fetch([Transfer(0, saved, 1, name)], "", {1: other})
    assert node.read(saved.name, "", saved.identity, 0, PIECE) == data
    other.drop(name)
    other.drop(name)
    assert other.inventory().kept == ()


def test_a_kept_file_that_is_damaged_is_none(node, other):
    generation = generation_of(node)
    other.keep(generation)
    other.fetch([Transfer(0, e, 0) for e in files(node)], generation.generation, {0: node})
    root = os.path.join(os.path.dirname(other.stage), "kept", generation.generation, "files")
    os.unlink(f"{root}/step-1/empty")
    os.truncate(f"{root}/step-1/model.pt", 5)
    (kept,) = other.inventory().kept
    assert kept.names == generation.essential - {"step-1/empty", "step-1/model.pt"}


def test_a_node_fetches_from_itself(node):
    """Keep a copy of its own file, since scripts write in place."""
    generation = generation_of(node)
    name = generation.generation
    node.keep(generation)
    saved = files(node)
    node.fetch([Transfer(0, entry, 0) for entry in saved], name, {0: node})
    with open(f"{node.stage}/step-1/model.pt", "r+b") as file:
        file.write(b"torn")
    (kept,) = node.inventory().kept
    assert kept.names == generation.essential


def test_what_is_old_after_a_restore(node):
    write(node, "new.pt", b"1")
    node.record_restore(restore := LastRestore(3, frozenset({0, 1}), "some"))
    write(node, "new.pt", b"12")
    found = node.inventory()
    assert found.restore == restore
    assert "step-1/model.pt" in found.old
    assert "latest" in found.old
    assert not found.old & {"new.pt", "step-1"}


def test_deletion(node, tmp_path):
    entries = node.inventory().entries
    write(node, "step-1/empty", b"new")
    node.delete([e for e in entries if e.name != "outside"])
    assert picture(tmp_path / "saved" / "ckpt").keys() == {"step-1/empty", "outside"}
    assert "step-1/nothing" not in {entry.name for entry in node.inventory().entries}
    node.delete(entries)  # they are gone


def drafted(tmp_path):
    made = tmp_path / "storage" / "draft"
    made.mkdir()
    return str(made)


def test_a_copy_to_storage(node, tmp_path):
    entries = node.inventory().entries
    draft = drafted(tmp_path)
    essential = {entry.name for entry in files(node)}
    node.copy([e for e in entries if not e.is_folder], essential, draft, copying.at_once)
    node.copy([e for e in entries if e.is_folder], (), draft, copying.at_once)
    assert picture(tmp_path / "storage" / "draft") == picture(tmp_path / "saved" / "ckpt")
    copied, saved = known(tmp_path / "storage" / "draft"), known(tmp_path / "saved" / "ckpt")
    assert {n: k for n, k in copied.items() if k[0] != stat.S_IFLNK} == {
        n: k for n, k in saved.items() if k[0] != stat.S_IFLNK
    }


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("change", ["deleted", "written", "replaced"])
def test_a_file_that_changes_while_it_is_copied_to_storage(change, in_memory, make, tmp_path):
    """Deleted and replaced files are held. One that is written in place is copied before."""
    node, draft = make("node"), drafted(tmp_path)
    path = write(node, "model.pt", data := os.urandom(LARGE))
    os.utime(path, (1, 1))

    def act(*_):
        if change == "written":
            with open(path, "r+b") as file:
                file.write(b"new")
        elif change == "replaced":
            os.replace(write(node, "new", b"new"), path)
        elif os.path.exists(path):
            os.unlink(path)
        return 1

    entries = node.inventory().entries
    if change == "written" and not in_memory:
        with pytest.raises(copying.GivenUpError):
            node.copy(entries, {"model.pt"}, draft, act)
    else:
        node.copy(entries, {"model.pt"}, draft, act, in_memory=in_memory)
        assert (tmp_path / "storage" / "draft" / "model.pt").read_bytes() == data


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_file_that_has_changed_before_it_is_copied_to_storage(in_memory, node, tmp_path):
    entries = node.inventory().entries
    write(node, "step-1/model.pt", b"new")
    with pytest.raises(copying.GivenUpError):
        node.copy(
            entries, {"step-1/model.pt"}, drafted(tmp_path), copying.at_once, in_memory=in_memory
        )
    os.unlink(f"{node.stage}/step-1/model.pt")
    with pytest.raises(FileNotFoundError):
        node.copy(entries, {"step-1/model.pt"}, str(tmp_path / "storage"), copying.at_once)


def test_files_that_may_change_while_they_are_copied(make, tmp_path):
    node = make("node")
    path = write(node, "log.txt", b"one\n")

    def act(*_):
        with open(path, "ab") as file:
            file.write(b"two\n")
        return 1

    node.copy(node.inventory().entries, (), drafted(tmp_path), act)
    assert (tmp_path / "storage" / "draft" / "log.txt").read_bytes().startswith(b"one\n")


def test_a_draft_that_was_given_up_is_not_made_again(node, tmp_path):
    with pytest.raises(FileNotFoundError):
        node.copy(node.inventory().entries, (), str(tmp_path / "storage" / "gone"), copying.at_once)
    assert os.listdir(tmp_path / "storage") == []


BAD = ["/etc/passwd", "../secret", "a/../../secret", "..", ".", "", "a//b", "./a", "a\0", "a/"]


@pytest.mark.parametrize("name", [*BAD, "link/secret", "link/deep/secret"])
def test_names_that_leave_the_directory(name, make, tmp_path):
    """Neither what is outside is read, written or deleted, nor anything made there."""
    node, other = make("node"), make("other")
    for made in (node, other):
        os.symlink(tmp_path / "outside", f"{made.stage}/link")
    secret = tmp_path / "outside" / "secret"
    (secret.parent / "deep").mkdir(parents=True)
    secret.write_text("secret")
    deep = secret.parent / "deep" / "secret"
    for path in (secret, deep, tmp_path / "secret", tmp_path / "node" / "secret"):
        path.write_text("secret")
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*secret*")}
    found = secret.stat()
    size, time = found.st_size, found.st_mtime_ns
    entry = StagedFile(name, size, time, found.st_mode, inode=found.st_ino)
    identity = entry.identity
    link, folder = (entry._replace(mode=kind, target="x") for kind in (stat.S_IFLNK, stat.S_IFDIR))
    for attempt in (
        lambda: node.read(name, "", identity, 0, found.st_size),
        *(lambda each=each: node.delete([each]) for each in (entry, link, folder)),
        lambda: node.copy([entry], {name}, str(tmp_path / "storage"), copying.at_once),
        lambda: other.fetch([Transfer(0, entry, 0)], "", {0: node}),
        lambda: other.fetch([Transfer(0, folder, 0)], "", {0: node}),
        lambda: other.fetch([Transfer(0, link, 0)], "", {0: node}),
        lambda: fetch_ends([Transfer(0, entry, 0)], {0: node}, other.stage, other.stage),
    ):
        with pytest.raises(PermissionError):
            attempt()
    other.keep(manifest("some", [entry], name, frozenset({name})))
    assert other.inventory().kept[0].names == frozenset()
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*secret*")} == before


@pytest.mark.parametrize("name", [*BAD[:-1], "a/b"])
def test_generations_that_leave_the_directory(name, node, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    generation = generation_of(node)
    attempts = [
        lambda: node.keep(type(generation)(name, "", (), "", frozenset())),
        lambda: node.drop(name),
        lambda: node.fetch([], name, {}),
        lambda: node.read("x", name, (0, 0), 0, 0),
    ]
    for attempt in attempts if name else attempts[:2]:
        with pytest.raises(PermissionError):
            attempt()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_that_is_fetched_leads_nothing_out(make, tmp_path):
    """A source that names a link, and then a file behind it."""
    node, other = make("node"), make("other")
    path = write(node, "link/file", b"x")
    entry = entry_of(node, "link/file")
    link = entry._replace(name="link", mode=stat.S_IFLNK, target=str(tmp_path / "outside"))
    (tmp_path / "outside").mkdir()
    with pytest.raises(PermissionError):
        other.fetch([Transfer(0, link, 0), Transfer(0, entry, 0)], "", {0: node})
    assert os.listdir(tmp_path / "outside") == []
    assert os.path.exists(path)


def test_only_files_are_read(node):
    os.symlink("step-1/model.pt", f"{node.stage}/link")
    found = os.stat(f"{node.stage}/step-1/model.pt")
    for name, code in (("link", errno.ELOOP), ("fifo", 0), ("step-1", 0)):
        with pytest.raises((OSError, copying.GivenUpError)) as failure:
            node.read(name, "", (found.st_size, found.st_mtime_ns), 0, 1)
        assert code in (0, getattr(failure.value, "errno", None))


def test_no_more_is_read_than_a_piece(node):
    entry = entry_of(node, "step-1/model.pt")
    for offset, length in ((0, PIECE + 1), (LARGE, 1), (LARGE - 1, 2), (0, 1 << 60)):
        with pytest.raises(copying.GivenUpError):
            node.read(entry.name, "", entry.identity, offset, length)
    with pytest.raises(OSError, match="Invalid"):
        node.read(entry.name, "", entry.identity, -1, 1)


def test_no_more_than_two_generations_are_kept(node):
    saves = [
        manifest(
            f"step-{t}", [StagedFile(f"step-{t}", 1, t)], f"step-{t}", frozenset([f"step-{t}"])
        )
        for t in (1, 2, 3)
    ]
    node.keep(saves[0])
    node.keep(saves[1])
    node.keep(saves[1])
    with pytest.raises(OSError, match="other generations"):
        node.keep(saves[2])
    node.drop(saves[0].generation)
    node.keep(saves[2])


def test_a_generation_of_which_only_the_directory_was_made_does_not_count(node, monkeypatch):
    """A stager was killed just then, or the memory was full."""

    def full(_path, _data):
        raise OSError(errno.ENOSPC, "full")

    saves = [manifest(n, [StagedFile(n, 1, t)], n, frozenset([n])) for t, n in enumerate("abcd")]
    with monkeypatch.context() as patched:
        patched.setattr(stage_node, "_write", full)
        for each in saves[:2]:
            with pytest.raises(OSError, match="full"):
                node.keep(each)
    for each in saves[2:]:
        node.keep(each)
    assert len(node.inventory().kept) == 2


def test_what_is_lent_can_be_read_after_its_deletion(node):
    """A file that is written in place is not the one that was lent."""
    saved = entry_of(node, "step-1/model.pt")
    node.lend([saved, entry_of(node, "step-1/empty")])
    data = node.read(saved.name, "", saved.identity, 0, PIECE)
    path = f"{node.stage}/step-1/model.pt"
    os.unlink(path)
    assert node.read(saved.name, "", saved.identity, 0, PIECE) == data
    node.lend([])
    with pytest.raises(FileNotFoundError):
        node.read(saved.name, "", saved.identity, 0, PIECE)
    write(node, "step-1/model.pt", data)
    again = entry_of(node, "step-1/model.pt")
    node.lend([again, again._replace(name="gone")])
    os.truncate(path, 5)
    with pytest.raises(GivenUpError):
        node.read(again.name, "", again.identity, 0, 5)
