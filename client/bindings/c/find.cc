// From a prompt to its chunks.

#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/bindings/c/caller_values.h"
#include "client/bindings/c/ckv_find.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/struct_size.h"
#include "client/prompt_match.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

absl::Status CheckCall(const ckv_find_call& call) {
  if (call.token_count > 0 && call.tokens == nullptr) return Missing("tokens");
  if (call.token_count <= kMatchedTokenCountMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("token_count: %d, limit %d", call.token_count, kMatchedTokenCountMax));
}

absl::StatusOr<PromptMatch> Match(ckv_requester& requester, const ckv_find_call& call,
                                  Instant deadline) {
  PromptCall prompt{.tokens = std::span(call.tokens, call.token_count),
                    .tenant = requester.tenant,
                    .model = {},
                    .deadline = deadline};
  CKV_ASSIGN_OR_RETURN(const ExtraKeys keys, ExtraKeysFrom(call.extra_keys, call.extra_key_count));
  prompt.extra_keys = keys;
  if (call.model_of != nullptr) prompt.model = ModelFingerprint(call.model_of->corpus->geometry);
  CKV_ASSIGN_OR_RETURN(PromptMatch match, requester.requester->MatchPrompt(prompt));
  if (match.spans.empty()) {
    return absl::NotFoundError(match.truncated
                                   ? "no chunk of these tokens was found, and the search was cut "
                                     "short: more chunks begin like them than one reply lists"
                                   : "no holder has a chunk of these tokens");
  }
  return match;
}

absl::Status Find(ckv_requester& requester, const ckv_find_call& call, ckv_corpus** corpus,
                  ckv_find_report* report) {
  CKV_RETURN_IF_ERROR(CheckCall(call));
  const Instant deadline = AfterField(call.timeout_ns);
  CKV_ASSIGN_OR_RETURN(PromptMatch match, Match(requester, call, deadline));
  std::vector<ChunkId> ids;
  for (const PromptSpan& span : match.spans) ids.push_back(span.chunk);
  CKV_ASSIGN_OR_RETURN(auto found, requester.requester->ResolveChunks(ids, *match.geometry,
                                                                      requester.tenant, deadline));
  ckv_find_report made = {};
  made.matched_token_count = match.token_count();
  made.truncated = match.truncated ? 1 : 0;
  if (report != nullptr) {
    CKV_RETURN_IF_ERROR(GiveStruct("ckv_find_report", made, report));
  }
  *corpus = new ckv_corpus{requester.owner, std::move(found), std::move(match.spans)};
  return absl::OkStatus();
}

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_find(ckv_requester* requester, const ckv_find_call* call,
                               ckv_corpus** corpus, ckv_find_report* report) {
  if (corpus != nullptr) *corpus = nullptr;
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (corpus == nullptr) return ckv::c::Missing("corpus");
    ckv_find_call taken;
    CKV_RETURN_IF_ERROR(ckv::c::TakeStruct("ckv_find_call", call, taken));
    return ckv::c::Find(*requester, taken, corpus, report);
  });
}

extern "C" ckv_status ckv_found_spans(const ckv_corpus* corpus, uint32_t chunk_begin,
                                      uint32_t chunk_end, uint32_t* token_begins,
                                      int64_t* offsets) {
  return ckv::c::Guard(ckv::c::OwnerOf(corpus), [&]() -> absl::Status {
    if (corpus == nullptr) return ckv::c::Missing("corpus");
    const std::vector<ckv::PromptSpan>& spans = corpus->spans;
    if (spans.empty()) {
      return absl::FailedPreconditionError("the corpus was resolved by its name, not by a prompt");
    }
    if (chunk_begin > chunk_end || chunk_end > spans.size()) {
      return absl::InvalidArgumentError(absl::StrFormat("chunks %d to %d, the corpus has %d",
                                                        chunk_begin, chunk_end, spans.size()));
    }
    for (uint32_t i = 0; i < chunk_end - chunk_begin; ++i) {
      const ckv::PromptSpan& span = spans[chunk_begin + i];
      if (token_begins != nullptr) token_begins[i] = span.token_begin;
      if (offsets != nullptr) offsets[i] = span.offset;
    }
    return absl::OkStatus();
  });
}
