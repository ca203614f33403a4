// The files that ckvctl simulate reads: traces of requests, and topologies.
//
// A trace has one JSON object a line, as public traces have:
//
//   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
//
// `timestamp` is in ms and never falls. `hash_ids` has one id for each block of 512 tokens of the
// prompt; equal leading ids are equal prefixes.
//
// A topology is YAML or JSON: servers, and links that lead up from each server and group.
//
//   server_GBps: 450                  # within a server
//   tier_latency_us: [1, 3, 8, 15]    # same server, same rack, same pod, across pods
//   servers: [s0, s1]
//   links:
//     - {from: s0, to: rack0, Gbps: 100, count: 2}   # count: physical links; 1 if left out
//     - {from: rack0, to: pod0, Gbps: 50, count: 64}

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/simulate/fabric_tree.h"
#include "client/simulate/workload.h"

namespace ckv::ctl {

inline constexpr size_t kTraceLineBytesMax = size_t{4} << 20;
inline constexpr size_t kTraceLinesMax = 2'000'000;
inline constexpr size_t kTopologyBytesMax = size_t{4} << 20;

// Reads a trace.
//   NotFound            there is no file of that name.
//   InvalidArgument     "FILE:LINE: what is wrong".
absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path);

// Parses a topology, and checks that it is a tree of which all servers are part. `path` begins each
// error.
//   InvalidArgument     "FILE:LINE: KEY: what is wrong".
absl::StatusOr<FabricTree> ParseTopology(const std::string& path, const std::string& text);
// Reads and parses a topology.
//   NotFound            there is no file of that name.
//   InvalidArgument     it is larger than kTopologyBytesMax, or as above.
absl::StatusOr<FabricTree> ReadTopology(const std::string& path);

// A topology to begin with: that of NetKV.
std::string ExampleTopology();

}  // namespace ckv::ctl
