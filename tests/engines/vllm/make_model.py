"""Writes a small DeepSeek-V2 whose attention matters, and none of whose values is trained.

vLLM's dummy weights are within +-1e-3. With them attention has no influence, and every answer is equal.
These have the scale that trained ones have: logits of about 10, and attention that another text changes.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

HEADS, LATENT, ROPE, NOPE, V = 16, 512, 64, 128, 128  # V2-Lite's widths of attention
HIDDEN, INTERMEDIATE, VOCABULARY = 256, 512, 2048


def config_of(layers):
    return {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE, "moe_intermediate_size": 128, "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS, "num_hidden_layers": layers, "n_routed_experts": 4, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "first_k_dense_replace": layers, "moe_layer_freq": 1, "kv_lora_rank": LATENT,
            "q_lora_rank": None, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": V,
            "vocab_size": VOCABULARY, "max_position_embeddings": 32768, "rope_theta": 10000, "rms_norm_eps": 1e-6,
            "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "bos_token_id": 0,
            "eos_token_id": 1, "attention_bias": False, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
            "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "aux_loss_alpha": 0.001,
            "seq_aux": True}


def weights_of(layers, seed):
    generator = torch.Generator().manual_seed(seed)

    def random(rows, columns, gain=1.0):
        return (torch.randn(rows, columns, generator=generator) * gain / columns**0.5).to(torch.bfloat16)

    def ones(count):
        return torch.ones(count, dtype=torch.bfloat16)

    weights = {"model.embed_tokens.weight": random(VOCABULARY, HIDDEN, HIDDEN**0.5), "model.norm.weight": ones(HIDDEN),
               "lm_head.weight": random(VOCABULARY, HIDDEN, 3.0)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        weights.update({
            at + "input_layernorm.weight": ones(HIDDEN), at + "post_attention_layernorm.weight": ones(HIDDEN),
            at + "self_attn.q_proj.weight": random(HEADS * (NOPE + ROPE), HIDDEN),
            at + "self_attn.kv_a_proj_with_mqa.weight": random(LATENT + ROPE, HIDDEN),
            at + "self_attn.kv_a_layernorm.weight": ones(LATENT),
            at + "self_attn.kv_b_proj.weight": random(HEADS * (NOPE + V), LATENT),
            at + "self_attn.o_proj.weight": random(HIDDEN, HEADS * V),
            at + "mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN), at + "mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
            at + "mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE)})
    return weights


def make(folder, layers, seed=7):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights_of(layers, seed), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_of(layers)))


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:4]))
