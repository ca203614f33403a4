// Waits for holders after a change of a corpus that only a directory's memory has.

#pragma once

#include <span>
#include <string>

#include "client/tools/ctl/fleet.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// Waits until the holders of `chunks` have recorded a change of a corpus, if the directory has it
// in memory only. Returns a warning if they have not in time, else an empty text.
std::string AwaitKeptBy(Fleet& fleet, const std::string& corpus,
                        std::span<const ChunkPlacement> chunks);

}  // namespace ckv::ctl
