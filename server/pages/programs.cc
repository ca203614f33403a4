#include <algorithm>
#include <span>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/ctl/commands.h"
#include "server/daemon/config_options.h"
#include "server/pages/pages.h"

namespace ckv {
namespace {

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (const auto part : absl::StrSplit(absl::string_view(text.data(), text.size()), separator)) {
    if (!part.empty()) parts.emplace_back(part);
  }
  return parts;
}

// "bf16|f32" of an option that lists its values; "N|P%" are kinds of values.
std::vector<std::string> ChoicesOf(const std::string& type) {
  const bool kinds =
      std::any_of(type.begin(), type.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  return kinds || type.find('|') == std::string::npos ? std::vector<std::string>()
                                                      : Split(type, '|');
}

PageOption OptionOf(const CLI::Option& option) {
  PageOption page;
  for (const std::string& name : option.get_snames()) page.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) page.names.push_back("--" + name);
  if (page.names.empty()) page.names.push_back(option.get_name(/*positional=*/true));
  if (option.get_items_expected_max() > 0) {
    page.value = option.get_type_name();  // empty for a positional
    page.choices = ChoicesOf(page.value);
  }
  page.help = option.get_description();
  if (!option.get_envname().empty()) page.help += "; environment " + option.get_envname();
  if (!option.get_default_str().empty()) page.help += "; default " + option.get_default_str();
  return page;
}

void AddCommands(const CLI::App& app, const std::string& path, PageProgram& program) {
  PageCommand command;
  command.path = path;
  command.help = app.get_description();
  command.footer = app.get_footer();
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::Option* option : app.get_options()) command.options.push_back(OptionOf(*option));
  for (const CLI::App* verb : verbs) command.verbs.push_back(verb->get_name());
  program.commands.push_back(std::move(command));
  for (const CLI::App* verb : verbs) {
    AddCommands(*verb, path.empty() ? verb->get_name() : path + " " + verb->get_name(), program);
  }
}

}  // namespace

PageProgram CtlProgram() {
  PageProgram program = {"ckvctl", 1, "corpora, chunks and queries of a ckv fleet", {}};
  ctl::Ctl ctl;
  ctl::GlobalValues values;
  CLI::App app;
  ctl::BuildCommandLine(app, ctl, values);
  AddCommands(app, "", program);
  return program;
}

PageProgram DaemonProgram() {
  PageProgram program = {"ckvd", 8, "a daemon of ckv: holder, requester or directory", {}};
  PageCommand command;
  command.help =
      "Answers attention over compressed KV cache that lives elsewhere. Flags win over CKV_* "
      "environment variables, which win over the YAML file.";
  command.options = {
      {{"--config"},
       "FILE",
       {},
       "YAML with the keys below, nested or dotted; environment CKV_CONFIG"},
      {{"--check-config"}, "", {}, "print the effective configuration, or its errors (exit 2)"},
      {{"--version"}, "", {}, "print the version"},
      {{"--help"}, "", {}, "print all options"}};
  const Config defaults;
  for (const OptionSpec& option : ConfigOptions()) {
    const std::string preset = FormatOption(option, defaults);
    command.options.push_back(
        {{OptionFlagName(option.key)},
         option.unit.empty() ? "VALUE" : std::string(option.unit),
         Split(option.choices, ','),
         absl::StrFormat("%s; key %s, environment %s%s%s%s", option.help, option.key,
                         OptionEnvironmentName(option.key), preset.empty() ? "" : "; default ",
                         preset, option.live ? "; changes on SIGHUP" : "")});
  }
  const std::string help = ConfigHelp();
  command.footer = help.substr(help.find("\nExamples\n"));
  program.commands.push_back(std::move(command));
  return program;
}

std::string ConfigFile() {
  std::string text =
      "# The configuration of all ckv daemons of this machine. A unit's own file wins over it:\n"
      "# /etc/ckv/holder-NAME.env has lines like CKV_LISTEN=10.0.0.7:7401. Each option stands "
      "here\n"
      "# with its default; take the # away to change it. Then: systemctl reload, or restart for "
      "what\n"
      "# does not say SIGHUP. `ckvd --check-config` finds mistakes. Roles, names, addresses and "
      "store\n"
      "# folders are a unit's own: set them in its file.\n\n";
  const Config defaults;
  for (const OptionSpec& option : ConfigOptions()) {
    if (option.key == "role") continue;  // the unit says it
    text += absl::StrFormat("# %s%s\n", option.help, option.live ? "; changes on SIGHUP" : "");
    if (!option.choices.empty()) text += absl::StrFormat("# values: %s\n", option.choices);
    if (option.key == "directory") {
      text += "directory: \"127.0.0.1:7400\"\n\n";
      continue;
    }
    const std::string preset = FormatOption(option, defaults);
    const bool number = option.kind == OptionKind::kCount;
    text += number ? absl::StrFormat("#%s: %s\n\n", option.key, preset)
                   : absl::StrFormat("#%s: \"%s\"\n\n", option.key, preset);
  }
  return text;
}

}  // namespace ckv
