// One finding of ckvctl doctor, and the formats that report all findings.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl::doctor {

// From best to worst. A check is skipped if there is nothing that it applies to.
enum class Verdict { kOk, kSkipped, kWarn, kFail };
std::string_view VerdictName(Verdict verdict);  // "ok", "skipped", "warn", "fail"

struct Check {
  std::string name;  // the subject of the check: "memory"
  Verdict verdict = Verdict::kOk;
  std::string finding;  // the facts, with their numbers; if skipped, the reason
  std::string remedy;   // commands or configuration lines; empty if nothing is wrong
};
using Checks = std::vector<Check>;

Check Ok(std::string name, std::string finding);
Check Skipped(std::string name, std::string why);
Check Warn(std::string name, std::string finding, std::string remedy);
Check Fail(std::string name, std::string finding, std::string remedy);

// Appends `found` to `checks`, or `ok` if `found` is empty.
void AddOr(Checks& checks, Checks found, Check ok);

// Writes each finding and remedy in lines of at most kTerminalColumns.
std::string ChecksText(const Checks& checks);
// {"checks": [{"name", "verdict", "finding", "remedy"}], "ok_count", "skipped_count",
// "warn_count", "fail_count"}
Json ChecksJson(const Checks& checks);
// "12 ok, 3 skipped, 1 warning, 2 failed".
std::string CountsText(const Checks& checks);

//   FailedPrecondition  a check failed, or warned while `strict` is set; names the checks.
absl::Status JudgeChecks(const Checks& checks, bool strict);

}  // namespace ckv::ctl::doctor
