// The changes of members that are not durable yet: at most one of a member, its last.
//
//   state       from                                        until
//   waits       Note; a refusal by Settle                   Take
//   submitted   Take                                        Settle, or Note of a later change
//
// The tables have a member's change at once, unlike a corpus's. So one that the journal
// refuses must be submitted again, or other directories never hear of it.

#pragma once

#include <map>
#include <memory>
#include <vector>

#include "server/directory/log/change.h"

namespace ckv {

// Not thread-safe: its owner's lock guards it.
class UnsavedMembers {
 public:
  using Change = std::shared_ptr<const DirectoryChange>;

  // Adds a kMember or kMemberGone change, in place of an earlier one of the member.
  void Note(DirectoryChange change);
  // Returns the changes that wait, which are submitted from now on.
  std::vector<Change> Take();
  // A submitted change is durable, or was refused. Without effect if a later one took its place.
  void Settle(const DirectoryChange& change, bool is_durable);
  // Forgets all of them. Returns whether there was one.
  bool Clear();

 private:
  struct Unsaved {
    Change change;
    bool is_submitted = false;
  };
  std::map<HolderId, Unsaved> unsaved_;
};

}  // namespace ckv
