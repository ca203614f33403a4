// ckvctl simulate: clusters on paper. It needs no fleet: all it uses is a topology, requests and a
// seed.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/result_folder.h"
#include "client/tools/ctl/simulate/fleet_command.h"
#include "client/tools/ctl/simulate/input_files.h"
#include "client/tools/ctl/simulate/netkv_paper.h"
#include "client/tools/ctl/simulate/netkv_report.h"
#include "client/tools/ctl/simulate/netkv_scenarios.h"
#include "client/tools/ctl/simulate/simulate_figures.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

struct NetkvCommand {
  std::vector<std::string> scenarios;
  std::string trace, topology, folder;
  bool own_prefixes = false, example = false;
  uint32_t seeds = 10;
  uint64_t seed = 1, requests = 0;
};

absl::StatusOr<std::vector<NetkvCell>> CellsOfAll(const NetkvCommand& command) {
  std::vector<NetkvCell> cells;
  std::vector<std::string> names = command.scenarios;
  if (names.empty()) names.assign(std::begin(kNetkvScenarios), std::end(kNetkvScenarios) - 1);
  for (const std::string& name : names) {
    if (!command.topology.empty() && (name == "topology" || name == "scale")) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the scenario %s changes the topology; leave out --topology or give another --scenario",
          name));
    }
    CKV_ASSIGN_OR_RETURN(const std::vector<NetkvCell> more, CellsOf(name));
    cells.insert(cells.end(), more.begin(), more.end());
  }
  return cells;
}

absl::Status RunNetkvCommand(const Ctl& ctl, const NetkvCommand& command) {
  if (command.example) {
    const std::string text = ExampleTopology();
    ctl.Print(text, {{"topology", text}});
    return absl::OkStatus();
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<NetkvCell> cells, CellsOfAll(command));
  if (!command.folder.empty()) CKV_RETURN_IF_ERROR(MakeFolder(command.folder));
  NetkvOptions options = {.seeds = command.seeds,
                          .first_seed = command.seed,
                          .requests = command.requests,
                          .own_prefixes = command.own_prefixes};
  std::vector<TraceRequest> trace;
  if (!command.trace.empty()) {
    CKV_ASSIGN_OR_RETURN(trace, ReadTrace(command.trace));
    options.trace = &trace;
  }
  std::optional<FabricTree> topology;
  if (!command.topology.empty()) {
    CKV_ASSIGN_OR_RETURN(topology, ReadTopology(command.topology));
    options.topology = &*topology;
  }
  std::vector<NetkvRow> rows;
  for (const NetkvCell& cell : cells) {
    absl::StatusOr<NetkvRow> row = RunCell(cell, options);
    if (!row.ok()) {
      return Annotate(row.status(), !command.trace.empty()     ? command.trace
                                    : command.topology.empty() ? "netkv"
                                                               : command.topology);
    }
    rows.push_back(*std::move(row));
  }
  const std::vector<PaperCell> paper = CompareWithNetkv(rows);
  const Json json = NetkvJson(rows, paper);
  std::string text = NetkvText(rows, paper);
  return PrintAndWrite(
      ctl, std::move(text), command.folder,
      {"simulation", json, NetkvCsv(rows, paper), "simulate_figures.py", kSimulateFiguresScript});
}

void AddNetkvVerb(CLI::App& simulate, Ctl& ctl) {
  const auto command = std::make_shared<NetkvCommand>();
  CLI::App* netkv = AddVerb(
      simulate, "netkv", "Choose decode instances on a fat tree: NetKV and its baselines",
      "  ckvctl simulate netkv --scenario load --scenario ablation\n"
      "  ckvctl simulate netkv --trace requests.jsonl --dir netkv\n"
      "  ckvctl simulate netkv --example > tree.yaml    # a topology to begin with\n"
      "  ckvctl simulate netkv --topology tree.yaml --scenario load\n\n"
      "Scenarios are the seven experiments of arXiv:2606.03910: load, length, topology,\n"
      "staleness, sharing, ablation and scale; and tune, for the weights of CLA*. Its tables II\n"
      "to V are printed with the figures found here. --dir gets simulation.json, a CSV file\n"
      "for each table, and plots in simulation.html.");
  netkv->add_option("--scenario", command->scenarios, "Scenarios to run; all but tune if left out")
      ->check(NotEmpty())
      ->type_name("NAME");
  netkv->add_option("--trace", command->trace, "Requests, one JSON object a line")
      ->check(NotEmpty())
      ->type_name("FILE");
  CLI::Option* const own = netkv->add_flag(
      "--own-prefixes", command->own_prefixes,
      "Use the trace's own shared prefixes (default: prompts share one with a set probability)");
  own->needs("--trace");
  netkv->add_option("--topology", command->topology, "Servers and links, in YAML or JSON")
      ->check(NotEmpty())
      ->type_name("FILE");
  netkv->add_flag("--example", command->example, "Print a topology, that of the paper");
  netkv->add_option("--seeds", command->seeds, "Runs of each row, with consecutive seeds")
      ->check(InRange(1, 1000))
      ->type_name("N")
      ->capture_default_str();
  netkv->add_option("--seed", command->seed, "The first seed")
      ->check(InRange(0, kSeedMax))
      ->type_name("N")
      ->capture_default_str();
  netkv->add_option("--requests", command->requests, "Requests of a run; if 0, those of 20 s")
      ->check(InRange(0, kSimRequestsMax))
      ->type_name("N")
      ->capture_default_str();
  netkv->add_option("--dir", command->folder, "Folder for files; made if need be")
      ->check(NotEmpty())
      ->type_name("DIR");
  netkv->callback(
      [&ctl, command] { ctl.run = [&ctl, command] { return RunNetkvCommand(ctl, *command); }; });
}

}  // namespace

void AddSimulateCommands(CLI::App& app, Ctl& ctl) {
  CLI::App* simulate = app.add_subcommand("simulate", "Simulate clusters, without a fleet");
  simulate->fallthrough();
  simulate->require_subcommand(1);
  AddNetkvVerb(*simulate, ctl);
  AddSimulateFleetVerb(*simulate, ctl);
}

}  // namespace ckv::ctl
