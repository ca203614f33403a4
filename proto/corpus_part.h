// The part of a corpus that is placed on one holder. A directory that lost its disk is rebuilt from
// these parts.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/corpus.h"

namespace ckv {

// The chunks of a corpus that are placed on one holder, as received from the directory.
struct CorpusPart {
  // The corpus with only these chunks, each with all its holders.
  Corpus corpus;
  std::vector<uint32_t> ordinals;  // each chunk's ordinal in the whole corpus, rising
  uint32_t chunk_count = 0;        // chunks of the whole corpus
  uint64_t folder_id = 0;          // the directory's that the part came from; 0 if it had no folder

  friend bool operator==(const CorpusPart&, const CorpusPart&) = default;
};

// The most chunks of a part in one control-plane message.
inline constexpr size_t kPartChunksPerCallMax = 4096;

// A tombstone: a dropped corpus. A directory numbers its drops and its versions in one sequence, so
// a number orders a drop among the changes.
struct DroppedCorpus {
  std::string tenant, name;
  uint64_t folder_id = 0;  // the folder that the versions belong to; 0 means any
  uint64_t version = 0;    // this version and all earlier ones are dropped
  uint64_t number = 0;

  friend bool operator==(const DroppedCorpus&, const DroppedCorpus&) = default;
};

// The most tombstones in one control-plane message, about 300 bytes each, and in a holder.
inline constexpr size_t kDroppedCountMax = 1024;

// How many of a directory's changes a holder has seen: all of this folder up to the number.
struct SeenDirectory {
  uint64_t folder_id = 0;  // 0 if it has seen nothing
  uint64_t number = 0;

  friend bool operator==(const SeenDirectory&, const SeenDirectory&) = default;
};

// Checks the corpus, that each chunk has a rising ordinal below chunk_count, and that the part has
// a version.
//   InvalidArgument     names the problem.
absl::Status ValidateCorpusPart(const CorpusPart& part);
// Checks the syntax of the names, and that there is a version.
//   InvalidArgument     names the problem.
absl::Status ValidateDropped(const DroppedCorpus& dropped);

}  // namespace ckv
