#include "client/tools/ctl/plan/corpus_command.h"

#include <memory>
#include <string>

#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/plan/corpus_example.h"
#include "client/tools/ctl/plan/corpus_profile.h"
#include "client/tools/ctl/plan/corpus_report.h"
#include "client/tools/ctl/plan/plan_figures.h"
#include "client/tools/ctl/result_folder.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

struct PlanCorpusCommand {
  std::string profile;
  bool example = false;
  std::string folder;
};

absl::Status RunPlanCorpus(const Ctl& ctl, const PlanCorpusCommand& command) {
  if (command.example) {
    ctl.Print(kCorpusExampleProfile, {{"profile", kCorpusExampleProfile}});
    return absl::OkStatus();
  }
  if (command.profile.empty()) {
    return absl::InvalidArgumentError(
        "give --profile FILE\n"
        "  ckvctl plan corpus --example > corpus.yaml writes a profile to begin with");
  }
  CKV_ASSIGN_OR_RETURN(const CorpusPlanInput input, ReadCorpusProfile(command.profile));
  if (!command.folder.empty()) CKV_RETURN_IF_ERROR(MakeFolder(command.folder));
  const CorpusPlan plan = MakeCorpusPlan(input);
  const Json json = CorpusPlanJson(input, plan);
  std::string text = CorpusPlanText(input, plan);
  return PrintAndWrite(
      ctl, std::move(text), command.folder,
      {"plan", json, CorpusPlanCsv(json), "corpus_figures.py", kCorpusFiguresScript});
}

}  // namespace

void AddPlanCorpusCommand(CLI::App& plan, Ctl& ctl) {
  const auto command = std::make_shared<PlanCorpusCommand>();
  CLI::App* corpus = AddVerb(
      plan, "corpus", "Find the cheapest holders for a corpus, a load and a latency goal",
      "  ckvctl plan corpus --example > corpus.yaml\n"
      "  ckvctl plan corpus --profile corpus.yaml --dir plan\n\n"
      "A profile has a corpus, its replicas, the load of agents, a goal, and machines on offer "
      "with\n"
      "their prices. Their kernels and links are given, or are those of a file of ckvctl "
      "calibrate.\n"
      "--dir gets plan.json, CSV files, and plots in plan.html. Times are those of the cost model\n"
      "that requesters decide by, and of M/G/1 queues.");
  corpus->add_option("--profile", command->profile, "The corpus, in YAML or JSON")
      ->check(NotEmpty())
      ->type_name("FILE");
  corpus->add_flag("--example", command->example, "Print a profile to begin with");
  corpus->add_option("--dir", command->folder, "Folder for files; made if need be")
      ->check(NotEmpty())
      ->type_name("DIR");
  corpus->callback(
      [&ctl, command] { ctl.run = [&ctl, command] { return RunPlanCorpus(ctl, *command); }; });
}

}  // namespace ckv::ctl
