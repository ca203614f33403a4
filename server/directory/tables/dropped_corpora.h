// Tombstones of dropped corpora, so that a holder that was offline cannot bring one back.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/corpus_part.h"

namespace ckv {

// Not thread-safe: its owner's lock guards it.
class DroppedCorpora {
 public:
  // Beyond `count_max` tombstones, the one with the lowest number is removed.
  explicit DroppedCorpora(size_t count_max) : count_max_(count_max) {}

  // Adds the tombstone, and replaces one of an earlier version with the same folder id. Returns
  // false if a tombstone of the same or a later version is already there.
  bool Note(const DroppedCorpus& dropped);
  // Returns true if this version, placed by a directory with this folder, is known to be dropped. A
  // tombstone with the same folder id, or with 0, covers its version and all before it. One with
  // another folder id covers exactly its version, so that it still counts after a lost disk. If it
  // covered more, two fleets whose corpora share only a name would drop each other's.
  bool Covers(std::string_view tenant, std::string_view name, uint64_t folder_id,
              uint64_t version) const;
  // Returns the latest `count_max` tombstones with numbers above `number`, in the order of numbers.
  std::vector<DroppedCorpus> After(uint64_t number, size_t count_max) const;
  std::vector<DroppedCorpus> All() const { return After(0, count_max_); }
  size_t size() const { return by_number_.size(); }

 private:
  using Key = std::pair<std::string, std::string>;                         // tenant, name
  using Place = std::tuple<uint64_t, std::string, std::string, uint64_t>;  // number, ..., folder_id
  struct Known {
    uint64_t version = 0;
    uint64_t number = 0;
  };
  void ForgetOne();

  const size_t count_max_;
  std::map<Key, std::map<uint64_t, Known>> by_key_;  // inner key: folder_id
  std::map<Place, uint64_t> by_number_;              // values: versions
};

}  // namespace ckv
