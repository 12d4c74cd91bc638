"""A world that no committed setting was tuned on: movie reviews, a character-level tokenizer, a Llama of a million parameters.

    python tools/unseen_world.py --out runs/unseen                                 writes data, tokenizer and recipes
    python tools/unseen_world.py --out runs/unseen --run policy judge hacked good undecided      and runs recipes, in that order

Needs nothing but the assets (`RLHF_ASSETS`): vader/hutto_ICWSM_2014.tar.gz holds movie-review snippets with the mean of about 15
people's ratings, models/stories260K is what the judge starts from. The snippets fall into three parts that share none: the policy's,
the judge's and those of the tests. Pairs are two snippets of one part that begin with the same word and whose ratings are far apart.

    policy     base model, demonstrations, reward model from the policy's part; a second judge that is NOT independent, as it starts
               from the policy's own fine-tuned weights
    judge      the reward model that judges: another base (stories260K, with its own tokenizer) and other reviews, nothing of the policy's
    hacked     GRPO without KL at a rate that ruins this model, judged by the dependent judge
    good       GRPO at a rate that suits this model, with KL; its reward is VADER's lexicon by five of its raters, its judge the same words
               by the other five
    undecided  GRPO against the reward model, judged by the independent one: too short and on too few prompts to tell

Models are given as folders, not as stages, so what they were trained on can only be read from the lineage inside the folders.
Every file depends only on the seed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml

from rlhf.config.assets import missing_assets, no_assets
from rlhf.config.recipe import ASSETS, DEFAULT_ASSETS, load_recipe
from rlhf.errors import DataError
from rlhf.files import write_jsonl, write_text
from rlhf.pipeline.run import Pipeline

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ARCHIVE = "vader/hutto_ICWSM_2014.tar.gz"
LEXICON = "vader/vader_lexicon.txt"
MEMBER = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
SHARES = {"policy": 0.5, "judge": 0.4, "test": 0.1}
LONGEST = 96
"""Characters of a demonstration; base models learn from all snippets of up to LONGEST_TEXT."""
LONGEST_TEXT = 200
LEAST_DIFFERENCE = 1.5
"""Of two ratings, from -4 to 4, that make a pair."""
PAIRS = {"policy": (LONGEST, 4), "judge": (130, 3), "test": (LONGEST, 4)}
"""Longest snippet in characters, and how many pairs a snippet may be the better part of; a judge wants many different snippets."""
SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
RECIPES = ("policy", "judge", "hacked", "good", "undecided")


@dataclass(frozen=True)
class Snippet:
    """A sentence of a review."""

    text: str
    rating: float
    """Mean of what people said, -4 (very negative) to 4."""


@dataclass(frozen=True)
class Size:
    """How large models are and how long they learn."""

    hidden_size: int = 128
    layers: int = 5
    base_steps: int = 300
    judge_base_steps: int = 200
    sft_steps: int = 60
    hacked_rollouts: int = 30
    good_rollouts: int = 24
    undecided_rollouts: int = 4
    group_size: int = 8
    prompts_per_rollout: int = 16
    limit: int = 200
    pairs: int | None = None
    """Read only so many pairs; None for all."""


FULL = Size()
TINY = Size(
    hidden_size=16, layers=1, base_steps=2, judge_base_steps=2, sft_steps=2, hacked_rollouts=2, good_rollouts=2,
    undecided_rollouts=1, group_size=2, prompts_per_rollout=2, limit=4, pairs=8,
)  # fmt: skip
"""Everything runs, nothing is learned: for the test."""


def read_snippets(archive: Path) -> list[Snippet]:
    """The movie-review snippets in plain ASCII, each text once.

    Raises:
        DataError: The archive is not there.
    """
    if not archive.is_file():
        raise DataError(f"{archive} is not there; {ASSETS} must name the folder of the shared assets.")
    with tarfile.open(archive) as tar:
        member = tar.extractfile(MEMBER)
        if member is None:
            raise DataError(f"{archive} holds no {MEMBER}.")
        lines = io.TextIOWrapper(member, encoding="utf-8").read().splitlines()
    snippets: dict[str, Snippet] = {}
    for line in lines:
        _, rating, text = line.split("\t")
        text = " ".join(text.split())
        if text.isascii() and text.isprintable() and len(text.split()) >= 4:
            snippets.setdefault(text, Snippet(text, float(rating)))
    return list(snippets.values())


def split_snippets(snippets: Sequence[Snippet], seed: int) -> dict[str, list[Snippet]]:
    """The three parts, by chance; none shares a snippet with another."""
    shuffled = list(snippets)
    random.Random(seed).shuffle(shuffled)
    parts, start = {}, 0.0
    for name, share in SHARES.items():
        parts[name] = shuffled[round(start * len(shuffled)) : round((start + share) * len(shuffled))]
        start += share
    return parts


def preference_pairs(snippets: Iterable[Snippet], seed: int, *, longest: int, each: int) -> list[dict[str, str]]:
    """Two snippets that begin with the same word, the better rated one chosen."""
    drawn = random.Random(seed)
    by_word: dict[str, list[Snippet]] = defaultdict(list)
    for snippet in snippets:
        if len(snippet.text) <= longest:
            by_word[snippet.text.split()[0]].append(snippet)
    rows = []
    for word, group in by_word.items():
        for better in group:
            worse = [other for other in group if better.rating - other.rating >= LEAST_DIFFERENCE]
            for other in drawn.sample(worse, min(each, len(worse))):
                rows.append({"prompt": word, "chosen": better.text[len(word) :], "rejected": other.text[len(word) :]})
    drawn.shuffle(rows)
    return rows


def demonstrations(snippets: Iterable[Snippet], seed: int) -> list[dict[str, str]]:
    """The first one to three words ask for the rest."""
    drawn = random.Random(seed)
    rows = []
    for snippet in snippets:
        if len(snippet.text) <= LONGEST:
            prompt = " ".join(snippet.text.split()[: drawn.randint(1, 3)])
            rows.append({"prompt": prompt, "completion": snippet.text[len(prompt) :]})
    return rows


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each printable ASCII character; whatever else is <unk>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = [*SPECIAL.values(), *(chr(code) for code in range(32, 127))]
    tokenizer = Tokenizer(
        models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=SPECIAL["unk_token"])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **SPECIAL)


def write_data(out: Path, snippets: Sequence[Snippet], size: Size, seed: int) -> None:
    """The tokenizer's folder and the rows of the three parts."""
    character_tokenizer().save_pretrained(out / "tokenizer")
    seen: set[str] = set()
    for name, part in split_snippets(snippets, seed).items():
        write_jsonl(
            out / "data" / f"{name}_texts.jsonl", [{"text": s.text} for s in part if len(s.text) <= LONGEST_TEXT]
        )
        rows = demonstrations(part, seed)
        write_jsonl(out / "data" / f"{name}_demonstrations.jsonl", rows)
        prompts = {row["prompt"]: None for row in rows if row["prompt"] not in seen}  # a set has no order
        seen.update(prompts)
        write_jsonl(out / "data" / f"{name}_prompts.jsonl", [{"prompt": prompt} for prompt in prompts])
        longest, each = PAIRS[name]
        pairs = preference_pairs(part, seed, longest=longest, each=each)
        write_jsonl(out / "data" / f"{name}_pairs.jsonl", pairs[: size.pairs])


def write_lexicons(out: Path, lexicon: Path) -> None:
    """VADER's words as the first five of their ten raters saw them, and as the other five did."""
    for name, raters in (("first", slice(0, 5)), ("second", slice(5, 10))):
        lines = []
        for line in lexicon.read_text(encoding="utf-8").splitlines():
            word, _, _, ratings = line.split("\t")[:4]
            lines.append(f"{word}\t{fmean(json.loads(ratings)[raters]):g}\n")
        write_text(out / "data" / f"{name}_raters.txt", "".join(lines))


def lexicon(out: Path, raters: str) -> dict[str, str]:
    """A reward or a judge."""
    return {"kind": "lexicon", "path": str(out / "data" / f"{raters}_raters.txt"), "scale": "compound"}


def recipes(out: Path, assets: Path, size: Size) -> dict[str, dict[str, Any]]:
    """The five recipes by name; the order is that in which they can be run."""
    data, tests = out / "data", {"eval_data": str(out / "data" / "test_pairs.jsonl")}
    architecture = {
        "model_type": "llama", "hidden_size": size.hidden_size, "intermediate_size": 3 * size.hidden_size,
        "num_hidden_layers": size.layers, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }  # fmt: skip

    def base(part: str, model: str | dict[str, Any], steps: int, rate: float) -> dict[str, Any]:
        texts = str(data / f"{part}_texts.jsonl")
        return {
            "kind": "sft",
            "model": model,
            "data": texts,
            "train_on": "all",
            "learning_rate": rate,
            "max_steps": steps,
        }

    def reward(model: str, part: str, rate: float) -> dict[str, Any]:
        pairs = str(data / f"{part}_pairs.jsonl")
        return {"kind": "reward", "model": model, "data": pairs, **tests, "learning_rate": rate, "epochs": 1}

    new = {"tokenizer": str(out / "tokenizer"), "init": architecture}
    stories = str(assets.resolve() / "models" / "stories260K")

    sft = {
        "kind": "sft", "model": "stage:base", "data": str(data / "policy_demonstrations.jsonl"), "learning_rate": 5e-4,
        "max_steps": size.sft_steps,
    }  # fmt: skip
    stages: dict[str, dict[str, Any]] = {
        "policy": {
            "base": base("policy", new, size.base_steps, 3e-3),
            "sft": sft,
            "reward": reward("stage:sft", "policy", 3e-4),
            "dependent_judge": reward("stage:sft", "judge", 3e-4),
        },
        "judge": {"base": base("judge", stories, size.judge_base_steps, 2e-3), "judge": reward("stage:base", "judge", 1e-3)},
        "hacked": _policy_run(
            out, size, "policy/dependent_judge", size.hacked_rollouts,
            {"learning_rate": 2e-3, "kl": {"where": "none", "coef": 0.0}},
        ),
        "good": _policy_run(
            out, size, "judge/judge", size.good_rollouts,
            {"learning_rate": 1e-4, "kl": {"coef": 0.1}, "missing_eos_penalty": 1.0, "reward": lexicon(out, "first")},
        ),
        "undecided": _policy_run(
            out, size, "judge/judge", size.undecided_rollouts,
            {"learning_rate": 1e-4, "kl": {"coef": 0.05}, "missing_eos_penalty": 1.0, "limit": 24},
        ),
    }  # fmt: skip
    evaluate = stages["good"]["evaluate"]
    stages["good"]["evaluate"] = {k: v for k, v in evaluate.items() if k not in ("reward_model", "pairs")} | {
        "judge": lexicon(out, "second")
    }
    stages["undecided"]["evaluate"]["limit"] = min(24, size.limit)
    return {
        name: {"name": name, "output_dir": str(out), "seed": int(name == "judge"), "threads": 1, "stages": stages[name]}
        for name in RECIPES
    }


def _policy_run(out: Path, size: Size, judge: str, rollouts: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {"sampling": {"max_new_tokens": LONGEST}}
    policy, reward = str(out / "policy" / "sft" / "model"), str(out / "policy" / "reward" / "model")
    return {
        "grpo": {
            "kind": "grpo",
            "model": policy,
            "reward": reward,
            "prompts": str(out / "data" / "policy_prompts.jsonl"),
            "rollouts": rollouts,
            "prompts_per_rollout": size.prompts_per_rollout,
            "group_size": size.group_size,
            "minibatch_size": size.prompts_per_rollout * size.group_size // 2,
            **sampling,
            **settings,
        },
        "evaluate": {
            "kind": "evaluate",
            "policy": "stage:grpo",
            "baseline": policy,
            "prompts": str(out / "data" / "test_prompts.jsonl"),
            "judge": str(out / judge / "model"),
            "reward_model": reward,
            "pairs": str(out / "data" / "test_pairs.jsonl"),
            "rollouts": "stage:grpo/rollouts.jsonl",
            "limit": size.limit,
            **sampling,
        },
    }


def write_world(out: Path, assets: Path, size: Size = FULL, seed: int = 0) -> dict[str, Path]:
    """Write data, tokenizer and recipes.

    Returns:
        The files of the recipes, by name.

    Raises:
        DataError: The archive is not among the assets.
    """
    out = out.resolve()
    write_data(out, read_snippets(assets / ARCHIVE), size, seed)
    write_lexicons(out, assets / LEXICON)
    files = {}
    for name, tree in recipes(out, assets, size).items():
        files[name] = out / "recipes" / f"{name}.yaml"
        write_text(files[name], yaml.safe_dump(tree, sort_keys=False))
    return files


def main() -> None:
    """Write the world, and run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for data, tokenizer, recipes and run folders")
    parser.add_argument("--run", nargs="+", choices=RECIPES, default=(), help="recipes to run, in this order")
    parser.add_argument("--seed", type=int, default=0, help="decides the split into parts and the pairs")
    parser.add_argument("--tiny", action="store_true", help="sizes at which nothing is learned, to try the command")
    arguments = parser.parse_args()
    if missing_assets() is not None:
        raise DataError(no_assets(["--out"]))
    assets = Path(os.environ.get(ASSETS, DEFAULT_ASSETS))
    files = write_world(arguments.out, assets, TINY if arguments.tiny else FULL, arguments.seed)
    for name in arguments.run:
        Pipeline(load_recipe(files[name])).run()
    print("\n".join(f"rlhf run {file}" for file in files.values()))


if __name__ == "__main__":
    main()
