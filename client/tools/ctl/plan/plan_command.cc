// ckvctl plan, and its verb prfaas: the threshold and the split of a system that offloads long
// prefills. It needs no fleet: all it has is a profile.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/plan/corpus_command.h"
#include "client/tools/ctl/plan/plan_figures.h"
#include "client/tools/ctl/plan/prfaas_profile.h"
#include "client/tools/ctl/plan/prfaas_report.h"
#include "client/tools/ctl/result_folder.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

struct PrfaasCommand {
  std::string profile;
  bool paper = false, example = false;
  std::string folder;
};

absl::Status RunPrfaas(const Ctl& ctl, const PrfaasCommand& command) {
  if (command.example) {
    ctl.Print(kPrfaasPaperProfile, {{"profile", kPrfaasPaperProfile}});
    return absl::OkStatus();
  }
  if (command.paper != command.profile.empty())
    return absl::InvalidArgumentError(
        "give --profile FILE, or --paper for the source's system\n"
        "  ckvctl plan prfaas --example > cluster.yaml writes a profile to begin with");
  CKV_ASSIGN_OR_RETURN(const PrfaasProfile profile,
                       command.paper ? ParsePrfaasProfile("the source", kPrfaasPaperProfile)
                                     : ReadPrfaasProfile(command.profile));
  const PrfaasPlan plan = MakePlan(profile);
  Json json = PlanJson(profile, plan);
  std::string text = PlanText(profile, plan);
  std::vector<CsvFile> tables = PlanCsv(plan);
  if (command.paper) {
    const std::vector<PaperFigure> figures = CompareWithPaper(profile, plan);
    json["paper"] = PaperJson(figures);
    text += "\n" + PaperText(figures);
    tables.push_back(PaperCsv(figures));
  }
  return PrintAndWrite(ctl, std::move(text), command.folder,
                       {"plan", json, std::move(tables), "plan_figures.py", kPlanFiguresScript});
}

}  // namespace

void AddPlanCommands(CLI::App& app, Ctl& ctl) {
  CLI::App* plan = app.add_subcommand("plan", "Plan machines from a profile, without a fleet");
  plan->fallthrough();
  plan->require_subcommand(1);
  const auto command = std::make_shared<PrfaasCommand>();
  CLI::App* prfaas = AddVerb(
      *plan, "prfaas", "Find which prefills to offload to another cluster, and how to split",
      "  ckvctl plan prfaas --example > cluster.yaml\n"
      "  ckvctl plan prfaas --profile cluster.yaml --dir plan\n"
      "  ckvctl plan prfaas --paper          # the paper's system, with its figures\n\n"
      "A profile has the lengths of inputs (log-normal, a histogram or a trace), the bytes of a\n"
      "KV cache, and what instances of both clusters do. --dir gets plan.json, CSV files, and\n"
      "plots in plan.html. The model is that of \"Prefill-as-a-Service\" (equations 1 to 8): it\n"
      "has no queues.");
  prfaas->add_option("--profile", command->profile, "The system, in YAML or JSON")
      ->check(NotEmpty())
      ->type_name("FILE");
  prfaas->add_flag("--paper", command->paper,
                   "Plan the paper's system, and compare with its figures");
  prfaas->add_flag("--example", command->example, "Print a profile, that of the paper");
  prfaas->add_option("--dir", command->folder, "Folder for files; made if need be")
      ->check(NotEmpty())
      ->type_name("DIR");
  prfaas->callback(
      [&ctl, command] { ctl.run = [&ctl, command] { return RunPrfaas(ctl, *command); }; });
  AddPlanCorpusCommand(*plan, ctl);
}

}  // namespace ckv::ctl
