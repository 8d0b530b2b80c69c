#!/usr/bin/env bash
# llama3-70b on 64 x h100-sxm-80gb: TP4 PP4 VPP5 CP2 EP1 ETP1 DP2 MBS1 GBS128
# Overrides for Megatron-Bridge 0.3; from llama3-70b.json, candidate 1
#
#   source bridge_overrides.sh
#   torchrun ... scripts/training/run_recipe.py --recipe llama3_70b_pretrain_config "${OVERRIDES[@]}"

OVERRIDES=(
  # parallel sizes
  model.tensor_model_parallel_size=4
  model.sequence_parallel=true
  model.pipeline_model_parallel_size=4
  model.virtual_pipeline_model_parallel_size=5
  'model.pipeline_model_parallel_layout='"'"'Et*4|(t*4|)*17t*5|t*3L'"'"''
  model.num_layers_in_first_pipeline_stage=null
  model.num_layers_in_last_pipeline_stage=null
  model.account_for_embedding_in_pipeline_split=false
  model.account_for_loss_in_pipeline_split=false
  model.pipeline_dtype=torch.bfloat16
  model.context_parallel_size=2
  model.cp_comm_type=p2p
  model.expert_model_parallel_size=1
  # batch and sequence
  train.micro_batch_size=1
  train.global_batch_size=128
  model.seq_length=8192
  dataset.sequence_length=8192
  model.mtp_num_layers=null
  # recompute and CUDA graphs
  model.recompute_granularity=selective
  model.recompute_method=null
  model.recompute_num_layers=null
  'model.recompute_modules=[core_attn]'
  model.cuda_graph_impl=none
  # data parallelism and optimizer
  ddp.use_distributed_optimizer=true
  optimizer.use_distributed_optimizer=true
  optimizer.optimizer=adam
  ddp.num_distributed_optimizer_instances=1
  optimizer.use_precision_aware_optimizer=false
  optimizer.main_grads_dtype=torch.float32
  optimizer.main_params_dtype=torch.float32
  optimizer.exp_avg_dtype=torch.float32
  optimizer.exp_avg_sq_dtype=torch.float32
  optimizer.optimizer_cpu_offload=false
  # checkpoints
  checkpoint.ckpt_format=torch_dist
  checkpoint.fully_parallel_save=true
  # precision
  ++mixed_precision=null
  ++mixed_precision=bf16_mixed
  # communication overlap
  ++comm_overlap=null
  '++comm_overlap={_target_:megatron.bridge.training.comm_overlap.CommOverlapConfig,tp_comm_overlap:true,overlap_p2p_comm:true,batch_p2p_comm:false,overlap_grad_reduce:true,overlap_param_gather:true,align_param_gather:true,bucket_size:134217728,overlap_param_gather_with_optimizer_step:false,overlap_moe_expert_parallel_comm:false,delay_wgrad_compute:false,defer_embedding_wgrad_compute:false,wgrad_deferral_limit:-1,tp_comm_overlap_cfg:{_target_:megatron.bridge.training.comm_overlap.TransformerLayerTPOverlapCfg,qkv_fprop:{_target_:megatron.bridge.training.comm_overlap.RingExchangeOverlapCfg,aggregate:false,num_sm:1,cga_size:1,set_sm_margin:false,fp8_buf:false,atomic_gemm:false},proj_fprop:{_target_:megatron.bridge.training.comm_overlap.PipelineOverlapCfg,num_sm:24,cga_size:2,num_splits:4,set_sm_margin:true,fp8_buf:false,atomic_gemm:false},fc1_fprop:{_target_:megatron.bridge.training.comm_overlap.RingExchangeOverlapCfg,aggregate:false,num_sm:1,cga_size:1,set_sm_margin:false,fp8_buf:false,atomic_gemm:false},fc2_fprop:{_target_:megatron.bridge.training.comm_overlap.PipelineOverlapCfg,num_sm:16,cga_size:2,num_splits:4,set_sm_margin:true,fp8_buf:false,atomic_gemm:false},qkv_dgrad:{_target_:megatron.bridge.training.comm_overlap.BulkOverlapCfg,num_sm:4,cga_size:2,set_sm_margin:false},proj_dgrad:{_target_:megatron.bridge.training.comm_overlap.RingExchangeOverlapCfg,aggregate:false,num_sm:1,cga_size:1,set_sm_margin:false,fp8_buf:false,atomic_gemm:false},fc1_dgrad:{_target_:megatron.bridge.training.comm_overlap.BulkOverlapCfg,num_sm:2,cga_size:2,set_sm_margin:false},fc2_dgrad:{_target_:megatron.bridge.training.comm_overlap.RingExchangeOverlapCfg,aggregate:false,num_sm:1,cga_size:1,set_sm_margin:false,fp8_buf:false,atomic_gemm:false},qkv_wgrad:{_target_:megatron.bridge.training.comm_overlap.BulkOverlapCfg,num_sm:24,cga_size:2,set_sm_margin:false},fc1_wgrad:{_target_:megatron.bridge.training.comm_overlap.BulkOverlapCfg,num_sm:4,cga_size:2,set_sm_margin:false}}}'
)
