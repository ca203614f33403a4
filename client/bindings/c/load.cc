// Loads and rankings. Each call checks and copies its arguments on the caller's thread. A report
// then goes to the reporter's thread, and a query to the directory, whose answer becomes JSON.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/bindings/c/ckv_load.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/load_link.h"
#include "client/bindings/c/struct_size.h"
#include "client/cost/network_oracle.h"
#include "client/grpc/rank_convert.h"
#include "client/rank/ranking_json.h"
#include "proto/base/status.h"

namespace ckv::c {

absl::Status LoadLink::Report(const LoadNotice& notice) {
  absl::MutexLock lock(&mu_);
  if (reporter_ != nullptr && (notice.address != address_ || notice.host != host_)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "ckv_load: address %s of host \"%s\", but the first report had %s of \"%s\"",
        notice.address, notice.host, address_, host_));
  }
  std::unique_ptr<LoadReporter> made;
  if (reporter_ == nullptr) {
    made = std::make_unique<LoadReporter>(LoadReporterOptions{.addresses = directory_,
                                                              .name = name_,
                                                              .address = notice.address,
                                                              .host = notice.host,
                                                              .list_cached = list_cached_});
  }
  LoadReporter& reporter = made != nullptr ? *made : *reporter_;
  CKV_RETURN_IF_ERROR(reporter.Set(notice.load));
  if (notice.cached) reporter.SetCached(*notice.cached);
  if (made == nullptr) return absl::OkStatus();
  address_ = notice.address;
  host_ = notice.host;
  reporter_ = std::move(made);
  return absl::OkStatus();
}

namespace {

std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

ChunkId IdAt(const uint8_t* ids, size_t index) {
  ChunkId id;
  std::memcpy(id.bytes.data(), ids + index * id.bytes.size(), id.bytes.size());
  return id;
}

absl::Status TakeLoad(const ckv_load& from, LoadNotice& to) {
  if (from.address == nullptr) return Missing("address");
  to.address = from.address;
  to.host = TextOf(from.host);
  to.load = {.free_bytes = from.free_bytes,
             .queued = from.queued,
             .batch = from.batch,
             .batch_max = from.batch_max,
             .iteration_base_us = from.iteration_base_us,
             .iteration_request_us = from.iteration_request_us};
  if (from.chunk_ids == nullptr) return absl::OkStatus();
  const size_t count = std::min<size_t>(from.chunk_count, kDigestChunkCountMax);
  to.cached.emplace();
  for (size_t i = 0; i < count; ++i) to.cached->push_back(PrefixOf(IdAt(from.chunk_ids, i)));
  return absl::OkStatus();
}

absl::Status TakeQuery(const ckv_rank_query& from, const std::string& tenant, v1::RankRequest& to) {
  to.set_corpus(TextOf(from.corpus));
  to.set_tenant(tenant);
  to.set_tokens(from.tokens);
  to.set_cache_bytes(from.cache_bytes);
  to.set_reserve_bytes(from.reserve_bytes);
  if (from.chunk_count > kRankChunkCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("ckv_rank_query: chunk_count is %d, limit %d",
                                                      from.chunk_count, kRankChunkCountMax));
  }
  if (from.chunk_count > 0 && from.chunk_ids == nullptr) return Missing("chunk_ids");
  if (from.chunk_count > 0 && from.chunk_tokens == nullptr) return Missing("chunk_tokens");
  for (uint32_t i = 0; i < from.chunk_count; ++i) {
    v1::RankRequest::Chunk& chunk = *to.add_chunks();
    chunk.set_id(std::string(IdAt(from.chunk_ids, i).AsBytes()));
    chunk.set_token_count(from.chunk_tokens[i]);
  }
  to.set_prefix_only(from.prefix_only != 0);
  for (const absl::string_view host :
       absl::StrSplit(TextOf(from.from_hosts), ',', absl::SkipEmpty())) {
    to.add_from_hosts(std::string(host));
  }
  if (from.tier_count > kTierCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("ckv_rank_query: tier_count is %d, limit %d",
                                                      from.tier_count, kTierCountMax));
  }
  if (from.tier_count > 0 && from.in_flight == nullptr) return Missing("in_flight");
  for (uint32_t i = 0; i < from.tier_count; ++i) to.add_in_flight(from.in_flight[i]);
  to.set_with_tolerance(from.with_tolerance != 0);
  return absl::OkStatus();
}

absl::StatusOr<std::string> RankedText(ckv_requester& requester, const ckv_rank_query* query) {
  ckv_rank_query taken;
  CKV_RETURN_IF_ERROR(TakeStruct("ckv_rank_query", query, taken));
  v1::RankRequest request;
  CKV_RETURN_IF_ERROR(TakeQuery(taken, requester.tenant, request));
  v1::RankReply reply;
  CKV_RETURN_IF_ERROR(requester.load_link->caller().Call(
      &DirectoryCaller::Stub::Rank, "Rank", request, &reply, AfterField(taken.timeout_ns)));
  CKV_ASSIGN_OR_RETURN(const FleetRanking ranking, FromProto(reply));
  return RankingJson(ranking).dump(-1, ' ', false,
                                   nlohmann::ordered_json::error_handler_t::replace);
}

// A requester of a program's own directory (client/bindings/c/handles.h) has no link.
absl::Status CheckLink(const ckv_requester* requester) {
  if (requester == nullptr) return Missing("requester");
  if (requester->load_link != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("this requester has no directory to report to");
}

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_report_load(ckv_requester* requester, const ckv_load* load) {
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    CKV_RETURN_IF_ERROR(ckv::c::CheckLink(requester));
    ckv_load taken;
    CKV_RETURN_IF_ERROR(ckv::c::TakeStruct("ckv_load", load, taken));
    if (taken.reserved != 0) return absl::InvalidArgumentError("ckv_load: reserved is not 0");
    ckv::LoadNotice notice;
    CKV_RETURN_IF_ERROR(ckv::c::TakeLoad(taken, notice));
    return requester->load_link->Report(notice);
  });
}

extern "C" ckv_status ckv_rank_requesters(ckv_requester* requester, const ckv_rank_query* query,
                                          char** json) {
  if (json != nullptr) *json = nullptr;
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (json == nullptr) return ckv::c::Missing("json");
    CKV_RETURN_IF_ERROR(ckv::c::CheckLink(requester));
    CKV_ASSIGN_OR_RETURN(const std::string text, ckv::c::RankedText(*requester, query));
    *json = static_cast<char*>(std::malloc(text.size() + 1));
    if (*json == nullptr) return absl::ResourceExhaustedError("no memory for the ranking");
    std::memcpy(*json, text.c_str(), text.size() + 1);
    return absl::OkStatus();
  });
}
