#include "server/upkeep/left_chunks.h"

#include <algorithm>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/corpus.h"

namespace ckv {

void LeftChunks::AddBatch(std::vector<ChunkId> ids, uint64_t folder_id, Instant now,
                          bool is_leased) {
  if (options_.drop_after == Duration(0)) return;
  if (std::exchange(folder_id_, folder_id) != folder_id) {
    waiting_.clear();
    size_ = 0;
  }
  if (ids.size() > kCountMax - size_) {
    Log().warn(
        "{}: {} chunks are not placed here any more, and too many wait to be dropped: run "
        "ckvctl gc",
        options_.name, ids.size());
    return;
  }
  size_ += ids.size();
  for (size_t begin = 0; begin < ids.size(); begin += kIdsPerCallMax) {
    const size_t end = std::min(ids.size(), begin + kIdsPerCallMax);
    const auto at = [&](size_t index) { return ids.begin() + static_cast<ptrdiff_t>(index); };
    waiting_.push_back({now + options_.drop_after, {at(begin), at(end)}, is_leased});
  }
}

absl::StatusOr<uint64_t> LeftChunks::DropDue(uint64_t folder_id, Instant now, const Count& count,
                                             const Drop& drop) {
  if (folder_id != folder_id_) {
    waiting_.clear();
    size_ = 0;
  }
  if (now < due()) return 0;
  const std::vector<ChunkId>& ids = waiting_.front().ids;
  CKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> counts, count(ids));
  if (counts.size() != ids.size()) return absl::InvalidArgumentError("counts of other chunks");
  const Batch batch = std::move(waiting_.front());
  waiting_.pop_front();
  size_ -= batch.ids.size();
  uint64_t dropped_count = 0;
  std::vector<ChunkId> again;
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    if (counts[i] > 0) {
      if (batch.is_leased) again.push_back(batch.ids[i]);
      continue;  // placed here again
    }
    const absl::Status status = drop(batch.ids[i], options_.drop_after);
    if (status.ok()) ++dropped_count;
    if (absl::IsFailedPrecondition(status)) again.push_back(batch.ids[i]);
  }
  if (dropped_count > 0) {
    Log().info("{}: dropped {} chunks that no corpus places here any more", options_.name,
               dropped_count);
  }
  if (!again.empty()) AddBatch(std::move(again), folder_id, now, batch.is_leased);
  return dropped_count;
}

}  // namespace ckv
