"""Every random draw comes from a named seed: the same names give the same numbers, on any machine, after any resume."""

from __future__ import annotations

import hashlib

MASK_63 = (1 << 63) - 1


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for one named use of the run's seed.

        derive_seed(run_seed, "ppo", "rollout", step, prompt_id, sample)

    Names are separated in the hash, so ("a", "bc") and ("ab", "c") differ, and so do 1 and "1".

    Returns:
        An int in [0, 2**63), valid for ``random.Random``, ``torch.Generator`` and ``numpy.random.default_rng``.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *names):
        kind = "i" if isinstance(part, int) else "s"
        text = str(part).encode()
        digest.update(f"{kind}{len(text)}:".encode())
        digest.update(text)
    return int.from_bytes(digest.digest(), "big") & MASK_63
