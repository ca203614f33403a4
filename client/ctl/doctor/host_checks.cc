#include "client/ctl/doctor/host_checks.h"

#include <sys/timex.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::ctl::doctor {

ClockSync ReadClockSync() {
  timex state = {};  // modes 0: nothing is set
  const int result = adjtimex(&state);
  if (result < 0) return {};
  return {true, result != TIME_ERROR && (state.status & STA_UNSYNC) == 0,
          std::chrono::microseconds(state.maxerror)};
}

std::vector<const DaemonSettings*> HostView::AllSettings() const {
  std::vector<const DaemonSettings*> all;
  for (const HostDaemon& daemon : daemons) all.push_back(&daemon.settings);
  if (planned) all.push_back(&*planned);
  return all;
}

absl::StatusOr<HostView> LookAtHost(const std::string& root, const std::string& config_path,
                                    const ClockSync& clock) {
  HostView view{HostFiles(root), {}, std::nullopt, clock};
  view.daemons = FindDaemons(view.files);
  if (config_path.empty()) return view;
  CKV_ASSIGN_OR_RETURN(const SettingValues values, ReadSettingsFile(config_path));
  DaemonSettings planned = SettingsOf(values, config_path);
  const bool runs =
      std::any_of(view.daemons.begin(), view.daemons.end(), [&](const HostDaemon& daemon) {
        return daemon.config_path == config_path ||
               (!planned.name.empty() && daemon.settings.name == planned.name &&
                daemon.settings.listen == planned.listen);
      });
  if (!runs) view.planned = std::move(planned);
  return view;
}

Part JudgeHost(const HostView& view) {
  Part part;
  part.name = "host";
  const auto online = view.files.Read("/sys/devices/system/cpu/online");
  const size_t processors = online ? ListedNumbers(*online).size() : 0;
  const auto memory = view.files.ReadField("/proc/meminfo", "MemTotal:");
  const bool partial =
      std::any_of(view.daemons.begin(), view.daemons.end(),
                  [](const HostDaemon& daemon) { return daemon.settings_are_partial; });
  part.title = absl::StrFormat(
      "host: %s, %s of memory, %s%s%s", FormatCount(processors, "processor"),
      FormatBytes(memory.value_or(0) * 1024), FormatCount(view.daemons.size(), "ckvd"),
      view.planned ? " and " + view.planned->origin : std::string(),
      partial ? "; root sees the variables of all" : "");
  for (const auto judge : {&JudgeMemory, &JudgeProcessors, &JudgeRdma, &JudgePorts}) {
    for (Check& check : judge(view)) part.checks.push_back(std::move(check));
  }
  return part;
}

}  // namespace ckv::ctl::doctor
