// Reads ggml's tensors: which attentions ckv takes, and where their memory is.

#pragma once

#include <cstdint>
#include <string>

#include "client/bindings/ggml/mla_op.h"
#include "ggml.h"

namespace ckv::ggml {

enum class Verdict : uint8_t {
  kOther,    // not an attention with MLA
  kRefused,  // an attention with MLA that ckv does not take
  kTaken,
};

struct OpVerdict {
  Verdict verdict = Verdict::kOther;
  std::string reason;  // why it is refused, and what to do about it
};

// Classifies a node of a graph by its shape, types and parameters. Its memory need not be allocated
// yet.
//
// MLA is an attention whose values are a view of its keys, with one head of keys for all heads of
// queries. It is taken if the keys are bf16 and belong to a layer's cache, by llama.cpp's name
// ("cache_k_l7"). The softmax may use nothing but a mask and a scale. Without flash attention there
// is no such node. A product with keys of this shape is then refused, so that the cause is
// reported.
OpVerdict JudgeOp(const ggml_tensor& node, decltype(&ggml_type_name) type_name);

// Returns the layer of a node that is an attention, or kLayerCountMax if it is unknown.
uint32_t LayerOfOp(const ggml_tensor& node);

// Returns the op of a node that is taken. The op uses the memory of the tensors.
MlaOp OpOf(const ggml_tensor& node);

}  // namespace ckv::ggml
