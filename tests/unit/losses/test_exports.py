"""One list of losses: what a module of the room has can be imported from the room."""

from __future__ import annotations

import ast

import rlhf.losses
from tests.fixtures.source import SOURCE, tree_of

GUIDES = {  # asked for by these names elsewhere, and ours
    "BradleyTerryLoss": "bradley_terry_loss",
    "PlackettLuceLoss": "plackett_luce_loss",
    "MarginRankingLoss": "hinge_margin_loss",
    "DPOLoss": "dpo_loss",
    "IPOLoss": "ipo_loss",
    "KTOLoss": "kto_loss",
    "ORPOLoss": "odds_ratio_loss",
    "compute_gae_advantage_return": "gae",
    "compute_policy_loss": "clipped_policy_loss",
    "compute_value_loss": "clipped_value_loss",
    "compute_rewards_with_kl_penalty": "add_score_at_last_token",
    "get_entropy": "entropy_bonus",
}


def test_every_loss_can_be_imported_from_the_room():
    for file in sorted((SOURCE / "losses").glob("[a-z]*.py")):
        for node in tree_of(file).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_loss") and not node.name.startswith("_"):
                assert getattr(rlhf.losses, node.name).__module__ == f"rlhf.losses.{file.stem}"


def test_what_guides_ask_for_is_there_and_documented():
    for ours in GUIDES.values():
        assert len(getattr(rlhf.losses, ours).__doc__) > 40


def test_the_list_is_written_once():
    tree = tree_of(SOURCE / "losses" / "__init__.py")
    names = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert len(names) == len(set(names))
    assert not any(isinstance(node, ast.Assign) for node in tree.body), "imports are the list; no __all__ beside them"
