"""Judges of two completions: which one is better?

    votes                what a judge is asked and what it says
    scores               a judge that scores each completion, such as a reward
    function_judge       a programmatic rule or a Python function
    reward_model_judge   a reward model
    templates            the prompt of a judge that is a language model, and how its answer is read
    rubric_templates     prompts that ask for grades by criteria, or for an order of several completions
    endpoint_judge       such a model behind an OpenAI-compatible endpoint
    spending             what an endpoint may cost, and what it has cost
    local_judge          such a model run here
    human_votes          votes of people from files
    human_judge          these as a judge
    jury                 several judges together
    verdict_cache        verdicts on disk, so that none is asked for twice
    both_orders          each pair asked in both orders
    certificate          what a judge's certificate is about, and what has changed since
    building             from settings to a judge

The types are listed in ``rlhf.config.judges.JUDGE_TYPES``.
"""
