// Puts the chunks of `ckvctl corpus load` on holders, and publishes them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/corpus/load_source.h"
#include "client/ctl/ctl.h"
#include "client/ctl/fleet.h"
#include "client/publish/chunk_puts.h"
#include "client/publish/extension.h"
#include "proto/corpus.h"

namespace ckv::ctl {

struct LoadTarget {
  std::string name;  // the corpus; the tenant is the command's
  uint32_t replicas = 1;
  bool replace = false;  // a corpus of that name gets a new version
  bool dry_run = false;  // holders are only asked
};

struct Loaded {
  PutReport put;         // empty if a corpus had all of the chunks
  uint64_t version = 0;  // 0 in a dry run
  // If a corpus was extended: how many chunks it had before, and how many it got.
  std::optional<uint32_t> chunk_begin = {};
  uint32_t appended = 0;
};

std::vector<HolderId> HolderIdsOf(const std::vector<Member>& holders);

// Places all chunks of the source by room (client/publish/room.h).
absl::StatusOr<SourcePlacement> PlaceAll(const ChunkSource& source,
                                         const std::vector<Member>& holders, uint32_t replicas,
                                         Clock& clock);
// The chunks are all of the corpus. `holders` are the live ones.
//   the source's error, a holder's or the directory's.
absl::StatusOr<Loaded> PutAndPublish(const Ctl& ctl, const LoadTarget& target, Fleet& fleet,
                                     ChunkSource& source, const std::vector<Member>& holders);
// The chunks go behind those of `cut.extended`, as it is now. Those that it has are left out.
//   also those of NewToCorpus.
absl::StatusOr<Loaded> PutAndExtend(const Ctl& ctl, const LoadTarget& target, Fleet& fleet,
                                    ChunkSource& source, const std::vector<Member>& holders,
                                    const CutOptions& cut);

}  // namespace ckv::ctl
