// Manual pages, completions and the commented configuration, from the tables that the programs
// themselves read: ckvd's options (server/daemon/config_options.h) and ckvctl's command line.

#pragma once

#include <string>

#include "client/tools/ctl/shell/completion.h"

namespace ckv {

PageProgram DaemonProgram();

// Returns a page for man(1).
std::string ManualPage(const PageProgram& program);

// Returns /etc/ckv/ckvd.yaml: every option as a comment, with its default. One line is in force:
// the directory, which a holder cannot do without.
std::string ConfigFile();

}  // namespace ckv
