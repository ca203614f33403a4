// Goal: the backend takes exactly the attentions that it computes right. It says of others with MLA
// why it does not, and what to do.
// Method: tensors as llama.cpp makes them, with one thing changed at a time. No ggml runs here.

#include "client/bindings/ggml/module/tensor_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

namespace ckv::ggml {
namespace {

using testing::HasSubstr;

const char* NameOf(ggml_type type) { return type == GGML_TYPE_F16 ? "f16" : "other"; }

void Shape(ggml_tensor& tensor, std::array<int64_t, 4> ne, size_t value_bytes) {
  std::copy(ne.begin(), ne.end(), tensor.ne);
  tensor.nb[0] = value_bytes;
  for (int i = 1; i < 4; ++i) tensor.nb[i] = tensor.nb[i - 1] * static_cast<size_t>(ne[i - 1]);
}

// DeepSeek V2-Lite's op in a batch of 5 tokens for each of 2 streams, 256 cells each.
struct Graph {
  Graph() {
    std::strcpy(cache.name, "cache_k_l13");
    q.type = node.type = GGML_TYPE_F32;
    k.type = v.type = GGML_TYPE_BF16;
    mask.type = GGML_TYPE_F16;
    Shape(q, {576, 16, 5, 2}, 4);  // then permuted
    std::swap(q.ne[1], q.ne[2]);
    std::swap(q.nb[1], q.nb[2]);
    Shape(k, {576, 256, 1, 2}, 2);
    k.nb[2] = k.nb[1];
    k.nb[3] = k.nb[1] * 4096;
    v = k;
    v.ne[0] = 512;
    k.view_src = v.view_src = &cache;
    k.view_offs = v.view_offs = 4096 * 1152;
    Shape(mask, {256, 5, 1, 2}, 2);
    Shape(node, {512, 16, 5, 2}, 4);
    node.op = GGML_OP_FLASH_ATTN_EXT;
    node.src[0] = &q;
    node.src[1] = &k;
    node.src[2] = &v;
    node.src[3] = &mask;
    SetScale(0, 0.125f);
  }
  void SetScale(size_t index, float value) {
    std::memcpy(node.op_params + index, &value, sizeof(value));
  }
  OpVerdict Judge() const { return JudgeOp(node, NameOf); }

  ggml_tensor cache{}, q{}, k{}, v{}, mask{}, node{};
};

TEST(TensorOp, TakesTheOpsThatLlamaCppMakes) {
  Graph graph;
  EXPECT_EQ(graph.Judge().verdict, Verdict::kTaken) << graph.Judge().reason;
  float answer = 0;
  std::array<std::byte, 4> q, k, mask;
  graph.q.data = q.data();
  graph.k.data = k.data();
  graph.mask.data = mask.data();
  graph.node.data = &answer;
  const MlaOp op = OpOf(graph.node);
  EXPECT_EQ(op.layer, 13u);
  EXPECT_EQ(op.softmax_scale, 0.125f);
  EXPECT_EQ(op.d_qk, 576u);
  EXPECT_EQ(op.d_v, 512u);
  EXPECT_EQ(op.head_count, 16u);
  EXPECT_EQ(op.token_count, 5u);
  EXPECT_EQ(op.stream_count, 2u);
  EXPECT_EQ(op.cell_count, 256u);
  EXPECT_EQ(op.q, q.data());
  EXPECT_EQ(op.q_head_bytes, 2304u);
  EXPECT_EQ(op.q_token_bytes, 2304u * 16);
  EXPECT_EQ(op.q_stream_bytes, 2304u * 16 * 5);
  EXPECT_EQ(op.cells, k.data());
  EXPECT_EQ(op.cell_bytes, 1152u);
  EXPECT_EQ(op.cell_stream_bytes, 1152u * 4096);
  EXPECT_EQ(op.mask, mask.data());
  EXPECT_EQ(op.mask_token_bytes, 512u);
  EXPECT_EQ(op.mask_stream_bytes, 512u * 5);
  EXPECT_EQ(op.out, &answer);
  graph.mask.ne[3] = 1;  // one for all streams
  EXPECT_EQ(OpOf(graph.node).mask_stream_bytes, 0u);
  graph.node.src[3] = nullptr;
  EXPECT_EQ(graph.Judge().verdict, Verdict::kTaken);
  EXPECT_EQ(OpOf(graph.node).mask, nullptr);
}

TEST(TensorOp, GivesTheReasonForARefusal) {
  ggml_tensor sinks{};
  const std::vector<std::pair<const char*, std::function<void(Graph&)>>> cases = {
      {"keys of f16: -ctk bf16 -ctv bf16", [](Graph& g) { g.k.type = GGML_TYPE_F16; }},
      {"sinks", [&](Graph& g) { g.node.src[4] = &sinks; }},
      {"slopes", [](Graph& g) { g.SetScale(1, 8); }},
      {"soft cap", [](Graph& g) { g.SetScale(2, 30); }},
      {"DSA", [](Graph& g) { g.node.op_params[4] = 2048; }},
      {"no cache", [](Graph& g) { std::strcpy(g.cache.name, "cache_k_l"); }},
      {"no cache", [](Graph& g) { std::strcpy(g.cache.name, "cache_k_l5x"); }},
      {"no cache", [](Graph& g) { std::strcpy(g.cache.name, "cache_k_l512"); }},
      {"no cache", [](Graph& g) { std::strcpy(g.cache.name, "inp_k"); }},
      {"layout", [](Graph& g) { g.q.type = GGML_TYPE_F16; }},
      {"layout", [](Graph& g) { g.q.nb[0] = 8; }},
      {"layout", [](Graph& g) { g.k.nb[1] = 576; }},
      {"layout", [](Graph& g) { g.k.ne[0] = g.q.ne[0] = 1026; }},
      {"layout", [](Graph& g) { g.q.ne[0] = 512; }},
      {"layout", [](Graph& g) { g.v.nb[1] *= 2; }},
      {"layout", [](Graph& g) { g.node.nb[2] += 4; }},
      {"layout", [](Graph& g) { g.q.ne[3] = 1; }},
      {"mask", [](Graph& g) { g.mask.type = GGML_TYPE_F32; }},
      {"mask", [](Graph& g) { g.mask.ne[0] = 255; }},
      {"mask", [](Graph& g) { g.mask.ne[1] = 4; }},
      {"mask", [](Graph& g) { g.mask.ne[2] = 16; }},
      {"mask", [](Graph& g) { g.mask.ne[3] = 3; }}};
  for (size_t i = 0; i < cases.size(); ++i) {
    Graph graph;
    cases[i].second(graph);
    const OpVerdict verdict = graph.Judge();
    EXPECT_EQ(verdict.verdict, Verdict::kRefused) << i;
    EXPECT_THAT(verdict.reason, HasSubstr(cases[i].first)) << i;
  }
}

TEST(TensorOp, LeavesOtherNodesToGgml) {
  const std::vector<std::function<void(Graph&)>> cases = {
      [](Graph& g) { g.node.op = GGML_OP_ADD; },
      [](Graph& g) { g.k.ne[2] = g.v.ne[2] = 2; },  // heads of keys
      [](Graph& g) { g.v.view_src = &g.mask; },     // values of their own
      [](Graph& g) { g.v.view_src = nullptr; },
      [](Graph& g) { g.v.view_offs += 1152; },
      [](Graph& g) { g.v.ne[0] = 576; },
      [](Graph& g) { g.node.src[2] = nullptr; }};
  for (size_t i = 0; i < cases.size(); ++i) {
    Graph graph;
    cases[i](graph);
    EXPECT_EQ(graph.Judge().verdict, Verdict::kOther) << i;
  }
}

// Logits of MLA by a product of matrices.
TEST(TensorOp, ReportsAttentionWithoutFlashAttention) {
  Graph graph;
  graph.node.op = GGML_OP_MUL_MAT;
  graph.node.src[0] = &graph.k;
  graph.node.src[1] = &graph.q;
  EXPECT_EQ(graph.Judge().verdict, Verdict::kRefused);
  EXPECT_THAT(graph.Judge().reason, HasSubstr("-fa on"));
  graph.k.ne[0] = graph.q.ne[0] = 256;  // a head of another model
  EXPECT_EQ(graph.Judge().verdict, Verdict::kOther);
  graph = Graph();
  graph.node.op = GGML_OP_MUL_MAT;
  graph.node.src[0] = &graph.mask;  // a product of other things
  graph.node.src[1] = &graph.q;
  EXPECT_EQ(graph.Judge().verdict, Verdict::kOther);
}

}  // namespace
}  // namespace ckv::ggml
