#include <unistd.h>

#include <iostream>

#include "client/ctl/ctl.h"
#include "spdlog/spdlog.h"

int main(int argc, char** argv) {
  // A requester within a command says which fabric it took: that is a daemon's log.
  spdlog::set_level(spdlog::level::warn);
  ckv::ctl::Ctl ctl;
  ctl.out = &std::cout;
  ctl.err = &std::cerr;
  ctl.err_is_terminal = isatty(STDERR_FILENO) == 1;
  return ckv::ctl::RunCtl(ctl, {argv + 1, argv + argc});
}
