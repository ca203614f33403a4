// The nouns and verbs of ckvctl. Each adds itself to the command line; each noun has a file.

#pragma once

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "client/tools/ctl/ctl.h"

namespace ckv::ctl {

// Each adds its command to `app` and, if the command line names it, sets `ctl.run` to run it. `app`
// and `ctl` must outlive the parse and the run.
void AddStatusCommand(CLI::App& app, Ctl& ctl);
void AddCorpusCommands(CLI::App& app, Ctl& ctl);
void AddChunkCommands(CLI::App& app, Ctl& ctl);
void AddAttachCommand(CLI::App& app, Ctl& ctl);
void AddAttendCommand(CLI::App& app, Ctl& ctl);
void AddExplainCommand(CLI::App& app, Ctl& ctl);
void AddFetchCommand(CLI::App& app, Ctl& ctl);
void AddAgentsCommands(CLI::App& app, Ctl& ctl);
void AddCharacterizeCommands(CLI::App& app, Ctl& ctl);
void AddPlanCommands(CLI::App& app, Ctl& ctl);
void AddSimulateCommands(CLI::App& app, Ctl& ctl);
void AddGcCommand(CLI::App& app, Ctl& ctl);
void AddDirectoryCommands(CLI::App& app, Ctl& ctl);
void AddHolderCommands(CLI::App& app, Ctl& ctl);
void AddDoctorCommand(CLI::App& app, Ctl& ctl);
void AddHealthCommand(CLI::App& app, Ctl& ctl);
void AddRankCommand(CLI::App& app, Ctl& ctl);
void AddVersionCommand(CLI::App& app, Ctl& ctl);
void AddCompletionCommand(CLI::App& app, Ctl& ctl);

// The values of ckvctl's own options, before they are converted and stored in Ctl.
struct GlobalValues {
  uint32_t timeout_ms = 0;
  std::string wait = "0";
  std::string output = "table";
  bool trace = false;
};
// Adds all of ckvctl: its options, nouns and verbs. All three arguments must outlive the parse and
// the run. server/manual generates the manual pages and completions from the same `app`.
void BuildCommandLine(CLI::App& app, Ctl& ctl, GlobalValues& values);

// Adds `agents compare` to the noun `agents`.
void AddCompareCommand(CLI::App& agents, Ctl& ctl);
// Adds `chunk replicate` and `chunk release` to the noun `chunk`.
void AddReplicateCommands(CLI::App& chunk, Ctl& ctl);
// Adds `chunk find` to the noun `chunk`.
void AddChunkFindCommand(CLI::App& chunk, Ctl& ctl);
// Adds `corpus partition` to the noun `corpus`.
void AddPartitionCommand(CLI::App& corpus, Ctl& ctl);
// Adds `corpus load` to the noun `corpus`.
void AddCorpusLoadCommand(CLI::App& corpus, Ctl& ctl);
// Adds `corpus ingest` to the noun `corpus`.
void AddCorpusIngestCommand(CLI::App& corpus, Ctl& ctl);
// Adds `corpus list` and `corpus export` to the noun `corpus`.
void AddCorpusListCommand(CLI::App& corpus, Ctl& ctl);
void AddCorpusExportCommand(CLI::App& corpus, Ctl& ctl);

// Adds `corpus set` and `corpus rollback` to the noun `corpus`.
void AddCorpusVersionCommands(CLI::App& corpus, Ctl& ctl);
// Adds `corpus drop` to the noun `corpus`.
void AddCorpusDropCommand(CLI::App& corpus, Ctl& ctl);

// Adds `corpus verify` to the noun `corpus`.
void AddVerifyCommand(CLI::App& corpus, Ctl& ctl);

// Returns a new subcommand of `parent`, which owns it. The subcommand passes options that it does
// not define to its parents, so -o may follow the verb. Its help ends with `examples`.
CLI::App* AddVerb(CLI::App& parent, const char* name, const char* description,
                  const char* examples);

}  // namespace ckv::ctl
