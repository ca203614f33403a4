#include "client/ctl/checks.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv::ctl {
namespace {

bool IsDigits(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// An empty description keeps the check out of the help.
CLI::Validator Check(std::function<std::string(std::string&)> check) {
  return CLI::Validator(std::move(check), "");
}

std::string CheckHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  uint32_t number = 0;
  if (IsDigits(port)) std::from_chars(port.data(), port.data() + port.size(), number);
  if (colon != 0 && number >= 1 && number <= 65535) return "";
  return absl::StrFormat("'%s' is not host:port with a port from 1 to 65535", text);
}

}  // namespace

std::string JoinNames(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "|") + name;
  return text;
}

CLI::Validator OneOf(std::vector<std::string> names) {
  return Check([names = std::move(names)](std::string& text) -> std::string {
    if (std::find(names.begin(), names.end(), text) != names.end()) return "";
    return absl::StrFormat("'%s' is not one of %s", text, JoinNames(names));
  });
}

CLI::Validator HostPort() {
  return Check([](std::string& text) { return CheckHostPort(text); });
}

CLI::Validator WholeNumber() {
  return Check([](std::string& text) -> std::string {
    if (IsDigits(text)) return "";
    return absl::StrFormat("'%s' is not a whole number from 0 on", text);
  });
}

CLI::Validator NotEmpty() {
  return Check([](std::string& text) -> std::string {
    return text.empty() ? "empty; leave the option out to take all" : "";
  });
}

}  // namespace ckv::ctl
