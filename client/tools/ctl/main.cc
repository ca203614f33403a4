#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "absl/strings/numbers.h"
#include "client/tools/ctl/ctl.h"
#include "proto/base/trace_context.h"
#include "proto/host/descriptors.h"
#include "proto/host/lock_checks.h"

CKV_OPEN_STANDARD_DESCRIPTORS_FIRST();

namespace {

// The columns of the terminal, or what COLUMNS says of that which a pipe ends at.
size_t ColumnsOfStdout() {
  if (const uint32_t columns = ckv::ctl::TerminalColumns(STDOUT_FILENO); columns > 0)
    return columns;
  const char* const text = std::getenv("COLUMNS");
  size_t columns = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &columns) || columns == 0)
    return ckv::ctl::kTerminalColumns;
  return columns;
}

}  // namespace

int main(int argc, char** argv) {
  // A load keeps every file of rows open until it has published them.
  ckv::RaiseDescriptorLimit();
  ckv::EndLockOrderChecks();
  // All calls of a command are one trace, and errors of servers name it.
  const ckv::ScopedTrace trace(ckv::NewTrace());
  ckv::ctl::Ctl ctl;
  ctl.out = &std::cout;
  ctl.err = &std::cerr;
  ctl.out_is_terminal = isatty(STDOUT_FILENO) == 1;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    ctl.variables.emplace_back(text.substr(0, text.find('=')));
  }
  ckv::ctl::SetTableColumns(ColumnsOfStdout());
  if (isatty(STDERR_FILENO) == 1) ctl.err_terminal_fd = STDERR_FILENO;
  return ckv::ctl::RunCtl(ctl, {argv + 1, argv + argc});
}
