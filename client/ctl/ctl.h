// ckvctl: reads the command line, runs one command, and turns its status into an exit code.

#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/ctl/fleet.h"
#include "client/ctl/output.h"
#include "client/ctl/progress.h"
#include "proto/base/clock.h"

namespace ckv::ctl {

// The setting that a command runs in. `out` gets its result and nothing else; progress, warnings
// and errors go to `err`.
struct Ctl {
  FleetOptions fleet;
  OutputFormat format = OutputFormat::kTable;
  Clock* clock = Clock::Real();
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  int err_terminal_fd = -1;  // the terminal that `err` writes to, or -1 if it is none
  bool out_is_terminal = false;
  std::vector<std::string> variables;  // the names of those that are set, to find mistyped ones
  // Set by --watch: how often the command runs. If 0, once.
  Duration watch{0};
  uint64_t watch_count_max = 0;  // runs, for tests; if 0, without end
  std::string host_root;  // folder that stands for /, for tests of doctor; "" for this machine
  // Set by the command line: the one command to run.
  std::function<absl::Status()> run;

  // Control characters of texts become '?': there are names and reasons in them that a peer sent.
  void Print(const std::string& text, const Json& json) const {
    *out << (format == OutputFormat::kJson ? RenderJson(json) : PrintableLines(text));
  }
  void Note(const std::string& text) const { *err << PrintableLines(text) << "\n"; }
  std::unique_ptr<Progress> StartProgress(std::string label, std::string unit, uint64_t total,
                                          bool quadratic = false) const {
    return std::make_unique<Progress>(clock, err, err_terminal_fd, std::move(label),
                                      std::move(unit), total, quadratic);
  }
};

// Runs the command that `arguments` (without the program's name) name, and returns the exit code of
// ExitCodeFor. It returns 2 for a command line that does not parse, and 1 for a result that ctl.out
// did not take. --help and --version print to ctl.out.
int RunCtl(Ctl& ctl, std::vector<std::string> arguments);

}  // namespace ckv::ctl
