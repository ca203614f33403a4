#include "client/context/context_cache.h"

#include <algorithm>

#include "proto/base/status.h"

namespace ckv {
namespace {

bool Same(std::span<const ChunkUse> a, std::span<const ChunkUse> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const ChunkUse& one, const ChunkUse& other) {
                      return one.ordinal == other.ordinal && one.offset == other.offset;
                    });
}

}  // namespace

absl::StatusOr<const ContextState*> ContextCache::For(const std::shared_ptr<const Corpus>& corpus,
                                                      std::span<const ChunkUse> chunks) {
  ++use_count_;
  for (Entry& entry : entries_) {
    if (entry.state->corpora()[0] != corpus || !Same(entry.chunks, chunks)) continue;
    entry.last_use = use_count_;
    return entry.state.get();
  }
  const ContextPart part = {corpus, chunks};
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<ContextState> state, ContextState::Make({&part, 1}));
  Entry entry = {std::move(state), {chunks.begin(), chunks.end()}, use_count_};
  if (entries_.size() < kContextCountMax) {
    entries_.push_back(std::move(entry));
    return entries_.back().state.get();
  }
  const auto oldest =
      std::min_element(entries_.begin(), entries_.end(),
                       [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
  *oldest = std::move(entry);
  return oldest->state.get();
}

}  // namespace ckv
