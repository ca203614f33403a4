// Whether this directory leads, if it is one of several that share a state.
//
//   state       changes and leases are taken    next state
//   alone       yes                             none
//   follows     no; tables are a mirror         leads, by Lead
//   leads       while the lead surely lasts     follows, by Follow
//
// Each time that it begins to lead is a term. A change that was begun in one term is not made in
// another, because other directories may have changed the state between the two.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace ckv {

// Not thread-safe: its owner's lock guards it.
class Leadership {
 public:
  // The term of a directory that is alone.
  static constexpr uint64_t kAloneTerm = 1;

  bool is_shared() const { return is_shared_; }
  // The term, or 0 if it follows.
  uint64_t term() const { return leads_ ? term_ : 0; }
  // The address of the directory that leads; empty if none is known. Its own while it leads.
  const std::string& leader() const { return leader_; }

  // Begins to follow: at the start of a directory that is one of several, and when a lead ends.
  void Follow() {
    is_shared_ = true;
    leads_ = false;
    leader_.clear();
  }
  // `is_sure` returns whether the lead surely lasts now; it must be quick.
  void Lead(std::function<bool()> is_sure) {
    leads_ = true;
    ++term_;
    is_sure_ = std::move(is_sure);
  }
  void SetLeader(std::string address) { leader_ = std::move(address); }

  bool Leads() const { return !is_shared_ || (leads_ && is_sure_()); }
  //   Unavailable         another directory leads, or none does.
  absl::Status Check() const;

 private:
  bool is_shared_ = false;
  bool leads_ = true;
  uint64_t term_ = kAloneTerm;
  std::string leader_;
  std::function<bool()> is_sure_;
};

}  // namespace ckv
