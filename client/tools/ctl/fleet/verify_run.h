// Checks the copies of a corpus' chunks on every holder of their placement, and has damaged or
// missing copies replaced.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "client/tools/ctl/fleet.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// One copy of one chunk.
struct CopyCheck {
  uint32_t ordinal = 0;
  v1::ChunkVerdict verdict = v1::CHUNK_VERDICT_UNSPECIFIED;  // unspecified: no answer
  std::string why = {};                                      // empty if it is whole and always was
  uint64_t rows_checksum = 0;
  bool repaired = false;

  bool whole() const { return verdict == v1::CHUNK_VERDICT_WHOLE; }
};

// The result of one holder.
struct HolderCheck {
  std::vector<CopyCheck> copies;
  uint64_t bytes_checked = 0;  // in memory and on the device
  Duration elapsed{0};
  absl::Status status;  // OK, or why some copies have no verdict
};
using HolderChecks = std::map<std::string, HolderCheck>;

// Queries all holders in parallel about their copies of these chunks. `on_bytes` is called, from
// several threads, with the row bytes of each copy that was checked.
HolderChecks CheckCopies(const Corpus& corpus, const std::vector<uint32_t>& ordinals,
                         const std::vector<Member>& members, Clock& clock,
                         const std::function<void(uint64_t bytes)>& on_bytes);

// Makes holders of whole copies push them to where a copy is missing or damaged, and checks those
// copies again. If a copy is not whole afterwards, its `why` names the cause. Chunks whose whole
// copies differ are left unchanged.
void RepairCopies(const Corpus& corpus, const std::vector<Member>& members, Clock& clock,
                  const std::function<void(uint64_t bytes)>& on_bytes, HolderChecks& checks);

// Returns the ordinals of chunks whose whole copies have different rows.
std::vector<uint32_t> Disagreeing(const HolderChecks& checks);

}  // namespace ckv::ctl
