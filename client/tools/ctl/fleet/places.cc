#include "client/tools/ctl/fleet/places.h"

#include <utility>

namespace ckv::ctl {
namespace {

bool IsGone(const HolderId& id, const LiveNames& live) {
  return live.has_value() && !live->contains(id.name);
}

}  // namespace

LiveNames QueryLiveNames(Fleet& fleet) {
  const absl::StatusOr<std::vector<Member>> members = fleet.Members();
  if (!members.ok()) return std::nullopt;
  std::set<std::string> names;
  for (const Member& member : *members) names.insert(member.id.name);
  return names;
}

std::string PlacesText(const ChunkPlacement& chunk, const LiveNames& live) {
  std::string text;
  const auto add = [&](const HolderId& id, const char* sign) {
    text += (text.empty() ? "" : ",") + (sign + id.name) + (IsGone(id, live) ? " (gone)" : "");
  };
  for (const HolderId& holder : chunk.holders()) add(holder, "");
  for (const HolderId& member : chunk.leased()) add(member, "+");
  return text;
}

void AddPlaces(const ChunkPlacement& chunk, const LiveNames& live, Json& json) {
  Json gone = Json::array();
  for (const auto& [key, ids] :
       {std::pair("holders", &chunk.holders()), {"leased", &chunk.leased()}}) {
    json[key] = Json::array();
    for (const HolderId& id : *ids) {
      json[key].push_back(id.name);
      if (IsGone(id, live)) gone.push_back(id.name);
    }
  }
  json["gone"] = std::move(gone);
}

}  // namespace ckv::ctl
