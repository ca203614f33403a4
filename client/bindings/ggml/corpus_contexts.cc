// Keeps one open context for each list of attached corpora. Find looks for the list among the open
// ones, else opens it: ResolveTo resolves the corpus, and once more from the directory if the
// chunks differ from those of the reference; CheckGeometry and the pins refuse another model or
// version. DropAfter closes a context whose call failed, so that the next Find resolves again.

#include "client/bindings/ggml/corpus_contexts.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/corpus.h"

namespace ckv::ggml {
namespace {

// Scales are computed from decimal numbers on both sides. A logit of 100 then errs by .001.
constexpr double kScaleErrorMax = 1e-5;

absl::Status CheckGeometry(const Geometry& geometry, const MlaOp& op) {
  if (geometry.d_qk != op.d_qk || geometry.d_v != op.d_v) {
    return absl::FailedPreconditionError(
        absl::StrFormat("its rows have %d values, %d of them latent; the engine's have %d and %d",
                        geometry.d_qk, geometry.d_v, op.d_qk, op.d_v));
  }
  if (op.layer >= geometry.layers) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "it has %d layers, and the engine attends layer %d", geometry.layers, op.layer));
  }
  const double error = std::fabs(double{geometry.softmax_scale} - op.softmax_scale);
  if (!(error <= kScaleErrorMax * std::fabs(op.softmax_scale))) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "its softmax_scale is %.9g, the engine's %.9g\n  load it with the geometry of the engine's "
        "model",
        geometry.softmax_scale, op.softmax_scale));
  }
  return absl::OkStatus();
}

absl::Status Of(const std::string& corpus, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrFormat("corpus '%s': %s", corpus, status.message()));
}

// Two readings of one reference may be two objects.
bool AreSame(const AttachedList& a, const AttachedList& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one == other || one->Key() == other->Key();
  });
}

// Whether the corpus still has the chunks that the reference was made of.
bool HasItsChunks(const Corpus& corpus, const Attached& attached) {
  if (attached.chunk_end > corpus.chunks.size()) return false;
  if (!attached.digest) return true;
  const auto chunks = std::span(corpus.chunks)
                          .subspan(attached.chunk_begin, attached.chunk_end - attached.chunk_begin);
  return DigestOfChunks(corpus.geometry, chunks) == *attached.digest;
}

// The chunks, one after the other.
std::vector<ChunkUse> UsesOf(const Corpus& corpus, const Attached& attached) {
  const uint32_t end =
      attached.chunk_end == 0 ? static_cast<uint32_t>(corpus.chunks.size()) : attached.chunk_end;
  int64_t position = 0;
  if (attached.position) {
    position = *attached.position;
  } else {
    for (uint32_t i = attached.chunk_begin; i < end; ++i) position -= corpus.chunks[i].token_count;
  }
  std::vector<ChunkUse> uses;
  for (uint32_t i = attached.chunk_begin; i < end; ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    uses.push_back({i, position - static_cast<int64_t>(chunk.position)});
    position += chunk.token_count;
  }
  return uses;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Context>> CorpusContexts::Find(const AttachedList& list,
                                                                    const MlaOp& op,
                                                                    Instant deadline) {
  // By the pointers first: keys are text, and there may be hundreds.
  auto entry = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& one) { return one.list == list; });
  if (entry == entries_.end()) {
    entry = std::find_if(entries_.begin(), entries_.end(),
                         [&](const Entry& one) { return AreSame(one.list, list); });
  }
  if (entry != entries_.end()) {
    entry->list = list;
    entry->used = ++use_count_;
    CKV_RETURN_IF_ERROR(Of(list.front()->corpus, CheckGeometry(entry->context->geometry(), op)));
    return entry->context;
  }
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<const Context> context, Open(list, op, deadline));
  if (entries_.size() >= kContextCountMax) {
    const auto oldest =
        std::min_element(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.used < b.used; });
    entries_.erase(oldest);
  }
  entries_.push_back({list, context, ++use_count_});
  return context;
}

void CorpusContexts::DropAfter(const absl::Status& status, const AttachedList& list) {
  if (absl::IsNotFound(status) || absl::IsUnavailable(status) ||
      absl::IsFailedPrecondition(status)) {
    std::erase_if(entries_, [&](const Entry& entry) { return AreSame(entry.list, list); });
  }
}

absl::StatusOr<std::shared_ptr<const Corpus>> CorpusContexts::ResolveTo(Requester& requester,
                                                                        const Attached& attached,
                                                                        Instant deadline) const {
  if (!attached.tenant.empty() && attached.tenant != options_.tenant) {
    return absl::PermissionDeniedError(
        absl::StrFormat("it is of tenant '%s', and this process reads for '%s'\n"
                        "  set CKV_GGML_TENANT",
                        attached.tenant, options_.tenant));
  }
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<const Corpus> corpus,
                       requester.Resolve(attached.corpus, attached.tenant, deadline));
  if (HasItsChunks(*corpus, attached)) return corpus;
  requester.Invalidate(attached.corpus);  // it may have been published again since
  CKV_ASSIGN_OR_RETURN(corpus, requester.Resolve(attached.corpus, attached.tenant, deadline));
  if (HasItsChunks(*corpus, attached)) return corpus;
  return absl::FailedPreconditionError(absl::StrFormat(
      "version %d has no longer the chunks %d to %d that the reference was made of\n"
      "  make it again: ckvctl attach --corpus %s",
      corpus->version, attached.chunk_begin, attached.chunk_end - 1, attached.corpus));
}

absl::StatusOr<std::shared_ptr<const Context>> CorpusContexts::Open(const AttachedList& list,
                                                                    const MlaOp& op,
                                                                    Instant deadline) {
  CKV_ASSIGN_OR_RETURN(Requester * requester, requester_());
  std::vector<std::vector<ChunkUse>> uses;
  std::vector<ContextPart> parts;
  for (const auto& attached : list) {
    auto corpus = ResolveTo(*requester, *attached, deadline);
    if (!corpus.ok()) return Of(attached->corpus, corpus.status());
    CKV_RETURN_IF_ERROR(Of(attached->corpus, CheckGeometry((*corpus)->geometry, op)));
    if (!attached->digest) {
      CKV_RETURN_IF_ERROR(Of(attached->corpus, options_.pins->Check(*attached, **corpus)));
    }
    uses.push_back(UsesOf(**corpus, *attached));
    parts.push_back({.corpus = *std::move(corpus), .chunks = {}});
  }
  for (size_t i = 0; i < parts.size(); ++i) parts[i].chunks = uses[i];
  if (options_.policy == ContextPolicy::kCache)
    deadline = options_.clock->Now() + kCacheOpenTimeout;
  auto context = requester->Open({.parts = parts, .policy = options_.policy}, deadline);
  if (!context.ok()) return Of(list.front()->corpus, context.status());
  return std::make_shared<const Context>(*std::move(context));
}

}  // namespace ckv::ggml
