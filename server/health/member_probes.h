// Probes whether the members of a directory answer on their control addresses.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "server/directory/directory_state.h"

namespace ckv {

// Probes one server. Any answer counts. No function blocks.
class MemberProbe {
 public:
  virtual ~MemberProbe() = default;
  // Begins a call, unless one is in progress.
  virtual void Send() = 0;
  virtual uint64_t answer_count() const = 0;
};
using MakeMemberProbe = std::function<std::unique_ptr<MemberProbe>(const std::string& address)>;

// Finds members that have a live lease but do not answer, because they are out of descriptors or
// stuck. Their leases are still renewed, so without probes the directory would continue to refer
// callers to them.
//
// A member counts as silent only if it answered this incarnation of the directory before. A member
// that never did may be behind a firewall, as seen from here, and still answer its callers. Used by
// one thread.
class MemberProbes {
 public:
  // `state` and `clock` must outlive this object.
  MemberProbes(DirectoryState* state, Clock* clock, MakeMemberProbe make)
      : state_(*state), clock_(*clock), make_(std::move(make)) {}

  // Probes the members that are due, and reports silent members to the state. Does not block. Call
  // about once per second.
  void Tick();

  // The time between two probes of a member. In a fleet of more than kPeriod / kShare members it is
  // kShare per member.
  static constexpr Duration kPeriod = std::chrono::seconds(2);
  static constexpr Duration kShare = std::chrono::milliseconds(5);
  // How long a member must not answer, in addition to that time, before it counts as silent. On an
  // overloaded host an answer takes seconds.
  static constexpr Duration kSilentFor = std::chrono::seconds(10);

 private:
  struct Asked {
    Member member;
    std::unique_ptr<MemberProbe> probe;
    uint64_t answer_count = 0;
    Instant requested{};
    Instant answered{};  // or first asked
    bool has_answered = false;
    bool is_silent = false;
  };
  void Look(Asked& requested, Instant now, Duration period);

  DirectoryState& state_;
  Clock& clock_;
  const MakeMemberProbe make_;
  std::map<HolderId, Asked> requested_;
};

}  // namespace ckv
