// Reports what `ckvctl corpus load` did.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/corpus/load_source.h"
#include "client/ctl/ctl.h"
#include "client/publish/chunk_puts.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// Counts a load's chunks by where they were before it, each once however many copies it has.
struct ChunkOrigins {
  uint32_t chunks_reused = 0;  // the corpus' version before had it, or a holder, of a load before
  uint32_t chunks_shared = 0;  // another corpus has it
  uint32_t chunks_new = 0;     // none of these
};

// Whether another corpus that the tenant may see has the chunk; of each chunk. Those of `previous`
// are not asked for.
//   the directory's error.
absl::StatusOr<std::vector<bool>> FindShared(Fleet& fleet, const std::string& corpus,
                                             const ChunkSource& source, const Corpus* previous);

// `previous` is the corpus' version before, or null; `found` as PutReport's.
ChunkOrigins CountOrigins(const ChunkSource& source, const Corpus* previous,
                          const std::vector<bool>& shared, const std::vector<bool>& found);

struct LoadReport {
  std::string corpus;
  uint64_t version = 0;
  bool dry_run = false;
  uint32_t replicas = 1;
  // If a corpus was extended: how many chunks it had before, and how many it got.
  std::optional<uint32_t> chunk_begin = {};
  uint32_t appended = 0;
  ChunkOrigins origins;
  std::map<std::string, HolderTally> tallies;
  Duration elapsed{0};
};
void PrintReport(const Ctl& ctl, const ChunkSource& source, const LoadReport& report);

}  // namespace ckv::ctl
