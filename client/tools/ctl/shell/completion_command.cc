// ckvctl completion, and the table of ckvctl that completions and manual pages are written from.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/shell/completion.h"

namespace ckv {
namespace {

// "bf16|f32" of an option that lists its values; "N|P%" are kinds of values.
std::vector<std::string> ChoicesOf(const std::string& type) {
  const bool kinds =
      std::any_of(type.begin(), type.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  if (kinds || type.find('|') == std::string::npos) return {};
  return absl::StrSplit(type, '|');
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
  page.is_corpus = page.names.front() == "--corpus" || page.help == "The corpus";
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

namespace ctl {
namespace {

absl::Status RunCompletion(const Ctl& ctl, const std::string& shell) {
  const PageProgram program = CtlProgram();
  const std::string script = shell == "bash"  ? BashCompletion(program)
                             : shell == "zsh" ? ZshCompletion(program)
                                              : FishCompletion(program);
  ctl.Print(script, {{"shell", shell}, {"script", script}});
  return absl::OkStatus();
}

}  // namespace

void AddCompletionCommand(CLI::App& app, Ctl& ctl) {
  CLI::App* verb = AddVerb(
      app, "completion", "Print a script that completes commands, options and names of corpora",
      "  source <(ckvctl completion bash)          # this shell; in ~/.bashrc, all later ones\n"
      "  source <(ckvctl completion zsh)           # after compinit\n"
      "  ckvctl completion fish | source\n\n"
      "The Debian package installs these scripts. Names of corpora are those of the directory\n"
      "at --directory or CKV_DIRECTORY.");
  auto shell = std::make_shared<std::string>();
  verb->add_option("SHELL", *shell, "The shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("bash|zsh|fish");
  verb->callback([&ctl, shell] { ctl.run = [&ctl, shell] { return RunCompletion(ctl, *shell); }; });
}

}  // namespace ctl
}  // namespace ckv
