#include <unistd.h>

#include <iostream>

#include "client/ctl/ctl.h"

int main(int argc, char** argv) {
  ckv::ctl::Ctl ctl;
  ctl.out = &std::cout;
  ctl.err = &std::cerr;
  ctl.out_is_terminal = isatty(STDOUT_FILENO) == 1;
  if (isatty(STDERR_FILENO) == 1) ctl.err_terminal_fd = STDERR_FILENO;
  return ckv::ctl::RunCtl(ctl, {argv + 1, argv + argc});
}
