// The changes of members that are not durable yet: at most one of a member, its last.
//
//   state       from                                        until
//   waits       Note                                        Take
//   submitted   Take                                        Settle, or Note of a later change
//   refused     Settle                                      Take, once the pause after refusals is
//   over
//
// The tables have a member's change at once, unlike a corpus's. So one that the journal
// refuses must be submitted again, or other directories never hear of it.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "proto/base/clock.h"
#include "server/directory/log/change.h"

namespace ckv {

// Not thread-safe: its owner's lock guards it.
class UnsavedMembers {
 public:
  using Change = std::shared_ptr<const DirectoryChange>;

  // Adds a kMember or kMemberGone change, in place of an earlier one of the member.
  void Note(DirectoryChange change);
  // Returns the changes that wait, which are submitted from now on. Refused ones are among them
  // after a pause of kPauseMin, which doubles to kPauseMax until one is durable. A store without
  // space would refuse all of them again at once.
  std::vector<Change> Take(Instant now);
  static constexpr Duration kPauseMin = std::chrono::seconds(1),
                            kPauseMax = std::chrono::seconds(30);
  // A submitted change is durable, or was refused. Without effect if a later one took its place.
  void Settle(const DirectoryChange& change, bool is_durable, Instant now);
  bool empty() const { return unsaved_.empty(); }
  // Forgets all of them. Returns whether there was one.
  bool Clear();

 private:
  enum class State : uint8_t { kWaits, kSubmitted, kRefused };
  struct Unsaved {
    Change change;
    State state = State::kWaits;
  };
  std::map<HolderId, Unsaved> unsaved_;
  Instant again_at_;   // when refused ones are submitted again
  Duration pause_{0};  // the last one after a refusal
};

}  // namespace ckv
