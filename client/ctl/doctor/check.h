// One finding of ckvctl doctor, and the formats that report all findings.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/ctl/output.h"

namespace ckv::ctl::doctor {

// From best to worst. A check is skipped if there is nothing that it applies to.
enum class Verdict { kOk, kSkipped, kWarn, kFail };
std::string_view VerdictName(Verdict verdict);  // "ok", "skipped", "warn", "fail"

struct Check {
  std::string name;  // the subject of the check: "memlock"
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

// Joins names like "holder h1" and writes a shared role once: "holders h1, h2, requester r1".
std::string JoinWho(const std::vector<std::string>& names);

// The checks of one part. PartText writes each finding and remedy in lines of at most
// kTerminalColumns.
struct Part {
  std::string name;   // "host", "fleet"
  std::string title;  // "host: 16 processors, 2 daemons of ckv"
  Checks checks;
};
std::string PartText(const Part& part);
// {"checks": [{"part", "name", "verdict", "finding", "remedy"}], "ok_count", "skipped_count",
// "warn_count", "fail_count"}
Json PartsJson(const std::vector<Part>& parts);
// "12 ok, 3 skipped, 1 warning, 2 failed".
std::string CountsText(const std::vector<Part>& parts);

//   FailedPrecondition  a check failed, or warned while `strict` is set; names the checks.
absl::Status JudgeParts(const std::vector<Part>& parts, bool strict);

}  // namespace ckv::ctl::doctor
