#include <unistd.h>

#include <iostream>

#include "client/ctl/ctl.h"

int main(int argc, char** argv) {
  ckv::ctl::Ctl ctl;
  ctl.out = &std::cout;
  ctl.err = &std::cerr;
  ctl.err_is_terminal = isatty(STDERR_FILENO) == 1;
  return ckv::ctl::RunCtl(ctl, {argv + 1, argv + argc});
}
