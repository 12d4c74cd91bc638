"""Trainers: one loop that is written once, and what each algorithm adds to it.

algorithm_table  ALGORITHMS: trainers by the name of the method
loop          Loop, the only training loop; result: TrainResult
rollout_buffer  RolloutBuffer: rollouts in shuffled minibatches, for a loop of one's own
algorithm     Algorithm, what the loop asks of SFT, reward modeling, DPO, PPO, GRPO
offline       what the trainers that learn from files share; row_order: which rows each step takes
sft           SFTTrainer
reward_model  RewardModelTrainer
process_reward  ProcessRewardModelTrainer
pair_trainer  what the trainers on pairs share; dpo: DPOTrainer; reference_free: SimPOTrainer, CPOTrainer, ORPOTrainer
kto           KTOTrainer; reference_logprobs: what a reference said of rows, kept
online        what all share that learn from their own completions: ask, judge, measure; engine_calls: holds an engine to its
              weights; rollouts: what was said and what the judge says of it; experience: what is learned from it; policy_objective:
              what an advantage does to a token; start_checks: what must hold at the first step; one_step_off: the next
              rollout sampled beside the training on this one
ppo           PPOTrainer
grpo          GRPOTrainer, and its family by settings; RLOOTrainer
optim         optimizer, schedule, clipping, mixed precision, weight averaging
device_manager  DeviceManager, for a loop of one's own
control       AdaptiveKLController, EarlyStopping
checkpoint    rolling checkpoints, hashed; a damaged one is passed over; checkpoint_names: what their folders are called
monitoring    guards and alarms: which numbers are wrong, and what is done then
interrupt     Ctrl-C and SIGTERM as requests to save and leave
log           TrainingLogger: events.jsonl, the console, trackers; console: setup_logging
metrics       means that come out the same however a step was split
"""
