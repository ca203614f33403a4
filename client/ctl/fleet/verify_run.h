// Checks the copies of a corpus' chunks on every holder of their placement, and has those put again
// that are not whole.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/holder.grpc.pb.h"
#include "client/ctl/fleet.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// One copy of one chunk.
struct CopyCheck {
  uint32_t ordinal = 0;
  v1::ChunkVerdict verdict = v1::CHUNK_VERDICT_UNSPECIFIED;  // unspecified: its holder did not say
  std::string why = {};                                      // unless it is whole and always was
  uint64_t rows_checksum = 0;
  bool repaired = false;

  bool whole() const { return verdict == v1::CHUNK_VERDICT_WHOLE; }
};

// The answer of one holder.
struct HolderCheck {
  std::vector<CopyCheck> copies;
  uint64_t bytes_checked = 0;  // in memory and on the device
  Duration elapsed{0};
  absl::Status status;  // why it did not say of all
};
using HolderChecks = std::map<std::string, HolderCheck>;

// Asks every holder for its copies of these chunks, all at once. `on_bytes` is told of rows whose
// copy was checked; it is called from several threads.
HolderChecks CheckCopies(const Corpus& corpus, const std::vector<uint32_t>& ordinals,
                         const std::vector<Member>& members, Clock& clock,
                         const std::function<void(uint64_t bytes)>& on_bytes);

// Has holders of whole copies push them where a copy is missing or damaged, and checks those again.
// `why` of those that are not whole afterwards says what went wrong. Chunks whose whole copies
// differ are left alone.
void RepairCopies(const Corpus& corpus, const std::vector<Member>& members, Clock& clock,
                  const std::function<void(uint64_t bytes)>& on_bytes, HolderChecks& checks);

// Ordinals of chunks whose whole copies have other rows than each other.
std::vector<uint32_t> Disagreeing(const HolderChecks& checks);

}  // namespace ckv::ctl
