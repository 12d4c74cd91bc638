"""Data files of every kind of wrong: how each is made, and what its owner reads."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys

import pytest

from rlhf.data.inspect import run_check, run_convert, run_dedup, run_stats
from rlhf.data.read import open_rows, read_rows
from rlhf.data.strict_json import MAX_NESTING
from rlhf.data.write import write_rows
from rlhf.errors import CheckpointError, ConfigError, DataError, StorageError

GOOD = {"prompt": "p", "completion": "c"}
GOOD_LINE = json.dumps(GOOD).encode() + b"\n"
DEEP = "[" * 100_000 + "]" * 100_000


def lines(bad: bytes) -> bytes:
    """A JSONL file whose second of three rows is bad."""
    return GOOD_LINE + bad + b"\n" + GOOD_LINE


def read_message(path, **options) -> str:
    """What the owner of a file is told, read as a map and as a stream: the same, on one line, naming the file."""
    messages = []
    for streaming in (False, True):
        with pytest.raises(DataError) as caught:
            list(read_rows(path, streaming=streaming, **options))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    message = messages[0]
    assert str(path) in message, "it names the file"
    assert message.isprintable(), "one line, and nothing that garbles a terminal"
    assert len(message) < 1000, "short, whatever stood in the file"
    return message


# -- accepted: the same rows, whatever the dressing


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("d.jsonl", '{"prompt": "é\u2028天", "completion": "a"}\n{"prompt": "q", "completion": "b"}\n'),
        ("d.json", '[{"prompt": "é\u2028天", "completion": "a"},\n {"prompt": "q", "completion": "b"}]\n'),
        ("d.csv", 'prompt,completion\n"é\u2028天",a\nq,b\n'),
    ],
)
def test_bom_crlf_gzip_and_a_missing_last_line_end_change_nothing(tmp_path, name, plain):
    def rows(data, name=name):
        (tmp_path / name).write_bytes(data)
        return [row.to_dict() for row in read_rows(tmp_path / name)]

    expected = [{"prompt": "é\u2028天", "completion": "a"}, {"prompt": "q", "completion": "b"}]
    text = plain.encode()
    assert rows(text) == expected
    assert rows(b"\xef\xbb\xbf" + text) == expected
    assert rows(text.replace(b"\n", b"\r\n")) == expected
    assert rows(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n").rstrip()) == expected
    assert rows(gzip.compress(b"\xef\xbb\xbf" + text), name + ".gz") == expected


def test_nul_and_other_odd_characters_written_as_escapes_are_text(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": "a\\u0000b\\u2028\\ud83d\\ude00"}\n')
    assert read_rows(tmp_path / "d.jsonl")[0].text == "a\0b\u2028😀"


# -- one row is bad: named, or skipped and counted, and never a good row with it

BAD_LINES = {
    "not JSON": (b"{prompt: 1}", "2: not a JSON value: Expecting property name", "wanted one object on each line"),
    "cut off": (b'{"prompt": "a", "compl', "2: not a JSON value: Unterminated string starting at column 17", ""),
    "no object": (b"[1, 2]", "2: the row is a list ([1, 2])", 'wanted an object such as {"prompt"'),
    "a number": (b"5", "2: the row is a number (5)", "wanted an object"),
    "latin-1": (b'{"prompt": "caf\xe9"}', "2: byte 16 is 0xe9, which is not UTF-8", "iconv -f WINDOWS-1252 -t UTF-8"),
    "a key twice": (
        b'{"prompt": "a", "completion": "b", "prompt": "c"}',
        "2: the key 'prompt' appears in the same object twice",
        "keep one of them",
    ),
    "a key twice inside": (b'{"messages": [{"role": "a", "role": "b"}]}', "2: the key 'role'", "keep one"),
    "NaN": (b'{"prompt": "a", "completion": NaN}', "2: NaN is not a JSON value", "use null"),
    "-Infinity": (b'{"prompt": "a", "x": [-Infinity]}', "2: -Infinity is not a JSON value", "use null"),
    "1e999": (b'{"prompt": "a", "x": 1e999}', "2: the number 1e999 is beyond what a float holds", "use null"),
    "huge number": (b'{"prompt": "a", "x": %s}' % (b"9" * 5000), "2: a number of 5,000 digits", "write it as a string"),
    "deep": (
        b'{"prompt": %s}' % DEEP.encode(),
        f"2: lists and objects are nested more than {MAX_NESTING} deep",
        "row of",
    ),
    "rather deep": (
        b'{"prompt": "p", "x": ' + b"[" * MAX_NESTING + b"]" * MAX_NESTING + b"}",
        f"2: lists and objects are nested more than {MAX_NESTING} deep",
        "",
    ),
    "half a surrogate": (
        rb'{"prompt": "a\ud800", "completion": "c"}',
        r"2: column 'prompt' holds half a surrogate pair (\ud800) at character 2",
        "write the character whole or remove it",
    ),
    "surrogate in another column": (rb'{"prompt": "a", "x": {"y": ["\udfff"]}}', r"2: column 'x[y][0]'", "surrogate"),
    "NUL": (b'{"prompt": "a"}\0\0\0', "2: holds 3 NUL bytes, which no text has", "Write it again"),
    "a long key": (
        b'{"%s": 1}' % (b"k" * 100_000),
        "2: no known kind of row has these columns; columns found: 'kkk",
        "...",
    ),
    "many keys": (
        json.dumps({f"k{n}": n for n in range(10_000)}).encode(),
        "2: no known kind of row has these columns; columns found: 'k0', 'k1'",
        "and 9,988 more",
    ),
    "no columns": (
        b"{}",
        "2: no known kind of row has these columns; columns found: none",
        "wanted completion (prompt, completion); preference (chosen,",
    ),
    "misspelled": (b'{"promt": "a", "completion": "b"}', "2: column 'prompt' is missing", "Did you mean 'promt'?"),
    "misspelled alone": (
        b'{"promt": "a"}',
        "2: no known kind of row has these columns; columns found: 'promt'",
        "Rename with columns={'promt': 'prompt'}",
    ),
    "half a pair": (b'{"prompt": "a", "chosen": "b"}', "2: column 'rejected' is missing; there is only 'chosen'", ""),
    "wrong type": (
        b'{"prompt": 5, "completion": "b"}',
        "2: column 'prompt' is a number (5)",
        "wanted a string or a list",
    ),
    "null": (b'{"prompt": "a", "completion": null, "label": true}', "2: column 'completion' is null", ""),
    "label": (
        b'{"prompt": "a", "completion": "b", "label": "yes!"}',
        "2: column 'label' is a string ('yes!')",
        "true/false",
    ),
    "big rating": (
        b'{"prompt": "a", "completion": "b", "rating": 1%s}' % (b"0" * 250),
        "2: rating 1000000000000000000000000000000000000... is not a number from 1",
        "",
    ),
    "no messages": (b'{"messages": []}', "2: column 'messages' is an empty list", "wanted at least one message"),
    "a message without role": (
        b'{"messages": [{"content": "x"}]}',
        "2: column 'messages[0]' has the role null",
        "'user'",
    ),
    "a role that is a list": (
        b'{"messages": [{"from": ["x"], "value": "x"}]}',
        "2: column 'messages[0]' has the role",
        "",
    ),
    "a message without content": (
        b'{"messages": [{"role": "user"}]}',
        "2: column 'messages[0]' has no content",
        "string",
    ),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named_and_the_good_ones_around_it_are_kept(tmp_path, case):
    bad, actual, wanted = BAD_LINES[case]
    path = tmp_path / "d.jsonl"
    path.write_bytes(lines(bad))
    message = read_message(path)
    assert f"{path}:{actual}" in message
    assert wanted in message
    for streaming in (False, True):
        read = read_rows(path, streaming=streaming, on_bad_row="skip")
        assert [row.to_dict() for row in read] == [GOOD, GOOD]
        assert [row.where for row in read.bad_rows] == [f"{path}:2"]


ARRAY_ITEMS = {
    case: BAD_LINES[case]
    for case in (
        "no object",
        "a number",
        "a key twice",
        "NaN",
        "-Infinity",
        "1e999",
        "huge number",
        "deep",
        "rather deep",
        "misspelled",
    )
}


@pytest.mark.parametrize("case", [*ARRAY_ITEMS, "latin-1"])
def test_a_bad_item_of_an_array_is_named_and_the_good_ones_around_it_are_kept(tmp_path, case):
    path = tmp_path / "d.json"
    bad, actual, _ = BAD_LINES[case]
    path.write_bytes(b"[\n" + GOOD_LINE + b",\n" + bad + b",\n" + GOOD_LINE + b"]")
    message = read_message(path)
    assert f"{path}:row 2: " in message
    if case == "latin-1":
        assert "a byte on line 4 is 0xe9, which is not UTF-8" in message
    else:
        assert actual.removeprefix("2: ") in message
    table = read_rows(path, on_bad_row="skip")
    assert [row.to_dict() for row in table] == [GOOD, GOOD]
    assert len(table.bad_rows) == 1


BAD_CSV = {
    "too few cells": (b"a\n", ":3: there are 1 cells for 2 columns ('prompt', 'completion')"),
    "too many cells": (b"a,b,c\n", ":3: there are 3 cells for 2 columns"),
    "latin-1": (b"caf\xe9,b\n", ":3: in column 'prompt', character 4 is 0xe9, which is not UTF-8"),
    "NUL": (b"a\0,b\n", ":3: column 'prompt' holds a NUL byte"),
    "a quote inside": (b'"a"b",c\n', ":3: not CSV: ',' expected after '\"'"),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_a_bad_row_of_a_table_is_named_and_the_good_ones_around_it_are_kept(tmp_path, case):
    path = tmp_path / "d.csv"
    bad, actual = BAD_CSV[case]
    path.write_bytes(b"prompt,completion\np,c\n" + bad + b"p,c\n")
    assert f"{path}{actual}" in read_message(path)
    table = read_rows(path, on_bad_row="skip")
    assert [row.to_dict() for row in table] == [GOOD, GOOD]
    assert [row.where for row in table.bad_rows] == [f"{path}:3"]


def test_cells_that_hold_json_are_as_strict_as_json(tmp_path):
    path = tmp_path / "d.csv"
    deep = '[{"role": ' * 5000
    write_rows(path, [{"prompt": "p", "completions": '["a", NaN]', "labels": "[true]"}])
    assert "column 'completions' can't be read as JSON: NaN is not a JSON value" in read_message(path)
    write_rows(path, [{"prompt": "p", "completion": "c", "label": "maybe"}])
    assert "column 'label' is a string ('maybe'); wanted true/false" in read_message(path)
    write_rows(path, [{"messages": deep}])
    assert "column 'messages' can't be read as JSON: lists and objects are nested" in read_message(path)


def test_values_of_a_parquet_file_that_json_can_not_hold_are_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "d.parquet"
    rows = [{**GOOD, "x": [1.0]}, {**GOOD, "x": [0.5, float("nan")]}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert f"{path}:row 2: column 'x[1]' is nan; wanted a finite number" in read_message(path)
    assert len(read_rows(path, on_bad_row="skip")) == 1
    bad_text = pa.Array.from_buffers(
        pa.utf8(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    pq.write_table(pa.table({"text": bad_text}), path)
    assert f"{path}:row 2: a value can't be read: 'utf-8' codec can't decode byte 0xff" in read_message(path)
    assert [row.text for row in read_rows(path, on_bad_row="skip")] == ["a"]
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), path)
    assert "has two columns called 'text'; rename or remove one" in read_message(path)


# -- the file itself is wrong: an error under every policy, for nobody knows which rows are behind the damage


def parquet_bytes() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([GOOD] * 100), sink)
    return sink.getvalue().to_pybytes()


def arrow_bytes() -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist([GOOD] * 100)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


BAD_FILES = {
    "zero bytes": ("d.jsonl", lambda: b"", " is empty; wanted at least one row"),
    "zero bytes, parquet": ("d.parquet", lambda: b"", " is empty; wanted at least one row"),
    "white space": ("d.jsonl", lambda: b" \n\r\n\t\n", " holds no rows; wanted at least one"),
    "white space, json": ("d.json", lambda: b" \n\r\n", " holds no rows; wanted at least one"),
    "white space, csv": ("d.csv", lambda: b"\n \n", " holds no rows; wanted at least one"),
    "empty gzip": ("d.jsonl.gz", lambda: gzip.compress(b""), " holds no rows; wanted at least one"),
    "empty array": ("d.json", lambda: b"[ ]", " holds no rows; wanted at least one"),
    "header only": ("d.csv", lambda: b"prompt,completion\n", " holds no rows; wanted at least one"),
    "utf-16": (
        "d.jsonl",
        lambda: GOOD_LINE.decode().encode("utf-16"),
        "is UTF-16, and data files are UTF-8. Convert it with: iconv",
    ),
    "utf-16, no mark": (
        "d.csv",
        lambda: b"prompt\n".decode().encode("utf-16-le"),
        "is UTF-16LE, and data files are UTF-8",
    ),
    "utf-32": ("d.json", lambda: GOOD_LINE.decode().encode("utf-32"), "is UTF-32, and data files are UTF-8"),
    "gzip under another name": (
        "d.jsonl",
        lambda: gzip.compress(GOOD_LINE),
        "is not text but a gzip archive; rename it",
    ),
    "zstd under another name": (
        "d.json",
        lambda: b"\x28\xb5\x2f\xfdxx",
        "a Zstandard archive; unpack it first: zstd -d d.json",
    ),
    "excel": ("d.csv", lambda: b"PK\x03\x04xx", "a zip archive or an Excel sheet; unpack it, or save the sheet as CSV"),
    "parquet under another name": ("d.jsonl", parquet_bytes, "is not text but a Parquet file; rename it"),
    "not gzip": ("d.jsonl.gz", lambda: GOOD_LINE, "is damaged or was cut short: Not a gzipped file"),
    "cut gzip": (
        "d.jsonl.gz",
        lambda: gzip.compress(GOOD_LINE * 99)[:-9],
        "is damaged or was cut short: Compressed file ended",
    ),
    "cut parquet": ("d.parquet", lambda: parquet_bytes()[:-20], "is not a Parquet file, or is damaged"),
    "cut arrow": ("d.arrow", lambda: arrow_bytes()[:-20], "is not an Arrow file, or is damaged"),
    "cut array": (
        "d.json",
        lambda: b"[" + GOOD_LINE + b', {"prompt": "a',
        "row 2: not a JSON value: Unterminated string",
    ),
    "no commas": (
        "d.json",
        lambda: b"[" + GOOD_LINE * 2 + b"]",
        "row 2: not a JSON value: wanted ',' or ']' behind an item",
    ),
    "an endless nest": ("d.json", lambda: b"[" * 100_000, "nested more than"),
    "one object": (
        "d.json",
        lambda: json.dumps({"version": 1, "rows": [GOOD]}, indent=1).encode(),
        "is one JSON object with the keys 'version', 'rows'; wanted an array of rows, or one row on each line: "
        "write what is under 'rows' to a file of its own",
    ),
    "one row, indented": ("d.json", lambda: json.dumps(GOOD, indent=1).encode(), "on each line: put it in [ ]"),
    "no json at all": (
        "d.json",
        lambda: b"hello",
        "begins with b'h'; wanted a JSON array of rows, or one row on each line",
    ),
    "open quote": (
        "d.csv",
        lambda: b'prompt,completion\np,c\n"a,b\nc,d\n',
        ":3: not CSV: unexpected end of data; is a quote left",
    ),
    "semicolons": (
        "d.csv",
        lambda: b"prompt;completion\na;b\n",
        ":1: the header is one column, 'prompt;completion': its names are parted by semicolons. Wanted commas; convert it with: python -c",
    ),
    "tabs": ("d.csv", lambda: b"prompt\tcompletion\na\tb\n", "its names are parted by tabs. Wanted commas"),
    "no header": (
        "d.csv",
        lambda: b"what is it?,a cow\nand that?,a fox\n",
        "'what is it?', 'a cow'; wanted completion",
    ),
    "header twice": ("d.csv", lambda: b"prompt,prompt\na,b\n", ":1: the column 'prompt' appears in the header twice"),
    "latin-1 header": (
        "d.csv",
        lambda: b"prompt,caf\xe9\na,b\n",
        ":1: a byte in the header is 0xe9, which is not UTF-8",
    ),
    "old Mac lines": (
        "d.jsonl",
        lambda: (GOOD_LINE * 2).replace(b"\n", b"\r"),
        "bare carriage returns; make them line feeds: tr",
    ),
    "all rows bad": ("d.jsonl", lambda: b"{}\n" * 3, ":1: no known kind of row has these columns"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_damaged_file_says_what_it_is_and_what_to_do(tmp_path, case):
    name, made, expected = BAD_FILES[case]
    path = tmp_path / name
    path.write_bytes(made())
    before = path.read_bytes()
    assert expected in read_message(path)
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_rows(path, on_bad_row="skip")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside the file"


def test_a_forgotten_header_is_suspected(tmp_path):
    (tmp_path / "d.csv").write_text("what is it?,a cow\nand that?,a fox\n")
    assert read_message(tmp_path / "d.csv").endswith("Is the header line missing?")


def test_formats_that_are_not_read_are_told_what_to_do(tmp_path):
    for name, advice in (("d.jsonl.zst", "zstd -d"), ("d.tsv", "commas instead of tabs"), ("d.txt", '{"text": "..."}')):
        (tmp_path / name).write_bytes(b"x")
        message = read_message(tmp_path / name)
        assert "is not of a known format; wanted a name that ends in .jsonl" in message
        assert advice in message


# -- what stands at the path is no file, or not for us


def test_a_pipe_and_a_device_are_refused_instead_of_waited_for(tmp_path):
    pipe = tmp_path / "d.jsonl"
    os.mkfifo(pipe)
    assert (
        "d.jsonl is a pipe; wanted a regular file, which can be read twice. Write the rows to a file"
        in read_message(pipe)
    )
    with pytest.raises(DataError, match="/dev/null"):
        read_rows("/dev/null")
    device = tmp_path / "null.jsonl"
    device.symlink_to("/dev/null")
    assert "null.jsonl is a device; wanted a regular file" in read_message(device)


def test_links_in_a_circle_and_links_to_nothing_are_told_apart(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "b.jsonl")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    assert "its symbolic links go round in a circle; name the file itself" in read_message(tmp_path / "a.jsonl")
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "gone.jsonl")
    assert f"is a link to {tmp_path}/gone.jsonl, which does not exist" in read_message(tmp_path / "c.jsonl")


def test_a_folder_without_data_says_what_it_holds(tmp_path):
    assert "holds no data files (.jsonl, .ndjson, .json, .csv, .parquet, .arrow); found nothing" in read_message(
        tmp_path
    )
    (tmp_path / "README.md").write_text("x")
    assert "found 'README.md'" in read_message(tmp_path)


def test_a_damaged_folder_of_datasets_is_named(tmp_path):
    import datasets

    folder = tmp_path / "saved"
    datasets.Dataset.from_list([GOOD] * 3).save_to_disk(folder, num_shards=2)
    assert [row.id for row in read_rows(folder)] == ["saved:row 1", "saved:row 2", "saved:row 3"]
    shard = max(folder.glob("*.arrow"))
    good = shard.read_bytes()
    shard.write_bytes(b"nonsense")
    assert f"{shard} is not an Arrow file, or is damaged" in read_message(folder)
    shard.write_bytes(good[:-300])
    assert f"{shard} is not an Arrow file, or is damaged" in read_message(folder)
    shard.unlink()
    assert f"is damaged: it lists '{shard.name}', which is not there. Save the data again" in read_message(folder)
    for state, reason in (("{", "Expecting property name"), ("[]", "it has no list '_data_files'")):
        (folder / "state.json").write_text(state)
        message = read_message(folder)
        assert f"state.json says which files a folder of `datasets` holds, and is damaged: {reason}" in message
        assert "Save the data again with save_to_disk" in message
    for item in ('{"filename": "../../d.arrow"}', '{"filename": 5}', "null"):
        (folder / "state.json").write_text(f'{{"_data_files": [{item}]}}')
        assert "as a file of the folder. Save the data again" in read_message(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to take root's rights away from itself")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(GOOD_LINE)
    folders = [folder for folder in path.parents if not folder.stat().st_mode & 0o001]
    path.chmod(0)
    os.seteuid(65534)
    try:
        message = read_message(path)
    finally:
        os.seteuid(0)
    assert "Permission denied" in message
    assert "check who may read" in message if folders else "Check its permissions" in message


def test_names_that_no_terminal_can_print_are_escaped(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    path.write_bytes(b"{}\n")
    with pytest.raises(DataError) as caught:
        read_rows(path)
    assert r"caf\udce9.jsonl:1: no known kind" in str(caught.value)
    with pytest.raises(DataError, match=r"a.*b\.jsonl"):
        read_rows("a\0b.jsonl")
    with pytest.raises(DataError, match="name is longer"):
        read_rows(str(tmp_path / ("x" * 5000)) + ".jsonl")
    with pytest.raises(DataError, match=r"name.*empty"):
        read_rows("")


# -- a file that changes


def write_many(path, count=5):
    write_rows(path, [{"prompt": f"p{n}", "completion": "c"} for n in range(count)])


def replace_by_a_copy(path):
    other = path.with_name(f"other-{path.name}")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


def append(path):
    with path.open("ab") as file:
        file.write(GOOD_LINE)


CHANGES = {
    "grows": (append, "it grew from"),
    "shrinks": (lambda path: os.truncate(path, 10), "it shrank from"),
    "is replaced": (replace_by_a_copy, "another file took its place"),
    "is written to": (lambda path: os.utime(path, ns=(0, 0)), "it was written to"),
}


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet", "d.jsonl.gz"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, name, change):
    alter, expected = CHANGES[change]
    path = tmp_path / name
    write_many(path)
    rows = iter(open_rows(path))
    next(rows)
    alter(path)
    with pytest.raises(DataError) as caught:
        list(rows)
    message = str(caught.value)
    assert message.startswith(f"{path} changed while it was in use: {expected}")
    assert "start again when nobody writes to it, or read a copy" in message


def test_a_file_that_changes_between_opening_and_reading_is_named(tmp_path):
    path = tmp_path / "d.jsonl"
    write_many(path)
    stream = open_rows(path, limit=2)
    assert len(list(stream)) == 2
    with path.open("ab") as file:
        file.write(GOOD_LINE)
    with pytest.raises(DataError, match=r"d\.jsonl changed"):
        list(stream)
    path.unlink()
    with pytest.raises(DataError, match=r"d\.jsonl any more"):
        list(stream)


def test_a_limit_does_not_hide_a_change(tmp_path):
    path = tmp_path / "d.jsonl"
    write_many(path)
    rows = iter(open_rows(path, limit=2))
    next(rows)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DataError, match="it shrank"):
        list(rows)


@pytest.fixture(scope="module")
def tokenizer():
    from tests.fixtures.tiny import build_tokenizer

    return build_tokenizer()


def test_a_saved_cursor_is_refused_where_the_file_has_other_content(tmp_path, tokenizer):
    from rlhf.data.streaming import StreamingSFTDataset

    path = tmp_path / "d.jsonl"
    write_many(path)
    stream = StreamingSFTDataset(path, tokenizer)
    next(iter(stream))
    state = json.loads(json.dumps(stream.state_dict()))
    path.write_bytes(path.read_bytes())  # another time, the same bytes: a copied file is the same data
    StreamingSFTDataset(path, tokenizer).load_state_dict(state)
    path.write_bytes(path.read_bytes().replace(b"p3", b"p9"))  # the same size
    with pytest.raises(CheckpointError) as caught:
        StreamingSFTDataset(path, tokenizer).load_state_dict(state)
    assert str(caught.value).startswith(f"{path} is not the data that the checkpoint was written with")
    assert "put the old data back, or start over without the checkpoint" in str(caught.value)
    other = tmp_path / "e.jsonl"
    write_many(other)
    with pytest.raises(CheckpointError, match=r"1 files \('d.jsonl:\w+'\).* 2 \('d.jsonl"):
        StreamingSFTDataset([path, other], tokenizer).load_state_dict(state)
    fresh = StreamingSFTDataset(path, tokenizer)
    with pytest.raises(CheckpointError, match="is not whole"):
        fresh.load_state_dict({**fresh.state_dict(), "cursor": None})


def test_a_stream_whose_file_changes_between_two_blocks_stops(tmp_path, tokenizer):
    from rlhf.data.streaming import StreamingSFTDataset

    path = tmp_path / "d.jsonl"
    write_many(path, 9)
    items = iter(StreamingSFTDataset(path, tokenizer, shuffle_buffer=3))
    next(items)
    with path.open("ab") as file:
        file.write(GOOD_LINE)
    with pytest.raises(DataError, match=r"d\.jsonl changed"):
        list(items)


# -- memory


MEASURE = """
import resource, sys
from rlhf.data.read import read_rows
from rlhf.errors import DataError
import pyarrow
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    rows = sum(1 for _ in read_rows(sys.argv[1], streaming=True, on_bad_row="skip"))
except DataError as err:
    rows = str(err)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, rows)
"""


@pytest.mark.parametrize("name", ["line.jsonl", "item.json", "line.csv", "cell.csv", "bomb.jsonl.gz"])
def test_a_row_without_end_does_not_fill_the_memory(tmp_path, name):
    """200 MB without a line break: the row is refused, the others are read, and memory stays below a quarter of it."""
    path = tmp_path / name
    chunk = b"x" * (1 << 20)
    begin, end, expected = {
        "line.jsonl": (GOOD_LINE + b'{"prompt": "', b'", "completion": "c"}\n' + GOOD_LINE, "2"),
        "bomb.jsonl.gz": (GOOD_LINE + b'{"prompt": "', b'", "completion": "c"}\n' + GOOD_LINE, "2"),
        "item.json": (b"[" + GOOD_LINE + b',{"prompt": "', b'"},' + GOOD_LINE + b"]", "row 2: not a JSON value"),
        "line.csv": (b"prompt,completion\np,c\n", b",c\np,c\n", "a line is longer than"),
        "cell.csv": (b'prompt,completion\np,c\n"' + b"x\n" * 4096, b'",c\np,c\n', "a line is longer than"),
    }[name]
    with gzip.open(path, "wb", 1) if name.endswith(".gz") else path.open("wb") as file:
        file.write(begin)
        for _ in range(200):
            file.write(chunk)
        file.write(end)
    done = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    megabytes, _, said = done.stdout.strip().partition(" ")
    assert int(megabytes) < 100, f"{megabytes} MB for a file of 200 MB"
    assert expected in said
    path.unlink()


# -- columns


def test_columns_that_nothing_reads_are_kept_and_told_once(tmp_path, tokenizer):
    from rlhf.data.datasets import SFTDataset

    path = tmp_path / "d.jsonl"
    write_rows(path, [{**GOOD, "source": "web", "difficulty": n} for n in range(3)])
    data = SFTDataset(path, tokenizer)
    assert data.report.other_columns == {"source": 3, "difficulty": 3}
    assert data.report.to_text().count("other columns, kept: 'source', 'difficulty'") == 1
    assert data[2].columns["difficulty"] == 2


def test_missing_columns_are_named_with_what_was_found_and_what_is_taken(tmp_path, tokenizer):
    from rlhf.data.datasets import PreferenceDataset

    path = tmp_path / "d.jsonl"
    write_rows(path, [GOOD])
    with pytest.raises(DataError) as caught:
        PreferenceDataset(path, tokenizer)
    message = str(caught.value)
    assert message.startswith(
        f"{path}:1: columns 'chosen' and 'rejected' are missing: this is a row of kind completion (columns found: 'prompt', "
        "'completion')"
    )
    assert "rows of kind preference (or comparison, ranking) are wanted" in message
    assert "rename or drop columns with `columns`" in message


# -- texts that are too long, or empty


def test_a_prompt_beyond_the_limit_names_the_row_and_the_ways_out(tmp_path, tokenizer):
    from rlhf.data.datasets import GRPODataset, SFTDataset

    path = tmp_path / "d.jsonl"
    write_rows(path, [GOOD, {"prompt": "word " * 50, "completion": "c"}])
    with pytest.raises(DataError, match=rf"{path}:2: .*\d+ tokens.*max_prompt_length is 8"):
        GRPODataset(path, tokenizer, max_prompt_length=8)
    with pytest.raises(DataError, match=rf"{path}:2: .*\d+ tokens.*max_length is 8.*trunc"):
        SFTDataset(path, tokenizer, max_length=8)
    kept = SFTDataset(path, tokenizer, max_length=8, truncation="keep_start")
    assert (len(kept), kept.report.dropped_too_long) == (1, 1), (
        "nothing of the completion was left, so the row is not a lesson"
    )
    short = GRPODataset(path, tokenizer, max_prompt_length=8, truncation="keep_end")
    assert (len(short), short.report.truncated) == (2, 1)


def test_completions_that_are_empty_are_counted_and_none_left_is_an_error(tmp_path, tokenizer):
    from rlhf.data.datasets import SFTDataset

    path = tmp_path / "d.jsonl"
    write_rows(path, [{"prompt": "p", "completion": ""}])
    data = SFTDataset(path, tokenizer)
    assert data.report.empty_completions == 1, "it teaches to stop at once; the report says so"
    with pytest.raises(DataError, match=r"d.jsonl:1: .*empty.*add_eos=True"):
        SFTDataset(path, tokenizer, add_eos=False)
    write_rows(path, [{"prompt": "word " * 50, "completion": "c"}])
    with pytest.raises(DataError) as caught:
        SFTDataset(path, tokenizer, max_length=8, truncation="keep_start")
    assert f"{path}: no row of the data is left to train on; of 1 row 1 too long for max_length" in str(caught.value)


# -- dialogues


def dialogue(*roles):
    return {"messages": [{"role": role, "content": f"says {number}"} for number, role in enumerate(roles)]}


STRICT = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.mark.parametrize(
    "roles", [("assistant", "user", "assistant"), ("user", "user", "assistant"), ("user", "system", "assistant")]
)
def test_the_chat_template_decides_about_the_order_of_roles(tmp_path, tokenizer, roles):
    from rlhf.data.datasets import SFTDataset

    path = tmp_path / "d.jsonl"
    write_rows(path, [dialogue("user", "assistant"), dialogue(*roles)])
    assert len(SFTDataset(path, tokenizer)) == 2, "a template that takes it is believed"
    with pytest.raises(DataError) as caught:
        SFTDataset(path, tokenizer, chat_template=STRICT)
    message = str(caught.value)
    listed = ", ".join(map(repr, roles))
    assert message.startswith(
        f"{path}:2: the chat template refuses this dialogue (roles: {listed}): TemplateError: Conv"
    )
    assert "Mend the row, or give a template that takes it" in message
    report = run_check(path)
    assert report.num_out_of_turn == 1
    assert "1 dialogue whose roles are out of order" in report.to_text()


def test_a_misspelled_role_is_refused_and_the_nearest_named(tmp_path, tokenizer):
    from rlhf.data.datasets import SFTDataset

    path = tmp_path / "d.jsonl"
    write_rows(path, [dialogue("user", "assitant", "user", "assistant")])
    with pytest.raises(DataError) as caught:
        SFTDataset(path, tokenizer)
    message = str(caught.value)
    assert message.startswith(
        f"{path}:1: message 2 has the role 'assitant', which the chat template does not name; wanted"
    )
    assert message.endswith("Did you mean 'assistant'?")
    assert run_check(path).odd_roles == {"assitant": 1}
    own = "{# knows 'assitant' too #}" + tokenizer.chat_template
    assert len(SFTDataset(path, tokenizer, chat_template=own)) == 1


def test_a_dialogue_without_the_assistant_has_nothing_to_learn_from(tmp_path, tokenizer):
    from rlhf.data.datasets import SFTDataset

    path = tmp_path / "d.jsonl"
    write_rows(path, [dialogue("system", "user")])
    with pytest.raises(DataError, match=r"d.jsonl:1: .*'system', 'user'"):
        SFTDataset(path, tokenizer)


# -- rlhf data


def test_commands_that_write_count_the_bad_rows_and_write_nothing(tmp_path):
    path, out = tmp_path / "d.jsonl", tmp_path / "out.jsonl"
    out.write_bytes(b"mine\n")
    path.write_bytes(lines(b"{") + b"{}\n")
    for command in (run_convert, run_dedup):
        with pytest.raises(DataError) as caught:
            command(path, out)
        message = str(caught.value)
        assert message.startswith(
            f"2 of 4 rows of {path} are bad, so nothing was written. They are: {path}:2: not a JSON"
        )
        assert f"{path}:4: no known kind" in message
        assert "leave them out with --skip-bad (on_bad_row='skip'); rlhf data check lists all of them" in message
        assert out.read_bytes() == b"mine\n"
    assert run_dedup(path, out, on_bad_row="skip").num_kept == 1
    assert run_convert(path, out, on_bad_row="skip").num_written == 2
    assert [row.where for row in run_convert(path, out, on_bad_row="skip").bad_rows] == [f"{path}:2", f"{path}:4"]


def test_the_command_line_skips_bad_rows_when_told(tmp_path):
    from typer.testing import CliRunner

    from rlhf.cli import app

    path, out = tmp_path / "d.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(lines(b"{"))
    for command in ("convert", "dedup"):
        refused = CliRunner().invoke(app, ["data", command, str(path), str(out)])
        assert isinstance(refused.exception, DataError)
        assert not out.exists()
        done = CliRunner().invoke(app, ["data", command, str(path), str(out), "--skip-bad"])
        assert done.exit_code == 0
        assert f"1 bad row:\n  {path}:2: not a JSON value" in done.output
        out.unlink()


@pytest.mark.parametrize("case", BAD_FILES)
def test_looking_at_a_damaged_file_says_the_same(tmp_path, case):
    name, made, _ = BAD_FILES[case]
    path = tmp_path / name
    path.write_bytes(made())
    for look in (run_stats, run_dedup, run_check):
        try:
            report = look(path)
        except DataError as err:
            assert str(path) in str(err)  # noqa: PT017 - one of two right answers
        else:
            assert look is run_check, "only `check` makes a report of rows that are all bad"
            assert report.num_usable == 0
            assert report.bad_rows


def test_what_can_not_be_written_leaves_the_old_file(tmp_path):
    path, out = tmp_path / "d.jsonl", tmp_path / "folder.jsonl"
    path.write_bytes(GOOD_LINE)
    out.mkdir()
    with pytest.raises(StorageError, match=r"folder\.jsonl"):
        run_convert(path, out)
    with pytest.raises(StorageError, match=r"d.jsonl"):
        run_convert(path, path / "out.jsonl")
    with pytest.raises(DataError, match=r"d.jsonl: row 1: column 'x'.*utf-8"):
        write_rows(path, [{"x": "\ud800"}])
    with pytest.raises(DataError, match=r"d.parquet: column 'x'.*Parquet"):
        write_rows(tmp_path / "d.parquet", [{"x": 10**30}])
    assert path.read_bytes() == GOOD_LINE
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["d.jsonl", "folder.jsonl"]


def test_rows_of_several_kinds_are_not_written_into_one_table(tmp_path):
    path = tmp_path / "d.jsonl"
    write_rows(path, [GOOD, {"prompt": "p"}])
    assert run_convert(path, tmp_path / "out.jsonl").num_written == 2
    for name in ("out.csv", "out.parquet"):
        with pytest.raises(DataError, match=rf"{name}: .*completion, prompt"):
            run_convert(path, tmp_path / name)
        assert not (tmp_path / name).exists()


def test_converting_a_file_onto_itself_is_safe(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(GOOD_LINE * 3)
    assert run_dedup(path, path).num_kept == 1
    assert path.read_bytes() == GOOD_LINE


def test_an_unknown_policy_is_still_an_error_of_the_settings(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(GOOD_LINE)
    with pytest.raises(ConfigError, match="Did you mean 'skip'"):
        run_dedup(tmp_path / "d.jsonl", on_bad_row="skp")
