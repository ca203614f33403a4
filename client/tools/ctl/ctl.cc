// The frame of ckvctl. RunCtl, in order: BuildCommandLine declares all verbs and options; CLI11
// parses, and each verb's callback stores its command in ctl.run; the command runs; its status
// becomes an exit code, an error text with hints, or a JSON object. Most of the file improves what
// CLI11 prints: unknown words, values of options, and the width of helps.

#include "client/tools/ctl/ctl.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/time_span.h"
#include "client/tools/ctl/watch.h"
#include "proto/base/status.h"
#include "proto/base/trace_context.h"
#include "proto/base/version.h"
#include "proto/base/words.h"

namespace ckv::ctl {
namespace {

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
  ckvctl health and status: that of the first thing that is broken;
  ckvctl health --help lists them
  ckvctl doctor: 7 if a check fails

ckvctl help is ckvctl --help.

Results go to stdout, as a table or JSON. Errors, warnings and progress go to
stderr. With -o json an error is an object:
{"error": {"code", "message", "hints", "exit_code"}}.)";

void AddGlobalOptions(CLI::App& app, Ctl& ctl, GlobalValues& values) {
  app.add_option("--requester", ctl.fleet.requester,
                 absl::StrFormat("Address of a requester (default %s)", kDefaultRequesterAddress))
      ->envname("CKV_REQUESTER")
      ->check(HostPort())
      ->type_name("HOST:PORT");
  app.add_option("--directory", ctl.fleet.directory,
                 absl::StrFormat("Address of the directory, or of several: the one that leads is "
                                 "found (default: the requester's, else %s)",
                                 kDefaultDirectoryAddress))
      ->envname("CKV_DIRECTORY")
      ->check(HostPorts())
      ->type_name("HOST:PORT[,HOST:PORT]");
  app.add_option("--tenant", ctl.fleet.tenant,
                 "Tenant whose corpora are used, in addition to the shared ones of all tenants "
                 "(default: those alone). A name, not a credential")
      ->type_name("NAME");
  AddTimeout(app, "--rpc-timeout", values.timeout_ms, "Limit of each control call");
  app.add_option("--wait", values.wait,
                 "Wait this long, like 5s, for the requester and the directory to serve (default: "
                 "not at all)")
      ->check(TimeSpan())
      ->type_name("TIME");
  const std::vector<std::string> formats = {"table", "json"};
  app.add_option("-o,--output", values.output,
                 "How a result and an error are written (default: table)")
      ->check(OneOf(formats))
      ->type_name(JoinNames(formats));
  app.add_flag("--trace", values.trace,
               "Have daemons with trace.path write the spans of this command's calls. Its trace id "
               "is printed to stderr at the end");
}

// Returns the verbs and options that are valid where the command line of `app` ended.
std::vector<std::string> KnownWords(const CLI::App& app) {
  const CLI::App* verb = &app;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  std::vector<std::string> words;
  for (const CLI::App* sub : verb->get_subcommands([](const CLI::App*) { return true; })) {
    words.push_back(sub->get_name());
  }
  for (const CLI::App* one : {verb, &app}) {
    for (const CLI::Option* option : one->get_options()) {
      for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    }
  }
  return words;
}

// Reports unknown words. CLI11 reports missing ones first, and a mistyped name is both.
void TellUnknown(const CLI::App& app, std::ostream& err) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (unknown.empty()) return;
  std::string words;
  for (const std::string& word : unknown) words += " " + Printable(word);
  err << "not known here:" << words;
  // The words after the first may belong to it.
  const std::vector<std::string> known = KnownWords(app);
  const std::string_view nearest = NearestWord(unknown.front(), known);
  if (!nearest.empty()) err << "; did you mean " << nearest << "?";
  err << "\n";
}

// Lists the verbs of a noun alone, like "ckvctl corpus".
void TellVerbs(const CLI::App& app, std::ostream& err) {
  const CLI::App* verb = &app;
  std::string path = app.get_name();
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    path += " " + verb->get_name();
  }
  err << path << " needs a command:";
  const char* separator = " ";
  for (const CLI::App* sub : verb->get_subcommands([](const CLI::App*) { return true; })) {
    err << separator << sub->get_name();
    separator = ", ";
  }
  err << "\n";
}

// Descriptions keep to the columns of a terminal, beside the names.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return WrapWords(CLI::Formatter::make_option_desc(option), kHelpColumns - column_width_);
  }
  std::string make_description(const CLI::App* app) const override {
    return WrapWords(CLI::Formatter::make_description(app), kHelpColumns);
  }
  std::string make_subcommand(const CLI::App* verb) const override {
    std::ostringstream line;
    CLI::detail::format_help(line, verb->get_display_name(),
                             WrapWords(verb->get_description(), kHelpColumns - column_width_),
                             column_width_);
    return line.str();
  }
};

// CLI11 would show the C++ type of a value.
void NameValues(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type == "UINT" || type == "INT") option->type_name("N");
    if (option->get_positional()) option->type_name("");  // its name is enough
  }
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) NameValues(*verb);
}

// Whether errors of this command line are to be JSON, for when it does not parse.
bool WantsJson(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "-ojson" || word == "--output=json") return true;
    if ((word == "-o" || word == "--output") && i + 1 < arguments.size() &&
        arguments[i + 1] == "json") {
      return true;
    }
  }
  return false;
}

// For an unknown command, CLI11 would show the general help, or that of a noun like "corpus".
bool IsUnknownCommand(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* noun = &app;
  for (const std::string& word : arguments) {
    const auto verbs = noun->get_subcommands([](const CLI::App*) { return true; });
    if (verbs.empty() || word.starts_with("-")) return false;
    const auto found = std::find_if(verbs.begin(), verbs.end(),
                                    [&](const CLI::App* verb) { return verb->get_name() == word; });
    if (found == verbs.end()) return true;
    noun = *found;
  }
  return false;
}

// Lines after the first are hints.
void ReportError(const Ctl& ctl, absl::StatusCode code, const std::string& message, int exit_code) {
  const std::string name = absl::StatusCodeToString(code);
  if (ctl.format != OutputFormat::kJson) {
    *ctl.err << absl::StrFormat("ckvctl: %s (%s)\n", PrintableLines(message), name);
    return;
  }
  std::vector<std::string> lines = absl::StrSplit(message, '\n', absl::SkipWhitespace());
  for (std::string& line : lines) absl::StripAsciiWhitespace(&line);
  Json hints = Json::array();
  for (size_t i = 1; i < lines.size(); ++i) hints.push_back(lines[i]);
  *ctl.err << RenderJson({{"error",
                           {{"code", name},
                            {"message", lines.empty() ? "" : lines.front()},
                            {"hints", hints},
                            {"exit_code", exit_code}}}});
}

// ckvd has variables of its own, so one that resembles none of these is ignored.
void WarnOfVariables(const Ctl& ctl) {
  const std::vector<std::string> known = {"CKV_REQUESTER", "CKV_DIRECTORY"};
  for (const std::string& name : ctl.variables) {
    const auto is_of_ckvd = [&](const std::string& one) { return name.starts_with(one); };
    if (!name.starts_with("CKV_") || std::any_of(known.begin(), known.end(), is_of_ckvd)) continue;
    const std::string_view nearest = NearestWord(name, known);
    if (nearest.empty()) continue;
    ctl.Note(absl::StrFormat("ckvctl: warning: %s: unknown variable, ignored; did you mean %s?",
                             Printable(name), nearest));
  }
}

// Only --help and --version are a "parse error" with exit code 0; CLI11's other codes are its own
// and not ours.
int TellUsage(const Ctl& ctl, const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream reported;
  const bool extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool misses = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (extras || misses) TellUnknown(app, reported);
  const bool misses_verb =
      misses && std::string_view(error.what()).starts_with("A subcommand is required");
  if (misses_verb && reported.str().empty()) TellVerbs(app, reported);
  // CLI11 would name unknown words again, from the last to the first.
  if (extras || misses_verb) {
    reported << "Run with --help for more information.\n";
  } else if (app.exit(error, *ctl.out, reported) == 0) {
    return 0;
  }
  if (ctl.format == OutputFormat::kJson) {
    ReportError(ctl, absl::StatusCode::kInvalidArgument, reported.str(), 2);
  } else {
    *ctl.err << reported.str();
  }
  return 2;
}

// A result that could not be written is a failure, even if the command succeeded.
int WithResultOut(const Ctl& ctl, int code) {
  const bool was_good = ctl.out->good();
  if (!was_good) {
    // It failed in the middle of a long result. The cause is met again with one byte more.
    ctl.out->clear();
    *ctl.out << '\n';
  }
  errno = 0;
  ctl.out->flush();
  if (was_good && ctl.out->good()) return code;
  *ctl.err << "ckvctl: the result cannot be written to stdout"
           << (errno == 0 ? "" : std::string(": ") + std::strerror(errno)) << "\n";
  return code == 0 ? 1 : code;
}

}  // namespace

CLI::App* AddVerb(CLI::App& parent, const char* name, const char* description,
                  const char* examples) {
  CLI::App* verb = parent.add_subcommand(name, description);
  verb->fallthrough();
  verb->footer(std::string("\nExamples:\n") + examples +
               "\n\nEvery command takes -o json, --requester, --directory, --tenant and --wait:\n"
               "ckvctl --help.");
  return verb;
}

void BuildCommandLine(CLI::App& app, Ctl& ctl, GlobalValues& values) {
  app.description("ckvctl: corpora, chunks and queries of a ckv fleet");
  app.name("ckvctl");
  app.formatter(std::make_shared<HelpFormatter>());  // before its verbs, which inherit it
  app.footer(kFooter);
  app.set_version_flag("--version", absl::StrFormat("ckvctl %s", Version()));
  app.require_subcommand(1);
  app.fallthrough();
  values.timeout_ms = static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(ctl.fleet.timeout).count());
  AddGlobalOptions(app, ctl, values);
  AddStatusCommand(app, ctl);
  AddCorpusCommands(app, ctl);
  AddChunkCommands(app, ctl);
  AddAttendCommand(app, ctl);
  AddExplainCommand(app, ctl);
  AddFetchCommand(app, ctl);
  AddAttachCommand(app, ctl);
  AddAgentsCommands(app, ctl);
  AddCharacterizeCommands(app, ctl);
  AddPlanCommands(app, ctl);
  AddSimulateCommands(app, ctl);
  AddGcCommand(app, ctl);
  AddDirectoryCommands(app, ctl);
  AddHolderCommands(app, ctl);
  AddRankCommand(app, ctl);
  AddHealthCommand(app, ctl);
  AddDoctorCommand(app, ctl);
  AddCompletionCommand(app, ctl);
  AddVersionCommand(app, ctl);
  NameValues(app);
}

int RunCtl(Ctl& ctl, std::vector<std::string> arguments) {
  CLI::App app;
  GlobalValues values;
  BuildCommandLine(app, ctl, values);

  if (IsUnknownCommand(app, arguments)) {
    std::erase_if(arguments,
                  [](const std::string& word) { return word == "--help" || word == "-h"; });
  }
  if (WantsJson(arguments)) ctl.format = OutputFormat::kJson;
  if (arguments == std::vector<std::string>{"help"}) arguments = {"--help"};
  std::reverse(arguments.begin(), arguments.end());  // CLI11 pops them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return WithResultOut(ctl, TellUsage(ctl, app, error));
  }
  ctl.fleet.timeout = std::chrono::milliseconds(values.timeout_ms);
  ctl.fleet.wait = TimeSpanOf(values.wait);
  ctl.format = values.output == "json" ? OutputFormat::kJson : OutputFormat::kTable;
  CKV_CHECK(ctl.run != nullptr);
  WarnOfVariables(ctl);
  const auto report = [&ctl](const absl::Status& status) {
    if (status.ok()) return;
    ReportError(ctl, status.code(), std::string(status.message()), ExitCodeFor(status));
  };
  const TraceContext trace = values.trace ? NewTrace(/*sampled=*/true) : TraceContext();
  const ScopedTrace traced(trace);
  const absl::Status status = ctl.watch > Duration(0) ? RunWatched(ctl, report) : ctl.run();
  const int code = WithResultOut(ctl, ExitCodeFor(status));
  report(status);
  if (trace.set()) ctl.Note("ckvctl: trace " + ToHex(trace.trace_id));
  return code;
}

}  // namespace ckv::ctl
