// The part of a corpus that is placed on one holder: what a directory that lost its disk is rebuilt
// from.

#pragma once

#include <cstdint>
#include <string>
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

// A corpus that was dropped. A directory numbers its drops and its versions in one sequence, so a
// number says before which changes a drop was made.
struct DroppedCorpus {
  std::string tenant, name;
  uint64_t folder_id = 0;  // the directory's that gave the versions; 0 means any
  uint64_t version = 0;    // this version is gone, and all before it
  uint64_t number = 0;

  friend bool operator==(const DroppedCorpus&, const DroppedCorpus&) = default;
};

// Drops in one message of the control plane, some 300 bytes each, and drops that a holder keeps.
inline constexpr size_t kDroppedCountMax = 1024;

// How much of a directory a holder has seen: all changes of this folder up to the number.
struct SeenDirectory {
  uint64_t folder_id = 0;  // 0 if it has seen nothing
  uint64_t number = 0;

  friend bool operator==(const SeenDirectory&, const SeenDirectory&) = default;
};

// Checks the corpus, that there is a rising ordinal below chunk_count for each chunk, and that the
// part has a version.
//   InvalidArgument     names what is wrong.
absl::Status ValidateCorpusPart(const CorpusPart& part);
// Checks the syntax of the names, and that there is a version.
//   InvalidArgument     names what is wrong.
absl::Status ValidateDropped(const DroppedCorpus& dropped);

}  // namespace ckv
