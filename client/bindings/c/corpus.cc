// Corpora, and the conversions that all calls share.

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/bindings/c/ckv.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/struct_size.h"
#include "proto/base/status.h"

namespace ckv::c {

absl::Status Missing(const char* what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: NULL", what));
}

static_assert(CKV_MEMORY_HOST == static_cast<int>(MemoryKind::kHost) &&
              CKV_MEMORY_PINNED == static_cast<int>(MemoryKind::kPinned) &&
              CKV_MEMORY_DEVICE == static_cast<int>(MemoryKind::kDevice));

absl::Status TakeMemory(const char* what, uint32_t kind, const Backend& backend, MemoryKind& to) {
  if (kind > CKV_MEMORY_DEVICE)
    return absl::InvalidArgumentError(absl::StrFormat("%s: %d is no kind of memory", what, kind));
  to = static_cast<MemoryKind>(kind);
  if (to != MemoryKind::kDevice || &backend != Backend::Cpu()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: memory of a device, and this requester computes on the processor: open "
                      "it with backend \"cuda\"",
                      what));
}

absl::Status TakeTrace(const char* traceparent, TraceContext& to) {
  if (traceparent == nullptr) return absl::OkStatus();
  const auto trace = ParseTraceparent(traceparent);
  if (!trace) return absl::InvalidArgumentError("traceparent: not one of W3C Trace Context");
  to = *trace;
  return absl::OkStatus();
}

absl::Status TakeWire(uint32_t wire, PartialDtype& to) {
  if (wire == CKV_DTYPE_DEFAULT) return absl::OkStatus();  // `to` has it
  if (wire != CKV_DTYPE_BF16 && wire != CKV_DTYPE_F32)
    return absl::InvalidArgumentError(absl::StrFormat("wire: %d is no type of partials", wire));
  to = wire == CKV_DTYPE_F32 ? PartialDtype::kF32 : PartialDtype::kBf16;
  return absl::OkStatus();
}

namespace {

ckv_corpus_facts FactsOf(const Corpus& corpus) {
  const Geometry& geometry = corpus.geometry;
  ckv_corpus_facts facts = {};
  facts.name = corpus.name.c_str();
  facts.model = geometry.model.c_str();
  facts.revision = geometry.revision.c_str();
  facts.version = corpus.version;
  facts.token_count = corpus.token_count();
  facts.chunk_count = static_cast<uint32_t>(corpus.chunks.size());
  facts.layers = geometry.layers;
  facts.d_qk = geometry.d_qk;
  facts.d_v = geometry.d_v;
  facts.d_rope = geometry.d_rope;
  facts.row_dtype = geometry.dtype == RowDtype::kBf16 ? CKV_DTYPE_BF16 : CKV_DTYPE_FP8_DS_MLA;
  facts.row_bytes = geometry.row_bytes();
  facts.rope_style = static_cast<uint32_t>(geometry.rope.style);
  facts.rope_theta = geometry.rope.theta;
  if (const auto& yarn = geometry.rope.yarn) {
    facts.yarn_factor = yarn->factor;
    facts.yarn_original_max_position = yarn->original_max_position;
    facts.yarn_beta_fast = yarn->beta_fast;
    facts.yarn_beta_slow = yarn->beta_slow;
    facts.yarn_mscale = yarn->mscale;
    facts.yarn_mscale_all_dim = yarn->mscale_all_dim;
  }
  facts.softmax_scale = geometry.softmax_scale;
  if (const auto& index = geometry.index) {
    facts.index_scale = index->scale;
    facts.index_dim = index->dim;
    facts.index_heads = index->heads;
    facts.index_dtype = static_cast<uint32_t>(index->dtype);
    facts.index_d_rope = index->d_rope;
    facts.index_rope_style = static_cast<uint32_t>(index->rope_style);
    facts.index_key_bytes = index->key_bytes();
  }
  return facts;
}

}  // namespace
}  // namespace ckv::c

static_assert(CKV_INDEX_BF16 == static_cast<int>(ckv::IndexDtype::kBf16));
static_assert(CKV_INDEX_FP8 == static_cast<int>(ckv::IndexDtype::kFp8));
static_assert(CKV_INDEX_INT8 == static_cast<int>(ckv::IndexDtype::kInt8));
static_assert(CKV_ROPE_NONE == static_cast<int>(ckv::RopeStyle::kNone));
static_assert(CKV_ROPE_INTERLEAVED == static_cast<int>(ckv::RopeStyle::kInterleaved));
static_assert(CKV_ROPE_HALF_SPLIT == static_cast<int>(ckv::RopeStyle::kHalfSplit));

extern "C" ckv_status ckv_resolve(ckv_requester* requester, const char* name, uint64_t timeout_ns,
                                  ckv_corpus** corpus) {
  if (corpus != nullptr) *corpus = nullptr;
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (name == nullptr) return ckv::c::Missing("name");
    if (corpus == nullptr) return ckv::c::Missing("corpus");
    CKV_ASSIGN_OR_RETURN(auto resolved, requester->requester->Resolve(name, requester->tenant,
                                                                      ckv::c::After(timeout_ns)));
    *corpus = new ckv_corpus{requester->owner, std::move(resolved)};
    return absl::OkStatus();
  });
}

extern "C" void ckv_corpus_free(ckv_corpus* corpus) { delete corpus; }

extern "C" ckv_status ckv_corpus_describe(const ckv_corpus* corpus, ckv_corpus_facts* facts) {
  return ckv::c::Guard(ckv::c::OwnerOf(corpus), [&]() -> absl::Status {
    if (corpus == nullptr) return ckv::c::Missing("corpus");
    return ckv::c::GiveStruct("ckv_corpus_facts", ckv::c::FactsOf(*corpus->corpus), facts);
  });
}

extern "C" ckv_status ckv_corpus_chunks(const ckv_corpus* corpus, uint32_t chunk_begin,
                                        uint32_t chunk_end, uint8_t* ids, uint32_t* token_counts,
                                        uint64_t* positions) {
  return ckv::c::Guard(ckv::c::OwnerOf(corpus), [&]() -> absl::Status {
    if (corpus == nullptr) return ckv::c::Missing("corpus");
    const auto& chunks = corpus->corpus->chunks;
    if (chunk_begin > chunk_end || chunk_end > chunks.size()) {
      return absl::InvalidArgumentError(absl::StrFormat("chunks %d to %d, the corpus has %d",
                                                        chunk_begin, chunk_end, chunks.size()));
    }
    for (uint32_t i = 0; i < chunk_end - chunk_begin; ++i) {
      const ckv::ChunkPlacement& chunk = chunks[chunk_begin + i];
      if (ids != nullptr) {
        std::memcpy(ids + size_t{i} * chunk.id.bytes.size(), chunk.id.bytes.data(),
                    chunk.id.bytes.size());
      }
      if (token_counts != nullptr) token_counts[i] = chunk.token_count;
      if (positions != nullptr) positions[i] = chunk.position;
    }
    return absl::OkStatus();
  });
}
