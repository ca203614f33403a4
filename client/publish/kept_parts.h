// Waits until holders keep what a directory in memory says of their chunks: only they know it after
// the directory is killed.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// How long an acknowledgement waits for all holders together. An idle holder takes some
// milliseconds.
inline constexpr Duration kKeepTimeout = std::chrono::seconds(5);

// Returns the names of the holders on which `chunks` are placed, each once.
std::vector<HolderId> HoldersOf(std::span<const ChunkPlacement> chunks);

// Asks each of `holders` that is among `members` to keep what the directory says now, one after
// another, until kKeepTimeout or `deadline`. The others are left out: they have no lease, and are
// told when they come back.
//   Unavailable         some do not keep it yet, or were not asked in time. Names those that do
//   not,
//                       and the first one's reason.
absl::Status AwaitKept(std::span<const HolderId> holders, std::span<const Member> members,
                       Clock& clock, Instant deadline);

// The warning of a change of `corpus` that was made while `kept` is an error.
std::string NotKeptWarning(std::string_view corpus, const absl::Status& kept);

}  // namespace ckv
