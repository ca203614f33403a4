// ckvctl corpus partition: redistributes a corpus over the holders, while it is served.
// RunPartition, in order: MakePlan reads the corpus and plans; CheckCapacity compares the copies
// with the free space; PartitionRun copies and verifies; it switches the corpus in one step;
// AwaitSwitchKept waits until the holders have recorded that; DropOrphans drops the old copies. An
// interruption at any point is harmless.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/publish/capacity_placement.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/fleet/kept_change.h"
#include "client/tools/ctl/fleet/orphans.h"
#include "client/tools/ctl/fleet/partition_run.h"
#include "proto/base/status.h"
#include "store/corpus/partition.h"

namespace ckv::ctl {
namespace {

struct PartitionOptions {
  std::string name;
  std::string policy = "hash";
  std::optional<uint32_t> replicas;
  std::vector<std::string> weights;  // "holder=2"
  bool dry_run = false;
};

// The plan's effect on one holder.
struct HolderPlan {
  uint32_t chunks_now = 0;
  uint32_t chunks_then = 0;
  uint32_t chunks_in = 0;
  uint64_t bytes_in = 0;
  uint32_t chunks_dropped = 0;
};
using HolderPlans = std::map<std::string, HolderPlan>;

// Live holders, each of weight 1 unless --weights sets another; those of weight 0 get nothing.
absl::StatusOr<std::vector<WeightedHolder>> WeighHolders(const std::vector<Member>& holders,
                                                         const std::vector<std::string>& weights) {
  std::map<std::string, double> weight_of;
  for (const std::string& text : weights) {
    const size_t equals = text.find('=');
    double weight = 0;
    if (equals == std::string::npos || equals == 0 ||
        !CLI::detail::lexical_cast(text.substr(equals + 1), weight) || !(weight >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--weights: '%s': need holder=number, like h0=2,h1=0.5", text));
    }
    if (!weight_of.emplace(text.substr(0, equals), weight).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--weights: '%s' is given twice", text.substr(0, equals)));
    }
  }
  std::vector<WeightedHolder> targets;
  for (const Member& holder : holders) {
    const auto found = weight_of.find(holder.id.name);
    const double weight = found != weight_of.end() ? found->second : holder.is_draining ? 0 : 1;
    if (found != weight_of.end()) weight_of.erase(found);
    if (weight > 0) targets.push_back({holder.id, weight});
  }
  if (weight_of.empty()) return targets;
  return absl::InvalidArgumentError(
      absl::StrFormat("--weights: '%s' is no live holder\n  ckvctl status shows which there are",
                      weight_of.begin()->first));
}

HolderPlans PlansOf(const Corpus& corpus, const PartitionPlan& plan) {
  HolderPlans plans;
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    for (const HolderId& holder : corpus.chunks[i].holders()) ++plans[holder.name].chunks_now;
    for (const HolderId& holder : plan.holders[i]) ++plans[holder.name].chunks_then;
  }
  for (const ChunkMove& copy : plan.copies) {
    HolderPlan& to = plans[copy.to.name];
    ++to.chunks_in;
    to.bytes_in += corpus.chunks[copy.chunk].token_count * corpus.geometry.token_bytes();
  }
  for (const ChunkMove& drop : plan.drops) ++plans[drop.from.name].chunks_dropped;
  return plans;
}

std::string PlanText(const PartitionPlan& plan, const HolderPlans& plans) {
  Table table(
      {{"HOLDER"}, {"NOW", true}, {"THEN", true}, {"GETS", true}, {"ROWS", true}, {"DROPS", true}});
  HolderPlan total;
  for (const auto& [name, one] : plans) {
    table.AddRow({name, std::to_string(one.chunks_now), std::to_string(one.chunks_then),
                  std::to_string(one.chunks_in), FormatBytes(one.bytes_in),
                  std::to_string(one.chunks_dropped)});
    total.chunks_now += one.chunks_now;
    total.chunks_then += one.chunks_then;
  }
  table.AddRow({"total", std::to_string(total.chunks_now), std::to_string(total.chunks_then),
                std::to_string(plan.copies.size()), FormatBytes(plan.copy_bytes),
                std::to_string(plan.drops.size())});
  if (plan.copies.empty()) return table.Render() + "nothing to copy\n";
  return table.Render() + absl::StrFormat("%s to copy; %d is the least for these weights\n",
                                          FormatCount(plan.copies.size(), "chunk"),
                                          plan.copies_min);
}

Json ReportJson(const PartitionOptions& options, const Corpus& corpus, const PartitionPlan& plan,
                const HolderPlans& plans, const std::map<std::string, CopyTally>& tallies,
                const DropCounts& drops) {
  Json holders = Json::array();
  CopyTally total;
  uint32_t dropped = 0;
  for (const auto& [name, one] : plans) {
    const auto copied = tallies.find(name);
    const CopyTally tally = copied == tallies.end() ? CopyTally() : copied->second;
    const auto drop = drops.find(name);
    const uint32_t chunks_dropped = drop == drops.end() ? 0 : drop->second;
    holders.push_back({{"id", name},
                       {"chunks_now", one.chunks_now},
                       {"chunks_then", one.chunks_then},
                       {"chunks_in", one.chunks_in},
                       {"bytes_in", one.bytes_in},
                       {"chunks_out", one.chunks_dropped},
                       {"chunks_sent", tally.chunks_sent},
                       {"chunks_reused", tally.chunks_reused},
                       {"bytes_sent", tally.bytes_sent},
                       {"chunks_dropped", chunks_dropped}});
    total.chunks_sent += tally.chunks_sent;
    total.chunks_reused += tally.chunks_reused;
    total.bytes_sent += tally.bytes_sent;
    dropped += chunks_dropped;
  }
  return {{"corpus", options.name},
          {"policy", options.policy},
          {"dry_run", options.dry_run},
          {"version", corpus.version},
          {"chunk_count", corpus.chunks.size()},
          {"copy_count", plan.copies.size()},
          {"copy_count_min", plan.copies_min},
          {"copy_bytes", plan.copy_bytes},
          {"drop_count", plan.drops.size()},
          {"chunks_sent", total.chunks_sent},
          {"chunks_reused", total.chunks_reused},
          {"bytes_sent", total.bytes_sent},
          {"chunks_dropped", dropped},
          {"holders", holders}};
}

std::string ReportText(const Corpus& corpus, const std::map<std::string, CopyTally>& tallies,
                       const DropCounts& drops, uint64_t version) {
  Table table({{"HOLDER"}, {"SENT", true}, {"REUSED", true}, {"ROWS", true}, {"DROPPED", true}});
  std::map<std::string, std::pair<CopyTally, uint32_t>> of_holder;
  for (const auto& [name, tally] : tallies) of_holder[name].first = tally;
  for (const auto& [name, count] : drops) of_holder[name].second = count;
  for (const auto& [name, tallied] : of_holder) {
    table.AddRow({name, std::to_string(tallied.first.chunks_sent),
                  std::to_string(tallied.first.chunks_reused),
                  FormatBytes(tallied.first.bytes_sent), std::to_string(tallied.second)});
  }
  return absl::StrFormat("corpus %s is published as version %d, placed as planned\n\n", corpus.name,
                         version) +
         table.Render();
}

struct Planned {
  Corpus corpus;
  PartitionPlan plan;
  std::vector<Member> holders;
};

absl::StatusOr<Planned> MakePlan(Fleet& fleet, const PartitionOptions& options) {
  Planned planned;
  CKV_ASSIGN_OR_RETURN(const PartitionPolicy policy, ParsePartitionPolicy(options.policy));
  CKV_ASSIGN_OR_RETURN(planned.holders, fleet.Holders());
  CKV_ASSIGN_OR_RETURN(planned.corpus, fleet.GetCorpus(options.name));
  if (planned.corpus.tenant != fleet.options().tenant) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "corpus %s is shared by all tenants: leave out --tenant to move it", options.name));
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<WeightedHolder> targets,
                       WeighHolders(planned.holders, options.weights));
  uint32_t& replicas = planned.corpus.replica_count;
  replicas = options.replicas.value_or(std::max(1u, replicas));
  CKV_ASSIGN_OR_RETURN(planned.plan, PlanPartition(planned.corpus, policy, targets, replicas));
  return planned;
}

// Returns the number of chunks without a live holder.
size_t CountUnreachable(const Planned& planned) {
  const auto alive = [&](const HolderId& id) {
    return std::any_of(planned.holders.begin(), planned.holders.end(),
                       [&](const Member& member) { return member.id == id; });
  };
  const auto& chunks = planned.corpus.chunks;
  return static_cast<size_t>(std::count_if(chunks.begin(), chunks.end(), [&](const auto& chunk) {
    return std::none_of(chunk.holders().begin(), chunk.holders().end(), alive);
  }));
}

bool IsDone(const Planned& planned) {
  for (size_t i = 0; i < planned.corpus.chunks.size(); ++i) {
    if (planned.corpus.chunks[i].holders() != planned.plan.holders[i]) return false;
  }
  return true;
}

// Checks for space before anything is copied. Old copies are dropped only after the switch.
absl::Status CheckCapacity(Fleet& fleet, const Planned& planned, const HolderPlans& plans) {
  const CapacityReader reader(planned.holders, &fleet.clock(), kInstantMax);
  std::vector<HolderId> due;
  for (const auto& [name, plan] : plans) {
    if (plan.chunks_in > 0) due.push_back({name});
  }
  HolderCapacities capacities;
  reader.Read(due, capacities);
  const auto fits = [&] {
    std::map<std::string, uint64_t> need;
    for (const ChunkMove& copy : planned.plan.copies) {
      const ChunkPlacement& chunk = planned.corpus.chunks[copy.chunk];
      const auto capacity = capacities.find(copy.to.name);
      if (capacity == capacities.end() || capacity->second.present.contains(chunk.id)) continue;
      uint64_t& sum = need[copy.to.name];
      sum += StoreBytesOf(planned.corpus.geometry, chunk.token_count);
      if (sum > capacity->second.free_bytes) return false;
    }
    return true;
  };
  if (fits()) return absl::OkStatus();
  reader.QueryPresent(capacities);
  if (fits() || !AllReportPresent(capacities)) return absl::OkStatus();
  return CapacityError(planned.plan.copy_bytes, 1, capacities);
}

// Waits until the old and the new holders have recorded the change, before old copies are dropped.
std::string AwaitSwitchKept(Fleet& fleet, const Planned& planned) {
  std::vector<ChunkPlacement> placed = planned.corpus.chunks;
  for (size_t i = 0; i < placed.size(); ++i) {
    const std::vector<HolderId>& now = planned.plan.holders[i];
    placed[i].mutable_holders().insert(placed[i].holders().end(), now.begin(), now.end());
  }
  return AwaitKeptBy(fleet, planned.corpus.name, placed);
}

absl::Status RunPartition(const Ctl& ctl, const PartitionOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Planned planned, MakePlan(fleet, options));
  const auto& [corpus, plan, holders] = planned;
  const HolderPlans plans = PlansOf(corpus, plan);
  const std::string plan_text = PlanText(plan, plans);
  if (const size_t lost = CountUnreachable(planned); lost > 0) {
    ctl.Note(absl::StrFormat(
        "ckvctl: warning: no live holder has %s, so this cannot run: start one of the holders "
        "(ckvctl corpus show), or load the corpus again with --replace",
        FormatCount(lost, "chunk")));
  }
  if (options.dry_run || IsDone(planned)) {
    ctl.Print(plan_text + (options.dry_run ? "a dry run: nothing was copied or switched\n"
                                           : "the corpus is where it should be\n"),
              ReportJson(options, corpus, plan, plans, {}, {}));
    return absl::OkStatus();
  }
  ctl.Note(plan_text);
  CKV_RETURN_IF_ERROR(CheckCapacity(fleet, planned, plans));
  std::unique_ptr<PartitionRun> run;
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, fleet.Members());
  {
    const auto progress = ctl.StartProgress("push", "B", plan.copy_bytes);
    CKV_ASSIGN_OR_RETURN(run, PartitionRun::Create(&fleet, &planned.corpus, &planned.plan, members,
                                                   [&](const CopiedChunk& copied) {
                                                     copied.reused
                                                         ? progress->Skip(copied.row_bytes)
                                                         : progress->Advance(copied.row_bytes);
                                                     return absl::OkStatus();
                                                   }));
    CKV_RETURN_IF_ERROR(run->Copy());
  }
  CKV_ASSIGN_OR_RETURN(const v1::PublishCorpusReply published, run->Switch());
  std::vector<std::string> warnings;
  const std::string late = AwaitSwitchKept(fleet, planned);
  if (!late.empty()) warnings.push_back(late);
  auto drops = DropOrphans(fleet, published.orphans(), warnings);
  if (!drops.ok()) {
    return Annotate(drops.status(),
                    "the corpus was switched, but its old copies stay; ckvctl gc drops them");
  }
  for (const std::string& warning : warnings) ctl.Note("ckvctl: warning: " + warning);
  Json json = ReportJson(options, corpus, plan, plans, run->tallies(), *drops);
  json["version"] = published.version();
  json["warnings"] = warnings;
  ctl.Print(ReportText(corpus, run->tallies(), *drops, published.version()), json);
  return absl::OkStatus();
}

}  // namespace

void AddPartitionCommand(CLI::App& corpus, Ctl& ctl) {
  const auto options = std::make_shared<PartitionOptions>();
  CLI::App* verb = AddVerb(
      corpus, "partition", "Spread a corpus again over the live holders, while it is served",
      "  ckvctl corpus partition docs --policy hash --dry-run\n"
      "  ckvctl corpus partition docs --policy document --replicas 2\n"
      "  ckvctl corpus partition docs --weights h0=2,h3=0\n\n"
      "A chunk is placed on the holders that its group prefers, so a change of holders or\n"
      "weights moves little. Holders push chunks to each other, from any live copy; every copy is\n"
      "verified before the corpus is switched to it, in one step. Then old copies are dropped.\n"
      "It can be interrupted at any point and run again: what was copied is reused. If the corpus\n"
      "changes meanwhile, nothing is switched. Chunks that an interrupted run left\n"
      "behind are for ckvctl gc.");
  verb->add_option("NAME", options->name, "The corpus")->required();
  const std::vector<std::string> policies = {"hash", "document", "range"};
  verb->add_option("--policy", options->policy,
                   "hash: chunks apart; document: a chain of chunks together; range: neighbours "
                   "together")
      ->capture_default_str()
      ->check(OneOf(policies))
      ->type_name(JoinNames(policies));
  verb->add_option("--replicas", options->replicas,
                   "Copies of each chunk (default: as many as now)")
      ->check(InRange(1u, kReplicaCountMax));
  verb->add_option("--weights", options->weights,
                   "Shares of holders, like h0=2,h1=0.5 (default: 1 each; 0 empties one)")
      ->type_name("HOLDER=SHARE")
      ->delimiter(',');
  verb->add_flag("--dry-run", options->dry_run, "Only print the plan");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunPartition(ctl, *options); }; });
}

}  // namespace ckv::ctl
