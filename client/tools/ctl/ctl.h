// ckvctl: reads the command line, runs one command, and turns its status into an exit code.

#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/tools/ctl/fleet.h"
#include "client/tools/ctl/output.h"
#include "client/tools/ctl/progress.h"
#include "proto/base/clock.h"

namespace ckv::ctl {

// The environment of one command. `out` receives its result and nothing else; progress, warnings
// and errors are written to `err`.
struct Ctl {
  FleetOptions fleet;
  OutputFormat format = OutputFormat::kTable;
  Clock* clock = Clock::Real();
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  int err_terminal_fd = -1;  // the terminal that `err` writes to, or -1 if it is not a terminal
  bool out_is_terminal = false;
  std::vector<std::string> variables;  // names of the environment variables, to find mistyped ones
  // Set by --watch: the interval at which the command runs. If 0, it runs once.
  Duration watch{0};
  uint64_t watch_count_max = 0;  // runs, for tests; if 0, unlimited
  std::string host_root;         // folder used as / in tests of doctor; "" for this machine
  // Set by the command line: runs the one command.
  std::function<absl::Status()> run;

  // Replaces control characters in text by '?', because it contains names and reasons from peers.
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

// Runs the command that `arguments` name (they exclude the program's name). Returns the exit code
// of ExitCodeFor. Returns 2 if the command line does not parse, and 1 if a successful command's
// result cannot be written to ctl.out. --help and --version print to ctl.out.
int RunCtl(Ctl& ctl, std::vector<std::string> arguments);

}  // namespace ckv::ctl
