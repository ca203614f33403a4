// The members whose leases ended recently, which a directory still reports.

#pragma once

#include <cstddef>
#include <deque>

#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

struct EndedLease {
  Member member;
  Instant ended;
  bool ran_out = false;  // not renewed in time; if false, given back
};

// Contains each name once, the latest first. Used under its owner's lock.
class EndedLeases {
 public:
  static constexpr size_t kCountMax = 64;

  // Replaces the member's earlier entry. Once there are kCountMax entries, removes the oldest.
  void Add(const Member& member, Instant now, bool ran_out) {
    std::erase_if(leases_, [&](const EndedLease& lease) { return lease.member.id == member.id; });
    if (leases_.size() == kCountMax) leases_.pop_back();
    leases_.push_front({member, now, ran_out});
  }
  const std::deque<EndedLease>& leases() const { return leases_; }

 private:
  std::deque<EndedLease> leases_;
};

}  // namespace ckv
