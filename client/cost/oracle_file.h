// A network oracle that reads a JSON file, which an operator writes or a script updates.
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
// `tiers` is ordered nearest first, with 1 to kTierCountMax entries. Each has these fields:
//   bandwidth_GBps  one host's share in 1e9 bytes per second, above 0
//   latency_us      one way, 0 to 1e7
//   congestion      share of the tier taken by traffic other than this system's, [0, 1). If
//                   omitted, 0
//
// `hosts` gives each host's place, widest domain first, with one label fewer than there are tiers.
// Two hosts are of tier 0 if all their labels are the same, and of the last tier if the first
// differs. Above, 10.0.0.1 and 10.0.0.2 share p1 and r1, so they are of tier 1. Labels are compared
// level by level, so "r1" of p1 is not "r1" of p2.
//
// A host's name is the one in the holders' control addresses. This requester's name is oracle.host.
// Unknown keys are refused, because a mistyped one would otherwise be silently ignored.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cost/network_oracle.h"

namespace ckv {

inline constexpr size_t kOracleFileBytesMax = size_t{16} << 20;

// Returns the costs from `requester_host` to every host of the text; `taken` stays 0.
//   InvalidArgument     the text is not JSON, or a field is wrong: "tiers[2].congestion: ...".
//   NotFound            `requester_host` is not among its hosts.
absl::StatusOr<NetworkSnapshot> ParseOracleFile(std::string_view text,
                                                std::string_view requester_host);

// Thread-safe, because it has no state. Reads the whole file every time, so replace it by renaming
// a new one over it.
class OracleFile final : public OracleSource {
 public:
  explicit OracleFile(std::string path) : path_(std::move(path)) {}

  // Returns costs that are as old as the reading.
  //   NotFound, Unavailable  there is no file, or it cannot be read.
  //   InvalidArgument        the file is larger than kOracleFileBytesMax.
  //   Other errors as ParseOracleFile.
  absl::StatusOr<NetworkSnapshot> Read(const std::string& requester_host,
                                       const std::vector<std::string>& holder_hosts, Clock& clock,
                                       Instant deadline) override;
  std::string Describe() const override;

 private:
  const std::string path_;
};

}  // namespace ckv
