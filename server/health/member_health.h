// The health that a daemon's roles tell of themselves with each renewal of their lease.

#pragma once

#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/health/facts.h"
#include "proto/process_facts.h"
#include "server/holder/holder.h"

namespace ckv {

// The part that every role tells: its build, its clock, and its descriptors.
MemberHealth ProcessHealth();
// Takes short locks, and a look at the file system of `store_path`. Call it some times a second at
// most.
MemberHealth HealthOf(const Holder& holder, const std::string& store_path);
// Names the holders that it could not reach for kUnreachedMin or longer, if its last try was within
// kUnreachedFor.
MemberHealth HealthOf(const Requester& requester, Instant now);
inline constexpr Duration kUnreachedMin = std::chrono::seconds(3);
inline constexpr Duration kUnreachedFor = std::chrono::minutes(1);

// Returns the facts of a process that is not a directory: it tells of itself alone. `holder` may be
// null.
MemberFacts SelfFacts(const std::string& name, MemberRole role, const std::string& address,
                      MemberHealth health, bool refuses);

}  // namespace ckv
