// An address in the form "host:port", with brackets around an IPv6 host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ckv {

struct HostPort {
  static constexpr size_t kTextBytesMax = 256;

  std::string host;  // without brackets
  uint16_t port = 0;

  // Parses at most kTextBytesMax printable characters. The host is not checked here: the resolver
  // does that. Pass a `port_min` of 1 for the address of a peer; for an address to bind, port 0
  // means any free port.
  //   InvalidArgument     the message contains the expected form, and at most 64 characters of
  //                       `text`.
  static absl::StatusOr<HostPort> Parse(std::string_view text, uint16_t port_min = 0);
  std::string ToString() const;

  // Returns whether the host means every address of this machine: 0.0.0.0, :: or *.
  bool IsWildcard() const;
  // Returns whether only this machine can reach the host: 127.*, ::1 or localhost.
  bool IsLoopback() const;

  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// Parses "host:port" or a list "host:port,host:port,...", without spaces: addresses of peers.
//   InvalidArgument     an entry is empty or malformed, occurs twice, or there are more than
//                       `count_max`; the message names it.
absl::StatusOr<std::vector<HostPort>> ParsePeerAddresses(std::string_view text, size_t count_max);

}  // namespace ckv
