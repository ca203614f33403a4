#include "client/ctl/ctl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/checks.h"
#include "client/ctl/commands.h"
#include "proto/status.h"

namespace ckv::ctl {
namespace {

constexpr char kVersion[] = "ckvctl 0.1.0";
constexpr uint32_t kTimeoutMsMax = 3'600'000;

constexpr char kFooter[] = R"(
Examples:
  ckvctl status
  ckvctl corpus load gpl /usr/share/common-licenses/GPL-3 --text --max-tokens 8192
  ckvctl corpus show gpl -o json
  ckvctl attend --corpus gpl --layer 3 --queries q.safetensors --out partial.safetensors
  ckvctl agents run --corpus gpl --text /usr/share/common-licenses/GPL-3 --count 8 --tokens 64

Exit codes:
  0 ok                    1 any other failure     2 usage, or an invalid argument
  3 not found             4 unavailable           5 deadline exceeded
  6 resource exhausted    7 failed precondition   8 already exists
  9 data loss            10 permission denied or unauthenticated

Results go to stdout, as a table or JSON; errors, warnings and progress are text on stderr.)";

void AddGlobalOptions(CLI::App& app, Ctl& ctl, uint32_t& timeout_ms, std::string& output) {
  app.add_option("--requester", ctl.fleet.requester,
                 absl::StrFormat("Address of a requester (default %s)", kDefaultRequesterAddress))
      ->envname("CKV_REQUESTER")
      ->check(HostPort())
      ->type_name("HOST:PORT");
  app.add_option("--directory", ctl.fleet.directory,
                 absl::StrFormat("Address of the directory (default: the requester's, else %s)",
                                 kDefaultDirectoryAddress))
      ->envname("CKV_DIRECTORY")
      ->check(HostPort())
      ->type_name("HOST:PORT");
  app.add_option("--tenant", ctl.fleet.tenant, "Tenant whose corpora are meant (default: shared)");
  app.add_option("--rpc-timeout-ms", timeout_ms, "Limit of each control call")
      ->capture_default_str()
      ->check(CLI::Range(1u, kTimeoutMsMax));
  const std::vector<std::string> formats = {"table", "json"};
  app.add_option("-o,--output", output,
                 "How the result is written (default: table); errors are text on stderr")
      ->check(OneOf(formats))
      ->type_name(JoinNames(formats));
}

// CLI11 tells what is missing before what it does not know, and a mistyped name is both.
void TellUnknown(const CLI::App& app, std::ostream& err) {
  std::string words;
  for (const std::string& word : app.remaining(/*recurse=*/true)) words += " " + Printable(word);
  if (!words.empty()) err << "not known here:" << words << "\n";
}

}  // namespace

CLI::App* AddVerb(CLI::App& parent, const char* name, const char* description,
                  const char* examples) {
  CLI::App* verb = parent.add_subcommand(name, description);
  verb->fallthrough();
  verb->footer(
      std::string("\nExamples:\n") + examples +
      "\n\nEvery command takes -o json, --requester, --directory and --tenant: ckvctl --help. "
      "Errors are text\non stderr, whatever -o says.");
  return verb;
}

int RunCtl(Ctl& ctl, std::vector<std::string> arguments) {
  CLI::App app("ckvctl: corpora, chunks and queries of a ckv fleet", "ckvctl");
  app.footer(kFooter);
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.fallthrough();
  auto timeout_ms = static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(ctl.fleet.timeout).count());
  std::string output = "table";
  AddGlobalOptions(app, ctl, timeout_ms, output);
  AddStatusCommand(app, ctl);
  AddCorpusCommands(app, ctl);
  AddChunkCommands(app, ctl);
  AddAttendCommand(app, ctl);
  AddExplainCommand(app, ctl);
  AddFetchCommand(app, ctl);
  AddAgentsCommands(app, ctl);
  AddCharacterizeCommands(app, ctl);
  AddGcCommand(app, ctl);

  std::reverse(arguments.begin(), arguments.end());  // CLI11 pops them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) TellUnknown(app, *ctl.err);
    // Only --help and --version are a "parse error" with exit code 0; CLI11's other codes are its
    // own and not ours.
    return app.exit(error, *ctl.out, *ctl.err) == 0 ? 0 : 2;
  }
  ctl.fleet.timeout = std::chrono::milliseconds(timeout_ms);
  ctl.format = output == "json" ? OutputFormat::kJson : OutputFormat::kTable;
  CKV_CHECK(ctl.run != nullptr);
  const absl::Status status = ctl.run();
  ctl.out->flush();
  if (!status.ok()) {
    *ctl.err << absl::StrFormat("ckvctl: %s (%s)\n", std::string(status.message()),
                                absl::StatusCodeToString(status.code()));
  }
  return ExitCodeFor(status);
}

}  // namespace ckv::ctl
