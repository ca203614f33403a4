// ckvctl status: the directory, its members, the holders' counters, and the requester's view.

#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/commands.h"
#include "proto/convert.h"
#include "proto/status.h"

namespace ckv::ctl {
namespace {

const char* RoleName(MemberRole role) {
  return role == MemberRole::kHolder ? "holder" : "requester";
}

struct HolderStats {
  Member member;
  absl::Status status;
  v1::StatsReply stats;
};

std::vector<HolderStats> AskHolders(const Fleet& fleet, const std::vector<Member>& members) {
  std::vector<HolderStats> all;
  for (const Member& member : members) {
    if (member.role != MemberRole::kHolder) continue;
    HolderStats one{member, absl::OkStatus(), {}};
    grpc::ClientContext context;
    fleet.Prepare(context);
    one.status =
        HolderError(ConnectHolder(member)->Stats(&context, {}, &one.stats), member, "Stats");
    all.push_back(std::move(one));
  }
  return all;
}

// What is known of the members: from the directory, or where that does not answer, the holders that
// the requester has asked before.
struct View {
  absl::Status directory;
  std::vector<Member> members;
  absl::StatusOr<v1::DescribeReply> requester;
};

//   the directory's error, where neither it nor the requester answers.
absl::StatusOr<View> Look(Fleet& fleet) {
  absl::StatusOr<std::vector<Member>> members = fleet.Members();
  View view = {members.status(), {}, fleet.Describe()};
  if (members.ok()) {
    view.members = *std::move(members);
    return view;
  }
  if (!view.requester.ok()) return members.status();
  for (const v1::DescribeReply::Holder& holder : view.requester->holders()) {
    // One that was never reached has no address to ask at.
    if (holder.member().control_address().empty()) continue;
    CKV_ASSIGN_OR_RETURN(Member member, FromProto(holder.member()));
    view.members.push_back(std::move(member));
  }
  return view;
}

std::string MembersText(const std::vector<Member>& members) {
  Table table({{"MEMBER"}, {"ROLE"}, {"ADDRESS"}, {"EPOCH", true}});
  for (const Member& m : members) {
    table.AddRow({m.id.name, RoleName(m.role), m.control_address, std::to_string(m.epoch.value)});
  }
  return table.Render();
}

std::string HoldersText(const std::vector<HolderStats>& holders) {
  Table table({{"HOLDER"},
               {"CHUNKS", true},
               {"COLD", true},
               {"TOKENS", true},
               {"USED", true},
               {"CAPACITY", true},
               {"SESSIONS", true},
               {"REQUESTS", true},
               {"ROWS", true},
               {"ERRORS", true},
               {"KERNEL"}});
  for (const HolderStats& holder : holders) {
    if (!holder.status.ok()) {
      table.AddRow(
          {holder.member.id.name, "-", "-", "-", "-", "-", "-", "-", "-", "-", "does not answer"});
      continue;
    }
    const v1::StatsReply& s = holder.stats;
    table.AddRow({holder.member.id.name, std::to_string(s.chunk_count()),
                  std::to_string(s.cold_count()), std::to_string(s.token_count()),
                  FormatBytes(s.used_bytes()), FormatBytes(s.capacity_bytes()),
                  std::to_string(s.session_count()), std::to_string(s.request_count()),
                  std::to_string(s.query_row_count()), std::to_string(s.error_count()),
                  s.kernel_target()});
  }
  return table.Render();
}

// What an operator has to know of the stores, a line a holder that has some of it.
std::string DamageText(const std::vector<HolderStats>& holders) {
  std::string text;
  for (const HolderStats& holder : holders) {
    const v1::StatsReply& s = holder.stats;
    if (s.damaged_count() == 0) continue;
    absl::StrAppendFormat(
        &text, "holder %s found %s damaged since it started, and got %d again from replicas: %s\n",
        holder.member.id.name, FormatCount(s.damaged_count(), "chunk"), s.repaired_count(),
        "ckvctl corpus verify says what is missing");
  }
  return text;
}

// "shm 4.1 us, tcp 23 us, verbs no": the exchange that each was judged by; why not is in the JSON.
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
               {"PROBE", true},
               {"BANDWIDTH", true},
               {"IN FLIGHT", true},
               {"CHOSEN AMONG"}});
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

Json HolderJson(const HolderStats& holder) {
  Json json = {{"id", holder.member.id.name}, {"answers", holder.status.ok()}};
  if (!holder.status.ok()) {
    json["error"] = std::string(holder.status.message());
    return json;
  }
  const v1::StatsReply& s = holder.stats;
  json["kernel_target"] = s.kernel_target();
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
  json["compute_ns"] = s.compute_ns();
  json["cold_count"] = s.cold_count();
  json["shadow_count"] = s.shadow_count();
  json["load_count"] = s.load_count();
  json["load_bytes"] = s.load_bytes();
  json["evicted_count"] = s.evicted_count();
  json["damaged_count"] = s.damaged_count();
  json["repaired_count"] = s.repaired_count();
  json["scrubbed_bytes"] = s.scrubbed_bytes();
  json["scrub_pass_count"] = s.scrub_pass_count();
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

absl::Status RunStatus(const Ctl& ctl) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const View view, Look(fleet));
  const std::vector<HolderStats> holders = AskHolders(fleet, view.members);
  const absl::StatusOr<v1::DescribeReply>& described = view.requester;

  Json json = {{"directory", fleet.directory_address()}, {"members", Json::array()}};
  if (!view.directory.ok()) json["directory_error"] = std::string(view.directory.message());
  for (const Member& m : view.members) {
    json["members"].push_back({{"id", m.id.name},
                               {"role", RoleName(m.role)},
                               {"address", m.control_address},
                               {"epoch", m.epoch.value}});
  }
  json["holders"] = Json::array();
  for (const HolderStats& holder : holders) json["holders"].push_back(HolderJson(holder));
  std::string text = RenderFields(
      {{"directory",
        fleet.directory_address() + (view.directory.ok() ? ""
                                                         : " does not answer; below is what the "
                                                           "requester knows, which may be less")},
       {"requester", described.ok() ? fleet.requester_address() + " (" + described->id() + ")"
                                    : fleet.requester_address() + " does not answer"}});
  if (view.members.empty()) text += "no members\n";
  for (const std::string& part :
       {MembersText(view.members), HoldersText(holders), DamageText(holders),
        described.ok() ? RequesterText(*described) : std::string()}) {
    if (!part.empty()) text += "\n" + part;
  }
  if (described.ok()) {
    json["requester"] = RequesterJson(*described);
  } else {
    json["requester"] = {{"error", std::string(described.status().message())}};
  }
  ctl.Print(text, json);
  CKV_RETURN_IF_ERROR(view.directory);
  // A fleet without a requester is one that a requester was not named for; a named one must answer.
  return ctl.fleet.requester.empty() ? absl::OkStatus() : described.status();
}

}  // namespace

void AddStatusCommand(CLI::App& app, Ctl& ctl) {
  CLI::App* verb = AddVerb(app, "status", "Show the directory, the members and their counters",
                           "  ckvctl status\n  ckvctl status -o json --directory 10.0.0.1:7400");
  verb->callback([&ctl] { ctl.run = [&ctl] { return RunStatus(ctl); }; });
}

}  // namespace ckv::ctl
