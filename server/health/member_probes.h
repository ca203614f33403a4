// Asks the members of a directory whether they answer on their control addresses.

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

// One server that is asked. Any answer counts. Its calls do not wait.
class MemberProbe {
 public:
  virtual ~MemberProbe() = default;
  // Begins a call, unless one is in progress.
  virtual void Ask() = 0;
  virtual uint64_t answer_count() const = 0;
};
using MakeMemberProbe = std::function<std::unique_ptr<MemberProbe>(const std::string& address)>;

// A member whose lease lives may be deaf: out of descriptors, or stuck. Its lease is renewed all
// the same, so the directory would go on giving it out.
//
// A member counts as silent only if it answered once in this life of the directory. Another one may
// be behind a firewall from here, and answer its callers. Used by one thread.
class MemberProbes {
 public:
  // `state` and `clock` must outlive it.
  MemberProbes(DirectoryState* state, Clock* clock, MakeMemberProbe make)
      : state_(*state), clock_(*clock), make_(std::move(make)) {}

  // Asks the members that are due, and tells the state who is silent. Does not wait. Call it about
  // once a second.
  void Tick();

  // Each member is asked so often, or less often in a fleet of more than kPeriod / kShare members.
  static constexpr Duration kPeriod = std::chrono::seconds(2);
  static constexpr Duration kShare = std::chrono::milliseconds(5);
  // On a host that is busy beyond measure an answer takes seconds.
  static constexpr Duration kSilentFor = std::chrono::seconds(10);

 private:
  struct Asked {
    Member member;
    std::unique_ptr<MemberProbe> probe;
    uint64_t answer_count = 0;
    Instant asked{};
    Instant answered{};  // or first asked
    bool has_answered = false;
    bool is_silent = false;
  };
  void Look(Asked& asked, Instant now, Duration period);

  DirectoryState& state_;
  Clock& clock_;
  const MakeMemberProbe make_;
  std::map<HolderId, Asked> asked_;
};

}  // namespace ckv
