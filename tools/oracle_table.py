"""Which configurations of each method are compared with an independent implementation: docs/results/oracle.md.

    python tools/oracle_table.py

Collects the cases of tests/oracle (TRL, pinned; torch and transformers where they have the formula) and names for every method
those that compare it. A case compares value (1e-5 relative) and gradient (1e-4 relative), or whole training runs step by step.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.config.methods import FAMILIES, METHODS
from rlhf.files import write_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "oracle.md"
PPO = ROOT / "docs" / "results" / "oracle_ppo.json"
BCO = ROOT / "docs" / "results" / "oracle_bco.json"


def _pairs(*names: str) -> str:
    return rf"test_losses_on_pairs_are_trls\[({'|'.join(names)})-"


def _term(*names: str) -> str:
    return rf"test_what_the_trainer_adds_up_is_trls\[({'|'.join(names)})-"


CASES: Mapping[str, Sequence[str]] = {
    "sft": (r"test_supervised_losses_are_trls\[nll", r"test_smoothed_labels_are", r"supervised_fine_tuning", r"test_sft_goes"),
    "dft": (r"test_supervised_losses_are_trls\[dft",),
    "neftune": (r"test_noise_of_one_sequence",),
    "reward": (r"test_reward_losses_are_trls", r"test_reward_modeling_(is|goes)_trls"),
    "reward_hinge": (r"test_losses_that_torch_has_are_torchs\[hinge",),
    "reward_ties": (r"test_losses_that_torch_has_are_torchs\[davidson",),
    "reward_rankings": (r"test_losses_that_torch_has_are_torchs\[best_of_four",),
    "reward_ratings": (r"test_losses_that_torch_has_are_torchs\[rating",),
    "reward_binary": (r"test_losses_that_torch_has_are_torchs\[binary",),
    "prm": (r"test_step_losses_are",),
    "dpo": (_pairs("sigmoid"), r"test_dpo_losses_are_trls\[sigmoid", r"test_dpo_is_trls"),
    "cdpo": (r"test_conservative_dpo",),
    "robust_dpo": (_pairs("robust"),),
    "ipo": (_pairs("ipo"), r"test_dpo_losses_are_trls\[ipo", r"test_divergences_per_token_are_trls\[ipo"),
    "slic": (_pairs("hinge"), r"test_dpo_losses_are_trls\[hinge"),
    "exo": (_pairs("exo"),),
    "discopop": (_pairs("discopop"), r"test_discopops_temperature"),
    "nca": (_pairs("nca"),),
    "bco": (_pairs("bco"),),
    "sppo": (_pairs("sppo"),),
    "apo_zero": (_pairs("apo_zero"),),
    "apo_down": (_pairs("apo_down"),),
    "aot": (_pairs("aot", "aot_unpaired"),),
    "fdpo": (r"test_divergences_are_trls", r"test_divergences_per_token_are_trls"),
    "ld_dpo": (r"test_length_desensitized",),
    "length_normalized_dpo": (r"test_length_normalized_dpo", r"test_divergences_per_token_are_trls\[sigmoid_norm"),
    "wpo": (r"test_weighted_losses",),
    "rpo": (r"test_the_likelihood_term",),
    "simpo": (r"test_simpo",),
    "cpo": (r"test_cpo",),
    "orpo": (r"test_orpo",),
    "kto": (r"test_kto",),
    "iterative_dpo": (_pairs("sigmoid"), r"test_dpo_is_trls"),
    "online_dpo": (_pairs("sigmoid", "hinge", "ipo", "robust", "exo", "discopop"),),
    "best_of_n": (r"test_supervised_losses_are_trls\[nll", r"supervised_fine_tuning"),
    "distill": (r"test_the_generalized_jsd",),
    "ppo": (r"test_ppo_on_flat_tokens",),
    "grpo": (
        _term("grpo", "grpo_with_an_unbiased_kl"), r"test_grpo_token_losses_are_trls\[grpo", r"test_group_advantages", r"test_grpo_on_groups",
        r"the_ratio_is_trls\[grpo",
    ),
    "dr_grpo": (_term("dr_grpo"), r"test_grpo_token_losses_are_trls\[dr_grpo", r"test_group_advantages_are_trls\[False"),
    "dapo": (_term("dapo"), r"test_grpo_token_losses_are_trls\[dapo",),
    "gspo": (_term("gspo"), r"test_the_loss_of_gspo",),
    "cispo": (_term("cispo"), r"test_the_loss_of_cispo", r"test_the_trap_in_cispo"),
    "sapo": (_term("sapo"), r"test_the_loss_of_sapo",),
    "rloo": (r"test_the_plain_gradient_of_our_rloo", r"test_leave_one_out_advantages"),
}  # fmt: skip
"""Method to patterns of the cases that compare it; matched from the test's name on."""
NO_COUNTERPART: Mapping[str, str] = {
    "reward_graded": "no implementation known; closed form in tests/unit/losses/test_tie_losses.py",
    "reward_ensemble": "members are reward models as above; combination by hand in tests/unit/rewards",
    "kto_bco": "TRL 1.16 has none: against TRL 1.12's below; closed form in tests/unit/losses/test_unpaired.py",
    "vapo": "TRL has none; two lambdas by hand in tests/unit/losses/test_advantage.py, the rest as `ppo`",
    "trpo": "none for language models; dense inverse in float64 in tests/unit/losses/test_trust_region.py",
    "reinforce_pp": "TRL has none; by hand in tests/unit/losses/test_advantage.py",
    "remax": "TRL has none; by hand in tests/unit/losses/test_advantage.py",
}


def collected() -> list[str]:
    """``file::case`` of every case in tests/oracle.

    Raises:
        SystemExit: They can't be collected.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/oracle"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"tests/oracle can't be collected:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [line.removeprefix("tests/oracle/") for line in done.stdout.splitlines() if "::" in line]


def cases_of(method: str, cases: Sequence[str]) -> list[str]:
    """Those of the cases that compare this method."""
    patterns = [re.compile(pattern) for pattern in CASES.get(method, ())]
    return [case for case in cases if any(pattern.search(case.partition("::")[2]) for pattern in patterns)]


def page(cases: Sequence[str]) -> str:
    """The table, by family; then the cases that hold the comparison itself."""
    controls = [case for case in cases if re.search(r"notices|trap|not_a_number|ignores|control", case)]
    lines = [
        "# Compared with independent implementations",
        "",
        "<!-- written by tools/oracle_table.py; do not edit by hand -->",
        "",
        f"Made by `python tools/oracle_table.py` from the {len(cases)} cases of `tests/oracle`, against TRL 1.16.0 (PPO: a padded",
        "reimplementation, as TRL has removed it; and below, as BCO) and, where they have the formula, torch and transformers. A",
        "case compares value (1e-5 relative) and gradient (1e-4 relative), or training runs step by step. An oracle proves equality,",
        "not correctness: every loss also has closed forms in `tests/unit/losses`.",
    ]
    for family, words in FAMILIES.items():
        lines += ["", f"## {words}", "", "| method | cases | compared |", "|---|---|---|"]
        for name, method in METHODS.items():
            if method.family == family:
                mine = cases_of(name, cases)
                lines.append(
                    f"| [{name}](../methods/{name}.md) | {len(mine) or '-'} | {_shown(mine) or NO_COUNTERPART[name]} |"
                )
    lines += ["", "## PPO against the last TRL that had it", "", *_ppo(json.loads(PPO.read_text(encoding="utf-8")))]
    lines += ["", "## BCO on single completions against the last TRL that had it", ""]
    lines += _bco(json.loads(BCO.read_text(encoding="utf-8")))
    lines += ["", "## What holds the comparison itself", ""]
    lines += [
        "Cases that fail if a difference of one percent went unnoticed, and traps that are TRL's and not ours:",
        "",
    ]
    lines += [f"* `{case}`" for case in controls]
    return "\n".join(lines) + "\n"


def _ppo(row: Mapping[str, Any]) -> list[str]:
    """What tools/oracle_ppo.py found."""
    compared, cases = ", ".join(row["compared"]), "; ".join(row["cases"])
    return [
        f"TRL {row['trl']} has PPO's formulas in the middle of `PPOTrainer.train`. `python tools/oracle_ppo.py --wheel WHEEL` runs those",
        "lines unchanged, on numbers in float64, and our trainer's own `assign_credit` and `loss` in micro-batches. The wheel is not a",
        "dependency, so this is no case of the suite; the numbers are those of the newest run.",
        "",
        f"* Compared: {compared.replace('_', ' ')}.",
        f"* Cases: {cases.replace('_', ' ')}. In rows of different lengths TRL puts the score one column past the last token; how that is",
        "  taken out is said in the tool.",
        f"* Largest difference {row['largest']:.1e}, relative to the largest number of its kind (TRL whitens by a factor that it computes in",
        f"  float32). With a bound and a lambda that are one percent off the smallest is {row['control']:.1e}.",
    ]


def _bco(row: Mapping[str, Any]) -> list[str]:
    """What tools/oracle_bco.py found."""
    return [
        f"`python tools/oracle_bco.py --wheel WHEEL` calls `BCOTrainer.bco_loss` of TRL {row['trl']} and our `bco_loss`, in float64;",
        "no case of the suite either. How the two average the shift over steps differs on purpose, as the tool says.",
        "",
        f"* Compared: {', '.join(row['compared'])}. Cases: {'; '.join(row['cases'])}.",
        f"* Largest difference {row['largest']:.1e} (TRL keeps the shift in float32). With a beta that is one percent off the smallest is",
        f"  {row['control']:.1e}.",
    ]


def _shown(cases: Sequence[str]) -> str:
    """Each test once, with its configurations."""
    by_test: dict[str, list[str]] = {}
    for case in cases:
        test, _, configuration = case.partition("::")[2].partition("[")
        by_test.setdefault(test, []).append(configuration.removesuffix("]"))
    parts = []
    for test, configurations in by_test.items():
        words = test.removeprefix("test_").replace("_", " ")
        named = ", ".join(f"`{c}`" for c in configurations if c)
        parts.append(f"{words}: {named}" if named else words)
    return "; ".join(parts)


def main() -> None:
    """Collect, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, default=PAGE)
    arguments = parser.parse_args()
    cases = collected()
    write_text(arguments.write, page(cases))
    compared = {case for name in METHODS for case in cases_of(name, cases)}
    print(f"{arguments.write}: {len(compared)} cases compare {sum(bool(cases_of(n, cases)) for n in METHODS)} methods.")


if __name__ == "__main__":
    main()
