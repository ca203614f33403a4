// Checks whether other hosts can use the addresses in a configuration.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/daemon/config.h"

namespace ckv {

// Returns the addresses of a host in numeric form: "10.77.0.2", "fd00::2". Any error means that
// this machine cannot resolve the name.
using HostResolver =
    std::function<absl::StatusOr<std::vector<std::string>>(const std::string& host)>;

// Our own limit: the resolver may wait 20 s for a name server that does not reply.
inline constexpr Duration kResolveMax = std::chrono::seconds(5);

// Queries the machine's resolver, for at most kResolveMax.
//   NotFound            the resolver's message.
//   DeadlineExceeded    the resolver does not reply.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host);

// Adds an error if peers cannot reach this process at one of its addresses; reports only the first.
// The addresses must be valid, and FillConfig must have set the missing ones. Queries no resolver.
void CheckAddresses(const Config& config, std::vector<std::string>& errors);

// Returns what may prevent other hosts from reaching this process, one line for each problem. The
// configuration must be valid. Names are resolved on this host; numeric addresses are not. A
// process without a role has no addresses, so it gets no warnings.
std::vector<std::string> AddressWarnings(const Config& config, const HostResolver& resolve);

}  // namespace ckv
