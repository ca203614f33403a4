// Checks what the addresses of a configuration mean to other hosts.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/daemon/config.h"

namespace ckv {

// Returns the addresses of a host, as numbers: "10.77.0.2", "fd00::2". Any error is a host that
// this machine does not know.
using HostResolver =
    std::function<absl::StatusOr<std::vector<std::string>>(const std::string& host)>;

// A name server that does not answer may take 20 s of its own.
inline constexpr Duration kResolveMax = std::chrono::seconds(5);

// Asks the machine's resolver, for at most kResolveMax.
//   NotFound            the resolver's words.
//   DeadlineExceeded    it does not answer.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host);

// Adds an error for each address with which nobody would reach this process. All of them have been
// read, and FillConfig has filled in the rest. Asks no resolver.
void CheckAddresses(const Config& config, std::vector<std::string>& errors);

// Returns what may keep other hosts from this process, a line each. The configuration is valid.
// Names are resolved as this host knows them; numbers are not asked for. A process without a role
// has no addresses.
std::vector<std::string> AddressWarnings(const Config& config, const HostResolver& resolve);

}  // namespace ckv
