#include "server/directory/tables/lease_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// 35 years of milliseconds, which fit into a Duration.
constexpr int64_t kClockAheadMax = int64_t{1} << 40;

}  // namespace

Lease* LeaseTable::Find(uint64_t lease_id) {
  const auto member = by_id_.find(lease_id);
  return member == by_id_.end() ? nullptr : FindMember(member->second);
}

Lease* LeaseTable::FindMember(const HolderId& member) {
  const auto lease = by_member_.find(member);
  return lease == by_member_.end() ? nullptr : &lease->second;
}

absl::StatusOr<const Lease*> LeaseTable::FindHolder(uint64_t lease_id, size_t id_count) const {
  if (id_count > kIdsPerCallMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d chunk ids, limit %d a call", id_count, kIdsPerCallMax));
  }
  const auto member = by_id_.find(lease_id);
  if (member == by_id_.end()) return absl::NotFoundError("no such lease: register again");
  const Lease& lease = by_member_.find(member->second)->second;
  if (lease.member.role == MemberRole::kHolder) return &lease;
  return absl::FailedPreconditionError(absl::StrFormat(
      "'%s' is no holder: requesters read rows from holders only", lease.member.id.name));
}

std::vector<Member> LeaseTable::Members() const {
  std::vector<Member> members;
  members.reserve(by_member_.size());
  for (const auto& [id, lease] : by_member_) members.push_back(lease.member);
  return members;
}

void LeaseTable::Add(Lease lease) {
  next_expiry_ = std::min(next_expiry_, lease.expires);
  by_id_.emplace(lease.id, lease.member.id);
  const HolderId member = lease.member.id;
  CKV_CHECK(by_member_.emplace(member, std::move(lease)).second);
}

void LeaseTable::Renew(Instant now, const MemberHealth* health, Lease& lease) {
  lease.expires = now + lease.ttl;
  if (health == nullptr) return;
  lease.health = *health;
  const auto ahead = static_cast<int64_t>(health->wall_clock_ms - WallClockMilliseconds());
  lease.clock_ahead = std::chrono::milliseconds(
      health->wall_clock_ms == 0 ? 0 : std::clamp(ahead, -kClockAheadMax, kClockAheadMax));
}

void LeaseTable::Remove(uint64_t lease_id) {
  const auto member = by_id_.find(lease_id);
  by_member_.erase(member->second);
  by_id_.erase(member);
}

void LeaseTable::Hold() {
  for (auto& [id, lease] : by_member_) lease.expires = kInstantMax;
  next_expiry_ = kInstantMax;
}

void LeaseTable::Restart(Instant now, absl::FunctionRef<uint64_t()> make_id) {
  by_id_.clear();
  next_expiry_ = kInstantMax;
  for (auto& [id, lease] : by_member_) {
    lease.id = make_id();
    lease.expires = now + lease.ttl;
    lease.health.reset();
    lease.silence.clear();
    next_expiry_ = std::min(next_expiry_, lease.expires);
    by_id_.emplace(lease.id, id);
  }
}

std::vector<uint64_t> LeaseTable::Expired(Instant now) {
  std::vector<uint64_t> expired;
  if (now < next_expiry_) return expired;
  next_expiry_ = kInstantMax;
  for (const auto& [id, lease] : by_member_) {
    if (now >= lease.expires) {
      expired.push_back(lease.id);
    } else {
      next_expiry_ = std::min(next_expiry_, lease.expires);
    }
  }
  return expired;
}

std::vector<EndedLease> LeaseTable::Ended(Instant now) const {
  std::vector<EndedLease> gone;
  for (const EndedLease& lease : ended_.leases()) {
    if (now - lease.ended <= kEndedAgeMax && !Has(lease.member.id)) gone.push_back(lease);
  }
  return gone;
}

void LeaseTable::NotePlacedChange(const HolderId& holder) {
  if (Lease* lease = FindMember(holder)) ++lease->placed_change_count;
}

void LeaseTable::NotePlacedChange() {
  for (auto& [id, lease] : by_member_) ++lease.placed_change_count;
}

}  // namespace ckv
