#include "server/upkeep/copy_search.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

bool Names(const std::vector<HolderId>& holders, const HolderId& id) {
  return std::find(holders.begin(), holders.end(), id) != holders.end();
}

}  // namespace

absl::StatusOr<RepairSource::Restored> CopySearch::Restore(const LostChunk& lost,
                                                           Instant deadline) {
  std::vector<std::string> tenants = lost.readers;
  if (tenants.empty()) {
    CKV_ASSIGN_OR_RETURN(tenants, AllTenants(deadline));
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, ListMembers(deadline));
  absl::Status last = absl::NotFoundError("no corpus places it here");
  for (const std::string& tenant : tenants) {
    const auto places = LocateChunk(lost.id, tenant, deadline);
    if (absl::IsNotFound(places.status())) continue;
    if (!places.ok()) return places.status();
    for (const Corpus& place : *places) {
      if (place.chunks.size() != 1 || place.chunks[0].id != lost.id) continue;
      const ChunkPlacement& chunk = place.chunks[0];
      if (!Names(chunk.holders(), self_) && !Names(chunk.leased(), self_)) continue;
      const absl::Status restored = RestoreFor(place, members, deadline);
      if (restored.ok()) return Restored{place.geometry, place.tenant};
      // If several fail, keeps the error that is worth another attempt.
      if (absl::IsNotFound(last) || absl::IsFailedPrecondition(last)) last = restored;
      if (stopped()) return absl::CancelledError("repair: this holder ends");
    }
  }
  return last;
}

absl::Status CopySearch::RestoreFor(const Corpus& place, const std::vector<Member>& members,
                                    Instant deadline) {
  std::vector<HolderId> listed = place.chunks[0].holders();
  const std::vector<HolderId>& leased = place.chunks[0].leased();
  listed.insert(listed.end(), leased.begin(), leased.end());
  absl::Status last = absl::FailedPreconditionError(absl::StrFormat(
      "corpus %s places it here alone: load the corpus again, with --replicas 2", place.name));
  for (const HolderId& holder : listed) {
    if (holder == self_) continue;
    const auto member = std::find_if(members.begin(), members.end(), [&](const Member& m) {
      return m.id == holder && m.role == MemberRole::kHolder;
    });
    if (member == members.end()) {
      last = absl::UnavailableError(absl::StrFormat("holder %s is away", holder.name));
      continue;
    }
    last = CopyFrom(*member, place, deadline);
    if (last.ok() || clock_.Now() >= deadline) return last;
  }
  if (FindUnlisted(place, listed, members, deadline)) return absl::OkStatus();
  return last;
}

bool CopySearch::FindUnlisted(const Corpus& place, const std::vector<HolderId>& listed,
                              const std::vector<Member>& members, Instant deadline) {
  size_t asked = 0;
  for (const Member& member : members) {
    if (member.role != MemberRole::kHolder || member.id == self_ || Names(listed, member.id))
      continue;
    if (asked++ == kUnlistedMax || stopped() || clock_.Now() >= deadline) return false;
    if (CopyFrom(member, place, deadline).ok()) return true;
  }
  return false;
}

}  // namespace ckv
