#!/usr/bin/env bash
# minimax-m2 on 64 x h100-sxm-80gb: TP2 PP4 VPP16 CP1 EP16 ETP1 DP8 MBS2 GBS512
# Overrides for Megatron-Bridge 0.6; from minimax-m2.json, candidate 1
#
# Bridge 0.6 has no recipe for this model: use advisor export ... --to bridge, whose recipe() builds
# one, and apply these to your own recipe only.

OVERRIDES=(
  # parallel sizes
  model.tensor_model_parallel_size=2
  model.sequence_parallel=true
  model.pipeline_model_parallel_size=4
  model.virtual_pipeline_model_parallel_size=16
  model.pipeline_model_parallel_layout=null
  model.num_layers_in_first_pipeline_stage=null
  model.num_layers_in_last_pipeline_stage=null
  model.account_for_embedding_in_pipeline_split=true
  model.account_for_loss_in_pipeline_split=true
  model.pipeline_dtype=torch.bfloat16
  model.context_parallel_size=1
  model.cp_comm_type=null
  model.expert_model_parallel_size=16
  model.expert_tensor_parallel_size=1
  # batch and sequence
  train.micro_batch_size=2
  train.global_batch_size=512
  model.seq_length=4096
  dataset.seq_length=4096
  model.mtp_num_layers=null
  # experts
  model.moe_token_dispatcher_type=flex
  model.moe_flex_dispatcher_backend=hybridep
  model.moe_shared_expert_overlap=false
  model.moe_router_dtype=fp32
  model.moe_expert_capacity_factor=null
  model.moe_pad_expert_input_to_capacity=false
  # recompute and CUDA graphs
  model.recompute_granularity=selective
  model.recompute_method=null
  model.recompute_num_layers=null
  'model.recompute_modules=[moe_act]'
  model.cuda_graph_impl=none
  model.cuda_graph_scope=null
  # data parallelism and optimizer
  ddp.use_distributed_optimizer=true
  optimizer.use_distributed_optimizer=true
  optimizer.optimizer=adam
  ddp.num_distributed_optimizer_instances=1
  optimizer.use_precision_aware_optimizer=true
  optimizer.main_grads_dtype=torch.float32
  optimizer.main_params_dtype=torch.float32
  optimizer.exp_avg_dtype=torch.float32
  optimizer.exp_avg_sq_dtype=torch.float32
  optimizer.optimizer_cpu_offload=true
  optimizer.optimizer_offload_fraction=1.0
  optimizer.overlap_cpu_optimizer_d2h_h2d=true
  # checkpoints
  checkpoint.ckpt_format=torch_dist
  checkpoint.fully_parallel_save=true
  # precision
  ++mixed_precision=null
  ++mixed_precision=bf16_mixed
  # communication overlap
  ++comm_overlap=null
  '++comm_overlap={_target_:megatron.bridge.training.comm_overlap.CommOverlapConfig,tp_comm_overlap:false,overlap_p2p_comm:true,batch_p2p_comm:false,overlap_grad_reduce:true,overlap_param_gather:true,align_param_gather:true,bucket_size:134217728,overlap_param_gather_with_optimizer_step:false,overlap_moe_expert_parallel_comm:true,delay_wgrad_compute:true,defer_embedding_wgrad_compute:false,wgrad_deferral_limit:-1,tp_comm_overlap_cfg:null}'
)
