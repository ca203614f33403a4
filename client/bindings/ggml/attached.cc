#include "client/bindings/ggml/attached.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv::ggml {

std::string Attached::Key() const {
  std::string key = absl::StrFormat("%s/%s/%d-%d@", tenant, corpus, chunk_begin, chunk_end);
  key += position ? std::to_string(*position) : "end";
  if (digest) {
    key += '#';
    key += std::string_view(reinterpret_cast<const char*>(digest->data()), digest->size());
  }
  return key;
}

Attached AttachedBy(const CellReference& reference) {
  return {.corpus = reference.corpus,
          .tenant = reference.tenant,
          .digest = reference.digest,
          .chunk_begin = reference.chunk_begin,
          .chunk_end = reference.chunk_end,
          .position = static_cast<int64_t>(reference.position)};
}

void SortAttached(AttachedList& list) {
  if (list.size() < 2) return;
  const auto place = [](const Attached& attached) {
    return std::pair(attached.position.value_or(std::numeric_limits<int64_t>::min()),
                     attached.Key());
  };
  std::sort(list.begin(), list.end(),
            [&](const auto& a, const auto& b) { return place(*a) < place(*b); });
  const auto same = [](const auto& a, const auto& b) { return a == b || a->Key() == b->Key(); };
  list.erase(std::unique(list.begin(), list.end(), same), list.end());
}

}  // namespace ckv::ggml
