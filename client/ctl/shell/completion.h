// Completions of the shells, from the table of options that the program itself reads.

#pragma once

#include <string>
#include <vector>

namespace ckv {

struct PageOption {
  std::vector<std::string> names;    // "-o", "--output"; one word without a dash: a positional
  std::string value;                 // "HOST:PORT"; empty if it takes none
  std::vector<std::string> choices;  // the only values, if they are listed
  std::string help;
  bool is_corpus = false;  // its value is the name of a corpus
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

// ckvctl, as its command line is.
PageProgram CtlProgram();

// Return scripts to source, or to install in the shells' completion folders. Values are completed
// if the table lists them. Names of corpora come from the program's `corpus list`, with the fleet's
// options of the line. Other values and positionals are completed as files.
std::string BashCompletion(const PageProgram& program);
std::string ZshCompletion(const PageProgram& program);
std::string FishCompletion(const PageProgram& program);

}  // namespace ckv
