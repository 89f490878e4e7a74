"""Config fields that no family reads and none needs: they change no tensor's shape."""

from __future__ import annotations

HARMLESS = frozenset(
    """
    _commit_hash _name_or_path activation_dropout activation_sparsity_pattern add_prefix_space
    altup_active_idx altup_coef_clip altup_correct_scale apply_query_key_layer_scaling
    apply_residual_connection_post_layernorm apply_spec_augment architectures attention_dropout
    attention_multiplier attention_probs_dropout_prob attention_softmax_in_fp32 attn_pdrop attn_scale
    attn_temperature_tuning audio_token_id auto_map aux_loss_alpha axes_dims_rope bad_words_ids
    begin_suppress_tokens bf16 bias_dropout_fusion boa_token_id boa_token_index boi_token_index bos_token_id
    cache_implementation chunk_size chunk_size_feed_forward classifier_dropout conf_attention_chunk_size
    conf_attention_context_left conf_attention_context_right conf_attention_logit_cap conf_reduction_factor
    conf_residual_weight decoder_layerdrop decoder_start_token_id default_theta diversity_penalty do_sample
    dropout dropout_rate dtype early_stopping embd_pdrop embedding_dropout embedding_multiplier
    encoder_layerdrop encoder_no_repeat_ngram_size encoder_stride eoa_token_id eoa_token_index
    eoi_token_index eos_token_id ep_size exponential_decay_length_penalty feature_extractor_type
    finetuning_task flash_attn floor_scale force_upcast forced_bos_token_id forced_decoder_ids
    forced_eos_token_id fp16 fp32 fp32_residual_connection gradient_checkpointing gradient_clipping
    hidden_dropout hidden_dropout_prob id2label image_break_token_id image_end_token_id image_seq_length
    image_token_id image_token_index init_std initial_context_length initializer_factor initializer_range
    input_jitter_noise is_decoder is_encoder_decoder kv_cache_quantization label2id layer_norm_eps
    layer_norm_epsilon layerdrop layernorm_epsilon length_penalty logit_scale logit_scale_init_value
    logits_scaling mask_feature_length mask_feature_min_masks mask_feature_prob mask_time_length
    mask_time_min_masks mask_time_prob masked_softmax_fusion max_length max_window_layers
    median_filter_width min_length mm_tokens_per_image model_type moe_z_loss mup_base_width n_group
    no_repeat_ngram_size norm_eps norm_epsilon norm_topk_prob note num_beam_groups num_beams
    num_nextn_predict_layers num_return_sequences offset_alibi onnx_safe original_max_position_embeddings
    output_attentions output_hidden_states output_router_logits output_scores pad_token_id
    partial_rotary_factor pooler_dropout pre_seq_len prefix prefix_projection pretraining_tp problem_type
    projector_dropout pruned_heads query_pre_attn_scalar relative_attention_max_distance
    remove_invalid_values reorder_and_upcast_attn repetition_penalty rescale_prenorm_residual resid_pdrop
    residual_dropout residual_in_fp32 residual_multiplier return_dict return_dict_in_generate rms_norm_eps
    rope_interleave rope_local_base_freq rope_parameters rope_ratio rope_scaling rope_theta rope_type rotary
    rotary_emb_base rotary_pct routed_scaling_factor router_aux_loss_coef router_jitter_noise
    router_z_loss_coef scale_attention_softmax_in_fp32 scale_attn_by_inverse_layer_idx scale_attn_weights
    scale_decoder_outputs scale_embedding scaling_factor scoring_func sep_token_id seq_aux seq_length
    shift_factor sliding_window_pattern slow_but_exact softmax_in_fp32 sscp_conv_group_norm_eps
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    suppress_tokens swiglu_alpha swiglu_limit task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder time_step_floor time_step_init_scheme time_step_limit time_step_max time_step_min
    time_step_scale tokenizer_class top_k top_p topk_group topk_method torch_dtype torchscript
    transformers.js_config transformers_version typical_p use_associative_scan use_bfloat16 use_cache
    use_dynamic_ntk use_flash_attn use_logn_attn use_mamba_kernels use_mambapy use_sliding_window
    video_token_id vision_end_token_id vision_start_token_id vision_token_id vocab_offset
    for_llm_compressor skip_bias_add skip_bias_add_qkv fused_add_norm pad_vocab_size_multiple rms_norm output_past
    add_cross_attention cross_attention_hidden_size tie_word_embeddings out_indices do_pooling attn_logit_softcapping
    attn_implementation sscp_conv_eps use_return_dict is_composition mask_token_id ssm_cfg
    quantization_config compression_config generation_config
    """.split()  # noqa: SIM905
)
"""Token ids, dropouts, epsilons, scales, rotary frequencies, routing constants, generation defaults, bookkeeping."""
