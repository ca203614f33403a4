#include "client/tools/ctl/doctor/check.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ckv::ctl::doctor {
namespace {

constexpr size_t kNameColumn = 6, kNameWidth = 12;

// Appends the words of `text` in lines that begin at `column`. The first continues the current
// line. A line of `text` begins a new one. Words longer than a line have a line of their own.
void AppendWrapped(std::string& out, std::string_view text, size_t column) {
  bool first_line = true;
  for (const auto& line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    if (!first_line) out += "\n" + std::string(column, ' ');
    first_line = false;
    size_t at = column;
    bool first_word = true;
    for (const auto& word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      if (!first_word && at + 1 + word.size() > kTerminalColumns) {
        out += "\n" + std::string(column, ' ');
        at = column;
        first_word = true;
      }
      if (!first_word) out += ' ';
      at += word.size() + (first_word ? 0 : 1);
      out.append(word.data(), word.size());
      first_word = false;
    }
  }
  out += "\n";
}

std::array<size_t, 4> CountsOf(const Checks& checks) {
  std::array<size_t, 4> counts = {};
  for (const Check& check : checks) ++counts[static_cast<size_t>(check.verdict)];
  return counts;
}

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      break;
  }
  return "fail";
}

Check Ok(std::string name, std::string finding) {
  return {std::move(name), Verdict::kOk, std::move(finding), ""};
}
Check Skipped(std::string name, std::string why) {
  return {std::move(name), Verdict::kSkipped, std::move(why), ""};
}
Check Warn(std::string name, std::string finding, std::string remedy) {
  return {std::move(name), Verdict::kWarn, std::move(finding), std::move(remedy)};
}
Check Fail(std::string name, std::string finding, std::string remedy) {
  return {std::move(name), Verdict::kFail, std::move(finding), std::move(remedy)};
}

void AddOr(Checks& checks, Checks found, Check ok) {
  if (found.empty()) found.push_back(std::move(ok));
  for (Check& check : found) checks.push_back(std::move(check));
}

std::string ChecksText(const Checks& checks) {
  std::string text;
  for (const Check& check : checks) {
    const bool skipped = check.verdict == Verdict::kSkipped;
    absl::StrAppendFormat(&text, "%-5s %-*s ",
                          skipped ? "-" : std::string(VerdictName(check.verdict)),
                          static_cast<int>(kNameWidth), check.name);
    const size_t column = kNameColumn + std::max(kNameWidth, check.name.size()) + 1;
    AppendWrapped(text, (skipped ? "skipped: " : "") + Printable(check.finding), column);
    if (check.remedy.empty()) continue;
    text += std::string(column, ' ') + "-> ";
    // A remedy may be several commands, one per line.
    AppendWrapped(text, PrintableLines(check.remedy), column + 3);
  }
  return text;
}

Json ChecksJson(const Checks& checks) {
  Json json = {{"checks", Json::array()}};
  for (const Check& check : checks) {
    json["checks"].push_back({{"name", check.name},
                              {"verdict", std::string(VerdictName(check.verdict))},
                              {"finding", check.finding},
                              {"remedy", check.remedy}});
  }
  const auto counts = CountsOf(checks);
  for (const Verdict verdict : {Verdict::kOk, Verdict::kSkipped, Verdict::kWarn, Verdict::kFail}) {
    json[std::string(VerdictName(verdict)) + "_count"] = counts[static_cast<size_t>(verdict)];
  }
  return json;
}

std::string CountsText(const Checks& checks) {
  const auto counts = CountsOf(checks);
  const auto count = [&](Verdict verdict) { return counts[static_cast<size_t>(verdict)]; };
  return absl::StrFormat("%d ok, %d skipped, %s, %d failed", count(Verdict::kOk),
                         count(Verdict::kSkipped), FormatCount(count(Verdict::kWarn), "warning"),
                         count(Verdict::kFail));
}

absl::Status JudgeChecks(const Checks& checks, bool strict) {
  std::vector<std::string> names;
  for (const Check& check : checks) {
    const bool bad = check.verdict == Verdict::kFail || (strict && check.verdict == Verdict::kWarn);
    if (bad && std::find(names.begin(), names.end(), check.name) == names.end())
      names.push_back(check.name);
  }
  if (names.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: %s\n  each has its remedy above, after ->",
                      FormatCount(names.size(), "thing") + " to mend", absl::StrJoin(names, ", ")));
}

}  // namespace ckv::ctl::doctor
