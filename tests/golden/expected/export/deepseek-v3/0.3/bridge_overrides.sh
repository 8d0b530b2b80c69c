#!/usr/bin/env bash
# deepseek-v3 on 1024 x gb200-186gb: TP1 PP4 VPP4 CP1 EP64 ETP1 DP256 MBS1 GBS8192
# Overrides for Megatron-Bridge 0.3; from deepseek-v3.json, candidate 1
#
#   source bridge_overrides.sh
#   torchrun ... scripts/training/run_recipe.py --recipe deepseek_v3_pretrain_config "${OVERRIDES[@]}"

OVERRIDES=(
  # parallel sizes
  model.tensor_model_parallel_size=1
  model.sequence_parallel=false
  model.pipeline_model_parallel_size=4
  model.virtual_pipeline_model_parallel_size=4
  'model.pipeline_model_parallel_layout='"'"'Et*4|(t*4|)*6t*5|(t*4|)*3t*5|(t*4|)*2t*3m|L'"'"''
  model.num_layers_in_first_pipeline_stage=null
  model.num_layers_in_last_pipeline_stage=null
  model.account_for_embedding_in_pipeline_split=false
  model.account_for_loss_in_pipeline_split=false
  model.pipeline_dtype=torch.bfloat16
  model.context_parallel_size=1
  model.cp_comm_type=null
  model.expert_model_parallel_size=64
  model.expert_tensor_parallel_size=1
  # batch and sequence
  train.micro_batch_size=1
  train.global_batch_size=8192
  model.seq_length=4096
  dataset.sequence_length=4096
  model.mtp_num_layers=1
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
  'model.recompute_modules=[mla_up_proj]'
  model.cuda_graph_impl=transformer_engine
  'model.cuda_graph_scope=[attn,moe_router,moe_preprocess]'
  model.use_te_rng_tracker=true
  rng.te_rng_tracker=true
  # data parallelism and optimizer
  ddp.use_distributed_optimizer=true
  optimizer.use_distributed_optimizer=true
  optimizer.optimizer=adam
  ddp.num_distributed_optimizer_instances=1
  optimizer.use_precision_aware_optimizer=true
  optimizer.main_grads_dtype=torch.float32
  optimizer.main_params_dtype=torch.float32
  optimizer.exp_avg_dtype=torch.bfloat16
  optimizer.exp_avg_sq_dtype=torch.bfloat16
  optimizer.optimizer_cpu_offload=false
  # checkpoints
  checkpoint.ckpt_format=torch_dist
  checkpoint.fully_parallel_save=true
  # precision
  ++mixed_precision=null
  '++mixed_precision={_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,fp16:false,bf16:true,params_dtype:{_target_:torch.bfloat16,_call_:false},pipeline_dtype:{_target_:torch.bfloat16,_call_:false},autocast_enabled:false,grad_reduce_in_fp32:true,fp8:e4m3,fp8_recipe:mxfp8,fp8_param_gather:false,fp8_amax_history_len:1,fp8_amax_compute_algo:most_recent,first_last_layers_bf16:false,num_layers_at_start_in_bf16:0,num_layers_at_end_in_bf16:0,fp4:null,reuse_grad_buf_for_mxfp8_param_ag:false}'
  # communication overlap
  ++comm_overlap=null
  '++comm_overlap={_target_:megatron.bridge.training.comm_overlap.CommOverlapConfig,tp_comm_overlap:false,overlap_p2p_comm:true,batch_p2p_comm:false,overlap_grad_reduce:true,overlap_param_gather:true,align_param_gather:true,bucket_size:134217728,overlap_param_gather_with_optimizer_step:false,overlap_moe_expert_parallel_comm:false,delay_wgrad_compute:false,defer_embedding_wgrad_compute:false,wgrad_deferral_limit:-1,tp_comm_overlap_cfg:null}'
)
