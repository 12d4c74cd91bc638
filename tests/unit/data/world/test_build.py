"""The world's files: the same from the same seed, and nothing held out leaks into training."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlhf.data.world import build_world, split_prompts
from rlhf.data.world.language import FACT_OF_PROMPT, PROMPTS
from rlhf.errors import ConfigError
from rlhf.files import sha256

FILES = ("sft.jsonl", "prompts.jsonl", "test_prompts.jsonl", "heldout_fact_prompts.jsonl", "pretrain.jsonl")


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    build_world(51, folder, num_documents=3000)
    return folder


def test_the_same_seed_gives_the_same_bytes_in_another_process(world, tmp_path):
    code = f"from rlhf.data.world import build_world; build_world(51, {str(tmp_path)!r}, num_documents=3000)"
    # Another process has another hash seed: an order taken from a set would differ.
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    for name in (*FILES, "world.json"):
        assert (tmp_path / name).read_bytes() == (world / name).read_bytes(), name


def test_another_seed_gives_another_split_and_other_texts(world, tmp_path):
    build_world(52, tmp_path, num_documents=3000)
    for name in FILES:
        assert (tmp_path / name).read_bytes() != (world / name).read_bytes(), name
    assert split_prompts(51).test != split_prompts(52).test


def test_sizes_do_not_depend_on_the_seed():
    for seed in range(60, 64):
        split = split_prompts(seed)
        assert len(split.test) == round(0.15 * 94 * 32) == 451
        assert len(split.heldout_fact_test) == round(0.15 * 10 * 32) == 48
        assert len(split.train) == 94 * 32 - 451
        assert len(split.demonstrated) == len(PROMPTS) - 451 - 48


def test_nothing_held_out_is_trained_on(world):
    trained = {row["prompt"] for row in rows(world / "prompts.jsonl")}
    demonstrated = {row["prompt"] for row in rows(world / "sft.jsonl")}
    test = {row["prompt"] for row in rows(world / "test_prompts.jsonl")}
    heldout = {row["prompt"] for row in rows(world / "heldout_fact_prompts.jsonl")}
    assert trained < demonstrated
    assert not test & demonstrated
    assert not heldout & demonstrated
    assert not test & heldout
    heldout_facts = {FACT_OF_PROMPT[prompt] for prompt in heldout}
    assert len(heldout_facts) == 10
    assert not heldout_facts & {FACT_OF_PROMPT[prompt] for prompt in trained | test}
    assert heldout_facts <= {FACT_OF_PROMPT[prompt] for prompt in demonstrated}, "SFT does teach the held-out facts"


def test_no_seed_lets_the_base_model_see_a_held_out_prompt(world, tmp_path):
    """The shipped base was trained on the documents of one seed and is used with every other seed's split."""
    texts = [row["text"] for row in rows(world / "pretrain.jsonl")]
    for seed in range(70, 75):
        split = split_prompts(seed)
        for prompt in split.test + split.heldout_fact_test:
            assert not any(prompt.text in text for text in texts)


def test_every_prompt_is_demonstrated_once(world):
    prompts = [row["prompt"] for row in rows(world / "sft.jsonl")]
    assert len(set(prompts)) == len(prompts) == 2829
    assert all(row["completion"].startswith(" ") for row in rows(world / "sft.jsonl"))
    assert all(row["prompt"].endswith(":") for row in rows(world / "sft.jsonl"))


def test_world_json_tells_counts_and_hashes(world):
    told = json.loads((world / "world.json").read_text())
    assert told["seed"] == 51
    for name in FILES:
        assert told["rows"][name] == len(rows(world / name))
        assert told["sha256"][name] == sha256(world / name)
    heldout = {row["fact"] for row in rows(world / "heldout_fact_prompts.jsonl")}
    assert told["heldout_facts"] == sorted(heldout)


def test_a_world_without_documents_for_those_who_have_the_base(tmp_path):
    assert build_world(53, tmp_path, num_documents=0)["rows"]["pretrain.jsonl"] == 0
    with pytest.raises(ConfigError, match="num_documents is -1"):
        build_world(53, tmp_path, num_documents=-1)


def test_the_world_needs_no_torch():
    code = "import sys, rlhf.data.world; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
