"""Prefill of one prompt by Hugging Face transformers in BF16 with sdpa, at GLM-5's full width, as cuda_engine_bench has it.

Prints the median milliseconds (lm_head on the last token). Needs torch and transformers with GlmMoeDsaForCausalLM.
"""
import sys

import torch
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

layers, tokens = int(sys.argv[1]), int(sys.argv[2])
config = GlmMoeDsaConfig(
    vocab_size=154880, hidden_size=6144, intermediate_size=12288, moe_intermediate_size=2048, num_hidden_layers=layers,
    num_attention_heads=64, num_key_value_heads=64, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
    kv_lora_rank=512, q_lora_rank=2048, qk_rope_head_dim=64, qk_nope_head_dim=192, v_head_dim=256, index_n_heads=32,
    index_head_dim=128, index_topk=2048, first_k_dense_replace=1, routed_scaling_factor=2.5,
    mlp_layer_types=["dense"] + ["sparse"] * (layers - 1))
config._attn_implementation = "sdpa"
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = GlmMoeDsaForCausalLM(config).eval()
ids = torch.randint(0, config.vocab_size, (1, tokens), device="cuda")
times = []
with torch.inference_mode():
    for _ in range(9):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        model(ids, use_cache=True, logits_to_keep=1)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
print(f"transformers, bf16, sdpa, {layers} layers, {tokens} tokens: {sorted(times[2:])[len(times[2:]) // 2]:.1f} ms")
