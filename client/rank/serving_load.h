// The load of one requester (decode instance) and the chunks that it has locally, as it reports
// them to the directory (ReportLoad in proto/ckv/v1/directory.proto).

#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/ids.h"

namespace ckv {

// Chunks in one digest: 32 KiB of a report. 4096 chunks of 512 tokens are 2 million tokens.
inline constexpr size_t kDigestChunkCountMax = 4096;
// The limit of each number of a load: beyond any machine, and exact in a double.
inline constexpr double kLoadNumberMax = 1e15;

// The iteration of an engine takes iteration_base_us + iteration_request_us * batch.
struct ServingLoad {
  double free_bytes = 0;  // memory that is free for a KV cache
  double queued = 0;      // requests that wait
  double batch = 0;       // requests that are decoded now
  double batch_max = 0;
  double iteration_base_us = 0;
  double iteration_request_us = 0;

  friend bool operator==(const ServingLoad&, const ServingLoad&) = default;
};

// A chunk's entry in a digest: the first 8 bytes of its id. Among the 131,072 chunks that a
// directory keeps, two share an entry with probability 5e-10.
using ChunkPrefix = uint64_t;
inline ChunkPrefix PrefixOf(const ChunkId& id) {
  ChunkPrefix prefix = 0;
  std::memcpy(&prefix, id.bytes.data(), sizeof(prefix));
  return prefix;
}

struct LoadNotice {
  std::string name;
  std::string address;  // host:port at which routers reach the requester
  std::string host;     // as the network oracle names it; if empty, that of `address`
  Duration ttl{0};      // the lease's; 0 takes the directory's default
  ServingLoad load;
  // The cached chunks, the most important first. Replaces the earlier digest. If unset, the earlier
  // one stays.
  std::optional<std::vector<ChunkPrefix>> cached = {};
  bool leaves = false;  // ends the lease at once
};

struct LoadLease {
  Duration ttl{0};
  bool digest_wanted = false;  // the next report must contain the digest
  uint32_t digest_count = 0;   // chunks of the digest that count
};

// Checks a notice from outside the process.
//   InvalidArgument     names the field: "load.queued: -1 is not within [0, 1e+15]".
absl::Status ValidateNotice(const LoadNotice& notice);
// Checks a number from outside the process against [0, kLoadNumberMax].
//   InvalidArgument     begins with `field`.
absl::Status ValidateLoadNumber(std::string_view field, double value);

}  // namespace ckv
