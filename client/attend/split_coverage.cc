#include "client/attend/split_coverage.h"

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

void SplitCoverage::Begin() {
  blocks_.clear();
  came_.clear();
}

void SplitCoverage::AddBlock(uint32_t split_count, uint32_t chunk_count) {
  const auto begin = static_cast<uint32_t>(came_.size());
  blocks_.push_back(
      {.split_begin = begin, .split_end = begin + split_count, .chunk_count = chunk_count});
  came_.resize(came_.size() + split_count);
}

absl::Status SplitCoverage::Cover(uint32_t block, uint32_t split, uint32_t chunk_count) {
  if (block >= blocks_.size() || split >= blocks_[block].split_end - blocks_[block].split_begin) {
    return absl::InternalError(
        absl::StrFormat("coverage: split %d of block %d is not of this call (%d blocks)", split,
                        block, blocks_.size()));
  }
  Block& covered = blocks_[block];
  if (came_[covered.split_begin + split]) {
    return absl::InternalError(
        absl::StrFormat("coverage: split %d of block %d arrived twice", split, block));
  }
  came_[covered.split_begin + split] = true;
  covered.covered += chunk_count;
  return absl::OkStatus();
}

absl::Status SplitCoverage::CheckBlock(uint32_t block) const {
  const Block& checked = blocks_[block];
  for (uint32_t split = checked.split_begin; split < checked.split_end; ++split) {
    if (came_[split]) continue;
    return absl::InternalError(absl::StrFormat("coverage: block %d has no split %d yet", block,
                                               split - checked.split_begin));
  }
  if (checked.covered == checked.chunk_count) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("coverage: block %d has %d of %d chunks", block,
                                             checked.covered, checked.chunk_count));
}

absl::Status SplitCoverage::CheckComplete() const {
  for (uint32_t block = 0; block < blocks_.size(); ++block) CKV_RETURN_IF_ERROR(CheckBlock(block));
  return absl::OkStatus();
}

}  // namespace ckv
