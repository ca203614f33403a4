// Who has a chunk, as ckvctl shows it.

#pragma once

#include <optional>
#include <set>
#include <string>

#include "client/ctl/fleet.h"
#include "client/ctl/output.h"

namespace ckv::ctl {

// The registered members. Nothing if that cannot be told, as just after the directory's start.
using LiveNames = std::optional<std::set<std::string>>;
LiveNames AskLiveNames(Fleet& fleet);

// "h0,h1 (gone),+r0": '+' is a member that copied the chunk and answers for it under its lease.
// Without `live` nobody is called gone.
std::string PlacesText(const ChunkPlacement& chunk, const LiveNames& live);
// Adds "holders", "leased" and, of both, "gone" to `json`.
void AddPlaces(const ChunkPlacement& chunk, const LiveNames& live, Json& json);

}  // namespace ckv::ctl
