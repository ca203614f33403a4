// Waits until holders have recorded which chunks corpora place on them. A directory without a
// folder relearns its corpora from these records after a crash.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// How long a change waits for all holders together. An idle holder answers in a few milliseconds.
inline constexpr Duration kKeepTimeout = std::chrono::seconds(5);

// Returns the names of the holders on which `chunks` are placed, each once.
std::vector<HolderId> HoldersOf(std::span<const ChunkPlacement> chunks);

// Requests each of `holders` that is among `members` to record its part now, one after another,
// until kKeepTimeout or `deadline`. Skips holders without a lease: they get their part when they
// register.
//   Unavailable         some have not recorded it, or were not queried in time. Names the former
//                       with the first one's error, and counts the latter.
absl::Status AwaitKept(std::span<const HolderId> holders, std::span<const Member> members,
                       Clock& clock, Instant deadline);

// Returns the warning for a change of `corpus` that was made although `kept` is an error.
std::string NotKeptWarning(std::string_view corpus, const absl::Status& kept);

}  // namespace ckv
