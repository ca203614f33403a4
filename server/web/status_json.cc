// Makes the JSON of the status page. StatusJson adds, in order: the process and its leases,
// findings, then the parts of its roles: requester, holder, directory. Lists are cut at their
// limits, and names of tenants are left out, because the page has no credentials. Runs on an
// answering thread of the web server.

#include "server/web/status_json.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/kernel_target.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

using Json = nlohmann::ordered_json;

// The most chunks that a page examines. The least number of copies depends on every chunk of a
// corpus. Corpora beyond the limit are shown without it, so that a page costs milliseconds at most.
constexpr uint64_t kCountedChunkMax = 1'000'000;

double Microseconds(Duration span) { return static_cast<double>(span.count()) / 1e3; }
double SecondsOf(Duration span) { return static_cast<double>(span.count()) / 1e9; }
std::string_view RoleWord(MemberRole role) {
  return role == MemberRole::kHolder ? "holder" : "requester";
}

Json Latency(std::string_view of, const LatencyCounts& counts) {
  size_t used = counts.counts.size();
  while (used > 0 && counts.counts[used - 1] == 0) --used;
  return {{"of", of},
          {"counts", std::vector<uint64_t>(counts.counts.begin(),
                                           counts.counts.begin() + static_cast<ptrdiff_t>(used))},
          {"sum_us", static_cast<double>(counts.sum_ns) / 1e3},
          {"p50_us", Microseconds(counts.Quantile(.5))},
          {"p99_us", Microseconds(counts.Quantile(.99))}};
}

Json Leases(const WebSources& sources) {
  Json leases = Json::array();
  for (const Registration* registration : sources.registrations) {
    const Registration::Report report = registration->report();
    leases.push_back({{"role", RoleWord(registration->role())},
                      {"held", report.lease.has_value()},
                      {"epoch", report.lease ? report.lease->epoch.value : 0},
                      {"error", std::string(report.last_error.message())}});
  }
  return leases;
}

Json HolderJson(const HolderStats& stats) {
  Json lanes = Json::object(), queues = Json::object();
  for (size_t i = 0; i < stats.lanes.size(); ++i) {
    if (stats.lanes[i] != 0) lanes[std::string(FabricName(FabricKind(i)))] = stats.lanes[i];
  }
  for (size_t i = 0; i < stats.queues.size(); ++i)
    queues[std::string(kQueueNames[i])] = stats.queues[i].request_count;
  return {{"chunks", stats.table.chunk_count},
          {"cold_chunks", stats.table.cold_count},
          {"tokens", stats.table.token_count},
          {"used_bytes", stats.table.used_bytes},
          {"capacity_bytes", stats.table.capacity_bytes},
          {"sessions", stats.session_count},
          {"lanes", lanes},
          {"queues", queues},
          {"requests", stats.request_count},
          {"query_rows", stats.query_row_count},
          {"kernel_calls", stats.batch_count},
          {"compute_us", static_cast<double>(stats.compute_ns) / 1e3},
          {"refused", stats.refused_count},
          {"errors", stats.error_count + stats.store_errors.total()}};
}

Json FindingsJson(const WebSources& sources) {
  Json shown = Json::array();
  if (!sources.findings) return shown;
  for (const Finding& finding : *sources.findings()) {
    if (shown.size() == kShownFindingCountMax) break;
    shown.push_back({{"code", CodeName(finding.code)},
                     {"severity", SeverityName(finding.severity)},
                     {"subject", finding.subject},
                     {"what", finding.what},
                     {"remedy", finding.remedy}});
  }
  return shown;
}

Json PeersJson(const std::vector<HolderView>& holders) {
  Json shown = Json::array();
  for (const HolderView& holder : holders) {
    if (shown.size() == kShownMemberCountMax) break;
    shown.push_back({{"name", holder.member.id.name},
                     {"address", holder.member.control_address},
                     {"fabric", FabricName(holder.fabric)},
                     {"connected", holder.connected},
                     {"lanes", holder.lane_count},
                     {"in_flight", holder.in_flight},
                     {"probe_us", holder.constants.t_probe_us},
                     {"bytes_per_s", holder.constants.bandwidth_bytes_per_s},
                     {"fallback", holder.fallback}});
    if (holder.model_error) shown.back()["model_error"] = *holder.model_error;
  }
  return shown;
}

Json HottestJson(const std::vector<CorpusCalls>& hottest) {
  Json shown = Json::array();
  for (const CorpusCalls& corpus : WithoutTenants(hottest, kShownCorpusCountMax)) {
    shown.push_back({{"name", corpus.name.empty() ? Json() : Json(corpus.name)},
                     {"calls", corpus.call_count},
                     {"query_rows", corpus.query_row_count}});
  }
  return shown;
}

Json RequesterJson(const WebSources& sources, const RequesterStats& stats) {
  const std::vector<HolderView> holders = sources.requester->KnownHolders();
  Json json = {{"route", stats.latency.route.total()},
               {"cached", stats.latency.cached.total()},
               {"fetch", stats.latency.fetch.total()},
               {"local", stats.local_cache.recompute.total()},
               {"prefetch", stats.latency.prefetch.total()},
               {"local_cache_bytes", stats.local_cache.bytes},
               {"local_cache_bytes_max", stats.local_cache.bytes_max}};
  if (sources.attend_count) {
    json["attends"] = sources.attend_count();
    json["errors"] = sources.attend_error_count();
  }
  if (sources.directory_connected) json["directory_connected"] = sources.directory_connected();
  json["holders"] = PeersJson(holders);
  json["holder_count"] = holders.size();
  json["hottest"] = HottestJson(stats.hottest);
  return json;
}

Json MembersJson(const std::vector<Member>& members) {
  Json shown = Json::array();
  for (const Member& member : members) {
    if (shown.size() == kShownMemberCountMax) break;
    shown.push_back({{"name", member.id.name},
                     {"role", RoleWord(member.role)},
                     {"address", member.control_address},
                     {"epoch", member.epoch.value},
                     {"kernel", KernelTargetName(member.kernel_target)}});
  }
  return shown;
}

// Sorts corpora that lack something first, then by the number of chunks, most first.
Json CorporaJson(std::vector<std::shared_ptr<const Corpus>> corpora, const Coverage& covered) {
  std::map<std::string, const CorpusFacts*> lacking;
  for (const CorpusFacts& corpus : covered.corpora) {
    if (corpus.tenant.empty()) lacking[corpus.name] = &corpus;
  }
  const auto rank = [&](const std::shared_ptr<const Corpus>& corpus) {
    const auto found = lacking.find(corpus->name);
    const bool is_broken = found != lacking.end() && found->second->missing_count > 0;
    return std::tuple(!is_broken, found == lacking.end(),
                      -static_cast<int64_t>(corpus->chunks.size()));
  };
  const size_t count = std::min(corpora.size(), kShownCorpusCountMax);
  std::partial_sort(corpora.begin(), corpora.begin() + static_cast<ptrdiff_t>(count), corpora.end(),
                    [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  Json shown = Json::array();
  uint64_t counted = 0;
  for (size_t i = 0; i < count; ++i) {
    const Corpus& corpus = *corpora[i];
    const auto found = lacking.find(corpus.name);
    const CorpusFacts* const lacks = found == lacking.end() ? nullptr : found->second;
    shown.push_back({{"name", corpus.name},
                     {"chunks", corpus.chunks.size()},
                     {"missing", lacks == nullptr ? 0 : lacks->missing_count},
                     {"missing_copies", lacks == nullptr ? 0 : lacks->missing_copy_count}});
    counted += corpus.chunks.size();
    if (counted > kCountedChunkMax) continue;
    const uint64_t tokens = corpus.token_count();
    size_t copies = corpus.chunks.empty() ? 0 : kReplicaCountMax;
    for (const ChunkPlacement& chunk : corpus.chunks)
      copies = std::min(copies, chunk.holders().size());
    shown.back().update({{"tokens", tokens},
                         {"bytes", tokens * corpus.geometry.token_bytes()},
                         {"copies", copies},
                         {"version", corpus.version}});
  }
  return shown;
}

Json EndedJson(const std::vector<EndedLease>& ended, Instant now) {
  Json shown = Json::array();
  for (const EndedLease& lease : ended) {
    shown.push_back({{"name", lease.member.id.name},
                     {"role", RoleWord(lease.member.role)},
                     {"ran_out", lease.ran_out},
                     {"address", lease.member.control_address},
                     {"kernel", KernelTargetName(lease.member.kernel_target)},
                     {"age_s", SecondsOf(now - lease.ended)}});
  }
  return shown;
}

Json DirectoryJson(const WebSources& sources) {
  DirectoryState& directory = *sources.directory;
  const std::vector<Member> members = directory.Members();
  std::vector<std::shared_ptr<const Corpus>> corpora = directory.List(/*tenant=*/"");
  const DirectoryState::Counts counts = directory.counts();
  const uint64_t shared = corpora.size();
  Json json = {{"members", MembersJson(members)},
               {"member_count", members.size()},
               {"ended", EndedJson(directory.Ended(), sources.clock->Now())}};
  Json missing = Json::array();
  for (const HolderId& holder : directory.MissingHolders()) {
    if (missing.size() < kShownMemberCountMax) missing.push_back(holder.name);
  }
  json["missing"] = std::move(missing);
  const std::shared_ptr<const Coverage> covered = directory.health().Covered();
  json["corpora"] = CorporaJson(std::move(corpora), *covered);
  json["missing_chunk_count"] = covered->missing_chunk_count;
  json["missing_copy_count"] = covered->missing_copy_count;
  json["corpus_count"] = shared;
  json["tenant_corpus_count"] = counts.corpus_count - std::min(shared, counts.corpus_count);
  json["unproven_count"] = directory.reports().rebuilt(0).unproven_count;
  json["replica_count"] = counts.replica_count;
  if (sources.directory_log != nullptr) {
    const ChangeLog::Stats log = sources.directory_log->stats();
    json["log"] = {{"bytes", log.log_bytes},
                   {"snapshot_bytes", log.snapshot_bytes},
                   {"error", std::string(log.last_error.message())}};
  }
  if (sources.etcd != nullptr) {
    const EtcdDirectory::Report shared_state = sources.etcd->report();
    json["shared"] = {{"leads", shared_state.leads},
                      {"leader", shared_state.leader},
                      {"error", sources.etcd->Refusal()}};
  }
  return json;
}

}  // namespace

std::string StatusJson(const WebSources& sources, bool serves, std::string_view status) {
  const Instant now = sources.clock->Now();
  Json json = {{"name", sources.name},       {"roles", sources.roles},
               {"version", sources.version}, {"commit", sources.commit},
               {"kernel", sources.kernel},   {"uptime_s", SecondsOf(now - sources.started)},
               {"serves", serves},           {"status", status},
               {"leases", Leases(sources)},  {"first_us", Microseconds(LatencyCounts::kFirst)}};
  json["findings"] = FindingsJson(sources);
  Json latency = Json::array();
  if (sources.requester != nullptr) {
    // All are needed, because tenants' corpora are reported as a sum.
    const RequesterStats stats = sources.requester->Stats(CorpusMeter::kCorpusCountMax);
    stats.ForEachLatency([&](std::string_view of, const LatencyCounts& counts) {
      latency.push_back(Latency(of, counts));
    });
    json["requester"] = RequesterJson(sources, stats);
  }
  if (sources.holder != nullptr) {
    const HolderStats stats = sources.holder->stats();
    stats.latency.ForEach([&](std::string_view of, const LatencyCounts& counts) {
      latency.push_back(Latency(of, counts));
    });
    json["holder"] = HolderJson(stats);
  }
  json["latency"] = std::move(latency);
  if (sources.directory != nullptr) json["directory"] = DirectoryJson(sources);
  // Text from a peer of another build becomes valid UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ckv
