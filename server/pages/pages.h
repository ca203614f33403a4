// Manual pages, completions and the commented configuration, from the tables that the programs
// themselves read: ckvd's options (server/daemon/config_options.h) and ckvctl's command line.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckv {

struct PageOption {
  std::vector<std::string> names;    // "-o", "--output"; one word without a dash: a positional
  std::string value;                 // "HOST:PORT"; empty if it takes none
  std::vector<std::string> choices;  // the only values, if they are listed
  std::string help;
};

struct PageCommand {
  std::string path;  // "" for the program itself, "corpus load"
  std::string help;
  std::vector<PageOption> options;
  std::vector<std::string> verbs;  // words that may come next
  std::string footer;              // examples and exit codes, as text
};

// A program and its commands, itself first.
struct PageProgram {
  std::string name;
  int section = 1;      // section of the manual
  std::string summary;  // one line
  std::vector<PageCommand> commands;
};

PageProgram DaemonProgram();
PageProgram CtlProgram();

// Returns a page for man(1).
std::string ManualPage(const PageProgram& program);
// Return scripts for the shells' completion folders. Values are completed if the table lists them;
// other values and positionals are completed as files.
std::string BashCompletion(const PageProgram& program);
std::string ZshCompletion(const PageProgram& program);
std::string FishCompletion(const PageProgram& program);

// Returns /etc/ckv/ckvd.yaml: every option as a comment, with its default. One line is in force:
// the directory, which a holder cannot do without.
std::string ConfigFile();

}  // namespace ckv
