// Drops that are remembered, for reports of holders that were away.

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
  // Beyond `count_max` drops the one with the lowest number is forgotten.
  explicit DroppedCorpora(size_t count_max) : count_max_(count_max) {}

  // Remembers the drop, in place of one of an earlier version that the same folder gave. Returns
  // false if it is known already.
  bool Note(const DroppedCorpus& dropped);
  // Whether the version, told of by a directory with this folder, is known to be dropped. A drop
  // under another folder counts for its very version only, which outlives a lost disk. Otherwise
  // the corpora of two fleets, which share nothing but a name, would drop each other.
  bool Covers(std::string_view tenant, std::string_view name, uint64_t folder_id,
              uint64_t version) const;
  // Returns the latest `count_max` drops with numbers above `number`, in the order of numbers.
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
  std::map<Key, std::map<uint64_t, Known>> by_key_;  // then by folder_id
  std::map<Place, uint64_t> by_number_;              // versions
};

}  // namespace ckv
