// Generates shell completions from the table of options that the program itself parses.

#pragma once

#include <string>
#include <vector>

namespace ckv {

struct PageOption {
  std::vector<std::string> names;    // "-o", "--output"; one word without a dash is a positional
  std::string value;                 // "HOST:PORT"; empty if there is none
  std::vector<std::string> choices;  // the only allowed values, if they are listed
  std::string help;
  bool is_corpus = false;  // the value is the name of a corpus
};

struct PageCommand {
  std::string path;  // "" for the program itself, "corpus load"
  std::string help;
  std::vector<PageOption> options;
  std::vector<std::string> verbs;  // words that may follow
  std::string footer;              // examples and exit codes, as text
};

// A program and its commands; the first one is the program itself.
struct PageProgram {
  std::string name;
  int section = 1;      // section of the manual
  std::string summary;  // one line
  std::vector<PageCommand> commands;
};

// Returns the description of ckvctl, derived from its command line.
PageProgram CtlProgram();

// Return scripts to source, or to install in the shells' completion folders. Values are completed
// if the table lists them. Corpus names are read from the program's `corpus list`, with the fleet
// options of the line. Other values and positionals are completed as files.
std::string BashCompletion(const PageProgram& program);
std::string ZshCompletion(const PageProgram& program);
std::string FishCompletion(const PageProgram& program);

}  // namespace ckv
