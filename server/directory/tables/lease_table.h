// The members under leases, and the leases that ended.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/health/facts.h"
#include "server/directory/tables/ended_leases.h"

namespace ckv {

struct Lease {
  uint64_t id = 0;
  Member member;
  Duration ttl{0};
  Instant expires;
  uint64_t placed_change_count = 0;         // as in LeaseRenewal
  uint32_t copy_order_count = 0;            // as in LeaseRenewal
  std::optional<MemberHealth> health = {};  // unset until reported
  Duration clock_ahead{0};
  std::string silence = {};  // why the last probe failed; empty if it succeeded
};

// Not thread-safe: its owner's lock guards it. Pointers are valid until the lease is removed.
class LeaseTable {
 public:
  // The age up to which an ended lease is returned.
  static constexpr Duration kEndedAgeMax = std::chrono::hours(24);

  // Returns all leases by the ids of their members.
  const std::map<HolderId, Lease>& all() const { return by_member_; }
  bool Has(const HolderId& member) const { return by_member_.contains(member); }
  // Each returns null if there is no such lease.
  Lease* Find(uint64_t lease_id);
  Lease* FindMember(const HolderId& member);
  // Returns the lease of a holder that sends `id_count` chunk ids.
  //   InvalidArgument     these are more than kIdsPerCallMax.
  //   NotFound            there is no such lease.
  //   FailedPrecondition  it is the lease of a requester.
  absl::StatusOr<const Lease*> FindHolder(uint64_t lease_id, size_t id_count) const;
  std::vector<Member> Members() const;

  // Adds a lease of a member that has none, under an id that no lease has.
  void Add(Lease lease);
  // Renews the lease from `now` on. `health` may be null.
  static void Renew(Instant now, const MemberHealth* health, Lease& lease);
  void Remove(uint64_t lease_id);
  // From now on no lease expires: they are another directory's.
  void Hold();
  // Gives each lease another id, from `make_id`, and its whole time from `now` on.
  void Restart(Instant now, absl::FunctionRef<uint64_t()> make_id);
  // Returns the leases that have expired, in the order of names, so that a run replays (I8): lease
  // ids are random. The caller must remove them.
  std::vector<uint64_t> Expired(Instant now);

  // Records the end of a lease. `ran_out`: it was not renewed in time.
  void NoteEnded(const Member& member, Instant now, bool ran_out) {
    ended_.Add(member, now, ran_out);
  }
  // Returns the ended leases of members that have none now, the latest first.
  std::vector<EndedLease> Ended(Instant now) const;

  // Makes the holder, at its next renewal, query what is placed on it.
  void NotePlacedChange(const HolderId& holder);
  // The same for all members.
  void NotePlacedChange();

 private:
  std::map<HolderId, Lease> by_member_;
  absl::flat_hash_map<uint64_t, HolderId> by_id_;
  // No lease expires before this, so most calls check no lease.
  Instant next_expiry_ = kInstantMax;
  EndedLeases ended_;
};

}  // namespace ckv
