// The handlers of DirectoryService for the loads of requesters, and their ranking.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/grpc/grpc_status.h"
#include "client/grpc/rank_convert.h"
#include "proto/base/status.h"
#include "server/services/directory_service.h"

namespace ckv {
namespace {

// Whose oracle the paths come from. Keeps what a ranking borrows.
struct RankSources {
  std::vector<std::shared_ptr<NetworkOracle>> oracles;
  std::vector<PathsFrom> paths;
};

RankSources SourcesOf(NetworkOracles* oracles, const FleetQuery& query) {
  RankSources sources;
  if (oracles == nullptr) return sources;
  for (const std::string& host : query.from_hosts) {
    std::shared_ptr<NetworkOracle> oracle = oracles->From(host);
    if (oracle == nullptr) continue;
    sources.paths.push_back({host, oracle->Snapshot(), oracle->options().congestion_age_max});
    sources.oracles.push_back(std::move(oracle));
  }
  return sources;
}

// Makes each oracle read the hosts of requesters that have no path yet. An oracle with a file
// already has all hosts of it.
void RequestPaths(const RankSources& sources, const FleetRanking& ranking) {
  for (const RankedRequester& requester : ranking.requesters) {
    if (requester.has_path) continue;
    for (const std::shared_ptr<NetworkOracle>& oracle : sources.oracles)
      oracle->PathTo(requester.host);
  }
}

void TakeCorpus(const Corpus& corpus, FleetQuery& query) {
  query.chunks.reserve(corpus.chunks.size());
  for (const ChunkPlacement& chunk : corpus.chunks)
    query.chunks.push_back({PrefixOf(chunk.id), static_cast<double>(chunk.token_count)});
  if (query.request.tokens == 0) query.request.tokens = static_cast<double>(corpus.token_count());
  if (query.request.cache_bytes == 0) {
    query.request.cache_bytes =
        query.request.tokens * static_cast<double>(corpus.geometry.token_bytes());
  }
}

void SetSources(DirectoryState& state, const std::vector<HolderId>& holders, FleetQuery& query) {
  for (const std::string& address : state.AddressesOf(holders)) {
    if (query.from_hosts.size() == kRankSourceCountMax) return;
    query.from_hosts.push_back(HostOfAddress(address));
  }
}

absl::Status CheckRankNames(const v1::RankRequest& request) {
  if (request.corpus().size() > kCorpusNameBytesMax ||
      request.tenant().size() > kCorpusNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a corpus or tenant has at most %d characters", kCorpusNameBytesMax));
  }
  if (!request.corpus().empty() && request.chunks_size() > 0)
    return absl::InvalidArgumentError("a corpus and chunks: name one of them");
  return absl::OkStatus();
}

}  // namespace

grpc::Status DirectoryServiceImpl::ReportLoad(grpc::ServerContext* /*context*/,
                                              const v1::ReportLoadRequest* request,
                                              v1::ReportLoadReply* reply) {
  const auto notice = FromProto(*request);
  if (!notice.ok()) return ToGrpc(notice.status());
  if (absl::Status status = state_.CheckLeads(); !status.ok()) return ToGrpc(status);
  const auto lease = loads_.Report(*notice);
  if (!lease.ok()) return ToGrpc(lease.status());
  *reply = ToProto(*lease);
  return grpc::Status::OK;
}

absl::Status DirectoryServiceImpl::CompleteQuery(const v1::RankRequest& request,
                                                 FleetQuery& query) {
  std::vector<HolderId> holders;
  if (!request.corpus().empty()) {
    CKV_ASSIGN_OR_RETURN(const std::shared_ptr<const Corpus> corpus,
                         state_.Get(request.corpus(), request.tenant(), /*for_calls=*/true));
    TakeCorpus(*corpus, query);
    if (!corpus->chunks.empty()) holders = corpus->chunks.front().holders();
  } else if (!query.chunks.empty()) {
    CKV_ASSIGN_OR_RETURN(const ChunkId first, ChunkId::FromBytes(request.chunks(0).id()));
    const auto places = state_.Locate(first, request.tenant(), /*for_calls=*/true);
    if (!places.empty()) holders = places.front().chunk.holders();
    if (query.request.tokens == 0) {
      for (const RankChunk& chunk : query.chunks) query.request.tokens += chunk.tokens;
    }
    if (query.request.cache_bytes == 0 && !places.empty()) {
      query.request.cache_bytes =
          query.request.tokens * static_cast<double>(places.front().corpus->geometry.token_bytes());
    }
  }
  if (query.from_hosts.empty()) SetSources(state_, holders, query);
  if (query.request.cache_bytes == 0) {
    return absl::InvalidArgumentError(
        "cache_bytes: 0, and no corpus that is known here has the first chunk: give the bytes of "
        "the prompt's KV cache");
  }
  return ValidateQuery(query);
}

grpc::Status DirectoryServiceImpl::Rank(grpc::ServerContext* context,
                                        const v1::RankRequest* request, v1::RankReply* reply) {
  if (absl::Status status = CheckRankNames(*request); !status.ok()) return ToGrpc(status);
  auto query = FromProto(*request);
  if (!query.ok()) return ToGrpc(query.status());
  if (absl::Status status = state_.CheckLeads(); !status.ok()) return ToGrpc(status);
  if (auto status = CatchUp(*context); !status.ok()) return ToGrpc(status);
  if (absl::Status status = CompleteQuery(*request, *query); !status.ok()) return ToGrpc(status);
  const RankSources sources = SourcesOf(oracles_, *query);
  FleetRanking ranking;
  loads_.Rank(*query, sources.paths, ranking);
  RequestPaths(sources, ranking);
  *reply = ToProto(ranking);
  return grpc::Status::OK;
}

}  // namespace ckv
