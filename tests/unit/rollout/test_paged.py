from __future__ import annotations

import random

import pytest
import torch

import rlhf
from rlhf.errors import ConfigError, DataError, MemoryLimitError
from rlhf.rollout.paged import FIRST_BLOCKS, PagedKVCache

LAYERS, HEADS, WIDTH, BLOCK = 2, 3, 4, 4


def build(max_blocks: int = 8, **settings) -> PagedKVCache:
    return PagedKVCache(
        num_layers=LAYERS, kv_heads=HEADS, head_width=WIDTH, max_blocks=max_blocks, block_tokens=BLOCK, **settings
    )


def tokens(count: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, count, HEADS, WIDTH, generator=generator)
    return keys, values


def holds(cache: PagedKVCache, name: str, layer: int, keys: torch.Tensor, values: torch.Tensor) -> bool:
    found_keys, found_values, mask = cache.read(layer, [name])
    return (
        bool(mask.all())
        and torch.equal(found_keys[0], keys.transpose(0, 1))
        and torch.equal(found_values[0], values.transpose(0, 1))
    )


def test_what_was_written_is_read_back_layer_by_layer():
    cache = build()
    cache.allocate("a", 6)
    for layer in range(LAYERS):
        cache.write(layer, "a", 0, *tokens(6, seed=layer))
    cache.extend("a", 3)
    cache.write(1, "a", 6, *tokens(3, seed=9))
    assert cache.length("a") == 9
    assert cache.used_blocks == 3
    longer = [torch.cat(pair) for pair in zip(tokens(6, seed=1), tokens(3, seed=9), strict=True)]
    assert holds(cache, "a", 1, *longer)
    keys, values, _ = cache.read(0, ["a"])
    assert torch.equal(keys[0, :, :6], tokens(6)[0].transpose(0, 1))
    assert torch.equal(values[0, :, :6], tokens(6)[1].transpose(0, 1))


def test_the_first_tokens_of_a_sequence_are_read_from_blocks_in_any_order():
    cache = build()
    cache.allocate("first", 5)
    cache.allocate("a", 6)
    cache.free("first")
    cache.extend("a", 9)
    cache.write(1, "a", 0, *tokens(15))
    for count in (0, 7, 15):
        keys, values = cache.tokens(1, "a", count)
        assert torch.equal(keys, tokens(15)[0][:count])
        assert torch.equal(values, tokens(15)[1][:count])
    with pytest.raises(DataError, match="has 15 tokens; 16 of them can't be read"):
        cache.tokens(1, "a", 16)


def test_sequences_of_unequal_length_are_read_side_by_side():
    cache = build()
    for name, count in (("a", 2), ("b", 7), ("empty", 0)):
        cache.allocate(name, count)
        cache.write(0, name, 0, *tokens(count, seed=count))
    keys, values, mask = cache.read(0, ["a", "b", "empty"])
    assert keys.shape == values.shape == (3, HEADS, 7, WIDTH)
    assert mask.sum(1).tolist() == [2, 7, 0]
    assert torch.equal(keys[0, :, :2], tokens(2, seed=2)[0].transpose(0, 1))
    assert torch.equal(values[1], tokens(7, seed=7)[1].transpose(0, 1))
    assert not keys[0, :, 2:].any()
    assert not values[2].any()


def test_a_freed_block_is_handed_out_again_and_a_freed_name_too():
    cache = build(max_blocks=2)
    cache.allocate("a", 8)
    assert cache.free_blocks == 0
    cache.free("a")
    assert cache.free_blocks == 2
    cache.allocate("a", 5)
    cache.write(0, "a", 0, *tokens(5))
    assert holds(cache, "a", 0, *tokens(5))


def test_freeing_twice_is_refused():
    cache = build()
    cache.allocate("a", 3)
    cache.free("a")
    with pytest.raises(DataError, match="'a'"):
        cache.free("a")
    assert cache.free_blocks == 8


@pytest.mark.parametrize("call", ["extend", "fork", "write", "read", "length"])
def test_a_sequence_that_is_not_there_is_named(call):
    cache = build()
    calls = {
        "extend": lambda: cache.extend("x", 1),
        "fork": lambda: cache.fork("x", "y"),
        "write": lambda: cache.write(0, "x", 0, *tokens(1)),
        "read": lambda: cache.read(0, ["x"]),
        "length": lambda: cache.length("x"),
    }
    with pytest.raises(DataError, match="no sequence 'x'"):
        calls[call]()


def test_a_name_is_taken_once():
    cache = build()
    cache.allocate("a")
    for again in (lambda: cache.allocate("a"), lambda: cache.fork("a", "a")):
        with pytest.raises(DataError, match="'a' already"):
            again()


def test_too_few_blocks_are_an_error_that_changes_nothing():
    cache = build(max_blocks=3)
    cache.allocate("a", 6)
    cache.write(0, "a", 0, *tokens(6))
    message = "'b' needs 2 more blocks of 4 tokens and 1 of 3 are free"
    with pytest.raises(MemoryLimitError, match=message):
        cache.allocate("b", 5)
    with pytest.raises(MemoryLimitError, match="'a' needs 2 more blocks"):
        cache.extend("a", 7)
    cache.allocate("b", 4)  # the name is still to be had, and so is the last block
    with pytest.raises(MemoryLimitError, match="'c' needs 1 more blocks"):
        cache.fork("a", "c")
    assert (cache.length("a"), cache.length("b"), cache.free_blocks) == (6, 4, 0)
    assert holds(cache, "a", 0, *tokens(6))


def test_memory_follows_what_is_asked_for_and_keeps_what_it_held():
    cache = build(max_blocks=5 * FIRST_BLOCKS)
    assert cache.num_bytes == 0
    cache.allocate("a", BLOCK)
    cache.write(0, "a", 0, *tokens(BLOCK))
    one = cache.num_bytes
    cache.allocate("b", 3 * FIRST_BLOCKS * BLOCK)
    assert cache.num_bytes == one * (1 + 3 * FIRST_BLOCKS)
    cache.free("b")
    cache.allocate("c", FIRST_BLOCKS * BLOCK)
    assert cache.num_bytes == one * (1 + 3 * FIRST_BLOCKS), "freed blocks are taken first"
    assert holds(cache, "a", 0, *tokens(BLOCK))


def test_blocks_that_were_never_written_take_no_pages():
    """Half a gigabyte, of which a process of a few megabytes more holds a block."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cache = PagedKVCache(num_layers=2, kv_heads=8, head_width=64, max_blocks=16_384, block_tokens=16)
    cache.allocate("a", 16)
    cache.write(0, "a", 0, torch.ones(16, 8, 64), torch.ones(16, 8, 64))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_elsewhere_memory_doubles():
    cache = PagedKVCache(
        num_layers=2, kv_heads=2, head_width=4, max_blocks=5 * FIRST_BLOCKS, block_tokens=BLOCK, device="meta"
    )
    small = cache.num_bytes
    cache.allocate("a", BLOCK)
    assert cache.num_bytes == small
    cache.allocate("b", 3 * FIRST_BLOCKS * BLOCK)
    assert cache.num_bytes == 4 * small
    cache.allocate("c", FIRST_BLOCKS * BLOCK + BLOCK)
    assert cache.num_bytes == 5 * small


def test_scattered_blocks_serve_a_long_sequence():
    cache = build(max_blocks=8)
    for number in range(8):
        cache.allocate(number, BLOCK)
    for number in (6, 1, 3):
        cache.free(number)
    cache.allocate("long", 3 * BLOCK)
    cache.write(0, "long", 0, *tokens(3 * BLOCK))
    assert cache.free_blocks == 0
    assert holds(cache, "long", 0, *tokens(3 * BLOCK))
    cache.write(0, 5, 0, *tokens(BLOCK, seed=5))
    assert holds(cache, "long", 0, *tokens(3 * BLOCK))


def test_a_fork_shares_full_blocks_and_goes_its_own_way():
    cache = build()
    cache.allocate("prompt", 6)
    cache.write(0, "prompt", 0, *tokens(6))
    cache.fork("prompt", "a")
    cache.fork("prompt", "b")
    assert cache.used_blocks == 4  # one shared, and a last one for each
    for seed, name in enumerate(("a", "b")):
        cache.extend(name, 1)
        cache.write(0, name, 6, *tokens(1, seed=seed + 1))
    for seed, name in enumerate(("a", "b")):
        whole = [torch.cat(pair) for pair in zip(tokens(6), tokens(1, seed=seed + 1), strict=True)]
        assert holds(cache, name, 0, *whole)
    cache.free("prompt")
    assert cache.used_blocks == 3
    cache.free("a")
    cache.free("b")
    assert cache.used_blocks == 0


def test_a_shared_token_cannot_be_overwritten():
    cache = build()
    cache.allocate("prompt", 6)
    cache.fork("prompt", "a")
    with pytest.raises(DataError, match="from 2 on"):
        cache.write(0, "a", 2, *tokens(1))
    cache.free("prompt")
    cache.write(0, "a", 2, *tokens(1))  # nobody shares it any more


@pytest.mark.parametrize(("first", "count"), [(0, 5), (4, 1), (-1, 1), (3, 2)])
def test_a_token_without_room_is_refused(first, count):
    cache = build()
    cache.allocate("a", 4)
    with pytest.raises(DataError, match=r"'a' .*4 tokens"):
        cache.write(0, "a", first, *tokens(count))


@pytest.mark.parametrize("layer", [-1, LAYERS])
def test_a_layer_that_is_not_there_is_refused_and_nothing_is_written(layer):
    cache = build()
    cache.allocate("a", 2)
    calls = (lambda: cache.write(layer, "a", 0, *tokens(2)), lambda: cache.read(layer, ["a"]))
    for call in calls:
        with pytest.raises(DataError, match=rf"layer {layer}; .*0 to 1"):
            call()
    assert not any(cache.read(each, ["a"])[0].any() for each in range(LAYERS))


@pytest.mark.parametrize("shape", [(2, 1, WIDTH), (2, HEADS, 1), (2, WIDTH), (1, 2, HEADS, WIDTH), (2, WIDTH, HEADS)])
def test_keys_and_values_of_another_shape_are_refused_and_not_spread(shape):
    cache = build()
    cache.allocate("a", 2)
    wanted = rf"shape \[{', '.join(map(str, shape))}\]; wanted \[tokens, {HEADS}, {WIDTH}\]"
    good, bad = tokens(2)[0], torch.ones(shape)
    for what, pair in (("keys", (bad, good)), ("values", (good, bad))):
        with pytest.raises(DataError, match=rf"{what} .*{wanted}"):
            cache.write(0, "a", 0, *pair)
    assert not cache.read(0, ["a"])[0].any()


def test_reading_nothing_is_refused():
    with pytest.raises(DataError, match="no sequence"):
        build().read(0, [])


def test_what_is_stored_keeps_no_graph_alive():
    cache = build()
    cache.allocate("a", 2)
    cache.write(0, "a", 0, *(x.requires_grad_() for x in tokens(2)))
    assert not any(x.requires_grad for x in cache.read(0, ["a"]))


def test_a_sequence_cannot_shrink():
    cache = build()
    with pytest.raises(DataError, match="-1 tokens"):
        cache.allocate("a", -1)
    cache.allocate("a", 1)


def test_sizes_below_one_are_refused():
    with pytest.raises(ConfigError, match="max_blocks is 0"):
        build(max_blocks=0)


def test_half_precision_is_stored_as_such():
    cache = build(dtype=torch.bfloat16)
    cache.allocate("a", 3)
    cache.write(0, "a", 0, *tokens(3))
    assert cache.read(0, ["a"])[0].dtype == torch.bfloat16
    whole = build()
    whole.allocate("a", 3)
    assert cache.num_bytes == whole.num_bytes // 2


def test_whatever_comes_and_goes_every_sequence_holds_its_own():
    rng = random.Random(0)
    cache = build(max_blocks=40)
    expected: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for number in range(300):
        action = rng.choice(["allocate", "extend", "fork", "free"])
        known = rng.choice(list(expected)) if expected else None
        try:
            if action == "allocate" or known is None:
                cache.allocate(number, count := rng.randint(0, 9))
                expected[number] = tokens(count, seed=number)
                cache.write(0, number, 0, *expected[number])
            elif action == "extend":
                cache.extend(known, count := rng.randint(0, 9))
                new = tokens(count, seed=number)
                cache.write(0, known, len(expected[known][0]), *new)
                expected[known] = tuple(torch.cat(pair) for pair in zip(expected[known], new, strict=True))
            elif action == "fork":
                cache.fork(known, number)
                expected[number] = expected[known]
            else:
                cache.free(known)
                del expected[known]
        except MemoryLimitError:
            cache.free(victim := rng.choice(list(expected)))
            del expected[victim]
        assert all(holds(cache, name, 0, *pair) for name, pair in expected.items())
        assert cache.used_blocks + cache.free_blocks == 40
    for name in list(expected):
        cache.free(name)
    assert cache.used_blocks == 0


def test_it_is_a_public_name():
    assert rlhf.PagedKVCache is PagedKVCache
