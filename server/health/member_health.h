// The health that a daemon's roles report with each renewal of their lease.

#pragma once

#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/health/facts.h"
#include "proto/process_facts.h"
#include "server/holder/holder.h"

namespace ckv {

// Returns the part that every role reports: its build, wire versions, clock and file descriptors.
MemberHealth ProcessHealth();
// Returns a holder's health. Takes short locks and queries the file system of `store_path`. Call at
// most a few times per second.
MemberHealth HealthOf(const Holder& holder, const std::string& store_path);
// Returns a requester's health. It names holders whose failed attempts span kUnreachedMin or more,
// if the last attempt was at most kUnreachedFor ago.
MemberHealth HealthOf(const Requester& requester, Instant now);
inline constexpr Duration kUnreachedMin = std::chrono::seconds(3);
inline constexpr Duration kUnreachedFor = std::chrono::minutes(1);

// Returns the facts of a process that is not a directory, which reports only itself. `refuses` is
// true for a holder without a live lease.
MemberFacts SelfFacts(const std::string& name, MemberRole role, const std::string& address,
                      MemberHealth health, bool refuses);

}  // namespace ckv
