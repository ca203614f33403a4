// An address as people write it: "host:port", with brackets around an IPv6 host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckv {

struct HostPort {
  static constexpr size_t kTextBytesMax = 256;

  std::string host;  // without brackets
  uint16_t port = 0;

  // Takes at most kTextBytesMax printable characters. The resolver judges the host. The address of
  // somebody else has a `port_min` of 1; port 0 stands for any free port of one's own.
  //   InvalidArgument     says what is expected, and quotes at most 64 characters.
  static absl::StatusOr<HostPort> Parse(std::string_view text, uint16_t port_min = 0);
  std::string ToString() const;

  // Whether the host stands for every address of this machine: 0.0.0.0, :: or *.
  bool IsWildcard() const;
  // Whether only this machine can reach the host: 127.*, ::1 or localhost.
  bool IsLoopback() const;
};

}  // namespace ckv
