#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/daemon/config_options.h"
#include "server/manual/pages.h"

namespace ckv {
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
         absl::StrSplit(std::string(option.choices), ',', absl::SkipEmpty()),
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
      "# /etc/ckv/holder-NAME.env has lines like CKV_LISTEN=10.0.0.7:7401. Each option is listed\n"
      "# here with its default; take the # away to change it. Then: systemctl reload, or restart\n"
      "# for what has no SIGHUP mark. `ckvd --check-config` finds mistakes. Roles, names, "
      "addresses\n"
      "# and store folders are a unit's own: set them in its file.\n\n";
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
