// Reports the results of `ckvctl corpus load`.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/publish/chunk_puts.h"
#include "client/tools/ctl/corpus/load_source.h"
#include "client/tools/ctl/ctl.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// Counts the chunks of a load by where they were before it. Each chunk counts once, however many
// copies it has.
struct ChunkOrigins {
  uint32_t chunks_reused = 0;  // in the previous version, or on a holder from an earlier load
  uint32_t chunks_shared = 0;  // in another corpus
  uint32_t chunks_new = 0;     // none of these
};

// Returns for each chunk whether another corpus that the tenant may see has it. Chunks of
// `previous` are not looked up.
//   the directory's error.
absl::StatusOr<std::vector<bool>> FindShared(Fleet& fleet, const std::string& corpus,
                                             const ChunkSource& source, const Corpus* previous);

// `previous` is the corpus' previous version, or null; `found` as in PutReport.
ChunkOrigins CountOrigins(const ChunkSource& source, const Corpus* previous,
                          const std::vector<bool>& shared, const std::vector<bool>& found);

struct LoadReport {
  std::string corpus;
  uint64_t version = 0;
  bool dry_run = false;
  uint32_t replicas = 1;
  // If a corpus was extended: its previous number of chunks, and the number appended.
  std::optional<uint32_t> chunk_begin = {};
  uint32_t appended = 0;
  ChunkOrigins origins;
  std::map<std::string, HolderTally> tallies;
  Duration elapsed{0};
};
void PrintReport(const Ctl& ctl, const ChunkSource& source, const LoadReport& report);

}  // namespace ckv::ctl
