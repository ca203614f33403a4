#include <unistd.h>

#include <iostream>
#include <string_view>

#include "client/ctl/ctl.h"
#include "proto/base/trace_context.h"

int main(int argc, char** argv) {
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
  if (isatty(STDERR_FILENO) == 1) ctl.err_terminal_fd = STDERR_FILENO;
  return ckv::ctl::RunCtl(ctl, {argv + 1, argv + argc});
}
