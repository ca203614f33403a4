"""The model of make_model.py in float32, in plain torch: the reference for an engine in bf16."""

import json
import pathlib

import torch
from safetensors.torch import load_file


class Reference:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}

    def _norm(self, x, weight):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.config["rms_norm_eps"]) * weight

    def _turn(self, x):
        """Rotates [tokens, heads, rope] to positions 0, 1, ...; pairs are 2i and 2i + 1."""
        rope = x.shape[-1]
        frequencies = self.config["rope_theta"] ** (-torch.arange(rope // 2).double() / (rope // 2))
        angles = torch.arange(x.shape[0])[:, None] * frequencies[None]
        cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def _attention(self, y, layer, hidden):
        c, w = self.config, lambda name: self.weights[f"model.layers.{layer}.self_attn.{name}.weight"]
        heads, nope, latent = c["num_attention_heads"], c["qk_nope_head_dim"], c["kv_lora_rank"]
        rope, v, tokens = c["qk_rope_head_dim"], c["v_head_dim"], y.shape[0]
        q = (y @ w("q_proj").T).view(tokens, heads, nope + rope)
        kv = y @ w("kv_a_proj_with_mqa").T
        up = (self._norm(kv[:, :latent], w("kv_a_layernorm")) @ w("kv_b_proj").T).view(tokens, heads, nope + v)
        k = torch.cat([up[..., :nope], self._turn(kv[:, None, latent:]).expand(tokens, heads, rope)], -1)
        q = torch.cat([q[..., :nope], self._turn(q[..., nope:])], -1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * (nope + rope) ** -0.5
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
        return torch.einsum("hqk,khd->qhd", weights, up[..., nope:]).flatten(1) @ w("o_proj").T

    def logprobs(self, tokens, last, corpora=()):
        """Logprobs of the next token after each of the `last` last tokens: float32 [last, vocabulary].

        corpora  the lengths of corpora at the beginning. Each was computed alone: its tokens attend to none
                 of those before it
        """
        hidden = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
        begin = 0
        for length in corpora:
            hidden[begin:begin + length, :begin] = True
            begin += length
        x = self.weights["model.embed_tokens.weight"][torch.tensor(tokens)]
        for layer in range(self.config["num_hidden_layers"]):
            w = lambda name: self.weights[f"model.layers.{layer}.{name}.weight"]  # noqa: E731
            x = x + self._attention(self._norm(x, w("input_layernorm")), layer, hidden)
            y = self._norm(x, w("post_attention_layernorm"))
            x = x + (torch.nn.functional.silu(y @ w("mlp.gate_proj").T) * (y @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
        return torch.log_softmax(self._norm(x[-last:], self.weights["model.norm.weight"]) @ self.weights["lm_head.weight"].T, -1)

    def error(self, prompt, answer, corpora=()):
        """The mean of |logprob - reference| over the tokens that vLLM reports at each step.

        prompt   all tokens before the answer, those of corpora included
        answer   a RequestOutput with logprobs
        corpora  as in logprobs
        """
        out = answer.outputs[0]
        tokens = list(out.token_ids)
        want = self.logprobs(list(prompt) + tokens[:-1], len(tokens), corpora)
        off = [abs(one.logprob - float(want[step, token]))
               for step, told in enumerate(out.logprobs) for token, one in told.items()]
        return sum(off) / len(off)
