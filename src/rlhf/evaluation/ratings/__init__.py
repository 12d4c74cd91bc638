"""Ratings of systems from matches or rankings.

matches          who played whom, as arrays; which systems can be compared at all
bradley_terry    Bradley-Terry, Davidson and Rao-Kupper, with intervals over prompts
plackett_luce    the same from rankings
elo              online Elo, for display only
style_control    Bradley-Terry with differences of style; length-controlled win rate
"""

from __future__ import annotations
