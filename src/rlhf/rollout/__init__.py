"""Rollouts: token ids in, token ids and log-probabilities out.

    types      what an engine takes and gives; the contract every engine keeps
    sampling   logits -> tokens, from given uniform numbers
    stopping   when a completion ends
    cache      keys and values of prompts and samples
    layouts    attention that reads and writes them
    packed     decoding on the packed row
    padded     decoding for families that the packed row can't serve
    fused      a model of Llama's shape in few kernels
    fused_selection  whether a model may be sampled from in that way
    int8       linear maps with weights of 8 bits
    run        a set of rows from the first token to the last row's end
    lookup     guesses at what a completion says next
    draft_decoder  several tokens of a row in one pass
    speculation  a set of rows whose tokens are guessed, and the guesses checked
    draft_model  guesses by a small model
    rejection_sampling  guesses accepted at random, such that the distribution is kept
    speculative_decoder  SpeculativeDecoder: all of this by name
    requests   what is asked of an engine; request_queue: those that wait
    local      the engine in this process: the two decoders behind one contract
    engines    the engine that settings ask for
    texts      completions of texts, without a data set
    paged      keys and values in blocks, for sequences that come and go
    snapshot   a copy of the policy that samples with the weights it was given
    sampler_process  the same in a process of its own, while this one trains
    buffer     StalenessBuffer: rollouts waiting to be learned from, no older than they may be

    vllm           the engine over vLLM
    vllm_session   its process over a whole run
    vllm_process   one process behind pipes
    vllm_weights   weights on their way there
    vllm_worker    the script that runs there

    environments  what a policy talks with over several turns
    turns         what they say, as token ids
    verifiers_environment  those of verifiers; verifiers_process, and verifiers_worker, the script that runs there
    verifiers_tasks        their tasks as rows
    episodes      an engine around an engine: several turns as one completion
    calculator    a worked example

Nothing is decoded and encoded again on the way from the sampler to the trainer.
"""

from __future__ import annotations
