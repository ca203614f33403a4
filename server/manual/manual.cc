#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "proto/base/version.h"
#include "server/manual/pages.h"

namespace ckv {
namespace {

// Text for roff: its escape character, its dashes, and the dots and quotes that begin a request.
std::string Roff(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    begins = c == '\n';
  }
  return out;
}

void AddOptions(const PageCommand& command, std::string& page) {
  for (const PageOption& option : command.options) {
    std::string names;
    for (const std::string& name : option.names) {
      names += absl::StrFormat("%s\\fB%s\\fR", names.empty() ? "" : ", ", Roff(name));
    }
    page += absl::StrFormat(".TP\n%s", names);
    if (!option.value.empty()) page += absl::StrFormat(" \\fI%s\\fR", Roff(option.value));
    page += "\n" + Roff(option.help);
    // A type that lists its values shows them already.
    if (!option.choices.empty() && option.value.find('|') == std::string::npos) {
      std::string choices;
      for (const std::string& choice : option.choices) {
        choices += (choices.empty() ? "; of " : ", ") + choice;
      }
      page += Roff(choices);
    }
    page += "\n";
  }
}

}  // namespace

std::string ManualPage(const PageProgram& program) {
  std::string upper = program.name;
  for (char& c : upper) c = static_cast<char>(c - 'a' + 'A');
  const PageCommand& whole = program.commands.front();
  std::string page = absl::StrFormat(
      ".TH %s %d \"\" \"ckv %s\" \"ckv\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n\\fB%s\\fR "
      "[\\fIOPTION\\fR]...%s\n.SH DESCRIPTION\n%s\n.SH OPTIONS\n",
      upper, program.section, std::string(Version()), program.name, Roff(program.summary),
      program.name, whole.verbs.empty() ? "" : " \\fICOMMAND\\fR", Roff(whole.help));
  AddOptions(whole, page);
  if (program.commands.size() > 1) page += ".SH COMMANDS\n";
  for (const PageCommand& command : program.commands) {
    if (&command == &whole) continue;
    page +=
        absl::StrFormat(".SS %s %s\n%s\n", program.name, Roff(command.path), Roff(command.help));
    AddOptions(command, page);
    if (!command.footer.empty()) {
      page += absl::StrFormat(".PP\n.nf\n%s\n.fi\n", Roff(command.footer));
    }
  }
  page += absl::StrFormat(".SH NOTES\n.nf\n%s\n.fi\n", Roff(whole.footer));
  return page;
}

}  // namespace ckv
