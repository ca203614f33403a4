// Formats which members have a chunk, as ckvctl shows it.

#pragma once

#include <optional>
#include <set>
#include <string>

#include "client/tools/ctl/fleet.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl {

// The registered members. Unset if unknown, for example just after the directory's start.
using LiveNames = std::optional<std::set<std::string>>;
LiveNames QueryLiveNames(Fleet& fleet);

// Returns, for example, "h0,h1 (gone),+r0". '+' marks a member that copied the chunk and serves it
// under its lease. If `live` is unset, no member is marked as gone.
std::string PlacesText(const ChunkPlacement& chunk, const LiveNames& live);
// Adds "holders", "leased" and "gone" (from both lists) to `json`.
void AddPlaces(const ChunkPlacement& chunk, const LiveNames& live, Json& json);

}  // namespace ckv::ctl
