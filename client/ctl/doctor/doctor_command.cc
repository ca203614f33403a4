// ckvctl doctor: what is wrong with this machine and with the fleet, each with its remedy.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/ctl/commands.h"
#include "client/ctl/doctor/fleet_checks.h"
#include "client/ctl/doctor/host_checks.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

struct DoctorOptions {
  std::string config;
  bool strict = false;
  // Set by the verb that the command line names.
  bool host = false;
  bool fleet = false;
};

constexpr char kExamples[] =
    "  ckvctl doctor\n  ckvctl doctor host --config /etc/ckv/ckvd.yaml\n"
    "  ckvctl doctor fleet --directory 10.0.0.1:7400 --strict\n"
    "  ckvctl doctor -o json | jq '.checks[] | select(.verdict == \"fail\")'\n\n"
    "A check is ok, skipped with the reason, or has a finding and after -> its remedy: commands,\n"
    "or lines of a configuration. The exit code is 0, or 7 if a check fails. With --strict a\n"
    "warning fails, too. As root it sees more: limits and settings of other users' daemons.\n"
    "The directory is the one that is named, else that of a daemon or a configuration here.";

// The directory that this machine's daemons use, if none was named.
FleetOptions FleetOf(const Ctl& ctl, const doctor::HostView& host) {
  FleetOptions options = ctl.fleet;
  if (!options.directory.empty() || !options.requester.empty()) return options;
  for (const doctor::DaemonSettings* settings : host.AllSettings()) {
    if (!settings->directory.empty()) options.directory = settings->directory;
  }
  return options;
}

// Skips a fleet that does not answer, unless one is named or the command is `doctor fleet`.
doctor::Part LookAtFleet(const Ctl& ctl, const DoctorOptions& options,
                         const doctor::HostView& host) {
  const FleetOptions fleet_options = FleetOf(ctl, host);
  const bool named =
      options.fleet || !fleet_options.directory.empty() || !fleet_options.requester.empty();
  Fleet fleet(fleet_options, ctl.clock);
  const doctor::FleetFacts facts = doctor::AskFleet(fleet);
  if (!facts.directory.status.ok() && !named) {
    return {"fleet",
            "fleet: none is named",
            {doctor::Skipped("directory",
                             "none is named with --directory or CKV_DIRECTORY, and "
                             "none answers at " +
                                 facts.directory.address)}};
  }
  return doctor::JudgeFleet(facts, host.daemons);
}

absl::Status RunDoctor(const Ctl& ctl, const DoctorOptions& options) {
  std::string config = options.config;
  const std::string usual = ctl.host_root + std::string(doctor::kDefaultConfigPath);
  // The configuration of the packages, if this machine has it.
  if (config.empty() && doctor::HostFiles("").Read(usual)) config = usual;
  CKV_ASSIGN_OR_RETURN(const doctor::HostView host,
                       doctor::LookAtHost(ctl.host_root, config, doctor::ReadClockSync()));
  const bool both = !options.host && !options.fleet;
  std::vector<doctor::Part> parts;
  if (options.host || both) parts.push_back(doctor::JudgeHost(host));
  if (options.fleet || both) parts.push_back(LookAtFleet(ctl, options, host));
  std::string text;
  for (const doctor::Part& part : parts) text += doctor::PartText(part) + "\n";
  ctl.Print(text + doctor::CountsText(parts) + "\n", doctor::PartsJson(parts));
  return doctor::JudgeParts(parts, options.strict);
}

void AddOptions(CLI::App& verb, const std::shared_ptr<DoctorOptions>& options) {
  verb.add_option("--config", options->config,
                  absl::StrFormat("Configuration of a ckvd that is to run here (default: %s, if it "
                                  "is there)",
                                  doctor::kDefaultConfigPath))
      ->type_name("FILE");
  verb.add_flag("--strict", options->strict, "A warning fails, too");
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Ctl& ctl) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* verb =
      AddVerb(app, "doctor", "Look for mistakes of this machine and of the fleet, with remedies",
              kExamples);
  AddOptions(*verb, options);
  CLI::App* host = AddVerb(*verb, "host", "Look at this machine alone", kExamples);
  AddOptions(*host, options);
  host->callback([options] { options->host = true; });
  CLI::App* fleet = AddVerb(*verb, "fleet", "Look at the fleet alone", kExamples);
  AddOptions(*fleet, options);
  fleet->callback([options] { options->fleet = true; });
  verb->require_subcommand(0, 1);
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunDoctor(ctl, *options); }; });
}

}  // namespace ckv::ctl
