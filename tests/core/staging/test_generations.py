"""Names of generations."""

from __future__ import annotations

from holdings import a_save

from hpclaunch.core.staging.generations import manifest


def test_names_of_generations_sort_by_time() -> None:
    assert a_save(999, 0).generation < a_save(1000, 0).generation


def test_a_file_that_is_written_makes_another_generation() -> None:
    save = a_save(100, 0, 1)
    shard, other, meta = save.files

    def again(*files) -> str:
        return manifest(save.key, files, save.decisive, save.essential).generation

    assert again(shard, other, meta) == save.generation
    assert again(meta, shard._replace(owner=2, mode=0o600), other) == save.generation
    assert again(shard._replace(time=99), other, meta) != save.generation
    assert again(shard._replace(size=9), other, meta) != save.generation


def test_other_files_do_not_make_another_generation() -> None:
    save = a_save(100, 0)
    shard, meta = save.files
    log = shard._replace(name="last/log", time=150)
    more = manifest(save.key, [shard, meta, log], save.decisive, save.essential)
    assert more.generation == save.generation
    assert more.needed == [shard, meta]
