"""Good data files, recipes and checkpoints, and ways to damage them: the cases of ``tools/fuzz.py``."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rlhf.files import write_text

ROOT = Path(__file__).resolve().parents[1]
Tree = Any
"""What JSON or YAML can hold."""

# -- what is damaged

ROWS: Mapping[str, list[Tree]] = {
    "text": [{"text": f"The cow eats grass {n} times."} for n in range(4)],
    "messages": [
        {"messages": [{"role": "user", "content": f"hi {n}"}, {"role": "assistant", "content": "hello é 天"}]}
        for n in range(4)
    ],
    "completion": [{"prompt": f"cow {n}?", "completion": " grass", "source": "web"} for n in range(4)],
    "preference": [{"prompt": f"cow {n}?", "chosen": " grass", "rejected": " milk", "margin": n / 4} for n in range(4)],
    "comparison": [
        {"prompt": "q", "completion_a": "x", "completion_b": f"y{n}", "preference": "a", "strength": "slightly"}
        for n in range(4)
    ],
    "ranking": [{"prompt": f"q{n}", "completions": ["a", "b", "c"], "ranks": [2, 1, 3]} for n in range(4)],
    "rating": [{"prompt": f"q{n}", "completion": "a", "rating": n + 1, "annotator_id": "ann"} for n in range(4)],
    "unpaired": [{"prompt": f"q{n}", "completion": "a", "label": n % 2 == 0} for n in range(4)],
    "stepwise": [{"prompt": f"q{n}", "completions": ["a", "b"], "labels": [True, False]} for n in range(4)],
    "prompt": [
        {"prompt": [{"role": "user", "content": f"q{n}"}], "id": f"id-{n}", "answer": {"is": [n]}} for n in range(4)
    ],
}
SUFFIXES = (".jsonl", ".json", ".csv", ".jsonl.gz", ".parquet", ".arrow")
SMALL_RECIPES = (
    {"name": "one", "stages": {"world": {"kind": "world"}}},
    {
        "name": "two",
        "seed": 1,
        "stages": {
            "world": {"kind": "world"},
            "sft": {"kind": "sft", "model": {"path": "embedded"}, "data": "stage:world/sft.jsonl", "epochs": 1},
        },
    },
)


def data_file(rng: random.Random) -> tuple[str, bytes]:
    """Name and bytes of a good data file, or of one whose values are damaged and whose bytes are not."""
    suffix = rng.choice(SUFFIXES)
    rows = json.loads(json.dumps(ROWS[rng.choice(sorted(ROWS))]))
    if rng.random() < 0.6:
        for _ in range(rng.randint(1, 3)):
            rows = damage_tree(rng, rows)
    return f"data{suffix}", encode_rows(rows, suffix, rng)


def encode_rows(rows: Tree, suffix: str, rng: random.Random) -> bytes:
    """Rows in a format; what the format can't hold is written as JSON lines, whatever the name says."""
    if suffix == ".json":
        return dump(rows, rng)
    if isinstance(rows, list) and suffix in (".csv", ".parquet", ".arrow"):
        with suppress(Exception):  # the libraries of the formats refuse what was damaged
            return TABLES[suffix]([row if isinstance(row, dict) else {"text": row} for row in rows])
    text = b"\n".join(dump(row, rng) for row in (rows if isinstance(rows, list) else [rows])) + b"\n"
    return gzip.compress(text, 1, mtime=0) if suffix.endswith(".gz") else text


def dump(value: Tree, rng: random.Random) -> bytes:
    """JSON text, NaN and half surrogates included, sometimes with a key twice."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, None, 1]))
    if rng.random() < 0.03:
        text = text.replace("{", '{"prompt": 1, ', 1)
    return text.replace("<deep>", "[" * 20_000).encode(errors="surrogatepass")


def csv_bytes(rows: list[dict[str, Any]]) -> bytes:
    from rlhf.data.write import write_rows

    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder) / "t.csv", rows)
        return (Path(folder) / "t.csv").read_bytes()


def parquet_bytes(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=2)
    return sink.getvalue()


def arrow_bytes(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    sink = io.BytesIO()
    with (pa.ipc.new_stream if len(rows) % 2 else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return sink.getvalue()


TABLES: Mapping[str, Callable[[list[dict[str, Any]]], bytes]] = {
    ".csv": csv_bytes,
    ".parquet": parquet_bytes,
    ".arrow": arrow_bytes,
}


def saved_folder(rng: random.Random) -> dict[str, bytes]:
    """A folder as ``datasets`` saves it, one of its files often damaged."""
    rows = ROWS[rng.choice(sorted(ROWS))]
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    files = {f"saved/{name}": arrow_bytes(rows) for name in names}
    files["saved/state.json"] = dump({"_data_files": [{"filename": name} for name in names], "_split": None}, rng)
    if rng.random() < 0.8:
        name = rng.choice(sorted(files))
        files[name] = damage_bytes(rng, files[name])
        if name.endswith(".json") and rng.random() < 0.5:
            files[name] = dump(damage_tree(rng, {"_data_files": [{"filename": names[0]}]}), rng)
    return files


@cache
def recipes() -> Sequence[str]:
    """The recipes people start from, and two small ones."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "recipes").glob("*.yaml"))]
    return [*texts, *(yaml.safe_dump(recipe, sort_keys=False) for recipe in SMALL_RECIPES)]


def recipe_file(rng: random.Random) -> tuple[str, bytes]:
    """Name and bytes of a recipe, whole or with damaged values."""
    text = rng.choice(recipes())
    if rng.random() < 0.7:
        tree = yaml.safe_load(text)
        for _ in range(rng.randint(1, 3)):
            tree = damage_tree(rng, tree)
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).replace("<deep>", "[" * 5000)
    if rng.random() < 0.1:
        text = text.replace("\n  ", "\n\t", rng.randint(1, 5))
    return "recipe.yaml", text.encode(errors="surrogatepass")


@cache
def checkpoints() -> Mapping[str, bytes]:
    """Every file of a run folder with two checkpoints and the record of a finished stage."""
    import torch

    from rlhf.training.checkpoint import CheckpointManager

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = CheckpointManager(folder / "stage", identity={"recipe": "fuzz"})
        for step in (1, 2):
            module = torch.nn.Linear(2, 3)
            with torch.no_grad():
                module.weight.fill_(step)
                module.bias.fill_(-step)
            store.save(step, {"policy": module}, {"step": step, "rng": torch.arange(step + 3), "done": [step]})
        getattr(store, "wait", lambda: None)()
        record = {
            "stage": "sft",
            "kind": "sft",
            "key": "abc",
            "seconds": 1.5,
            "headline": "done",
            "metrics": {"loss": 0.5},
        }
        record |= {"parents": {"data": "d.jsonl@00"}, "files": {"model/config.json": "00"}}
        write_text(folder / "stage" / "artifact.json", json.dumps(record))
        return {
            str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
        }


# -- how it is damaged

ODD_VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2**63, -(10**40), 10**400, 0.5, 1e308, float("nan"), float("inf"), "", " ", "\0", "nan", "1e999",
    "\ud800", "\u2028", "\ufeff", "\u202e", "e\u0301" * 50, "😀", "\r\n", "a" * 3000, "[{", "{{ x }}", "${HOME}", "${NO_SUCH}",
    "stage:world", "stage:nobody", "/no/such/file.jsonl", "~nobody/x", [], {}, [[]], [None], {"": ""}, {"role": "user"}, {"a": {"b": []}},
    "<deep>", ["x"] * 200, {"k" * 3000: 1}, {"role": ["x"], "content": 5}, {"from": {}, "value": []}, "2026-01-01", "0x10", "yes",
)  # fmt: skip
ODD_BYTES: Sequence[bytes] = (
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\n", b"\r", b"\r\n", b"\t", b",", b'"', b"'", b"{", b"}", b"[", b"]", b":", b"\\",
    b"\\ud800", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"[" * 20_000, b'{"a":' * 5000, b"&a", b"*a",
    b"<<: *a", b"!!python/object:os.system x", b"---", b"#", b"\x1f\x8b", b"PAR1", b"\xc3", b" " * 5000, b"null", b"true", b"| ", b"? ",
)  # fmt: skip


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """One way to damage a file that knows nothing of what it holds."""
    at, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
    way = rng.randrange(10)
    if way == 0 and data:  # a flipped bit
        place = rng.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    if way == 1:  # cut at the end
        return data[:at]
    if way == 2:  # cut out
        return data[:at] + data[min(end, at + 50) :]
    if way == 3:  # a piece twice
        return data[:end] + data[at:end] + data[end:]
    if way == 4:  # zeros, as after a crash
        return data[:at] + bytes(min(end - at, 100)) + data[end:]
    if way == 5:  # random bytes
        return data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at:]
    if way == 6:  # other line ends
        return data.replace(b"\n", rng.choice([b"\r", b"\r\n", b"\n\n", b""]))
    if way == 7:  # another encoding
        return data.decode(errors="replace").encode(
            rng.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1"]), "replace"
        )
    if way == 8:
        return data[:at] + rng.choice(ODD_BYTES) + data[at:]
    return data[:at] + rng.choice(ODD_BYTES) + data[end:]


def damage_tree(rng: random.Random, tree: Tree) -> Tree:
    """The tree with one node dropped, renamed, doubled, moved or given another value."""
    holders = [node for node in nodes(tree) if isinstance(node, (dict, list)) and node]
    if not holders:
        return odd_value(rng)
    holder = rng.choice(holders)
    key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    way = rng.randrange(5)
    value = odd_value(rng)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        name = rng.choice(
            [
                f"{key}x",
                str(key)[:-1],
                str(key).upper(),
                "id",
                "prompt",
                "label",
                "messages",
                "tools",
                "",
                "\ud800",
                "\0",
            ]
        )
        holder[name] = holder.pop(key)
    elif way == 2 and isinstance(holder, dict):
        holder[
            rng.choice(
                [
                    "id",
                    "margin",
                    "label_probability",
                    "metadata",
                    "tools",
                    "chat_template_kwargs",
                    "prompt_ids",
                    "x",
                    "kind",
                ]
            )
        ] = value
    elif way == 3:
        holder[key] = rng.choice([[holder[key]], {"content": holder[key]}, str(holder[key]), {"x": holder[key]}])
    else:
        holder[key] = value
    return tree


def odd_value(rng: random.Random) -> Tree:
    """A copy: later damage must not change what other cases are given."""
    return copy.deepcopy(rng.choice(ODD_VALUES))


def nodes(tree: Tree) -> Iterator[Tree]:
    """Every node of a tree."""
    yield tree
    if isinstance(tree, (dict, list)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from nodes(item)


def damaged_checkpoints(rng: random.Random) -> dict[str, bytes]:
    """The files of ``checkpoints``, up to three of them damaged, missing or mixed up."""
    files = dict(checkpoints())
    for name in rng.sample(sorted(files), rng.randint(0, 3)):
        way = rng.randrange(6)
        if way == 0:
            del files[name]
        elif way == 1:
            files[name] = files[rng.choice(sorted(files))]
        elif name.endswith(".json") and way < 4:
            files[name] = dump(damage_tree(rng, json.loads(checkpoints()[name])), rng)
        else:
            files[name] = damage_bytes(rng, files[name])
    return files


def damaged_file(rng: random.Random, made: tuple[str, bytes]) -> dict[str, bytes]:
    """A data file or a recipe, often with its bytes damaged too."""
    name, data = made
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 1, 2, 3])):
        data = damage_bytes(rng, data)
    return {name: data}
