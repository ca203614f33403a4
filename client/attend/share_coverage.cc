#include "client/attend/share_coverage.h"

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

void ShareCoverage::Begin() {
  blocks_.clear();
  came_.clear();
}

void ShareCoverage::AddBlock(uint32_t share_count, uint32_t piece_count) {
  const auto begin = static_cast<uint32_t>(came_.size());
  blocks_.push_back(
      {.share_begin = begin, .share_end = begin + share_count, .piece_count = piece_count});
  came_.resize(came_.size() + share_count);
}

absl::Status ShareCoverage::Cover(uint32_t block, uint32_t share, uint32_t piece_count) {
  if (block >= blocks_.size() || share >= blocks_[block].share_end - blocks_[block].share_begin) {
    return absl::InternalError(
        absl::StrFormat("coverage: share %d of block %d is not of this call (%d blocks)", share,
                        block, blocks_.size()));
  }
  Block& covered = blocks_[block];
  if (came_[covered.share_begin + share]) {
    return absl::InternalError(
        absl::StrFormat("coverage: share %d of block %d arrived twice", share, block));
  }
  came_[covered.share_begin + share] = true;
  covered.covered += piece_count;
  return absl::OkStatus();
}

absl::Status ShareCoverage::CheckBlock(uint32_t block) const {
  const Block& checked = blocks_[block];
  for (uint32_t share = checked.share_begin; share < checked.share_end; ++share) {
    if (came_[share]) continue;
    return absl::InternalError(absl::StrFormat("coverage: block %d has no share %d yet", block,
                                               share - checked.share_begin));
  }
  if (checked.covered == checked.piece_count) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("coverage: block %d has %d of %d pieces", block,
                                             checked.covered, checked.piece_count));
}

absl::Status ShareCoverage::CheckComplete() const {
  for (uint32_t block = 0; block < blocks_.size(); ++block) CKV_RETURN_IF_ERROR(CheckBlock(block));
  return absl::OkStatus();
}

}  // namespace ckv
