// The network oracle of a file: JSON that an operator writes, or a script renews.
//
//   {
//     "version": 1,
//     "tiers": [
//       {"name": "node", "bandwidth_GBps": 450,   "latency_us": 1},
//       {"name": "rack", "bandwidth_GBps": 12.5,  "latency_us": 3},
//       {"name": "pod",  "bandwidth_GBps": 6.25,  "latency_us": 8,  "congestion": 0.2},
//       {"name": "far",  "bandwidth_GBps": 3.125, "latency_us": 15, "congestion": 0.2}
//     ],
//     "hosts": {
//       "10.0.0.1": ["p1", "r1", "n1"],
//       "10.0.0.2": ["p1", "r1", "n2"],
//       "10.0.1.1": ["p2", "r3", "n7"]
//     }
//   }
//
// `tiers` come nearest first: 1 to kTierCountMax. bandwidth_GBps is 1e9 bytes a second of one
// host's share, above 0; latency_us one way, 0 to 1e7; congestion the share of the tier that
// traffic other than this system's takes, [0, 1), 0 if it is left out. `hosts` says where each host
// stands, widest domain first, by one label fewer than there are tiers. Two hosts are of tier 0
// where all labels are the same, and of the last where the first differs: above, 10.0.0.1
// and 10.0.0.2 share p1 and r1, so they are of tier 1. Labels are compared level by level, so "r1"
// of p1 is not "r1" of p2. A host is named as the holders' control addresses name it, and this
// requester as oracle.host does. Whatever else is there is refused: a mistyped key would otherwise
// mean nothing, silently.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/network_oracle.h"

namespace ckv {

inline constexpr size_t kOracleFileBytesMax = size_t{16} << 20;

// The costs from `requester_host` to every host of the text; `taken` is left at 0.
//   InvalidArgument     not JSON, or names the field: "tiers[2].congestion: ...".
//   NotFound            `requester_host` is not among its hosts.
absl::StatusOr<NetworkSnapshot> ParseOracleFile(std::string_view text,
                                                std::string_view requester_host);

// Thread-safe: keeps nothing. The file is read whole every time, so renew it by renaming another
// over it.
class OracleFile final : public OracleSource {
 public:
  explicit OracleFile(std::string path) : path_(std::move(path)) {}

  // As old as the reading.
  //   NotFound, Unavailable  there is no such file, or it cannot be read.
  //   else as ParseOracleFile, and InvalidArgument over kOracleFileBytesMax.
  absl::StatusOr<NetworkSnapshot> Read(const std::string& requester_host,
                                       const std::vector<std::string>& holder_hosts, Clock& clock,
                                       Instant deadline) override;
  std::string Describe() const override;

 private:
  const std::string path_;
};

}  // namespace ckv
