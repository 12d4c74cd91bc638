"""Trainers: one loop that is written once, and what each algorithm adds to it.

loop          Loop, the only training loop
algorithm     Algorithm, what the loop asks of SFT, reward modelling, DPO, PPO, GRPO
offline       what the trainers that learn from files share; rows: which rows each step takes
sft           SFTTrainer
reward        RewardModelTrainer
dpo           DPOTrainer
online        what PPO and GRPO share: ask, judge, measure; rollouts: what was said and what the judge says of it;
              experience: what is learned from it
ppo           PPOTrainer
grpo          GRPOTrainer
optim         optimiser, schedule, clipping, mixed precision, weight averaging
control       AdaptiveKLController, EarlyStopping
checkpoint    rolling checkpoints, hashed; a damaged one is passed over
watch         what is done when a number goes wrong; guards, breaches: which numbers are
interrupt     Ctrl-C and SIGTERM as requests to save and leave
log           RunLog: events.jsonl, the console, trackers
metrics       means that come out the same however a step was split
"""
