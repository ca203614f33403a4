#include "server/daemon/reload.h"

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "server/daemon/config_options.h"

namespace ckv {

ReloadReport TakeLiveOptions(const Config& wanted, Config& config) {
  ReloadReport report;
  for (const OptionSpec& option : ConfigOptions()) {
    const std::string is = FormatOption(option, config);
    const std::string to_be = FormatOption(option, wanted);
    if (is == to_be) continue;
    if (!option.live) {
      report.needs_restart.push_back(
          absl::StrFormat("%s: '%s' here, '%s' in the configuration", option.key, is, to_be));
      continue;
    }
    // `wanted` took it, so it is valid.
    CKV_CHECK(AssignOption(option, to_be, config).ok());
    report.changed.push_back(absl::StrFormat("%s: '%s' is now '%s'", option.key, is, to_be));
  }
  return report;
}

}  // namespace ckv
