// The options of ckvctl simulate fleet, as a scenario. A number that is out of range is refused by
// ValidateFleet, which names its field; files are refused with their names and lines.

#include "client/tools/ctl/simulate/fleet_command.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/cost/profile_file.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/result_folder.h"
#include "client/tools/ctl/simulate/fleet_report.h"
#include "client/tools/ctl/simulate/fleet_scenario.h"
#include "client/tools/ctl/simulate/input_files.h"
#include "client/tools/ctl/simulate/simulate_figures.h"
#include "proto/base/status.h"
#include "proto/named_models.h"

namespace ckv::ctl {
namespace {

constexpr double kFleetBytesPerGbit = 1e9 / 8;
constexpr double kFleetGiB = 1024.0 * 1024 * 1024, kCacheGibMax = 1e9;

struct FleetCommand {
  std::vector<uint32_t> nodes = {64};
  std::vector<double> loads = {50, 75, 100, 125, 150, 175, 200, 225, 250};
  std::vector<std::string> policies;
  std::string model = "deepseek-v2-lite", costs = "gpu", calibration, topology, folder;
  double link_gbps = 0, probe_us = 0, prefill_us = 0, cache_gib = 8;
  bool steps_known = false, fixed_here = false;
  uint32_t seeds = 1;
  uint64_t seed = 1;
  FleetSpec spec;
};

// Takes the constants of a calibration: the first lane's, and the requester's own.
absl::Status TakeCalibration(const std::string& path, FleetSpec& spec) {
  CKV_ASSIGN_OR_RETURN(const Profile profile, ReadProfile(path));
  const std::string widths = spec.geometry.widths().ToString();
  if (profile.subject.find(widths) == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: subject: it is not of rows of %s; give another --model, or calibrate "
                        "with a corpus of these",
                        path, widths));
  }
  if (profile.lanes.empty())
    return absl::InvalidArgumentError(path + ": lanes: none; calibrate with holders");
  const LaneProfile& lane = profile.lanes.front();
  spec.costs.probe_us = lane.constants.t_probe_us;
  spec.costs.nic_bytes_per_s = lane.constants.fetch_bandwidth_bytes_per_s > 0
                                   ? lane.constants.fetch_bandwidth_bytes_per_s
                                   : lane.constants.bandwidth_bytes_per_s;
  spec.costs.compute = lane.compute;
  spec.costs.here = HereFor(profile, spec.geometry);
  if (spec.costs.here.attend.empty()) spec.costs.here.attend = lane.compute;
  if (spec.costs.compute.empty())
    return absl::InvalidArgumentError(path + ": lanes[0]: no kernel curve; calibrate again");
  return absl::OkStatus();
}

absl::StatusOr<FleetScenario> ScenarioOf(const FleetCommand& command) {
  FleetScenario scenario = {
      .spec = command.spec, .nodes = command.nodes, .loads = {}, .policies = {}};
  FleetSpec& spec = scenario.spec;
  CKV_ASSIGN_OR_RETURN(const NamedModel model, FindModel(command.model));
  spec.geometry = model.geometry;
  spec.query_rows = model.heads;
  spec.costs = command.costs == "gpu" ? GpuCosts(spec.geometry) : CoreCosts(spec.geometry);
  if (!command.calibration.empty()) CKV_RETURN_IF_ERROR(TakeCalibration(command.calibration, spec));
  if (command.link_gbps > 0) spec.costs.nic_bytes_per_s = command.link_gbps * kFleetBytesPerGbit;
  if (command.probe_us > 0) spec.costs.probe_us = command.probe_us;
  if (command.prefill_us > 0) spec.costs.here.prefill_per_token_layer_us = command.prefill_us;
  if (command.cache_gib > kCacheGibMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--cache-gib: %g, at most %g", command.cache_gib, kCacheGibMax));
  }
  spec.cache_bytes = static_cast<uint64_t>(command.cache_gib * kFleetGiB);
  spec.hint = command.steps_known ? FleetHint::kExact : FleetHint::kNone;
  spec.learns_here = !command.fixed_here;
  for (const double load : command.loads) scenario.loads.push_back(load / 100);
  scenario.seeds = command.seeds;
  scenario.first_seed = command.seed;
  std::vector<std::string> names = command.policies;
  if (names.empty()) {
    names = {"route", "fetch", "auto"};
    if (spec.costs.here.prefill_per_token_layer_us) names.insert(names.end() - 1, "local");
  }
  for (const std::string& name : names) {
    for (size_t i = 0; i < kFleetPolicyCount; ++i) {
      if (FleetPolicyName(static_cast<FleetPolicy>(i)) == name)
        scenario.policies.push_back(static_cast<FleetPolicy>(i));
    }
  }
  return scenario;
}

absl::Status RunFleetCommand(const Ctl& ctl, const FleetCommand& command) {
  CKV_ASSIGN_OR_RETURN(FleetScenario scenario, ScenarioOf(command));
  if (!command.folder.empty()) CKV_RETURN_IF_ERROR(MakeFolder(command.folder));
  std::optional<FabricTree> topology;
  if (!command.topology.empty()) {
    CKV_ASSIGN_OR_RETURN(topology, ReadTopology(command.topology));
    scenario.topology = &*topology;
    scenario.nodes = {static_cast<uint32_t>(topology->server_count())};
  }
  std::vector<FleetRow> rows;
  {
    const auto progress = ctl.StartProgress("simulate", "requests", FleetRequestCount(scenario));
    absl::StatusOr<std::vector<FleetRow>> ran =
        RunFleetScenario(scenario, [&] { progress->Advance(1); });
    if (!ran.ok()) return Annotate(ran.status(), "fleet");
    rows = *std::move(ran);
  }
  const Json json = FleetJson(scenario, rows);
  std::string text = FleetText(scenario, rows);
  return PrintAndWrite(
      ctl, std::move(text), command.folder,
      {"simulation", json, FleetCsv(rows), "simulate_figures.py", kSimulateFiguresScript});
}

template <typename T>
void AddNumber(CLI::App& verb, const char* name, T& value, const char* text,
               const char* type_name) {
  CLI::Option* const option = verb.add_option(name, value, text);
  if constexpr (std::is_floating_point_v<T>)
    option->check(NotNegative());
  else
    option->check(InRange(0, std::min<uint64_t>(std::numeric_limits<T>::max(), kSeedMax)));
  option->type_name(type_name)->capture_default_str();
}

void AddFleetFiles(CLI::App& fleet, FleetCommand& command) {
  fleet.add_option("--model", command.model, "Model whose rows are held")
      ->check(NotEmpty())
      ->type_name("NAME")
      ->capture_default_str();
  const std::vector<std::string> costs = {"gpu", "core"};
  fleet.add_option("--costs", command.costs, "Constants of a published GPU, or of one core")
      ->check(OneOf(costs))
      ->type_name(JoinNames(costs))
      ->capture_default_str();
  fleet
      .add_option("--calibration", command.calibration,
                  "Take the constants of the first lane of this file of ckvctl calibrate")
      ->check(NotEmpty())
      ->type_name("FILE");
  fleet
      .add_option("--topology", command.topology,
                  "Servers and links, as simulate netkv --example prints them")
      ->check(NotEmpty())
      ->type_name("FILE");
  fleet.add_option("--dir", command.folder, "Folder for files; made if need be")
      ->check(NotEmpty())
      ->type_name("DIR");
}

void AddFleetNumbers(CLI::App& fleet, FleetCommand& command) {
  FleetSpec& spec = command.spec;
  AddNumber(fleet, "--holders", spec.holders, "Nodes that only hold; if 0, all hold and decode",
            "N");
  AddNumber(fleet, "--link-gbps", command.link_gbps, "Link of a node; if 0, that of the costs",
            "GBPS");
  AddNumber(fleet, "--probe-us", command.probe_us, "Round trip; if 0, that of the costs", "US");
  AddNumber(fleet, "--prefill-us", command.prefill_us,
            "Prefill of a token and layer, for the policy local; if 0, none", "US");
  AddNumber(fleet, "--workers", spec.workers, "Kernels that a node runs at once", "N");
  AddNumber(fleet, "--rack", spec.nodes_per_rack, "Nodes of a rack, a failure domain", "N");
  AddNumber(fleet, "--oversubscription", spec.oversubscription,
            "Bandwidth of a rack's links to nodes, divided by its uplinks", "X");
  AddNumber(fleet, "--replicas", spec.replicas, "Copies of each chunk", "N");
  AddNumber(fleet, "--documents", spec.documents_per_holder, "Documents for each holder", "N");
  AddNumber(fleet, "--document-chunks", spec.document_chunks, "Chunks of a document", "N");
  AddNumber(fleet, "--chunk-tokens", spec.chunk_tokens, "Tokens of a chunk", "N");
  AddNumber(fleet, "--cache-gib", command.cache_gib, "Local row cache of a requester", "GIB");
  AddNumber(fleet, "--batch", spec.batch_max, "Contexts that a requester decodes at once", "N");
  AddNumber(fleet, "--zipf", spec.zipf, "Skew of documents: weight r^-X of the r-th", "X");
  AddNumber(fleet, "--steps-max", spec.steps_max, "The most steps of an agent", "N");
  AddNumber(fleet, "--steps-mean", spec.steps_mean,
            "If above 0, steps are exponentially distributed instead", "N");
  fleet.add_flag("--steps-known", command.steps_known,
                 "Contexts open with the number of their steps");
  fleet.add_flag("--fixed-here", command.fixed_here,
                 "Requesters do not learn how slow their own attends are now");
  AddNumber(fleet, "--requests", spec.requests_per_requester, "Requests for each requester", "N");
  fleet.add_option("--seeds", command.seeds, "Runs of each row, with consecutive seeds")
      ->check(InRange(1, 1000))
      ->type_name("N")
      ->capture_default_str();
  AddNumber(fleet, "--seed", command.seed, "The first seed", "N");
}

}  // namespace

void AddSimulateFleetVerb(CLI::App& simulate, Ctl& ctl) {
  const auto command = std::make_shared<FleetCommand>();
  CLI::App* fleet = AddVerb(
      simulate, "fleet", "Route, fetch or auto on a fleet of 8 to 1,024 nodes",
      "  ckvctl simulate fleet --nodes 8 --nodes 64 --dir fleet\n"
      "  ckvctl simulate fleet --load 100 --policy auto --policy route -o json\n"
      "  ckvctl simulate fleet --calibration fleet.json --link-gbps 25\n"
      "  ckvctl simulate fleet --prefill-us 1 --steps-known\n\n"
      "The predicate, the rule of prefetches, the choice of replicas, Rank and the placement of\n"
      "chunks are those of ckv itself. The first line compares auto with the best other policy, "
      "by\n"
      "the mean time of a request. --dir gets simulation.json, fleet.csv, comparison.csv, and\n"
      "plots in simulation.html.");
  fleet->add_option("--nodes", command->nodes, "Nodes (default: 64); several sizes are run in turn")
      ->check(InRange(1, kFleetNodesMax))
      ->type_name("N");
  fleet
      ->add_option("--load", command->loads,
                   "Load, in percent of what kernels can do without batches (default: 50 to 250 "
                   "by 25)")
      ->check(Positive())
      ->type_name("PERCENT");
  const std::vector<std::string> policies = {"route", "fetch", "local", "auto"};
  fleet->add_option("--policy", command->policies, "Policies; if left out all that the costs allow")
      ->check(OneOf(policies))
      ->type_name(JoinNames(policies));
  AddFleetFiles(*fleet, *command);
  fleet->get_option("--topology")->excludes("--nodes");
  AddFleetNumbers(*fleet, *command);
  fleet->callback(
      [&ctl, command] { ctl.run = [&ctl, command] { return RunFleetCommand(ctl, *command); }; });
}

}  // namespace ckv::ctl
