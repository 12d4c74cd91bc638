from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest

from rlhf.data.contracts import Kind, RowError
from rlhf.data.read import open_rows, read_rows
from rlhf.data.write import write_rows
from rlhf.errors import ConfigError, DataError, UnknownNameError

PAIRS = [{"prompt": f"p{n}", "chosen": f'c{n}, "quoted"\nline', "rejected": "r", "margin": n / 4} for n in range(7)]
DIALOGUES = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello é 天"}]} for _ in range(3)
]


def put(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet", "d.jsonl.gz", "d.json.gz", "d.csv.gz"])
@pytest.mark.parametrize("rows", [PAIRS, DIALOGUES], ids=["standard", "conversational"])
def test_what_was_written_is_read_back(tmp_path, name, rows):
    assert write_rows(tmp_path / name, rows) == len(rows)
    read = read_rows(tmp_path / name)
    if name.startswith("d.csv") and rows is DIALOGUES:
        assert [row.messages for row in read] == [row["messages"] for row in rows]
    else:
        assert [row.to_dict() for row in read] == rows
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing is left beside the file"


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet", "d.jsonl.gz", "d.arrow", "folder"])
def test_a_stream_goes_on_from_every_cursor(tmp_path, name):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / name
    if name == "d.parquet":  # several row groups, so that whole ones are skipped
        pq.write_table(pa.Table.from_pylist(PAIRS), path, row_group_size=2)
    elif name == "d.arrow":
        table = pa.Table.from_pylist(PAIRS)
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    elif name == "folder":
        import datasets

        datasets.Dataset.from_list(PAIRS).save_to_disk(path)
    else:
        write_rows(path, PAIRS)
    stream = open_rows(path)
    whole = list(stream.from_cursor((0, 0)))
    assert [row.to_dict() for row, _ in whole] == PAIRS
    for seen, (_, cursor) in enumerate(whole, 1):
        rest = list(stream.from_cursor(cursor, num_before=seen))
        assert rest == whole[seen:]


def test_arrow_files_are_read_in_both_of_their_formats(tmp_path):
    import pyarrow as pa

    table = pa.Table.from_pylist(PAIRS)
    for name, writer_of in (("s.arrow", pa.ipc.new_stream), ("f.arrow", pa.ipc.new_file)):
        with writer_of(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
        assert [row.to_dict() for row in read_rows(tmp_path / name)] == PAIRS


def test_a_row_knows_its_file_and_line(tmp_path):
    path = put(tmp_path / "d.jsonl", '{"text": "a"}\n\n{"text": "b"}\n')
    first, second = read_rows(path)
    assert (first.where, second.where) == (f"{path}:1", f"{path}:3")
    assert (first.id, second.id) == ("d.jsonl:1", "d.jsonl:3"), "ids do not hang on where the folder is"


def test_a_csv_row_is_placed_by_the_line_it_begins_on(tmp_path):
    path = put(tmp_path / "d.csv", 'prompt,completion\n"two\nlines",c\np,d\n')
    assert [row.where.rpartition(":")[2] for row in read_rows(path)] == ["2", "4"]


def test_files_of_one_name_have_ids_that_differ(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        write_rows(tmp_path / folder / "test.jsonl", [{"text": folder}])
    rows = read_rows([tmp_path / "a" / "test.jsonl", tmp_path / "b" / "test.jsonl"])
    assert [(row.id, row.text) for row in rows] == [("a/test.jsonl:1", "a"), ("b/test.jsonl:1", "b")]


def test_bom_and_windows_line_ends_are_just_read(tmp_path):
    text = '{"text": "a"}\r\n{"text": "b"}\r\n'
    assert [r.text for r in read_rows(put(tmp_path / "d.jsonl", b"\xef\xbb\xbf" + text.encode()))] == ["a", "b"]
    table = "prompt,completion\r\na,b\r\n".encode("utf-8-sig")
    assert read_rows(put(tmp_path / "d.csv", table))[0].prompt == "a"


def test_a_json_file_with_one_object_a_line_is_read_as_such(tmp_path):
    assert len(read_rows(put(tmp_path / "d.json", '{"text": "a"}\n{"text": "b"}\n'))) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "not a JSON value: Expecting ',' delimiter at column 13"),
        (b'{"text": "\xff"}', r"byte 11 is 0xff, which is not UTF-8; .* iconv -f WINDOWS-1252 -t UTF-8 d.jsonl"),
        (b'{"text": "a", "x": NaN}', "NaN is not a JSON value; use null"),
        (b'{"text": "a", "text": "b"}', "the key 'text' appears in the same object twice"),
        (b"[1, 2]", "the row is a list"),
        (b'{"txt": "a"}', "column|no known kind"),
    ],
)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path, line, message):
    path = put(tmp_path / "d.jsonl", b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n')
    with pytest.raises(RowError, match=rf"d.jsonl:2: .*({message})"):
        read_rows(path)
    table = read_rows(path, on_bad_row="skip")
    assert [row.text for row in table] == ["before", "after"]
    assert [bad.where for bad in table.bad_rows] == [f"{path}:2"]
    stream = read_rows(path, streaming=True, on_bad_row="skip")
    assert [row.text for row in stream] == ["before", "after"]
    assert stream.bad_rows == table.bad_rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"text": "a"}, {"text": "b"', "d.json:row 2: not a JSON value: .*line 1"),
        ('[\n{"text": "a"},\n\n{"text": b}]', "d.json:row 2: not a JSON value: Expecting value, on or behind line 4"),
        ('[{"text": "a"} {"text": "b"}]', "row 2: not a JSON value: wanted ',' or ']' behind an item"),
        ('[{"text": "a"}][{"text": "b"}]', "something follows the closing bracket"),
        ('[{"text": "a"}, {"text": NaN}, {"text": "c"}]', "d.json:row 2: NaN is not a JSON value"),
    ],
)
def test_a_broken_array_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_rows(put(tmp_path / "d.json", text))


def test_an_item_of_an_array_that_is_json_but_not_a_row_can_be_skipped(tmp_path):
    path = put(tmp_path / "d.json", '[{"text": "a"}, {"text": NaN}, 5, {"text": "c"}]')
    table = read_rows(path, on_bad_row="skip")
    assert [row.text for row in table] == ["a", "c"]
    assert [bad.where[-5:] for bad in table.bad_rows] == ["row 2", "row 3"]


def test_a_csv_row_of_the_wrong_width_is_named(tmp_path):
    path = put(tmp_path / "d.csv", "prompt,completion\na,b\nc\nd,e,f\ng,h\n")
    with pytest.raises(RowError, match=r"d.csv:3: .*1 cells.*2 columns \('prompt', 'completion'\)"):
        read_rows(path)
    assert [row.prompt for row in read_rows(path, on_bad_row="skip")] == ["a", "g"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("d.jsonl", b"", "d.jsonl is empty"),
        ("d.jsonl", b"\n \n", "d.jsonl holds no rows"),
        ("d.json", b"[]", "d.json holds no rows"),
        ("d.csv", b"prompt,completion\n", "d.csv holds no rows"),
        ("d.csv", b"prompt,prompt\na,b\n", "the column 'prompt' appears in the header twice"),
        ("d.csv", b'prompt,completion\n"a,b\n', "d.csv:2: not CSV"),
        ("d.json", b"hello", "begins with b'h'; wanted a JSON array"),
        (
            "d.jsonl",
            "text".encode("utf-16"),
            "d.jsonl is UTF-16, and data files are UTF-8. Convert it with: iconv -f UTF-16 -t UTF-8",
        ),
        ("d.jsonl.gz", b"no gzip", "d.jsonl.gz is damaged or was cut short"),
        (
            "d.jsonl.gz",
            gzip.compress(b'{"text": "a"}\n' * 999, mtime=0)[:-30],
            "d.jsonl.gz is damaged or was cut short",
        ),
        ("d.parquet", b"PAR1 nonsense", "d.parquet is not a Parquet file"),
        ("d.arrow", b"nonsense", "d.arrow is not an Arrow file"),
        ("d.txt", b"a", "d.txt is not of a known format; wanted a name that ends in .jsonl"),
    ],
)
def test_a_file_that_can_not_be_read_says_why(tmp_path, name, data, message):
    with pytest.raises(DataError, match=message):
        read_rows(put(tmp_path / name, data))


def test_a_csv_cell_that_is_not_utf8_is_named(tmp_path):
    path = put(tmp_path / "d.csv", b"prompt,completion\na,b\nc,\xe9t\xe9\n")
    with pytest.raises(RowError, match=r"d.csv:3: .*'completion'.*0xe9.*UTF-8.*iconv"):
        read_rows(path)


def test_a_file_without_one_usable_row_is_an_error_even_when_skipping(tmp_path):
    path = put(tmp_path / "d.jsonl", '{"a": 1}\n{"b": 2}\n')
    with pytest.raises(DataError, match=r"2 rows.*d\.jsonl:1"):
        read_rows(path, on_bad_row="skip")


def test_a_misspelled_path_is_no_hub_name(tmp_path):
    put(tmp_path / "pairs.jsonl", "{}")
    with pytest.raises(DataError, match=r"pair\.jsonl.*'pairs\.jsonl'"):
        read_rows(tmp_path / "pair.jsonl")


def test_an_unreachable_hub_name_says_what_to_do():
    with pytest.raises(DataError, match=r"'nobody/nothing'"):
        read_rows("nobody/nothing")


def test_a_folder_of_files_is_never_read_as_one(tmp_path):
    write_rows(tmp_path / "train.jsonl", [{"text": "a"}])
    write_rows(tmp_path / "test.jsonl", [{"text": "b"}])
    with pytest.raises(DataError, match=r"2 data files \(test\.jsonl, train\.jsonl\)"):
        read_rows(tmp_path)
    assert [row.text for row in read_rows(tmp_path, split="test")] == ["b"]
    with pytest.raises(DataError, match="'val'"):
        read_rows(tmp_path, split="val")
    with pytest.raises(DataError, match="no split 'train'"):
        read_rows(tmp_path / "train.jsonl", split="train")


def test_splits_of_a_saved_dataset_dict_are_named(tmp_path):
    import datasets

    both = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(PAIRS), "test": datasets.Dataset.from_list(PAIRS[:2])}
    )
    both.save_to_disk(tmp_path / "d")
    for source in (tmp_path / "d", both):
        assert len(read_rows(source, split="test")) == 2
        with pytest.raises(DataError, match=r"'train', 'test'"):
            read_rows(source)


def test_objects_of_the_datasets_library_are_read():
    import datasets

    table = datasets.Dataset.from_list(PAIRS)
    assert [row.to_dict() for row in read_rows(table)] == PAIRS
    assert [row.to_dict() for row in read_rows(table.to_iterable_dataset(), streaming=True)] == PAIRS


def test_lists_and_data_frames_are_read():
    import pandas as pd

    assert [row.to_dict() for row in read_rows(PAIRS)] == PAIRS
    assert [row.to_dict() for row in read_rows(pd.DataFrame(PAIRS))] == PAIRS
    assert [row.text for row in read_rows(["one", "two"])] == ["one", "two"]
    assert read_rows(["one"], strings_are=Kind.PROMPT)[0].prompt == "one"
    rows = read_rows(PAIRS)
    assert [row.id for row in read_rows(list(rows))] == [row.id for row in rows]
    with pytest.raises(DataError, match=r"row 2: .*number"):
        read_rows([PAIRS[0], 5])
    with pytest.raises(DataError, match="empty"):
        read_rows([])
    with pytest.raises(DataError, match=r"from int\b"):
        read_rows(5)


def test_columns_are_renamed_all_at_once_and_dropped():
    row = read_rows(
        [{"q": "p", "prompt": "c", "junk": float("nan")}], columns={"q": "prompt", "prompt": "completion", "junk": None}
    )[0]
    assert row.to_dict() == {"prompt": "p", "completion": "c"}
    with pytest.raises(RowError, match=r"row 1: .*'qq'.*'q'"):
        read_rows([{"q": "x"}], columns={"qq": "prompt"})
    with pytest.raises(RowError, match=r"two columns.*'prompt'"):
        read_rows([{"q": "x", "prompt": "y"}], columns={"q": "prompt"})


def test_limit_counts_usable_rows():
    rows = [{"bad": 1}, *PAIRS]
    assert len(read_rows(rows, limit=3, on_bad_row="skip")) == 3
    with pytest.raises(ConfigError, match="limit is 0"):
        read_rows(rows, limit=0)


def test_a_misspelled_policy_is_an_error():
    with pytest.raises(UnknownNameError, match="Did you mean 'skip'"):
        read_rows(PAIRS, on_bad_row="skp")


@pytest.mark.parametrize("name", ["big.jsonl", "big.json", "big.csv", "big.parquet"])
def test_streaming_does_not_load_the_file(tmp_path, name):
    path = tmp_path / name
    rows = [{"prompt": f"{n} " + "x" * 2000, "completion": "y"} for n in range(6000)]  # 12 MB
    if name == "big.parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=500, compression="none")
    else:
        write_rows(path, rows)
    del rows
    tracemalloc.start()
    count = sum(1 for _ in read_rows(path, streaming=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 6000
    assert peak < 8e6, f"{peak / 1e6:.1f} MB for a file of {path.stat().st_size / 1e6:.0f} MB"


def test_hh_rlhf_parses_entirely(assets):
    files = sorted((assets / "hh_rlhf").glob("*/test.jsonl.gz"))
    rows = read_rows(files)
    assert len(rows) == 8552
    assert all(row.kind is Kind.PREFERENCE for row in rows)
    assert all(row.prompt.startswith("\n\nHuman:") and row.prompt.endswith("\n\nAssistant:") for row in rows)
    assert sum(row.chosen == row.rejected for row in rows) == 36
    with gzip.open(files[0], "rt", encoding="utf-8") as file:
        raw = json.loads(next(file))
    assert (rows[0].prompt + rows[0].chosen, rows[0].prompt + rows[0].rejected) == (raw["chosen"], raw["rejected"])
    assert len({row.id for row in rows}) == 8552


def test_real_files_of_other_shapes_are_read(assets):
    gsm = read_rows(assets / "gsm8k" / "train.jsonl.gz", columns={"question": "prompt", "answer": "completion"})
    assert len(gsm) == 7473
    tulu = read_rows(
        assets / "tulu1_human_eval" / "eval_annotations_tulu_1.csv.gz",
        columns={"evaluator": "annotator_id"},
        on_bad_row="skip",
    )
    assert (len(tulu), tulu[0].kind) == (1150, Kind.COMPARISON)
    assert {bad.reason[:31] for bad in tulu.bad_rows} == {"column 'preference' is a string"}, "left unlabeled"
    assert len({row.annotator_id for row in tulu}) == 16
    panda = read_rows(
        assets / "pandalm" / "testset-v1.json.gz",
        columns={"response1": "response_a", "response2": "response_b", "annotator1": None},
        limit=1,
    )
    assert panda[0].kind is Kind.PROMPT
