// ckvctl doctor: what is wrong with this machine, each with its remedy.

#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/doctor/host_checks.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

struct DoctorOptions {
  std::string config;
  bool strict = false;
};

constexpr char kExamples[] =
    "  ckvctl doctor\n  ckvctl doctor --config /etc/ckv/ckvd.yaml --strict\n"
    "  ckvctl doctor -o json | jq '.checks[] | select(.verdict == \"fail\")'\n\n"
    "A check is ok, skipped with the reason, or has a finding and after -> its remedy: commands,\n"
    "or lines of a configuration. The exit code is 0, or 7 if a check fails. With --strict a\n"
    "warning fails, too. As root it sees more: settings of other users' daemons.\n"
    "It looks at this machine; ckvctl health judges the fleet.";

absl::Status RunDoctor(const Ctl& ctl, const DoctorOptions& options) {
  std::string config = options.config;
  const std::string usual = ctl.host_root + std::string(doctor::kDefaultConfigPath);
  // The configuration of the packages, if this machine has it.
  if (config.empty() && doctor::HostFiles("").Read(usual)) config = usual;
  CKV_ASSIGN_OR_RETURN(const doctor::HostView host, doctor::LookAtHost(ctl.host_root, config));
  const doctor::Checks checks = doctor::JudgeHost(host);
  ctl.Print(Printable(host.Title()) + "\n" + doctor::ChecksText(checks) + "\n" +
                doctor::CountsText(checks) + "\n",
            doctor::ChecksJson(checks));
  return doctor::JudgeChecks(checks, options.strict);
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Ctl& ctl) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* verb =
      AddVerb(app, "doctor", "Look for mistakes of this machine, with remedies", kExamples);
  verb->add_option("--config", options->config,
                   absl::StrFormat("Configuration of a ckvd that is to run here (default: %s, if "
                                   "it is there)",
                                   doctor::kDefaultConfigPath))
      ->type_name("FILE");
  verb->add_flag("--strict", options->strict, "A warning fails, too");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunDoctor(ctl, *options); }; });
}

}  // namespace ckv::ctl
