// The part of a corpus that is placed on one holder: what a directory that lost its disk is rebuilt
// from.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/corpus.h"

namespace ckv {

// Chunks of a corpus that one holder is to have, as its directory told of them.
struct CorpusPart {
  // The corpus with these chunks only, each with all its holders.
  Corpus corpus;
  std::vector<uint32_t> ordinals;  // each chunk's place in the whole corpus, rising
  uint32_t chunk_count = 0;        // the whole corpus has so many
  uint64_t folder_id = 0;          // that of the directory that told of it; 0 if it had no folder

  friend bool operator==(const CorpusPart&, const CorpusPart&) = default;
};

// Chunks of a part in one message of the control plane.
inline constexpr size_t kPartChunksPerCallMax = 4096;

// Checks the corpus, that there is a rising ordinal below chunk_count for each chunk, and that the
// part has a version.
//   InvalidArgument     names what is wrong.
absl::Status ValidateCorpusPart(const CorpusPart& part);

}  // namespace ckv
