// The nouns and verbs of ckvctl; each adds itself to the command line. One file a noun.

#pragma once

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "client/ctl/ctl.h"

namespace ckv::ctl {

// Adds the command to `app`; when the command line names it, `ctl.run` runs it. Both outlive the
// parse and the run.
void AddStatusCommand(CLI::App& app, Ctl& ctl);
void AddCorpusCommands(CLI::App& app, Ctl& ctl);
void AddChunkCommands(CLI::App& app, Ctl& ctl);
void AddAttachCommand(CLI::App& app, Ctl& ctl);
void AddAttendCommand(CLI::App& app, Ctl& ctl);
void AddExplainCommand(CLI::App& app, Ctl& ctl);
void AddFetchCommand(CLI::App& app, Ctl& ctl);
void AddAgentsCommands(CLI::App& app, Ctl& ctl);
void AddCharacterizeCommands(CLI::App& app, Ctl& ctl);
void AddGcCommand(CLI::App& app, Ctl& ctl);
void AddDoctorCommand(CLI::App& app, Ctl& ctl);
void AddHealthCommand(CLI::App& app, Ctl& ctl);
void AddTopCommand(CLI::App& app, Ctl& ctl);
void AddVersionCommand(CLI::App& app, Ctl& ctl);
void AddCompletionCommand(CLI::App& app, Ctl& ctl);

// The values of ckvctl's own options, before they are read into Ctl.
struct GlobalValues {
  uint32_t timeout_ms = 0;
  std::string wait = "0";
  std::string output = "table";
  bool trace = false;
};
// Adds all of ckvctl: its options, nouns and verbs. All three outlive the parse and the run. Manual
// pages and completions are written from the same `app` (server/pages).
void BuildCommandLine(CLI::App& app, Ctl& ctl, GlobalValues& values);

// Adds `agents compare` to the noun `agents`.
void AddCompareCommand(CLI::App& agents, Ctl& ctl);
// Adds `chunk replicate` and `chunk release` to the noun `chunk`.
void AddReplicateCommands(CLI::App& chunk, Ctl& ctl);
// Adds `chunk find` to it.
void AddChunkFindCommand(CLI::App& chunk, Ctl& ctl);
// Adds `corpus partition` to the noun `corpus`.
void AddPartitionCommand(CLI::App& corpus, Ctl& ctl);
// Adds `corpus load` to the noun `corpus`.
void AddCorpusLoadCommand(CLI::App& corpus, Ctl& ctl);
// Adds `corpus ingest` to it.
void AddCorpusIngestCommand(CLI::App& corpus, Ctl& ctl);
// Adds `corpus list` and `corpus export` to it.
void AddCorpusListCommand(CLI::App& corpus, Ctl& ctl);
void AddCorpusExportCommand(CLI::App& corpus, Ctl& ctl);

// Adds `corpus verify` to the noun `corpus`.
void AddVerifyCommand(CLI::App& corpus, Ctl& ctl);

// A subcommand that passes options it does not know to its parents (-o after the verb), with
// examples under its help.
CLI::App* AddVerb(CLI::App& parent, const char* name, const char* description,
                  const char* examples);

}  // namespace ckv::ctl
