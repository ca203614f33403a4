// Puts the chunks of `ckvctl corpus load` on holders and publishes them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/publish/chunk_puts.h"
#include "client/publish/extension.h"
#include "client/tools/ctl/corpus/load_source.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/fleet.h"
#include "proto/corpus.h"

namespace ckv::ctl {

struct LoadTarget {
  std::string name;  // the corpus; the tenant is that of the command
  uint32_t replicas = 1;
  bool replace = false;      // replaces an existing corpus of that name by a new version
  bool dry_run = false;      // queries holders and changes nothing
  CorpusPolicy policy = {};  // unused if it extends a corpus
};

struct Loaded {
  PutReport put;         // empty if an extended corpus already had all chunks
  uint64_t version = 0;  // 0 in a dry run
  // If a corpus was extended: its previous number of chunks, and the number appended.
  std::optional<uint32_t> chunk_begin = {};
  uint32_t appended = 0;
};

// Returns the ids of those that are not drained.
std::vector<HolderId> UndrainedIdsOf(const std::vector<Member>& holders);

// Places all chunks of the source by free capacity (client/publish/capacity_placement.h).
absl::StatusOr<SourcePlacement> PlaceAll(const ChunkSource& source,
                                         const std::vector<Member>& holders, uint32_t replicas,
                                         Clock& clock);
// Puts and publishes a corpus that consists of all chunks of the source. `holders` are the live
// ones.
//   the source's error, a holder's or the directory's.
absl::StatusOr<Loaded> PutAndPublish(const Ctl& ctl, const LoadTarget& target, Fleet& fleet,
                                     ChunkSource& source, const std::vector<Member>& holders);
// Appends the chunks to `cut.extended`, in its current state. Chunks that it already has are
// skipped.
//   also the errors of NewToCorpus.
absl::StatusOr<Loaded> PutAndExtend(const Ctl& ctl, const LoadTarget& target, Fleet& fleet,
                                    ChunkSource& source, const std::vector<Member>& holders,
                                    const CutOptions& cut);

}  // namespace ckv::ctl
