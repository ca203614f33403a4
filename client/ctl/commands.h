// The nouns and verbs of ckvctl; each adds itself to the command line. One file a noun.

#pragma once

#include "CLI/CLI.hpp"
#include "client/ctl/ctl.h"

namespace ckv::ctl {

// Adds the command to `app`; when the command line names it, `ctl.run` runs it. Both outlive the
// parse and the run.
void AddStatusCommand(CLI::App& app, Ctl& ctl);
void AddCorpusCommands(CLI::App& app, Ctl& ctl);
void AddChunkCommands(CLI::App& app, Ctl& ctl);
void AddAttendCommand(CLI::App& app, Ctl& ctl);
void AddExplainCommand(CLI::App& app, Ctl& ctl);
void AddFetchCommand(CLI::App& app, Ctl& ctl);
void AddAgentsCommands(CLI::App& app, Ctl& ctl);
void AddCharacterizeCommands(CLI::App& app, Ctl& ctl);
void AddGcCommand(CLI::App& app, Ctl& ctl);
void AddHealthCommand(CLI::App& app, Ctl& ctl);
void AddVersionCommand(CLI::App& app, Ctl& ctl);

// Adds `agents compare` to the noun `agents`.
void AddCompareCommand(CLI::App& agents, Ctl& ctl);
// Adds `chunk replicate` and `chunk release` to the noun `chunk`.
void AddReplicateCommands(CLI::App& chunk, Ctl& ctl);
// Adds `corpus partition` to the noun `corpus`.
void AddPartitionCommand(CLI::App& corpus, Ctl& ctl);
// Adds `corpus load` to the noun `corpus`.
void AddCorpusLoadCommand(CLI::App& corpus, Ctl& ctl);
// Adds `corpus export` to it.
void AddCorpusExportCommand(CLI::App& corpus, Ctl& ctl);

// Adds `corpus verify` to the noun `corpus`.
void AddVerifyCommand(CLI::App& corpus, Ctl& ctl);

// A subcommand that passes options it does not know to its parents (-o after the verb), with
// examples under its help.
CLI::App* AddVerb(CLI::App& parent, const char* name, const char* description,
                  const char* examples);

}  // namespace ckv::ctl
