#include "client/tools/ctl/checks.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "client/grpc/default_addresses.h"
#include "proto/base/host_port.h"

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
  return Check([](std::string& text) {
    return std::string(ckv::HostPort::Parse(text, /*port_min=*/1).status().message());
  });
}

CLI::Validator HostPorts() {
  return Check([](std::string& text) {
    return std::string(ParsePeerAddresses(text, kDirectoryCountMax).status().message());
  });
}

CLI::Validator WholeNumber() {
  return Check([](std::string& text) -> std::string {
    if (IsDigits(text)) return "";
    return absl::StrFormat("'%s' is not a whole number from 0 on", text);
  });
}

CLI::Validator InRange(uint64_t min, uint64_t max) {
  return Check([min, max](std::string& text) -> std::string {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (IsDigits(text) && error == std::errc() && number >= min && number <= max) return "";
    return absl::StrFormat("'%s' is not a whole number from %d to %d", text, min, max);
  });
}

CLI::Validator Positive() {
  return Check([](std::string& text) -> std::string {
    double number = 0;
    if (absl::SimpleAtod(text, &number) && std::isfinite(number) && number > 0) return "";
    return absl::StrFormat("'%s' is not a number above 0", text);
  });
}

CLI::Validator NotNegative() {
  return Check([](std::string& text) -> std::string {
    double number = 0;
    if (absl::SimpleAtod(text, &number) && std::isfinite(number) && number >= 0) return "";
    return absl::StrFormat("'%s' is not a number from 0 on", text);
  });
}

CLI::Validator NotEmpty() {
  return Check([](std::string& text) -> std::string {
    return text.empty() ? "empty; leave the option out to take all" : "";
  });
}

}  // namespace ckv::ctl
