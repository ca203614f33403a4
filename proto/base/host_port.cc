#include "proto/base/host_port.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"

namespace ckv {

absl::StatusOr<HostPort> HostPort::Parse(std::string_view text, uint16_t port_min) {
  const auto refuse = [&] {
    const std::string quoted(text.substr(0, 64));
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' is not host:port with a port from %d to 65535; an IPv6 host is in brackets",
        absl::CHexEscape(quoted), port_min));
  };
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  const size_t colon = text.rfind(':');
  if (text.size() > kTextBytesMax || !printable || colon == std::string_view::npos) {
    return refuse();
  }
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool named = !host.empty() && host.find_first_of("[]") == std::string_view::npos;
  if (!named || (!bracketed && host.find(':') != std::string_view::npos)) return refuse();
  const std::string_view digits = text.substr(colon + 1);
  HostPort parsed;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), parsed.port);
  if (error != std::errc() || end != digits.data() + digits.size()) return refuse();
  if (parsed.port < port_min) return refuse();
  parsed.host = std::string(host);
  return parsed;
}

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? absl::StrFormat("[%s]:%d", host, port) : absl::StrFormat("%s:%d", host, port);
}

bool HostPort::IsWildcard() const { return host == "0.0.0.0" || host == "::" || host == "*"; }

bool HostPort::IsLoopback() const {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

absl::StatusOr<std::vector<HostPort>> ParsePeerAddresses(std::string_view text, size_t count_max) {
  std::vector<HostPort> addresses;
  size_t begin = 0;
  while (true) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    absl::StatusOr<HostPort> address =
        HostPort::Parse(text.substr(begin, comma - begin), /*port_min=*/1);
    if (!address.ok()) return address.status();
    if (std::find(addresses.begin(), addresses.end(), *address) != addresses.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is in the list twice", address->ToString()));
    }
    if (addresses.size() == count_max) {
      return absl::InvalidArgumentError(absl::StrFormat("more than %d addresses", count_max));
    }
    addresses.push_back(*std::move(address));
    if (comma == text.size()) return addresses;
    begin = comma + 1;
  }
}

}  // namespace ckv
