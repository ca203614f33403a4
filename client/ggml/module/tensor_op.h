// Reads ggml's tensors: which attentions ckv takes, and where their memory is.

#pragma once

#include <cstdint>
#include <string>

#include "client/ggml/mla_op.h"
#include "ggml.h"

namespace ckv::ggml {

enum class Verdict : uint8_t {
  kOther,    // no attention with MLA
  kRefused,  // one with MLA that ckv does not take
  kTaken,
};

struct OpVerdict {
  Verdict verdict = Verdict::kOther;
  std::string reason;  // why it is refused, and what to do about it
};

// Judges a node of a graph by its shape, types and parameters. Its memory need not be there yet.
//
// MLA is an attention whose values are a view of its keys, with one head of keys for all heads of
// queries. It is taken if the keys are of bf16 and a layer's cache, by llama.cpp's name
// ("cache_k_l7"). Nothing but a mask and a scale may go into the softmax. Without flash attention
// there is no such node; a product with keys of this shape is refused, so that somebody tells.
OpVerdict JudgeOp(const ggml_tensor& node, decltype(&ggml_type_name) type_name);

// The layer of a node that is an attention, or kLayerCountMax if nothing tells.
uint32_t LayerOfOp(const ggml_tensor& node);

// The op of a node that is taken. Its memory is that of the tensors.
MlaOp OpOf(const ggml_tensor& node);

}  // namespace ckv::ggml
