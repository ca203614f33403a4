// ckvctl status: the members, their counters, and what the requester would do. RunStatus, in order:
// Look queries the directory and the requester; QueryMembers queries all members at once; FactsOf
// and JudgeFleet make findings of the answers; Print shows tables or JSON. The findings decide the
// exit code. If the directory does not answer, the members are those that the requester has.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/fleet/directory_home.h"
#include "client/tools/ctl/fleet/fleet_findings.h"
#include "client/tools/ctl/fleet/fleet_health.h"
#include "client/tools/ctl/watch.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

constexpr size_t kShortCommit = 7;

// The known members. They are from the directory or, if it does not answer, the holders that the
// requester has queried before.
struct View {
  absl::Status directory;
  std::vector<Member> members;
  absl::StatusOr<v1::DescribeReply> requester;
  std::vector<v1::EndedLease> ended = {};
  std::vector<v1::EngineFacts> engines = {};
  absl::StatusOr<v1::DescribeDirectoryReply> home = absl::UnknownError("not asked");
  // The directory's error if it has just started, and holders have not all returned to it.
  absl::Status returning = {};
  bool of_fleet = true;  // the requester's directory is the one above
};

//   the directory's error, if neither it nor the requester answers.
absl::StatusOr<View> Look(Fleet& fleet) {
  std::vector<v1::EndedLease> ended;
  std::vector<v1::EngineFacts> engines;
  absl::StatusOr<std::vector<Member>> members = fleet.Members(&ended, &engines);
  View view = {members.status(), {}, fleet.Describe(), std::move(ended), std::move(engines)};
  if (members.ok()) {
    view.members = *std::move(members);
    view.of_fleet = !view.requester.ok() || IsOfFleet(fleet, *view.requester, view.members);
    view.home = fleet.DescribeDirectory();
    if (view.home.ok() && view.home->missing_holder_count() > 0)
      view.returning = fleet.Members().status();
    return view;
  }
  if (!view.requester.ok()) return members.status();
  for (const v1::DescribeReply::Holder& holder : view.requester->holders()) {
    // A holder that was never reached has no address to query.
    if (holder.member().control_address().empty()) continue;
    CKV_ASSIGN_OR_RETURN(Member member, FromProto(holder.member()));
    view.members.push_back(std::move(member));
  }
  return view;
}

std::string StateOf(const MemberReport& report) {
  if (!report.status.ok()) return "does not answer";
  return report.stats.refuses_without_lease() ? "refuses: it has no lease" : "answers";
}

// "0.1.0+3bb4fde"; "-" if the process reports none.
std::string BuildText(const v1::ProcessFacts& process) {
  if (process.version().empty()) return "-";
  return process.version() +
         (process.commit().empty() ? "" : "+" + process.commit().substr(0, kShortCommit)) +
         (process.commit().ends_with("-dirty") ? "*" : "");
}

std::string UpText(const v1::ProcessFacts& process) {
  if (process.version().empty()) return "-";
  return FormatAge(
      std::chrono::milliseconds(std::min<uint64_t>(process.started_ago_ms(), uint64_t{1} << 40)));
}

std::string MembersText(const std::vector<MemberReport>& members) {
  Table table(
      {{"MEMBER"}, {"ROLE"}, {"ADDRESS"}, {"STATE"}, {"UP", true}, {"VERSION"}, {"KERNEL"}});
  for (const MemberReport& report : members) {
    const Member& m = report.member;
    table.AddRow({m.id.name, RoleName(m.role), m.control_address, StateOf(report),
                  UpText(report.process()), BuildText(report.process()),
                  std::string(KernelTargetName(m.kernel_target))});
  }
  return table.Render();
}

// How many holders have each kernel target, as reported by the members.
std::map<std::string, int> TargetsOf(const std::vector<MemberReport>& members) {
  std::map<std::string, int> targets;
  for (const MemberReport& report : members) {
    if (report.member.role != MemberRole::kHolder) continue;
    const std::string name(KernelTargetName(report.member.kernel_target));
    ++targets[name.empty() ? "unknown" : name];
  }
  return targets;
}

// Returns nothing for a fleet of one target.
std::string MixedText(const std::vector<MemberReport>& members) {
  const std::map<std::string, int> targets = TargetsOf(members);
  if (targets.size() < 2) return "";
  std::vector<std::string> counts;
  for (const auto& [target, count] : targets)
    counts.push_back(absl::StrFormat("%s (%s)", target, FormatCount(count, "holder")));
  const std::string common = Printable(BestCommonTarget(members));
  return absl::StrFormat(
      "mixed kernel targets: %s. Answers have equal bits within one target only: calls of f32\n"
      "partials keep to one where replicas allow it, and report it if they could not.\n"
      "For equal bits everywhere, start every holder and requester with %s.\n",
      absl::StrJoin(counts, ", "),
      common.empty()
          ? "the same --kernel-target, which all of their\nhosts must have"
          : absl::StrFormat("--kernel-target=%s, the fastest\nthat all holders here have", common));
}

std::string HoldersText(const std::vector<MemberReport>& members) {
  Table table({{"HOLDER"},
               {"CHUNKS", true},
               {"COLD", true},
               {"TOKENS", true},
               {"USED", true},
               {"CAPACITY", true},
               {"SESSIONS", true},
               {"REQUESTS", true},
               {"ROWS", true},
               {"ERRORS", true}});
  for (const MemberReport& holder : members) {
    if (holder.member.role != MemberRole::kHolder) continue;
    if (!holder.status.ok()) {
      table.AddRow({holder.member.id.name, "-", "-", "-", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const v1::StatsReply& s = holder.stats;
    table.AddRow({holder.member.id.name, std::to_string(s.chunk_count()),
                  std::to_string(s.cold_count()), std::to_string(s.token_count()),
                  FormatBytes(s.used_bytes()), FormatBytes(s.capacity_bytes()),
                  std::to_string(s.session_count()), std::to_string(s.request_count()),
                  std::to_string(s.query_row_count()), std::to_string(s.error_count())});
  }
  return table.Render();
}

// Returns what an operator should know of the stores, one line for each holder that found damage.
std::string DamageText(const std::vector<MemberReport>& members) {
  std::string text;
  for (const MemberReport& holder : members) {
    const v1::StatsReply& s = holder.stats;
    if (s.damaged_count() == 0) continue;
    absl::StrAppendFormat(
        &text, "holder %s found %s damaged since it started, and got %d again from replicas: %s\n",
        holder.member.id.name, FormatCount(s.damaged_count(), "chunk"), s.repaired_count(),
        "ckvctl corpus verify shows what is missing");
  }
  return text;
}

// "shm 4.1 us, tcp 23 us, verbs no": the exchange time that each fabric was judged by when the
// fabric was chosen, which may be long ago. The reason for a "no" is in the JSON.
std::string TrialsText(const v1::DescribeReply::Holder& holder) {
  std::string text;
  for (const v1::DescribeReply::FabricTrial& trial : holder.trials()) {
    absl::StrAppendFormat(&text, "%s%s %s", text.empty() ? "" : ", ", trial.fabric(),
                          trial.why_not().empty() ? FormatMicroseconds(trial.exchange_us()) : "no");
  }
  return text.empty() ? "-" : text;
}

std::string RequesterText(const v1::DescribeReply& d) {
  Table table({{"FROM REQUESTER"},
               {"CONNECTED"},
               {"FABRIC"},
               {"LAST PROBE", true},
               {"BANDWIDTH", true},
               {"IN FLIGHT", true},
               {"WHEN IT WAS CHOSEN"}});
  for (const v1::DescribeReply::Holder& h : d.holders()) {
    const std::string fabric =
        h.fallback().empty()
            ? h.fabric()
            : absl::StrFormat("%s (fallback from verbs: %s)", h.fabric(), h.fallback());
    table.AddRow({h.member().id(), h.connected() ? "yes" : "no", h.connected() ? fabric : "-",
                  h.t_probe_us() > 0 ? FormatMicroseconds(h.t_probe_us()) : "-",
                  h.bandwidth_bytes_per_s() > 0 ? FormatRate(h.bandwidth_bytes_per_s()) : "-",
                  std::to_string(h.in_flight()), TrialsText(h)});
  }
  return table.Render();
}

// Describes the requester's local row cache and the time that it saves, one line for each.
std::string LocalCacheText(const v1::DescribeReply& d) {
  const v1::DescribeReply::LocalCache& cache = d.local_cache();
  const auto seconds = [](double us) { return absl::StrFormat("%.1f s", us / 1e6); };
  return RenderFields(
      {{"cached rows",
        absl::StrFormat("%s of %s, %s", FormatBytes(cache.bytes()), FormatBytes(cache.bytes_max()),
                        FormatCount(cache.chunk_count(), "chunk"))},
       {"prefetches",
        absl::StrFormat("%d, %s and %s mapped; %d failed, %d evicted", cache.prefetch_count(),
                        FormatBytes(cache.prefetched_bytes()), FormatBytes(cache.mapped_bytes()),
                        cache.prefetch_failed_count(), cache.eviction_count())},
       {"time", absl::StrFormat("%s saved by cached rows, %s lost by routing, %s of prefetches",
                                seconds(cache.saved_us()), seconds(cache.routed_us()),
                                seconds(cache.prefetched_us()))},
       {"not prefilled", absl::StrFormat("%d tokens; %d recomputed", d.reused_token_count(),
                                         cache.recomputed_token_count())}});
}

// How often chunk ranges were routed, prefetched or recomputed, and why.
std::string DecisionsText(const v1::DescribeReply& d) {
  if (d.local_cache().decisions().empty()) return "";
  Table table({{"DECIDED"}, {"BECAUSE"}, {"TIMES", true}});
  for (const v1::DescribeReply::LocalCache::Decisions& decisions : d.local_cache().decisions()) {
    table.AddRow({decisions.primitive(), decisions.reason(), std::to_string(decisions.count())});
  }
  return table.Render();
}

Json LocalCacheJson(const v1::DescribeReply& d) {
  const v1::DescribeReply::LocalCache& cache = d.local_cache();
  Json json = {{"bytes", cache.bytes()},
               {"bytes_max", cache.bytes_max()},
               {"chunk_count", cache.chunk_count()},
               {"prefetch_count", cache.prefetch_count()},
               {"prefetch_failed_count", cache.prefetch_failed_count()},
               {"eviction_count", cache.eviction_count()},
               {"prefetched_bytes", cache.prefetched_bytes()},
               {"mapped_bytes", cache.mapped_bytes()},
               {"routed_us", cache.routed_us()},
               {"saved_us", cache.saved_us()},
               {"prefetched_us", cache.prefetched_us()},
               {"recomputed_token_count", cache.recomputed_token_count()},
               {"reused_token_count", d.reused_token_count()},
               {"decisions", Json::array()}};
  for (const v1::DescribeReply::LocalCache::Decisions& decisions : cache.decisions()) {
    json["decisions"].push_back({{"primitive", decisions.primitive()},
                                 {"reason", decisions.reason()},
                                 {"count", decisions.count()}});
  }
  return json;
}

Json HolderJson(const MemberReport& holder) {
  Json json = {{"id", holder.member.id.name}, {"answers", holder.status.ok()}};
  if (!holder.status.ok()) {
    json["error"] = std::string(holder.status.message());
    return json;
  }
  const v1::StatsReply& s = holder.stats;
  json["kernel_target"] = s.kernel_target();
  json["kernel_targets"] =
      std::vector<std::string>(s.kernel_targets().begin(), s.kernel_targets().end());
  json["kernel_choice"] = {
      {"origin", s.kernel_choice().origin()},
      {"reason", s.kernel_choice().reason()},
      {"f32_gflop_per_s", s.kernel_choice().f32_gflop_per_s()},
      {"amx_gflop_per_s", s.kernel_choice().amx_gflop_per_s()},
      {"avx512_bf16_gflop_per_s", s.kernel_choice().avx512_bf16_gflop_per_s()}};
  json["chunk_count"] = s.chunk_count();
  json["token_count"] = s.token_count();
  json["used_bytes"] = s.used_bytes();
  json["capacity_bytes"] = s.capacity_bytes();
  json["session_count"] = s.session_count();
  json["lane_count"] = s.lane_count();
  json["request_count"] = s.request_count();
  json["query_row_count"] = s.query_row_count();
  json["batch_count"] = s.batch_count();
  json["error_count"] = s.error_count();
  json["expired_count"] = s.expired_count();
  json["bytes_in"] = s.bytes_in();
  json["bytes_out"] = s.bytes_out();
  json["compute_us"] = s.compute_ns() / 1000;
  json["cold_count"] = s.cold_count();
  json["shadow_count"] = s.shadow_count();
  json["load_count"] = s.load_count();
  json["load_bytes"] = s.load_bytes();
  json["evicted_count"] = s.evicted_count();
  json["damaged_count"] = s.damaged_count();
  json["repaired_count"] = s.repaired_count();
  json["scrubbed_bytes"] = s.scrubbed_bytes();
  json["scrub_pass_count"] = s.scrub_pass_count();
  json["stripe_hit_count"] = s.stripe_hit_count();
  json["stripe_read_count"] = s.stripe_read_count();
  json["stripe_bytes"] = s.stripe_bytes();
  json["models"] = std::vector<std::string>(s.models().begin(), s.models().end());
  return json;
}

Json TrialsJson(const v1::DescribeReply::Holder& holder) {
  Json trials = Json::array();
  for (const v1::DescribeReply::FabricTrial& trial : holder.trials()) {
    Json json = {{"fabric", trial.fabric()}};
    if (trial.why_not().empty()) {
      json["t_probe_us"] = trial.t_probe_us();
      json["bandwidth_bytes_per_s"] = trial.bandwidth_bytes_per_s();
      json["exchange_us"] = trial.exchange_us();
      json["exchange_p50_us"] = trial.exchange_p50_us();
    } else {
      json["why_not"] = trial.why_not();
    }
    trials.push_back(std::move(json));
  }
  return trials;
}

Json RequesterJson(const v1::DescribeReply& d) {
  Json json = {{"id", d.id()},
               {"version", d.version()},
               {"directory_connected", d.directory_connected()},
               {"attend_count", d.attend_count()},
               {"error_count", d.error_count()},
               {"discarded_reply_count", d.discarded_reply_count()},
               {"rdma_fallback_count", d.rdma_fallback_count()},
               {"retry_count", d.retry_count()},
               {"retry_refused_count", d.retry_refused_count()},
               {"local_cache", LocalCacheJson(d)},
               {"holders", Json::array()}};
  for (const v1::DescribeReply::Holder& h : d.holders()) {
    json["holders"].push_back({{"id", h.member().id()},
                               {"connected", h.connected()},
                               {"fabric", h.fabric()},
                               {"t_probe_us", h.t_probe_us()},
                               {"bandwidth_bytes_per_s", h.bandwidth_bytes_per_s()},
                               {"in_flight", h.in_flight()},
                               {"trials", TrialsJson(h)}});
    if (!h.fallback().empty()) json["holders"].back()["fallback"] = h.fallback();
  }
  return json;
}

std::string HeadText(const Fleet& fleet, const View& view) {
  std::string directory = fleet.directory_address();
  if (!view.directory.ok()) {
    // A ckvd of another role answers, and has no such service.
    const bool is_other =
        std::string(view.directory.message()).find("not served there") != std::string::npos;
    directory += is_other ? " is no directory" : " does not answer";
    directory += "; below is the requester's view, which may lack members";
  }
  std::string requester = fleet.requester_address();
  if (!view.requester.ok()) {
    requester += " does not answer";
  } else if (view.of_fleet) {
    requester += " (" + view.requester->id() + ")";
  } else {
    requester +=
        absl::StrFormat(" (%s) belongs to another fleet, that of the directory at %s: not shown",
                        view.requester->id(), view.requester->directory_address());
  }
  std::vector<std::pair<std::string, std::string>> fields = {{"directory", directory}};
  if (view.home.ok()) fields.emplace_back("its state", HomeText(*view.home));
  fields.emplace_back("requester", requester);
  return RenderFields(fields);
}

// Just after its start, a directory waits for the holders with chunks of its corpora.
std::string ReturningText(const v1::DescribeDirectoryReply& home) {
  std::string names;
  for (const std::string& name : home.missing_holders())
    names += (names.empty() ? ": " : ", ") + Printable(name);
  return absl::StrFormat("the directory has just started, and waits for %s%s\n",
                         FormatCount(home.missing_holder_count(), "holder"), names);
}

Json RequesterPart(const View& view) {
  if (!view.requester.ok()) return {{"error", std::string(view.requester.status().message())}};
  if (view.of_fleet) return RequesterJson(*view.requester);
  return {{"id", view.requester->id()},
          {"directory", view.requester->directory_address()},
          {"error", "of another fleet"}};
}

void Print(const Ctl& ctl, const Fleet& fleet, const View& view,
           const std::vector<MemberReport>& members, const FleetFacts& facts,
           const std::vector<Finding>& findings) {
  Json json = {{"directory", fleet.directory_address()}, {"members", Json::array()}};
  if (!view.directory.ok()) json["directory_error"] = std::string(view.directory.message());
  if (view.home.ok()) json["directory_state"] = HomeJson(*view.home);
  json["holders"] = Json::array();
  for (const MemberReport& report : members) {
    const Member& m = report.member;
    json["members"].push_back({{"id", m.id.name},
                               {"role", RoleName(m.role)},
                               {"address", m.control_address},
                               {"epoch", m.epoch.value},
                               {"version", report.process().version()},
                               {"commit", report.process().commit()},
                               {"up_ms", report.process().started_ago_ms()},
                               {"kernel_target", KernelTargetName(m.kernel_target)},
                               {"answers", report.status.ok()},
                               {"refuses", report.stats.refuses_without_lease()}});
    if (m.role == MemberRole::kHolder) json["holders"].push_back(HolderJson(report));
  }
  json["kernel_targets"] = TargetsOf(members);
  json["kernel_target_of_all"] = BestCommonTarget(members);
  json["ended"] = EndedJson(view.ended);
  json["engines"] = EnginesJson(view.engines);
  json["missing"] = Json::array();
  for (const CorpusFacts& corpus : facts.corpora) {
    if (!view.returning.ok()) break;  // their holders are about to return
    json["missing"].push_back({{"corpus", corpus.name},
                               {"tenant", corpus.tenant},
                               {"chunk_count", corpus.chunk_count},
                               {"missing_count", corpus.missing_count},
                               {"missing_copy_count", corpus.missing_copy_count}});
  }
  json["findings"] = FindingsJson(findings);
  if (!view.returning.ok()) json["returning"] = std::string(view.returning.message());
  json["requester"] = RequesterPart(view);
  std::string text = HeadText(fleet, view);
  if (!view.returning.ok()) {
    text += ReturningText(*view.home);
  } else if (members.empty()) {
    text += "no members\n";
  }
  std::vector<std::string> parts = {FindingsText(findings), MembersText(members),
                                    MixedText(members),     HoldersText(members),
                                    DamageText(members),    EnginesText(view.engines)};
  if (view.requester.ok() && view.of_fleet) {
    const v1::DescribeReply& d = *view.requester;
    parts.insert(parts.end(), {RequesterText(d), LocalCacheText(d), DecisionsText(d)});
  }
  for (const std::string& part : parts) {
    if (!part.empty()) text += "\n" + part;
  }
  ctl.Print(text, json);
}

FleetSight SightOf(const Ctl& ctl, Fleet& fleet, const View& view,
                   const std::vector<MemberReport>& members) {
  FleetSight sight;
  sight.directory_address = fleet.directory_address();
  sight.directory = view.directory;
  sight.members = members;
  sight.is_of_fleet = view.of_fleet;
  if (!ctl.fleet.requester.empty() || !view.of_fleet) {
    sight.requester = view.requester;
    sight.requester_address = fleet.requester_address();
  }
  if (view.directory.ok()) sight.home = fleet.DescribeDirectory();
  return sight;
}

absl::Status RunStatus(const Ctl& ctl) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const View view, Look(fleet));
  const std::vector<MemberReport> members = QueryMembers(fleet, view.members);
  const FleetFacts facts = FactsOf(SightOf(ctl, fleet, view, members));
  const std::vector<Finding> findings = JudgeFleet(facts);
  Print(ctl, fleet, view, members, facts, findings);
  if (!view.directory.ok()) return VerdictOf(findings, view.directory);
  if (!view.of_fleet) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the requester at %s belongs to the fleet of the directory at %s, not to that of %s\n  "
        "name a "
        "requester of this fleet with --requester or CKV_REQUESTER",
        fleet.requester_address(), view.requester->directory_address(), fleet.directory_address()));
  }
  CKV_RETURN_IF_ERROR(view.returning);
  return VerdictOf(findings);
}

}  // namespace

void AddStatusCommand(CLI::App& app, Ctl& ctl) {
  CLI::App* verb =
      AddVerb(app, "status", "Show the directory, the members and their counters",
              "  ckvctl status\n  ckvctl status --watch 2s\n  ckvctl status -o json "
              "--directory 10.0.0.1:7400\n\n"
              "It fails if ckvctl health fails, and with its exit codes. LAST PROBE "
              "is a round trip\nwithout payload, as last measured; WHEN IT WAS CHOSEN "
              "is what each fabric was then expected\nto take for 16 query rows, there "
              "and back, which may be long ago.");
  AddWatch(*verb, ctl);
  verb->callback([&ctl] { ctl.run = [&ctl] { return RunStatus(ctl); }; });
}

}  // namespace ckv::ctl
