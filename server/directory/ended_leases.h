// The members whose leases ended lately: what a directory still tells of them.

#pragma once

#include <cstddef>
#include <deque>

#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

struct EndedLease {
  Member member;
  Instant ended;
  bool ran_out = false;  // not renewed in time; false: given back
};

// A name once, the latest first. Used under its owner's lock.
class EndedLeases {
 public:
  static constexpr size_t kCountMax = 64;

  // Forgets what was known of the member, and the oldest once there are kCountMax.
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
