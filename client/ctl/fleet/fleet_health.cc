#include "client/ctl/fleet/fleet_health.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

bool Names(const std::vector<HolderId>& holders, const absl::flat_hash_set<HolderId>& among) {
  return std::any_of(holders.begin(), holders.end(),
                     [&](const HolderId& id) { return among.contains(id); });
}

std::string MissingText(const MissingChunks& missing) {
  return absl::StrFormat("no live holder has %d of %s of corpus %s", missing.missing_count,
                         FormatCount(missing.chunk_count, "chunk"), missing.corpus);
}

}  // namespace

const char* RoleName(MemberRole role) {
  return role == MemberRole::kHolder ? "holder" : "requester";
}

absl::StatusOr<Coverage> FindMissing(Fleet& fleet, const std::vector<MemberReport>& members) {
  absl::flat_hash_set<HolderId> answering;
  for (const MemberReport& report : members) {
    if (report.status.ok()) answering.insert(report.member.id);
  }
  CKV_ASSIGN_OR_RETURN(const v1::ListCorporaReply listed, fleet.ListCorpora());
  Coverage coverage;
  uint64_t room = kStatusChunkCountMax;
  for (const v1::CorpusSummary& summary : listed.corpora()) {
    if (summary.chunk_count() > room) {
      ++coverage.skipped_count;
      continue;
    }
    room -= summary.chunk_count();
    const absl::StatusOr<Corpus> corpus = fleet.GetCorpus(summary.name());
    if (absl::IsNotFound(corpus.status())) continue;  // dropped meanwhile
    if (!corpus.ok()) return corpus.status();
    MissingChunks missing = {corpus->name, corpus->chunks.size(), 0};
    for (const ChunkPlacement& chunk : corpus->chunks) {
      if (chunk.token_count == 0) continue;  // nobody is asked for it
      if (!Names(chunk.holders, answering) && !Names(chunk.leased, answering))
        ++missing.missing_count;
    }
    if (missing.missing_count > 0) coverage.missing.push_back(std::move(missing));
  }
  return coverage;
}

bool IsOfFleet(const Fleet& fleet, const v1::DescribeReply& requester,
               const std::vector<Member>& members) {
  if (requester.directory_address() == fleet.directory_address()) return true;
  for (const Member& member : members) {
    if (member.role == MemberRole::kRequester &&
        member.control_address == fleet.requester_address()) {
      return true;
    }
  }
  FleetOptions options = fleet.options();
  options.directory = requester.directory_address();
  options.wait = Duration(0);
  Fleet other(std::move(options), &fleet.clock());
  const absl::StatusOr<std::vector<Member>> others = other.Members();
  if (!others.ok()) {
    // Its directory cannot be reached from here (a tunnel, a NAT). Then its name must do.
    return std::any_of(members.begin(), members.end(), [&](const Member& member) {
      return member.role == MemberRole::kRequester &&
             (member.id.name == requester.id() || member.id.name == requester.id() + ".requester");
    });
  }
  // No two directories give the same epoch: each counts on from the milliseconds of its start.
  return std::any_of(others->begin(), others->end(), [&](const Member& member) {
    return std::find(members.begin(), members.end(), member) != members.end();
  });
}

absl::Status Judge(const std::vector<MemberReport>& members, const Coverage& coverage) {
  std::vector<std::string> problems;
  for (const MemberReport& report : members) {
    const bool refuses = report.stats.refuses_without_lease();
    if (report.status.ok() && !refuses) continue;
    problems.push_back(absl::StrFormat(
        "%s %s at %s %s", RoleName(report.member.role), report.member.id.name,
        report.member.control_address,
        refuses ? "refuses every request: it has no live lease" : "does not answer"));
  }
  for (const MissingChunks& missing : coverage.missing) problems.push_back(MissingText(missing));
  return problems.empty() ? absl::OkStatus()
                          : absl::UnavailableError(absl::StrJoin(problems, "; "));
}

std::string BestCommonTarget(const std::vector<MemberReport>& members) {
  std::map<std::string, std::pair<size_t, size_t>> found;  // its worst rank, and how many have it
  size_t holder_count = 0;
  for (const MemberReport& report : members) {
    const auto& targets = report.stats.kernel_targets();
    if (report.member.role != MemberRole::kHolder || targets.empty()) continue;
    ++holder_count;
    for (int i = 0; i < targets.size(); ++i) {
      auto& [rank, count] = found[targets[i]];
      rank = std::max(rank, static_cast<size_t>(i));
      ++count;
    }
  }
  // AMX's model is for tests.
  found.erase(std::string(KernelTargetName(KernelTargetId::kAmxModel)));
  const std::pair<const std::string, std::pair<size_t, size_t>>* best = nullptr;
  for (const auto& entry : found) {
    if (entry.second.second < holder_count) continue;
    if (best == nullptr || entry.second.first < best->second.first) best = &entry;
  }
  return best == nullptr ? "" : best->first;
}

std::string EndedText(const std::vector<v1::EndedLease>& ended) {
  std::string text;
  for (const v1::EndedLease& lease : ended) {
    const bool holder = lease.member().role() == v1::MEMBER_ROLE_HOLDER;
    absl::StrAppendFormat(
        &text, "%s %s at %s is gone: its lease %s %s ago\n", holder ? "holder" : "requester",
        Printable(lease.member().id()), Printable(lease.member().control_address()),
        lease.ran_out() ? "ran out" : "was given back",
        FormatDuration(std::chrono::milliseconds(std::min<uint64_t>(lease.ago_ms(), 1u << 31))));
  }
  return text;
}

Json EndedJson(const std::vector<v1::EndedLease>& ended) {
  Json json = Json::array();
  for (const v1::EndedLease& lease : ended) {
    const bool holder = lease.member().role() == v1::MEMBER_ROLE_HOLDER;
    json.push_back({{"id", lease.member().id()},
                    {"role", holder ? "holder" : "requester"},
                    {"address", lease.member().control_address()},
                    {"ago_ms", lease.ago_ms()},
                    {"ran_out", lease.ran_out()}});
  }
  return json;
}

std::string CoverageText(const Coverage& coverage) {
  std::string text;
  for (const MissingChunks& missing : coverage.missing) {
    absl::StrAppendFormat(&text, "%s: start the holders that ckvctl corpus show %s names\n",
                          MissingText(missing), missing.corpus);
  }
  if (coverage.skipped_count > 0) {
    absl::StrAppendFormat(&text, "%d more corpora were not looked at: above %d chunks in all\n",
                          coverage.skipped_count, kStatusChunkCountMax);
  }
  return text;
}

Json CoverageJson(const Coverage& coverage) {
  Json json = Json::array();
  for (const MissingChunks& missing : coverage.missing) {
    json.push_back({{"corpus", missing.corpus},
                    {"chunk_count", missing.chunk_count},
                    {"missing_count", missing.missing_count}});
  }
  return json;
}

}  // namespace ckv::ctl
