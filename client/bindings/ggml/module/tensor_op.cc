#include "client/bindings/ggml/module/tensor_op.h"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/bindings/ggml/op_attender.h"
#include "proto/geometry.h"

namespace ckv::ggml {
namespace {

// Products with wider keys count as MLA without flash attention. Heads of other models have up to
// 256 values.
constexpr int64_t kPlainHeadMax = 256;

OpVerdict Refuse(std::string reason) { return {Verdict::kRefused, std::move(reason)}; }

// The layer of the cache that these keys view. llama.cpp exposes it only in the tensor's name.
std::optional<uint32_t> LayerOf(const ggml_tensor& k) {
  constexpr std::string_view kName = "cache_k_l";
  const char* name = k.view_src != nullptr ? k.view_src->name : k.name;
  const std::string_view text(name, strnlen(name, GGML_MAX_NAME));
  if (!text.starts_with(kName)) return std::nullopt;
  uint32_t layer = 0;
  const auto [end, error] =
      std::from_chars(text.data() + kName.size(), text.data() + text.size(), layer);
  if (error != std::errc() || end != text.data() + text.size() || layer >= kLayerCountMax) {
    return std::nullopt;
  }
  return layer;
}

float ScaleAt(const ggml_tensor& node, size_t index) {
  float value = 0;
  std::memcpy(&value, node.op_params + index, sizeof(value));
  return value;
}

// Keys of MLA that are multiplied with queries by themselves.
bool IsPlainAttention(const ggml_tensor& node) {
  if (node.op != GGML_OP_MUL_MAT || node.src[0] == nullptr || node.src[1] == nullptr) return false;
  const ggml_tensor& k = *node.src[0];
  return k.ne[0] > kPlainHeadMax && k.ne[2] == 1 && node.src[1]->ne[2] > 1 &&
         k.ne[0] == node.src[1]->ne[0] && LayerOf(k).has_value();
}

bool HasMlaShape(const ggml_tensor& node) {
  const ggml_tensor *q = node.src[0], *k = node.src[1], *v = node.src[2];
  if (node.op != GGML_OP_FLASH_ATTN_EXT || q == nullptr || k == nullptr || v == nullptr) {
    return false;
  }
  return k->ne[2] == 1 && v->ne[2] == 1 && v->view_src != nullptr && v->view_src == k->view_src &&
         v->view_offs == k->view_offs && v->ne[0] < k->ne[0];
}

// Checks what the softmax has in addition to the scale and the mask.
OpVerdict JudgeParameters(const ggml_tensor& node) {
  if (node.src[4] != nullptr) return Refuse("attention sinks, which ckv does not support");
  if (ScaleAt(node, 1) != 0)
    return Refuse("a mask with slopes (ALiBi), which ckv does not support");
  if (ScaleAt(node, 2) != 0) return Refuse("a soft cap of logits, which ckv does not support");
  if (node.op_params[4] > 0) {
    return Refuse("an indexer's choice of rows (DSA), which ckv does not support here");
  }
  return {Verdict::kTaken, ""};
}

OpVerdict JudgeShape(const ggml_tensor& node) {
  const ggml_tensor &q = *node.src[0], &k = *node.src[1], &v = *node.src[2];
  const ggml_tensor* mask = node.src[3];
  const bool fits = q.type == GGML_TYPE_F32 && node.type == GGML_TYPE_F32 &&
                    q.nb[0] == sizeof(float) && k.nb[0] == 2 && v.nb[0] == 2 &&
                    k.ne[0] == q.ne[0] && k.ne[0] <= int64_t{kRowWidthMax} && k.ne[0] % 2 == 0 &&
                    v.nb[1] == k.nb[1] && v.nb[3] == k.nb[3] && v.ne[1] == k.ne[1] &&
                    k.ne[3] == q.ne[3] && k.nb[1] <= UINT32_MAX &&
                    k.nb[1] >= static_cast<size_t>(k.ne[0]) * 2 && k.ne[1] <= INT32_MAX &&
                    q.ne[2] <= int64_t{OpAttender::kRowsAtOnceMax} && node.nb[0] == sizeof(float) &&
                    node.nb[1] == static_cast<size_t>(node.ne[0]) * sizeof(float) &&
                    node.nb[2] == node.nb[1] * static_cast<size_t>(node.ne[1]) &&
                    node.nb[3] == node.nb[2] * static_cast<size_t>(node.ne[2]);
  if (!fits) return Refuse("a layout of tensors that ckv does not support");
  if (mask != nullptr &&
      (mask->type != GGML_TYPE_F16 || mask->nb[0] != 2 || mask->ne[0] < k.ne[1] ||
       mask->ne[1] < q.ne[1] || mask->ne[2] != 1 || (mask->ne[3] != 1 && mask->ne[3] != q.ne[3]))) {
    return Refuse("a mask that ckv does not support");
  }
  return {Verdict::kTaken, ""};
}

}  // namespace

uint32_t LayerOfOp(const ggml_tensor& node) {
  const ggml_tensor* k = node.op == GGML_OP_MUL_MAT ? node.src[0] : node.src[1];
  return k == nullptr ? kLayerCountMax : LayerOf(*k).value_or(kLayerCountMax);
}

OpVerdict JudgeOp(const ggml_tensor& node, decltype(&ggml_type_name) type_name) {
  if (IsPlainAttention(node)) {
    return Refuse("no flash attention: -fa on (flash_attn_type, flashAttention: true)");
  }
  if (!HasMlaShape(node)) return {};
  const ggml_tensor& k = *node.src[1];
  if (!LayerOf(k)) return Refuse("keys that are no cache of llama.cpp's");
  if (k.type != GGML_TYPE_BF16) {
    return Refuse(absl::StrFormat(
        "keys of %s: -ctk bf16 -ctv bf16 (type_k, type_v, experimentalKvCacheKeyType: \"BF16\")",
        type_name(k.type)));
  }
  OpVerdict verdict = JudgeParameters(node);
  return verdict.verdict == Verdict::kTaken ? JudgeShape(node) : verdict;
}

MlaOp OpOf(const ggml_tensor& node) {
  const ggml_tensor &q = *node.src[0], &k = *node.src[1];
  const ggml_tensor* mask = node.src[3];
  MlaOp op;
  op.layer = LayerOf(k).value_or(kLayerCountMax);
  op.softmax_scale = ScaleAt(node, 0);
  op.d_qk = static_cast<uint32_t>(q.ne[0]);
  op.d_v = static_cast<uint32_t>(node.ne[0]);
  op.head_count = static_cast<uint32_t>(q.ne[2]);
  op.token_count = static_cast<uint32_t>(q.ne[1]);
  op.stream_count = static_cast<uint32_t>(q.ne[3]);
  op.cell_count = static_cast<uint32_t>(k.ne[1]);
  op.q = static_cast<const std::byte*>(q.data);
  op.q_head_bytes = q.nb[2];
  op.q_token_bytes = q.nb[1];
  op.q_stream_bytes = q.nb[3];
  op.cells = static_cast<const std::byte*>(k.data);
  op.cell_bytes = k.nb[1];
  op.cell_stream_bytes = k.nb[3];
  if (mask != nullptr) {
    op.mask = static_cast<const std::byte*>(mask->data);
    op.mask_token_bytes = mask->nb[1];
    op.mask_stream_bytes = mask->ne[3] == 1 ? 0 : mask->nb[3];
  }
  op.out = static_cast<float*>(node.data);
  return op;
}

}  // namespace ckv::ggml
