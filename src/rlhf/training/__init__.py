"""Trainers: one loop that is written once, and what each algorithm adds to it.

algorithm_table  ALGORITHMS: trainers by the name of the method
loop          Loop, the only training loop; result: TrainResult; optimizer_step: one step from its micro-batches; best_weights: of the best
              evaluation
rollout_buffer  RolloutBuffer: rollouts in shuffled minibatches, for a loop of one's own
algorithm     Algorithm, what the loop asks of SFT, reward modeling, DPO, PPO, GRPO
offline       what the trainers that learn from files share; row_order: which rows each step takes
sft           SFTTrainer
reward_model  RewardModelTrainer
process_reward  ProcessRewardModelTrainer
pair_trainer  what the trainers on pairs share; dpo: DPOTrainer; reference_free: SimPOTrainer, CPOTrainer, ORPOTrainer
kto           KTOTrainer; reference_logprobs: what a reference said of rows, kept
inputs        RLInputs, OfflineInputs: what trainers are given
rl_trainer    what all share that learn from their own completions; rollout_collector samples and scores, sampler_checks compares
              sampler and trainer, rl_objective is the loss, made of the terms in policy_objective; engine_calls: holds an engine
              to its weights; rollouts: completions and their scores; experience: what is learned from them; start_checks: what must
              hold at the first step; async_rollouts: the next rollouts sampled during the training on this one; rollout_prompts: which
              prompts they ask
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
