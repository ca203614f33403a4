#include "server/directory/tables/dropped_corpora.h"

#include <algorithm>
#include <iterator>

namespace ckv {

bool DroppedCorpora::Note(const DroppedCorpus& dropped) {
  auto& of_key = by_key_[Key(dropped.tenant, dropped.name)];
  const auto [known, is_new] = of_key.try_emplace(dropped.folder_id);
  if (!is_new) {
    if (known->second.version >= dropped.version) return false;
    by_number_.erase(Place(known->second.number, dropped.tenant, dropped.name, dropped.folder_id));
  }
  known->second = {dropped.version, dropped.number};
  by_number_[Place(dropped.number, dropped.tenant, dropped.name, dropped.folder_id)] =
      dropped.version;
  if (by_number_.size() > count_max_) ForgetOne();
  return true;
}

void DroppedCorpora::ForgetOne() {
  const auto& [number, tenant, name, folder_id] = by_number_.begin()->first;
  const auto of_key = by_key_.find(Key(tenant, name));
  of_key->second.erase(folder_id);
  if (of_key->second.empty()) by_key_.erase(of_key);
  by_number_.erase(by_number_.begin());
}

bool DroppedCorpora::Covers(std::string_view tenant, std::string_view name, uint64_t folder_id,
                            uint64_t version) const {
  const auto of_key = by_key_.find(Key(tenant, name));
  if (of_key == by_key_.end()) return false;
  return std::any_of(of_key->second.begin(), of_key->second.end(), [&](const auto& known) {
    const bool same = known.first == 0 || known.first == folder_id;
    return same ? version <= known.second.version : version == known.second.version;
  });
}

std::vector<DroppedCorpus> DroppedCorpora::After(uint64_t number, size_t count_max) const {
  auto begin = by_number_.lower_bound(Place(number + 1, "", "", 0));
  const auto count = static_cast<size_t>(std::distance(begin, by_number_.end()));
  if (count > count_max) std::advance(begin, static_cast<ptrdiff_t>(count - count_max));
  std::vector<DroppedCorpus> drops;
  for (auto it = begin; it != by_number_.end(); ++it) {
    const auto& [of, tenant, name, folder_id] = it->first;
    drops.push_back({tenant, name, folder_id, it->second, of});
  }
  return drops;
}

}  // namespace ckv
