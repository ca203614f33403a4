// One finding of ckvctl doctor, and how all findings are told.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/ctl/output.h"

namespace ckv::ctl::doctor {

// From the best to the worst; a skipped check found nothing that it applies to.
enum class Verdict { kOk, kSkipped, kWarn, kFail };
std::string_view VerdictName(Verdict verdict);  // "ok", "skipped", "warn", "fail"

struct Check {
  std::string name;  // the thing that was judged: "memlock"
  Verdict verdict = Verdict::kOk;
  std::string finding;  // the facts, with their numbers; if skipped, why
  std::string remedy;   // commands or lines of a configuration; empty unless it is wrong
};
using Checks = std::vector<Check>;

Check Ok(std::string name, std::string finding);
Check Skipped(std::string name, std::string why);
Check Warn(std::string name, std::string finding, std::string remedy);
Check Fail(std::string name, std::string finding, std::string remedy);

// Adds `found` to `checks`, or `ok` if there is none.
void AddOr(Checks& checks, Checks found, Check ok);

// Joins names of one role each, like "holder h1": "holders h1, h2, requester r1".
std::string JoinWho(const std::vector<std::string>& names);

// The checks of one part, each with its finding and remedy in lines of at most kTerminalColumns.
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

//   FailedPrecondition  checks failed, or warn and `strict` is set; names them.
absl::Status JudgeParts(const std::vector<Part>& parts, bool strict);

}  // namespace ckv::ctl::doctor
