#include "client/tools/ctl/time_span.h"

#include <chrono>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace ckv::ctl {
namespace {

constexpr Duration kTimeoutMin = std::chrono::milliseconds(1), kTimeoutMax = std::chrono::hours(1);

}  // namespace

CLI::Validator TimeSpan() {
  return CLI::Validator(
      [](const std::string& text) { return std::string(ParseTimeSpan(text).status().message()); },
      "");
}

Duration TimeSpanOf(const std::string& text) { return ParseTimeSpan(text).value_or(Duration(0)); }

void AddTimeout(CLI::App& verb, const char* name, uint32_t& timeout_ms, const char* description) {
  const std::string by_default = absl::FormatDuration(absl::Milliseconds(timeout_ms));
  verb.add_option_function<std::string>(
          name,
          [&timeout_ms](const std::string& text) {
            timeout_ms = static_cast<uint32_t>(
                std::chrono::ceil<std::chrono::milliseconds>(TimeSpanOf(text)).count());
          },
          absl::StrFormat("%s (default: %s)", description, by_default))
      ->check(TimeSpan())
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            const Duration span = TimeSpanOf(text);
            return span >= kTimeoutMin && span <= kTimeoutMax
                       ? ""
                       : "'" + text + "' is not from 1ms to 1h";
          },
          ""))
      ->type_name("TIME");
}

}  // namespace ckv::ctl
