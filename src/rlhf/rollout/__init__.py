"""Rollouts: token ids in, token ids and log-probabilities out.

    types      what an engine takes and gives; the contract every engine keeps
    sampling   logits -> tokens, from given uniform numbers
    stopping   when a completion ends
    packed     decoding on the packed row with a static key/value cache
    padded     decoding for families that the packed row can't serve
    local      the engine in this process: the two decoders behind one contract
    buffer     rollouts waiting to be learned from
"""

from __future__ import annotations
